"""Files that are written whole or not at all, and stay so when the process, or the machine's power, fails."""

import errno
import fcntl
import io
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from exact_resume.errors import LabError

# A file is synced in the background each time that so many bytes more were written, so that little is left to wait for
# in the end.
SYNC_BYTES = 32 * 2**20
# What a file system says that has no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def replacing(path, keep_previous=False):
    """Yield a binary file that becomes `path` when the block ends.

    The bytes go to `path` + ".tmp" in the same folder, are flushed and synced, and only then renamed; then the folder
    is synced, so that the new name outlasts a power failure too. `path` never holds a part of a file. If the block
    fails, the temporary file is removed and `path` stays as it was. Processes that write to one path at the same time
    wait for each other. With `keep_previous` what `path` was before stays beside it, as `previous(path)`.

    Raises LabError when the file can't be written.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise LabError(f"{path}: found what is no file (a folder, device or pipe), wanted a file to write")
    try:
        _make_folder(path.parent)
        descriptor, temporary = _open_alone(path)
        with io.BufferedWriter(_SyncedFile(descriptor)) as file:
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
        # Not every file system has hard links. For a moment `path` is missing; what was there is whole under the other
        # name.
        os.replace(path, previous(path))


def remove(path):
    """Remove what is at `path`, if anything is. A folder that isn't empty, which the lab didn't make, is moved aside
    instead.

    Raises LabError when it can't be removed.
    """
    path = Path(path)
    try:
        if path.is_dir() and not path.is_symlink():
            _remove_folder(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise LabError(f"{path}: can't be removed: {error.strerror or error}") from error


def _remove_folder(path):
    if not any(path.iterdir()):
        path.rmdir()
        return
    asides = (path.with_name(f"{path.name}.aside{number or ''}") for number in count())
    path.rename(next(aside for aside in asides if not os.path.lexists(aside)))


@contextmanager
def alone(path):
    """Hold the lock file `path` while the block runs, so that of all processes that call this just one is in its block.

    The system lets go of the lock when the process ends, however it does. Where the file system has no locks, as some
    network ones, nothing is held and nobody kept out. Raises LabError when another process holds it.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise LabError(f"{path}: found what is no file (a folder, device or pipe), wanted a file to write")
    try:
        _make_folder(path.parent)
        descriptor = _open_locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LabError(f"{path}: held by another process that writes the same output, wanted none") from error
    except OSError as error:
        raise LabError(f"{path}: can't be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _open_alone(path):
    """Return a descriptor of the emptied temporary file for `path`, which no other process has open, and its path."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = _open_locked(temporary, fcntl.LOCK_EX)
    if descriptor is None:
        # Without locks each process has a name of its own.
        temporary = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666)
    os.ftruncate(descriptor, 0)
    return descriptor, temporary


def _open_locked(path, operation):
    """Return a descriptor of the file `path`, made where it is missing, with the lock `operation` on it; None where
    there are no locks.

    A process that had to wait holds a file that the other one has renamed or removed meanwhile, so it tries again.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, operation)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in NO_LOCKS:
                path.unlink(missing_ok=True)
                return None
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
