"""Which files the corpus is made of."""

from importlib.metadata import distribution
from pathlib import Path

from exact_resume.errors import LabError

# A pure-Python wheel: the same bytes on every platform.
DEFAULT_PACKAGE = "snakemake"


def corpus_files(corpus):
    """Return the Paths of the corpus' files, in the order in which they are read.

    `corpus` is a text file, or a folder, of which all files count in the order of their names but those with a leading
    dot in the name, or None for the Python files that the wheel of DEFAULT_PACKAGE lists. Raises LabError when there is
    no such file or folder.
    """
    if corpus is None:
        package = distribution(DEFAULT_PACKAGE)
        return [
            Path(package.locate_file(name))
            for name in sorted(file.as_posix() for file in package.files if file.suffix == ".py")
        ]
    corpus = Path(corpus)
    if corpus.is_file():
        return [corpus]
    if not corpus.is_dir():
        raise LabError(f"{corpus}: no such file or folder, wanted a corpus of text")
    names = sorted(path.relative_to(corpus).as_posix() for path in corpus.rglob("*") if path.is_file())
    return [corpus / name for name in names if not any(part.startswith(".") for part in name.split("/"))]
