"""A run's own rolling resume file, with which it goes on after it was killed."""

import hashlib
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from exact_resume.checkpoint import archive, atomic
from exact_resume.errors import LabError


class Progress:
    """The progress of the run that writes `output`, kept in the file `output` + ".progress" until the run has ended.

    `identity` maps words for what the run depends on, such as "data", to digests of it: progress made with another
    identity is not continued. With it the file holds what it was given, of which `checkpoint.load` has to accept
    everything. `kinds` are those of the files that may be kept beside it, each at `beside(kind)`.
    """

    def __init__(self, output, identity, kinds):
        self.path = Path(f"{output}.progress")
        self.identity, self.kinds = identity, kinds

    def beside(self, kind):
        """Return the path of the file of this kind that is kept beside the progress."""
        return self.path.with_name(f"{self.path.name}.{kind}")

    @contextmanager
    def held(self):
        """While the block runs, no other process that calls this for the same output is in its block, where the file
        system has locks.

        When it fails and left no progress to go on from, the files beside it are removed too. Raises LabError when
        another one is.
        """
        with atomic.alone(self.beside("lock")):
            try:
                yield
            except BaseException:
                if not self._kept():
                    self.discard()
                raise

    def continued(self, restore):
        """Return `restore(state)` of what was saved last, or else before, or None when there is none, or nothing that
        can be continued.

        `restore` raises LabError when it can't continue from `state`. What is wrong is said on standard error in one
        line, and if nothing can be continued, everything is removed.
        """
        if self._kept():
            try:
                return archive.load_newest(self.path, lambda saved, path: restore(self._state(saved, path)))
            except LabError as error:
                print(f"{error}; discarded, the run begins anew", file=sys.stderr)
        self.discard()
        return None

    def _state(self, saved, path):
        """Return the state in `saved`, read from `path`. Raises LabError unless that is progress of this run."""
        if type(saved) is not dict or saved.keys() != {"identity", "state"} or type(saved["identity"]) is not dict:
            raise LabError(f"{path}: not a progress file")
        other = [name for name, value in self.identity.items() if saved["identity"].get(name) != value]
        if other:
            raise LabError(f"{path}: made with other {' and '.join(other)}")
        return saved["state"]

    def _kept(self):
        return any(os.path.lexists(path) for path in (self.path, atomic.previous(self.path)))

    def save(self, state):
        """Write the progress; what was saved before it stays, for the case that the new file gets damaged."""
        archive.save(self.path, {"identity": self.identity, "state": state}, keep_previous=True)

    def discard(self):
        """Remove the file, the one before it, what a save that was killed left beside them, and the files that the run
        kept.
        """
        for path in self.paths():
            atomic.remove(path)

    def paths(self):
        """Return the paths of all files that may be kept, but for the lock."""
        return [self.path, atomic.previous(self.path), self.beside("tmp"), *map(self.beside, self.kinds)]


def digest(*contents):
    """Return the SHA-256 of the contents, each bytes, text or the Path of a file."""
    return hashlib.sha256(b"".join(map(_digest_of_one, contents))).hexdigest()


def _digest_of_one(content):
    if isinstance(content, Path):
        with open(content, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).digest()


@contextmanager
def stop_requests():
    """While the block runs, SIGTERM and SIGINT end nothing but are put into the list that is yielded."""
    received = []
    handlers = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
