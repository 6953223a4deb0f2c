"""Runs a program and ends all that it started, wherever that went: `python keeper.py PARENT REPORT PROGRAM ARGUMENTS`.

A process of its own stands between an audit, whose process number is PARENT, and a trainer, so that whatever is below
it is the trainer's and nobody else's. On Linux it is the subreaper of its descendants: one whose parent has ended, in a
session of its own or a daemon too, becomes its child. When the program has ended, or the keeper gets SIGTERM, or the
audit dies, it kills its children until none is left. Where there is no subreaper (macOS), only the program's process
group is ended.

REPORT is a descriptor to which it writes a line of JSON when the program has started or can't be (`pid` or `error`),
and one when it has ended by itself (`returncode`, as subprocess has it).
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CHILDREN = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
# Seconds that processes are given to end once they are killed: one that the system can't end isn't waited for longer
# than that.
GRACE = 10
# Seconds between two looks at children that are about to end.
LOOK_EVERY = 0.001


def main():
    parent, report, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    become_subreaper()
    if os.getppid() != parent:
        # It ended before the system could tell of it.
        return
    process = None
    try:
        process = subprocess.Popen(command, start_new_session=True)
        tell(report, pid=process.pid)
        ended, status = os.wait()
        while ended != process.pid:
            ended, status = os.wait()
        process.returncode = os.waitstatus_to_exitcode(status)
        tell(report, returncode=process.returncode)
    except OSError as error:
        tell(report, error=error.strerror or str(error))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all(process)


def become_subreaper():
    """Adopt all descendants whose parents end, and get SIGTERM when the parent ends, where the system knows how."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
        prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)


def tell(report, **what):
    """Write a line to the audit, which may be there no more."""
    with contextlib.suppress(BrokenPipeError):
        os.write(report, f"{json.dumps(what)}\n".encode())


def end_all(process):
    """Kill all children, and theirs as they come to be ours, until none is left."""
    deadline, seen = time.monotonic() + GRACE, None
    while time.monotonic() < deadline:
        if process:
            kill(os.killpg, process.pid)
        found = CHILDREN.read_text().split() if CHILDREN.exists() else []
        for pid in found:
            kill(os.kill, int(pid))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        # New ones are killed at once: they may be having children themselves.
        if found == seen:
            time.sleep(LOOK_EVERY)
        seen = found


def kill(function, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        function(number, signal.SIGKILL)


if __name__ == "__main__":
    main()
