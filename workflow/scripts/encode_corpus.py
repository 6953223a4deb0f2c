"""Turn text into token files: the UTF-8 bytes of a file or folder, the last part kept for validation."""

import argparse

import numpy as np

import command_line
from exact_resume.errors import LabError
from exact_resume.lab import token_file
from exact_resume.lab.corpus import corpus_files


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--corpus", help="text file or folder (default: the Python source of the installed snakemake package)"
    )
    parser.add_argument(
        "--validation",
        type=float,
        default=0.1,
        help="share of the text, at its end, for validation (default: %(default)s)",
    )
    parser.add_argument("--train", required=True, help="token file to write: uint8, 1-D")
    parser.add_argument("--val", required=True, help="token file to write for validation")
    args = parser.parse_args()
    if not 0 < args.validation < 1:
        raise LabError(f"--validation: found {args.validation}, wanted a share between 0 and 1")

    tokens = np.frombuffer(b"".join(utf8(path) for path in corpus_files(args.corpus)), dtype=np.uint8)
    if not len(tokens):
        raise LabError(f"{args.corpus}: the corpus is empty, wanted text")
    cut = len(tokens) - round(len(tokens) * args.validation)
    if not 0 < cut < len(tokens):
        raise LabError(f"{args.corpus}: found {len(tokens)} bytes, wanted enough for training and for validation")
    for path, part in ((args.train, tokens[:cut]), (args.val, tokens[cut:])):
        token_file.save(path, part)


def utf8(path):
    """Return the bytes of the text file `path`. Raises LabError when they are not UTF-8."""
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LabError(f"{path}: found a byte that is not UTF-8 at {error.start}, wanted text") from error
    return content


if __name__ == "__main__":
    command_line.run(main)
