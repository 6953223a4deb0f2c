"""A trainer's process: started apart from ours, watched, and ended together with its children."""

import fcntl
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.listing import shape

# What is in the folder of a process: what it printed, its losses and trace, its checkpoint, its system calls if it is followed.
LOG, LOSSES, TRACE, CHECKPOINT, CALLS = "output.log", "losses.csv", "trace.csv", "checkpoint", "calls.txt"
# Its process group's number; a process that lives holds a lock on the file.
RUNNING = "running"
# Seconds between two looks at a process, and for which a checkpoint has to stay as it is to count as written.
LOOK_EVERY = 0.01
SETTLED = 0.2
# Seconds that the processes of an audit that was killed are given to end.
GRACE = 10
# An error is told by the end of this many bytes of what the process printed, in a line of at most so many characters.
TAIL = 65536
LONGEST = 300


@dataclass
class Ended:
    """How a process came to its end: `status` is ok, crashed, timed_out or killed, `error` a line that says more, or None."""

    status: str
    error: str | None
    seconds: float


def run(command, folder, timeout, kill_when=None):
    """Run `command`, a list of arguments or a text for the shell, and return how it Ended.

    What it prints goes to output.log in `folder`. After `timeout` seconds it is killed, with its whole process group. If `kill_when` is
    given, a path and the sizes of what is expected there (see `listing.shape`; None when they aren't known), that is done as soon as it is
    there in these sizes, or something else that has stopped changing. Whatever happens, nothing of the group outlives this call.
    """
    folder = Path(folder)
    started = time.monotonic()
    with open(folder / LOG, "wb") as log, open(folder / RUNNING, "w") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        try:
            process = subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[running.fileno()],
            )
        except (OSError, ValueError) as error:
            return Ended("crashed", f"{command[0]}: can't be started: {getattr(error, 'strerror', None) or error}", 0.0)
        try:
            print(process.pid, file=running, flush=True)
            status = _watch(process, started + timeout, kill_when)
        finally:
            _kill_group(process.pid)
            process.wait()
            _wait_for_group(process.pid)
            (folder / RUNNING).unlink()
    seconds = time.monotonic() - started
    if status == "crashed":
        return Ended(status, ": ".join(filter(None, [_told(process.returncode), last_line(folder / LOG)])), seconds)
    return Ended(status, last_line(folder / LOG) if status == "timed_out" else None, seconds)


def end_leftovers(folder):
    """End the processes that were started in the folders below `folder` by one of us that was killed, and wait until they have."""
    for path in Path(folder).glob(f"*/{RUNNING}"):
        with open(path) as running:
            try:
                fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # The lock is held, so the number is still this process group's.
                group = running.read().strip()
                if group:
                    _kill_group(int(group))
                _wait_for(running, path)


def _wait_for(running, path):
    """Wait until nobody holds a lock on the open file `running`. Raises LabError when somebody doesn't let go of it."""
    deadline = time.monotonic() + GRACE
    while True:
        try:
            return fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LabError(f"{path}: a process that an audit started before still holds it, wanted none; end it") from None
            time.sleep(LOOK_EVERY)


def last_line(log):
    """Return the last line with anything on it of the file `log`, cut where it is very long; None if there is none."""
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        lines = re.split(r"[\r\n]+", file.read().decode("utf-8", errors="replace"))
    printable = ["".join(letter for letter in line if letter.isprintable()).strip() for line in lines]
    return next((line[:LONGEST] for line in reversed(printable) if line), None)


def _watch(process, deadline, kill_when):
    """Wait until the process has ended, or has to be, and return the status."""
    seen, since = {}, None
    while True:
        with suppress(subprocess.TimeoutExpired):
            return "ok" if process.wait(LOOK_EVERY) == 0 else "crashed"
        now = time.monotonic()
        if now > deadline:
            return "timed_out"
        if kill_when:
            path, expected = kill_when
            found = shape(path)
            if found and found == expected:
                return "killed"
            if found != seen:
                seen, since = found, now
            elif found and now - since >= SETTLED:
                return "killed"


def _kill_group(number):
    with suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)


def _wait_for_group(number):
    """Wait until the killed process group has no members any more; one that the system can't end yet isn't waited for longer than that."""
    deadline = time.monotonic() + GRACE
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(number, 0)
            time.sleep(LOOK_EVERY)


def _told(returncode):
    if returncode >= 0:
        return f"exit status {returncode}"
    # Real-time signals have no names but the first and the last.
    names = {signal.value: signal.name for signal in signal.Signals}
    return f"ended by {names.get(-returncode, f'signal {-returncode}')}"
