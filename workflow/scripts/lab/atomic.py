"""Files that are written whole or not at all, and stay so when the process, or the machine's power, fails."""

import fcntl
import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError

# A file is synced in the background each time that so many bytes more were written, so that little is left to wait for in the end.
SYNC_BYTES = 32 * 2**20


@contextmanager
def replacing(path, keep_previous=False):
    """Yield a binary file that becomes `path` when the block ends.

    The bytes go to `path` + ".tmp" in the same folder, are flushed and synced, and only then renamed; then the folder is synced, so
    that the new name outlasts a power failure too. `path` never holds a part of a file. If the block fails, the temporary file is
    removed and `path` stays as it was. Processes that write to one path at the same time wait for each other. With `keep_previous`
    what `path` was before stays beside it, as `previous(path)`.

    Raises LabError when the file can't be written.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        _make_folder(path.parent)
        with io.BufferedWriter(_SyncedFile(_open_alone(temporary))) as file:
            try:
                yield file
                file.flush()
                file.raw.sync()
                if keep_previous and path.exists():
                    _keep(path)
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        _sync_folder(path.parent)
    except OSError as error:
        raise LabError(f"{path}: can't be written: {error.strerror or error}") from error


def write_text(path, text):
    """Write `text` to `path` as UTF-8 with Unix line ends, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


def previous(path):
    """Return the path where the file that `path` was before is kept."""
    path = Path(path)
    return path.with_name(path.name + ".previous")


def _make_folder(folder):
    """Make `folder` and those above it where they are missing, so that they outlast a power failure too."""
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    for part in reversed(missing):
        part.mkdir(exist_ok=True)
        _sync_folder(part.parent)


def _keep(path):
    """Give the file at `path` its second name, by which it stays when another one is renamed to `path`."""
    previous(path).unlink(missing_ok=True)
    try:
        os.link(path, previous(path))
    except OSError:
        # Not every file system has hard links. For a moment `path` is missing; what was there is whole under the other name.
        os.replace(path, previous(path))


def _open_alone(path):
    """Return a descriptor of the emptied file `path` that no other process has open here.

    A process that had to wait holds a file that the other one has renamed meanwhile, so it tries again.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor, path):
    """Whether the open file `descriptor` is the one that `path` names now; the file there may go away at any moment."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


class _SyncedFile(io.FileIO):
    """A raw file for writing that is sent to the disk as it grows."""

    def __init__(self, descriptor):
        super().__init__(descriptor, "wb")
        self.unsynced, self.worker, self.syncing = 0, ThreadPoolExecutor(1), None

    def write(self, content):
        written = super().write(content)
        self.unsynced += written
        if self.unsynced >= SYNC_BYTES and (self.syncing is None or self.syncing.done()):
            self._raise_failure()
            self.unsynced, self.syncing = 0, self.worker.submit(os.fsync, self.fileno())
        return written

    def sync(self):
        """Return when all that was written is on the disk. Raises OSError when it can't be."""
        self._raise_failure()
        os.fsync(self.fileno())

    def close(self):
        self.worker.shutdown()
        super().close()

    def _raise_failure(self):
        # The system tells of a failed write-back once; the sync that follows would find nothing wrong.
        if self.syncing:
            self.syncing.result()


def _sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
