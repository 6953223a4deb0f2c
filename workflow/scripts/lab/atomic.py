"""Files that are written whole or not at all."""

import os
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError


@contextmanager
def replacing(path, mode="wb", **open_arguments):
    """Yield an open file that becomes `path` when the block ends.

    The bytes go to `path` + ".tmp" in the same folder, are flushed and synced, and only then renamed, so that `path` never
    holds a part of a file. If the block fails, the temporary file is removed and `path` stays as it was.

    Raises LabError when the file can't be written.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, mode, **open_arguments) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise LabError(f"{path}: can't be written: {error.strerror or error}") from error
    finally:
        # Gone already after a successful rename; left over after any failure, Ctrl-C included.
        if temporary.is_file():
            temporary.unlink()


def write_text(path, text):
    """Write `text` to `path` as UTF-8 with Unix line ends, whole or not at all."""
    with replacing(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
