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

from lab.listing import listing

LOG = "output.log"
# Its process group's number; a process that lives holds a lock on the file.
RUNNING = "running"
# Seconds between two looks at a process, and for which a checkpoint has to stay as it is to count as written.
LOOK_EVERY = 0.02
SETTLED = 0.2
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
    given, a path, that is done as soon as there is something that no longer changes. Whatever happens, nothing of the group outlives
    this call.
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
                fcntl.flock(running, fcntl.LOCK_EX)


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
            found = listing(kill_when)
            if found != seen:
                seen, since = found, now
            elif found and now - since >= SETTLED:
                return "killed"


def _kill_group(number):
    with suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)


def _told(returncode):
    return f"ended by {signal.Signals(-returncode).name}" if returncode < 0 else f"exit status {returncode}"
