"""What a file system may hold after the power failed during a save, enumerated from the save's system calls.

The rules, which are those of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014), stand here
alone:

1. The power may fail after any call, before the first one too.
2. What a file held when it was last synced (fsync, fdatasync) is safe until the file is written or truncated again. Of
   what was done to it since, nothing may have happened; or all; or all but for the data from any block of 4 KiB on,
   which is missing, so that the file ends there, or reads as zeros; or all but for any one block, which reads as zeros.
3. Names (a file created, renamed, linked, unlinked) are safe when their folder was synced since. Of the others any may
   have happened and any not, whatever had been done to the data by then.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from exact_resume.errors import LabError

BLOCK = 4096
OPENING = {"open", "openat"}
WRITING = {"write", "writev"}
SYNCING = {"fsync", "fdatasync"}
RENAMING = {"rename", "renameat", "renameat2"}
LINKING = {"link", "linkat"}
UNLINKING = {"unlink", "unlinkat"}
# Calls that change nothing that a power failure could undo.
HARMLESS = {"close", "stat", "fstat", "newfstatat", "statx", "lseek", "flock", "fcntl", "ioctl", "access", "faccessat2"}
TRUNCATING = {"ftruncate"}
KNOWN = OPENING | WRITING | SYNCING | RENAMING | LINKING | UNLINKING | TRUNCATING | HARMLESS


@dataclass(eq=False)
class File:
    """What a file holds now, what it held when it was last synced, and the lowest offset that was changed since (None:
    nothing was).
    """

    now: bytes
    synced: bytes
    changed_from: int | None = None

    def change(self, offset, now):
        """Let the file hold `now`, of which the bytes from `offset` on are new."""
        self.changed_from = offset if self.changed_from is None else min(offset, self.changed_from)
        self.now = now

    def sync(self):
        self.synced, self.changed_from = self.now, None

    def possible(self):
        """Return what rule 2 lets be on the disk, a list of bytes."""
        if self.changed_from is None:
            return [self.synced]
        size = len(self.now)
        found = [self.synced, self.now]
        for block in range(self.changed_from // BLOCK * BLOCK, size, BLOCK):
            begin, end = max(block, self.changed_from), min(block + BLOCK, size)
            cut = self.now[:begin]
            found += [cut, cut.ljust(size, b"\0"), cut.ljust(end, b"\0") + self.now[end:]]
        return found


def states(calls, before, after):
    """Yield what a folder may hold when the power fails during `calls`: (number of calls that were done, dict from name
    to content).

    `calls` are a save's calls on the folder and the files in it, as system_calls records them; `before` and `after`
    map the names there to contents before and after the save. Raises LabError when the calls are others than the rules
    know, or don't lead to `after`.
    """
    # Strace records sizes; the bytes are known from what the files hold in the end.
    sizes = Folder(before, {})
    for call in calls:
        sizes.apply(call)
    if {name: len(file.now) for name, file in sizes.names.items()} != {
        name: len(content) for name, content in after.items()
    }:
        raise LabError(f"{', '.join(sorted(after))}: found other sizes after the save than its recorded calls lead to")
    folder = Folder(before, {sizes.files.index(file): after[name] for name, file in sizes.names.items()})
    for done in range(len(calls) + 1):
        if done:
            folder.apply(calls[done - 1])
        for state in folder.possible():
            yield done, state


class Folder:
    """The files of a folder, in the order of their creation, and their names. `written` maps a file's number to the
    bytes that the calls write to it; of others only the number of bytes is followed.
    """

    def __init__(self, before, written):
        self.names = {name: File(content, content) for name, content in sorted(before.items())}
        self.files, self.written = list(self.names.values()), written
        self.safe_names, self.unsafe_changes = dict(self.names), []

    def possible(self):
        """Yield what rules 2 and 3 let be on the disk now, dicts from name to content."""
        for happened in product([False, True], repeat=len(self.unsafe_changes)):
            names = dict(self.safe_names)
            for change, did in zip(self.unsafe_changes, happened):
                if did:
                    change(names)
            for contents in product(*(file.possible() for file in names.values())):
                yield dict(zip(names, contents))

    def apply(self, call):
        """Do what the call did. Raises LabError for one that the rules don't know."""
        if call.result < 0 or call.name in HARMLESS:
            return
        if call.name not in KNOWN:
            raise LabError(f"system call {call.name}({call.arguments}): unknown to the rules of power loss")
        if call.name in OPENING:
            self._open(Path(call.texts[0]).name, call.arguments)
        elif call.name in RENAMING | LINKING | UNLINKING:
            self._change_names(call)
        else:
            self._change_data(call)

    def _open(self, name, flags):
        if "O_CREAT" in flags and name not in self.names:
            file = File(b"", b"", changed_from=0)
            self.files.append(file)
            self._change(lambda names: names.update({name: file}))
        elif "O_TRUNC" in flags:
            self.names[name].change(0, b"")

    def _change_names(self, call):
        old, *new = [Path(text).name for text in call.texts]
        file = self.names[old]

        def change(names):
            if call.name not in LINKING:
                names.pop(old, None)
            names.update(dict.fromkeys(new, file))

        self._change(change)

    def _change(self, change):
        change(self.names)
        self.unsafe_changes.append(change)

    def _change_data(self, call):
        name = Path(call.descriptors[0]).name
        if name not in self.names:
            # The folder itself: all that can be done to it is a sync.
            self.safe_names, self.unsafe_changes = dict(self.names), []
            return
        file = self.names[name]
        end = len(file.now)
        if call.name in SYNCING:
            file.sync()
        elif call.name in WRITING:
            content = self.written.get(self.files.index(file), bytes(end + call.result))
            file.change(end, file.now + content[end : end + call.result])
        elif not call.arguments.endswith(", 0"):
            raise LabError(
                f"system call {call.name}({call.arguments}): wanted 0, the size that the rules of power loss know"
            )
        elif end:
            file.change(0, b"")
