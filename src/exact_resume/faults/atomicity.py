"""Whether a program that saves a checkpoint can be killed at any moment without a part of one standing under its name.

Found out without killing it: what a kill leaves behind is what the system calls before it have done, since what was
handed to the system outlasts the process. Data that a program writes through mapped memory aren't seen.
"""

import os
import re
from pathlib import Path, PurePath

from exact_resume.faults import power_loss, system_calls

POSITIONED = {"pwrite64", "pwritev", "pwritev2", "copy_file_range", "sendfile", "fallocate"}
MAKING_FOLDERS, REMOVING_FOLDERS = {"mkdir", "mkdirat"}, {"rmdir"}
CHANGING = power_loss.WRITING | power_loss.TRUNCATING | POSITIONED
WORKING_FOLDER = re.compile(r"^AT_FDCWD<")
FOLLOWED = (
    power_loss.OPENING
    | power_loss.RENAMING
    | power_loss.LINKING
    | power_loss.UNLINKING
    | CHANGING
    | MAKING_FOLDERS
    | REMOVING_FOLDERS
)


def followed(command, log):
    """Return the command, a list, that does what `command` does and writes its system calls to the file `log`."""
    return [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-s",
        "0",
        "-e",
        f"trace={','.join(sorted(FOLLOWED))}",
        "-o",
        str(log),
        "--",
        *command,
    ]


def is_atomic(log, path):
    """Return whether after each of the calls in `log`, strace's of a program that saves to `path`, there was nothing
    there or all of it.
    """
    path = PurePath(os.path.realpath(path))
    lines = Path(log).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    tree, states = Tree(), []
    for call in system_calls.parse(lines):
        tree.apply(call)
        found = {name: changes for name, changes in tree.changes.items() if name == path or path in name.parents}
        if not states or found != states[-1]:
            states.append(found)
    # An older checkpoint that was removed before is not looked at.
    begun = max((number for number, state in enumerate(states) if not state), default=0)
    return all(state in ({}, states[-1]) for state in states[begun:])


class Tree:
    """Paths of files and folders, each with how often it was changed."""

    def __init__(self):
        self.changes, self.working_folder = {}, "/"

    def apply(self, call):
        """Do what the call did."""
        here = WORKING_FOLDER.search(call.arguments)
        if here:
            self.working_folder = call.descriptors[0]
        if call.result < 0:
            return
        # A path is relative to the descriptor before it, or to the working folder, which calls that take descriptors
        # name.
        folders = call.descriptors or [self.working_folder]
        paths = [PurePath(folders[min(index, len(folders) - 1)], text) for index, text in enumerate(call.texts)]
        if call.name in CHANGING:
            # Of a copy between descriptors the last one is written to, of all others the only one.
            self._change(PurePath(call.descriptors[-1 if call.name == "copy_file_range" else 0]))
        elif call.name in power_loss.OPENING:
            if "O_TRUNC" in call.arguments or ("O_CREAT" in call.arguments and paths[0] not in self.changes):
                self._change(paths[0])
        elif call.name in MAKING_FOLDERS:
            self._change(paths[0])
        elif call.name in power_loss.UNLINKING | REMOVING_FOLDERS:
            self.changes.pop(paths[0], None)
        else:
            self._move(*paths, copy=call.name in power_loss.LINKING)

    def _change(self, path):
        self.changes[path] = self.changes.get(path, 0) + 1

    def _move(self, old, new, copy):
        for name in [name for name in self.changes if name == old or old in name.parents]:
            self.changes[new / name.relative_to(old)] = self.changes[name] if copy else self.changes.pop(name)
