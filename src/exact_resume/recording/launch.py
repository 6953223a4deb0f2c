"""Runs a program, recorded: its output kept and passed on, all that it started ended with it, stopped at an update."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import exact_resume
from exact_resume.checkpoint.atomic import write_text
from exact_resume.errors import LabError
from exact_resume.recording import folder as record
from exact_resume.recording import keeper
from exact_resume.recording.bootstrap.sitecustomize import VARIABLE

BOOTSTRAP = Path(__file__).parent / "bootstrap"
# What the watcher needs beside torch, brought along for a program whose environment lacks it.
NEEDED = ("numpy", "xxhash")
# Signals that are passed on to the program instead of ending the recording.
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Seconds between two looks at the program.
LOOK_EVERY = 0.01
# Bytes of output that are passed on at once.
CHUNK = 65536


@dataclass
class Recorded:
    """How a recorded program ended.

    `status` is ended, stopped (before the update it was to be stopped at) or not_started; `returncode` is as subprocess
    has it, None where there is none; `error` a line that says why it wasn't started; `processes` are the updates that
    were recorded, by the name of the process; `seen` and `problems` lines on what it did and on what couldn't be looked
    at.
    """

    status: str
    returncode: int | None
    error: str | None
    processes: dict[str, int]
    seen: list[str]
    problems: list[str]


def run(
    command: list[str],
    folder: Path,
    *,
    kill_after: int | None = None,
    stop_signal: signal.Signals = signal.SIGKILL,
    grace: float = 30.0,
    window: tuple[int, int] | None = None,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
    quiet: bool = False,
) -> Recorded:
    """Run `command` in the directory `cwd` and record it in `folder`; see `folder.prepare` for what that may be.

    With `kill_after` it gets `stop_signal` right before the update after that many begins, and SIGKILL after `grace`
    seconds more; `window` are the first and last update of which all is recorded. `environment` says which variables
    are added. What it prints is passed on unless `quiet`. Nothing of what it started outlives this call.
    """
    folder = folder.absolute()
    record.prepare(folder)
    wanted = {
        "folder": str(folder),
        "kill_after": kill_after,
        "window": window,
        "package": str(Path(exact_resume.__file__).parent),
        "needed": sorted({_site_of(name) for name in NEEDED}),
        "python": list(sys.version_info[:2]),
    }
    variables = {**os.environ, **(environment or {}), VARIABLE: json.dumps(wanted)}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BOOTSTRAP), variables.get("PYTHONPATH")]))
    program = _Program(command, folder, variables, cwd, quiet)
    stop = _Stop(folder, stop_signal, grace)
    with _passing_on(program):
        stopped = program.wait(lambda: kill_after is not None and stop(program))
    record.tidy(folder)
    found = Recorded(
        "not_started" if program.error else "stopped" if stopped else "ended",
        program.returncode,
        program.error and f"{command[0]}: can't be started: {program.error}",
        record.processes(folder),
        _lines(folder / record.SEEN),
        _lines(folder / record.PROBLEMS),
    )
    about = {
        "exact_resume": version("exact-resume"),
        "command": command,
        "kill_after": kill_after,
        "window": window,
        "signal": stop_signal.name,
    }
    write_text(folder / record.RECORD, json.dumps({**about, **asdict(found)}, indent=2) + "\n")
    return found


def _site_of(name):
    spec = importlib.util.find_spec(name)
    return str(Path(spec.origin).parents[1])


class _Stop:
    """Stops the program once it has come to where it is to be stopped: all ranks, or those that come in time."""

    def __init__(self, folder, number, grace):
        self.folder, self.number, self.grace, self.deadline = folder, number, grace, None

    def __call__(self, program):
        """Stop the program if it is time, and return whether it was."""
        reached, wanted = record.reached(self.folder)
        if not reached:
            return False
        self.deadline = self.deadline or time.monotonic() + self.grace
        if reached < wanted and time.monotonic() < self.deadline:
            return False
        if self.number != signal.SIGKILL:
            program.send(self.number)
            (self.folder / record.TOLD).touch()
            deadline = time.monotonic() + self.grace
            program.wait(lambda: time.monotonic() > deadline)
        return True


class _Program:
    """A command under a keeper, which ends all that it started when it is done."""

    def __init__(self, command, folder, variables, cwd, quiet):
        self.returncode, self.error, self.pid = None, None, None
        reading, writing = os.pipe()
        keeping = [sys.executable, "-I", keeper.__file__, str(os.getpid()), str(writing)]
        # The keeper is none of the program's processes.
        plain = {"env": variables, "cwd": cwd, "start_new_session": True, "pass_fds": [writing]}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.kept = subprocess.Popen([*keeping, *command], **plain, **streams)
        os.close(writing)
        self.log = open(folder / record.OUTPUT, "wb", buffering=0)  # noqa: SIM115, closed in the end
        passed = [(self.kept.stdout, None if quiet else sys.stdout), (self.kept.stderr, None if quiet else sys.stderr)]
        self.threads = [threading.Thread(target=self._pass_on, args=pair, daemon=True) for pair in passed]
        self.threads.append(threading.Thread(target=self._listen, args=(reading,), daemon=True))
        for thread in self.threads:
            thread.start()

    def _pass_on(self, stream, target):
        while chunk := stream.read1(CHUNK):
            self.log.write(chunk)
            if target:
                # Whoever reads it may be gone; the recording goes on.
                with suppress(OSError, ValueError):
                    target.buffer.write(chunk)
                    target.buffer.flush()

    def _listen(self, reading):
        with open(reading, "rb") as report:
            for line in report:
                for name, value in json.loads(line).items():
                    setattr(self, name, value)

    def send(self, number):
        """Send a signal to the program's process group."""
        if self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def wait(self, stop):
        """Wait until the program has ended, or `stop()`, and return whether it was that; then end what is left."""
        stopped = False
        try:
            while self.kept.poll() is None and not stopped:
                time.sleep(LOOK_EVERY)
                stopped = stop()
            return stopped
        finally:
            self.end()

    def end(self):
        """End the keeper with all that it keeps, and wait until all that was printed is passed on."""
        self.kept.terminate()
        try:
            self.kept.wait(2 * keeper.GRACE)
        except subprocess.TimeoutExpired:
            self.kept.kill()
            self.kept.wait()
        for thread in self.threads:
            thread.join(keeper.GRACE)
        self.log.close()


@contextmanager
def _passing_on(program):
    """Pass signals on to the program: it decides what they do to it, as if it ran alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, frame: program.send(number)) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lines(path):
    try:
        # Each process says what it has to say once.
        return list(dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").splitlines()))
    except OSError:
        return []


def check(recorded: Recorded, kill_after: int | None) -> None:
    """Raise LabError when the program didn't do what it was recorded for: train, and come to the update to stop at."""
    if recorded.error:
        raise LabError(recorded.error)
    if not recorded.processes and recorded.status != "stopped":
        seen = "; ".join(recorded.seen) or "found none that imports torch (nor a look at python -I, -E or -S)"
        raise LabError(f"no update was recorded, wanted a program that calls an optimizer's step: {seen}")
    if kill_after is not None and recorded.status != "stopped":
        made = max(recorded.processes.values())
        raise LabError(f"the program ended after update {made}, wanted it to be stopped before update {kill_after + 1}")
