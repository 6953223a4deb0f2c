"""What the tests of recordings share: a program that is run plainly, recorded, stopped and resumed."""

import json
import os
import subprocess
import sys

from conftest import ROOT
from exact_resume import diagnosis
from exact_resume.recording import folder as record

COMMAND = [sys.executable, "-m", "exact_resume", "record"]
PROGRAM = [sys.executable, str(ROOT / "tests" / "recording" / "program.py")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def run(command, folder, **environment):
    """Run a command in `folder`, from a process that starts from nothing."""
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def recorder(folder):
    """A function that records a command in `name` in `folder` and returns the finished process."""

    def call(name, *command, flags=(), **environment):
        return run([*COMMAND, "--out", name, *flags, "--", *command], folder, **environment)

    return call


def rows(folder, process="process1"):
    """The rows of a recorded process, each a dict of its cells."""
    return [row.cells for row in diagnosis.read(folder / f"{process}{record.TRACE}").rows]


def facts(folder, process=None):
    """What is said of a record, or of one of its processes."""
    return json.loads((folder / (f"{process}{record.PROCESS}" if process else record.RECORD)).read_text())
