"""Files that are written whole or not at all, and stay so when the process, or the machine's power, fails."""

import fcntl
import os
import threading
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError

# Seconds between two syncs of a file that is being written.
SYNC_EVERY = 0.05


@contextmanager
def replacing(path, mode="wb", **open_arguments):
    """Yield an open file that becomes `path` when the block ends.

    The bytes go to `path` + ".tmp" in the same folder, are flushed and synced, and only then renamed; then the folder is synced, so
    that the new name outlasts a power failure too. `path` never holds a part of a file. If the block fails, the temporary file is
    removed and `path` stays as it was. Processes that write to one path at the same time wait for each other.

    Raises LabError when the file can't be written.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(_open_alone(temporary), mode, **open_arguments) as file:
            try:
                with _syncing(file.fileno()):
                    yield file
                    file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        _sync_folder(path.parent)
    except OSError as error:
        raise LabError(f"{path}: can't be written: {error.strerror or error}") from error


def write_text(path, text):
    """Write `text` to `path` as UTF-8 with Unix line ends, whole or not at all."""
    with replacing(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _open_alone(path):
    """Return a descriptor of the emptied file `path` that no other process has open here.

    A process that had to wait holds a file that the other one has renamed meanwhile, so it tries again.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                os.ftruncate(descriptor, 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def _syncing(descriptor):
    """While the block runs, send what is written to the disk, so that little is left to wait for in the end.

    Raises OSError when that fails.
    """
    done, failed = threading.Event(), []

    def sync():
        try:
            while not done.wait(SYNC_EVERY):
                os.fsync(descriptor)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=sync)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    # The system tells of a failed write-back once; the fsync that follows would find nothing wrong.
    if failed:
        raise failed[0]


def _sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
