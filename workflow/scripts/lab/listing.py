"""What a file, or a folder with all that is below it, holds."""

import os
from pathlib import Path


def listing(path):
    """Return the sizes in bytes of the file `path`, or of all files below the folder `path`, by their Paths; of none if it isn't there."""
    sizes = {}
    # Of a folder that goes away meanwhile os.walk says nothing.
    below = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    for file in [Path(path), *sorted(below)]:
        try:
            if file.is_file():
                sizes[file] = file.stat().st_size
        except OSError:
            # A temporary file that its writer renamed meanwhile, or a link that leads nowhere.
            continue
    return sizes


def shape(path):
    """Return the sizes of a listing by the paths below `path`."""
    return {file.relative_to(path): size for file, size in listing(path).items()}


def size(path):
    """Return how many bytes all of that is."""
    return sum(listing(path).values())
