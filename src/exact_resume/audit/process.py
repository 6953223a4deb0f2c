"""A trainer's process: started apart from ours, watched, and ended together with all that it started."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from exact_resume.errors import LabError
from exact_resume.recording import keeper

# What is in the folder of a process: what it printed, its losses and trace, its checkpoint, the one that it saves on
# its way where it saves two, its system calls if it is followed.
LOG, LOSSES, TRACE, CHECKPOINT, SAVED, CALLS = (
    "output.log",
    "losses.csv",
    "trace.csv",
    "checkpoint",
    "saved",
    "calls.txt",
)
# Seconds between two looks at a process, and for which a checkpoint has to stay as it is to count as written.
LOOK_EVERY = 0.01
SETTLED = 0.2
# An error is told by the end of this many bytes of what the process printed, in a line of at most so many characters.
TAIL = 65536
LONGEST = 300


@dataclass
class Ended:
    """How a process came to its end: `status` is ok, crashed, timed_out or killed, `error` a line that says more, or
    None.
    """

    status: str
    error: str | None
    seconds: float


def run(command, place, name, timeout, kill_when=None):
    """Run `command`, a list of arguments, in the working directory, and return how it Ended.

    What it prints goes to output.log in the folder `name` of `place`, an OwnFolder. After `timeout` seconds it is
    killed, with all that it started (see `keeper`). If `kill_when` is given, a function that returns what a checkpoint
    holds now ({} if there is none) and what it is expected to hold (None when that isn't known), that is done as soon
    as it holds that, or something else that has stopped changing. Whatever happens, nothing of what was started
    outlives this call.
    """
    started = time.monotonic()
    reading, writing = os.pipe()
    with open(reading, "rb") as report, place.create(f"{name}/{LOG}") as log:
        try:
            kept = _start(command, writing, log)
        except (OSError, ValueError) as error:
            return Ended("crashed", _not_started(command, getattr(error, "strerror", None) or error), 0.0)
        finally:
            os.close(writing)
        try:
            status = _watch(kept, started + timeout, kill_when)
        finally:
            _end(kept)
        told = {}
        for line in report.read().splitlines():
            told |= json.loads(line)
        if kept.returncode == -signal.SIGKILL and "pid" in told:
            # Somebody killed the keeper itself.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(told["pid"], signal.SIGKILL)
    seconds = time.monotonic() - started
    if "error" in told:
        return Ended("crashed", _not_started(command, told["error"]), 0.0)
    returncode = told.get("returncode", kept.returncode)
    if status == "ended":
        status = "ok" if returncode == 0 else "crashed"
    try:
        line = last_line(place.text(f"{name}/{LOG}"))
    except LabError:
        # The trainer removed it, or put something else there.
        line = None
    if status == "crashed":
        return Ended(status, ": ".join(filter(None, [_told(returncode), line])), seconds)
    return Ended(status, line if status == "timed_out" else None, seconds)


def _start(command, report, log):
    keeping = [sys.executable, "-I", keeper.__file__, str(os.getpid()), str(report)]
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
    # In a session of its own it outlives us when our process group is killed, and ends what it keeps.
    return subprocess.Popen([*keeping, *command], **streams, start_new_session=True, pass_fds=[report])


def _not_started(command, reason):
    return f"{command[0]}: can't be started: {reason}"


def _watch(kept, deadline, kill_when):
    """Wait until the keeper has ended, or has to, and return which: ended, timed_out or killed."""
    seen, since = {}, None
    while True:
        with suppress(subprocess.TimeoutExpired):
            kept.wait(LOOK_EVERY)
            return "ended"
        now = time.monotonic()
        if now > deadline:
            return "timed_out"
        if kill_when:
            look, expected = kill_when
            found = look()
            if found and found == expected:
                return "killed"
            if found != seen:
                seen, since = found, now
            elif found and now - since >= SETTLED:
                return "killed"


def _end(kept):
    """Have the keeper end all that it keeps, and wait until it has."""
    kept.terminate()
    try:
        kept.wait(2 * keeper.GRACE)
    except subprocess.TimeoutExpired:
        kept.kill()
        kept.wait()


def last_line(log):
    """Return the last line with anything on it of the file `log`, cut where it is very long; None if there is none."""
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        lines = re.split(r"[\r\n]+", file.read().decode("utf-8", errors="replace"))
    printable = ["".join(letter for letter in line if letter.isprintable()).strip() for line in lines]
    return next((line[:LONGEST] for line in reversed(printable) if line), None)


def _told(returncode):
    if returncode >= 0:
        return f"exit status {returncode}"
    # Real-time signals have no names but the first and the last.
    names = {signal.value: signal.name for signal in signal.Signals}
    return f"ended by {names.get(-returncode, f'signal {-returncode}')}"
