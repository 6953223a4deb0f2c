"""What a file, or a folder with all that is below it, holds."""

from pathlib import Path


def listing(path):
    """Return the sizes in bytes of the file `path`, or of all files below the folder `path`, by their Paths; of none if it isn't there."""
    path = Path(path)
    sizes = {}
    for file in [path, *path.rglob("*")]:
        try:
            if file.is_file():
                sizes[file] = file.stat().st_size
        except FileNotFoundError:
            # A temporary file that its writer renamed meanwhile.
            continue
    return sizes


def size(path):
    """Return how many bytes all of that is."""
    return sum(listing(path).values())
