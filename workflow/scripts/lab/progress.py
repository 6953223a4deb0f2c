"""A run's own rolling resume file, with which it goes on after it was killed."""

import hashlib
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from lab import atomic, checkpoint
from lab.errors import LabError


class Progress:
    """The progress of the run that writes `output`, kept in the file `output` + ".progress" until the run has ended.

    `identity` maps words for what the run depends on, such as "data", to digests of it: progress made with another identity is not
    continued. With it the file holds what it was given, of which torch.load(weights_only=True) has to accept everything.
    """

    def __init__(self, output, identity):
        self.path = Path(f"{output}.progress")
        self.identity = identity

    def load(self):
        """Return what was saved last, or None. What can't be continued is removed, and why is said on standard error in one line."""
        if not any(path.exists() for path in (self.path, atomic.previous(self.path))):
            return None
        try:
            saved = checkpoint.load_newest(self.path)
            if not isinstance(saved, dict) or saved.keys() != {"identity", "state"}:
                raise LabError(f"{self.path}: not a progress file")
        except LabError as error:
            print(f"{error}; discarded, the run begins anew", file=sys.stderr)
            self.discard()
            return None
        other = [name for name, value in self.identity.items() if saved["identity"].get(name) != value]
        if other:
            print(f"{self.path}: made with other {' and '.join(other)}; discarded, the run begins anew", file=sys.stderr)
            self.discard()
            return None
        return saved["state"]

    def save(self, state):
        """Write the progress; what was saved before it stays, for the case that the new file gets damaged."""
        checkpoint.save(self.path, {"identity": self.identity, "state": state}, keep_previous=True)

    def discard(self):
        """Remove the file, the one before it, and what a save that was killed left beside them."""
        for path in (self.path, atomic.previous(self.path), self.path.with_name(self.path.name + ".tmp")):
            path.unlink(missing_ok=True)


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
    handlers = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
