"""Files that only ever grow, and that a run which was killed goes on with."""

import os
from contextlib import suppress
from pathlib import Path

import xxhash

# Bytes that are read at once.
CHUNK = 2**20


class AppendedFile:
    """A file at `path` that grows by whole pieces: a new one, or, with `resume`, the one that a `state_dict` was taken
    of.

    Of that one what comes after is cut away. Raises ValueError when the file doesn't begin with what it held then.
    """

    def __init__(self, path, resume=None):
        self.path, self.size, self.hasher = Path(path), 0, xxhash.xxh3_128()
        if resume is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "w+b", buffering=0)  # noqa: SIM115, kept open
            return
        try:
            self.file = open(path, "r+b", buffering=0)  # noqa: SIM115, kept open
        except OSError as error:
            raise ValueError(f"{path}: can't be gone on with: {error.strerror}") from error
        try:
            self._go_on(resume)
        except BaseException:
            self.close()
            raise

    def _go_on(self, resume):
        if (
            not isinstance(resume, dict)
            or resume.keys() != {"bytes", "digest"}
            or type(resume["bytes"]) is not int
            or resume["bytes"] < 0
        ):
            raise ValueError(f"{self.path}: found no size and digest to go on from")
        self.size = resume["bytes"]
        for chunk in self._chunks():
            self.hasher.update(chunk)
        if self.hasher.hexdigest() != resume["digest"]:
            raise ValueError(f"{self.path}: found other bytes than those that were written")
        self.file.truncate(self.size)
        self.file.seek(self.size)

    def append(self, content):
        """Write `content` at the end in one piece. Raises OSError when not all of it can be written; then no part of it
        stays.
        """
        written = 0
        try:
            while written < len(content):
                # A full disk takes a part, and says so only of the rest.
                written += self.file.write(content[written:])
        except OSError as error:
            with suppress(OSError):
                self.file.truncate(self.size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.size += len(content)
        self.hasher.update(content)

    def contents(self):
        """Yield what was appended, from the beginning on, in pieces. It is read from the file that was opened, whatever
        its name is by now.

        Raises ValueError, after the last piece, when somebody else has changed it.
        """
        found = xxhash.xxh3_128()
        for chunk in self._chunks():
            found.update(chunk)
            yield chunk
        if found.digest() != self.hasher.digest():
            raise ValueError(f"{self.path}: found other bytes than those that were written")

    def _chunks(self):
        for begin in range(0, self.size, CHUNK):
            wanted = min(CHUNK, self.size - begin)
            try:
                chunk = os.pread(self.file.fileno(), wanted, begin)
            except OSError as error:
                raise ValueError(f"{self.path}: can't be read: {error.strerror}") from error
            if len(chunk) < wanted:
                raise ValueError(f"{self.path}: found fewer bytes than the {self.size} that were written")
            yield chunk

    def state_dict(self):
        """Return how many bytes were appended and a digest of them, once they are on the disk."""
        os.fsync(self.file.fileno())
        return {"bytes": self.size, "digest": self.hasher.hexdigest()}

    def close(self):
        self.file.close()
