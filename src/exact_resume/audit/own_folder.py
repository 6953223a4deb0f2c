"""A folder in which foreign programs write. Nothing outside it is ever read, listed, written or removed, whatever links
they put there.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from exact_resume.errors import LabError

# Says that a folder may be emptied.
MARK = ".exact-resume"
# A text that somebody else wrote isn't read when it is larger than so many bytes.
LONGEST_TEXT = 2**30


class LeadsOut(LabError):
    """A link that leads out of the folder."""


class OwnFolder:
    """The folder `path`, whose parents may be links. Paths of methods are relative to it.

    All methods raise LabError when the folder is not the one any more that was made here.
    """

    def __init__(self, path):
        self.path = Path(path).absolute()
        self.root, self.identity = None, None

    def make(self):
        """Make the folder, empty; what a former one held goes away. Raises LabError where it holds files that aren't
        those of one.
        """
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise LabError(f"{self.path}: found a link or a file, wanted a folder, or nothing")
        self.path.mkdir(parents=True, exist_ok=True)
        found = os.listdir(self.path)
        if found and MARK not in found:
            raise LabError(
                f"{self.path}: found files of somebody else's, wanted an empty folder, or one that was made here before"
            )
        try:
            for name in found:
                if name != MARK:
                    _remove(self.path / name)
        except (OSError, RecursionError) as error:
            raise LabError(f"{self.path}: can't be emptied: {error}") from error
        if not found:
            (self.path / MARK).touch(exist_ok=False)
        self.root, self.identity = Path(os.path.realpath(self.path)), self._look()

    def folder(self, name):
        """Make the folder `name`, empty, and return its path."""
        self._check()
        _remove(self.path / name)
        (self.path / name).mkdir()
        return self.path / name

    def create(self, name):
        """Return the new file `name`, opened for writing bytes."""
        self._check_parents(name)
        return open(os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb")

    def real(self, name):
        """Return the path of the file or folder that `name` is or, by links that stay inside, leads to; None if there
        is nothing.

        Raises LeadsOut when it leads out of the folder.
        """
        self._check()
        try:
            path = Path(os.path.realpath(self.path / name, strict=True))
        except OSError:
            # Nothing, or a link that leads nowhere or round in a circle.
            return None
        if not path.is_relative_to(self.root):
            raise LeadsOut(
                f"{self.path / name}: found a link that leads out of the audit's own folder, wanted one "
                "that stays inside"
            )
        return path

    def text(self, name):
        """Return where the plain file `name` is to be read. Raises LabError unless it is one, inside, of at most a
        GiB.
        """
        path = self.real(name)
        if path is None:
            raise LabError(f"{self.path / name}: no such file")
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise LabError(f"{self.path / name}: found something else than a file, wanted one to read")
        if found.st_size > LONGEST_TEXT:
            raise LabError(f"{self.path / name}: found {found.st_size} bytes, wanted at most {LONGEST_TEXT} of text")
        return path

    def holds(self, name):
        """Whether there is anything under `name`. Of a link that leads out of the folder nobody looks where it
        leads.
        """
        try:
            return self.real(name) is not None
        except LeadsOut:
            return True

    def listing(self, name):
        """Return the sizes in bytes of the file `name`, or of all files below the folder `name`, by their paths
        relative to it; {} if there is nothing.

        Links are followed that stay inside; one that leads out counts as a file of no bytes.
        """
        sizes, todo, seen = {}, [(self.path / name, Path())], set()
        while todo:
            path, below = todo.pop()
            # Files may come and go meanwhile.
            with suppress(OSError):
                real = os.path.realpath(path, strict=True)
                if not Path(real).is_relative_to(self.root):
                    sizes[below] = 0
                    continue
                found = os.lstat(real)
                if stat.S_ISREG(found.st_mode):
                    sizes[below] = found.st_size
                elif stat.S_ISDIR(found.st_mode) and real not in seen:
                    seen.add(real)
                    todo += [(Path(real, entry), below / entry) for entry in os.listdir(real)]
        return dict(sorted(sizes.items()))

    def size(self, name):
        """Return how many bytes all of that is."""
        return sum(self.listing(name).values())

    def clean(self, kept, prefixes):
        """Remove from each of the folders in this one what has a name that begins with one of `prefixes`, unless that
        is one of `kept`, and what links of such names lead to in the same folder.
        """
        self._check()
        for folder in sorted(os.scandir(self.path), key=lambda entry: entry.name):
            if not folder.is_dir(follow_symlinks=False):
                continue
            names = [
                name for name in sorted(os.listdir(folder)) if name.startswith(tuple(prefixes)) and name not in kept
            ]
            beside = Path(os.path.realpath(folder))
            targets = [Path(os.path.realpath(beside / name)) for name in names if os.path.islink(beside / name)]
            below = [
                target
                for target in targets
                if beside in target.parents and target.relative_to(beside).parts[0] not in kept
            ]
            for path in [*(beside / name for name in names), *below]:
                _remove(path)

    def remove(self, name):
        """Remove the file, folder or link `name`."""
        self._check_parents(name)
        _remove(self.path / name)

    def shown(self, text):
        """Return `text` with the paths in it as they are below this folder, so that it is the same wherever that
        lies.
        """
        return text.replace(f"{self.path}/", "").replace(f"{self.root}/", "")

    def _look(self):
        found = os.lstat(self.path)
        return found.st_dev, found.st_ino, stat.S_ISDIR(found.st_mode)

    def _check(self):
        with suppress(OSError):
            if self._look() == self.identity:
                return
        raise LabError(
            f"{self.path}: found something else than the folder that was made here before, wanted it to stay"
        )

    def _check_parents(self, name):
        self._check()
        parent = (self.path / name).parent
        if Path(os.path.realpath(parent)) != self.root / parent.relative_to(self.path):
            raise LabError(f"{parent}: found a link, wanted the folder that was made here before")


def _remove(path):
    """Remove the file, the link or the folder with all that is in it, which may be read-only, at `path`, if there is
    one.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    path.chmod(0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            if not os.path.islink(os.path.join(folder, name)):
                os.chmod(os.path.join(folder, name), 0o700)
    shutil.rmtree(path)
