"""What a record's folder holds, and which of it is whose."""

import json
import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from exact_resume.errors import LabError

# The launcher's: what was run and how it ended, and all that was printed.
RECORD, OUTPUT = "record.json", "output.log"
# A process' own, after its name: its trace, what it is, and that it has come to the update before which it is to stop.
TRACE, PROCESS, REACHED = ".trace.csv", ".json", ".reached"
# The trace of a process that has trained nothing yet, after its number.
BEGUN = ".begun"
# That the processes have been told to stop; what was seen of training; what couldn't be watched, and why.
TOLD, SEEN, PROBLEMS = "told", "seen.txt", "problems.txt"
FILES = (RECORD, OUTPUT, TOLD, SEEN, PROBLEMS)


def prepare(folder: Path) -> None:
    """Make `folder` an empty one for a record, in place of one that is there. Raises LabError when it is something
    else.
    """
    if folder.exists():
        others = [path.name for path in folder.iterdir() if not _is_ours(path.name)] if folder.is_dir() else None
        if others is None or others:
            found = "a file" if others is None else sorted(others)[0]
            raise LabError(f"{folder}: found {found}, wanted a new folder or an earlier record")
        for path in folder.iterdir():
            path.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def _is_ours(name):
    return name in FILES or name.endswith((TRACE, PROCESS, REACHED, BEGUN))


def tidy(folder: Path) -> None:
    """Take away what processes that never trained have begun, when none of them is left."""
    for path in folder.glob(f"*{BEGUN}"):
        path.unlink()


def read(folder: Path) -> dict[str, Any]:
    """Return what the launcher wrote of a record. Raises LabError when `folder` is none."""
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LabError(f"{folder}: found no {RECORD}, wanted the folder of a record") from error
    except (OSError, ValueError) as error:
        raise LabError(f"{folder / RECORD}: can't be read: {error}") from error


def processes(folder: Path) -> dict[str, int]:
    """Return the names of the processes that trained, ranks in their order, and how many updates each made."""
    names = [path.name.removesuffix(TRACE) for path in folder.glob(f"*{TRACE}")]
    names.sort(key=lambda name: (name.rstrip("0123456789"), len(name), name))
    return {name: _updates(folder / f"{name}{TRACE}") for name in names}


def _updates(trace):
    # Of a header's lines none begins with a digit.
    with open(trace, "rb") as file:
        return sum(line[:1].isdigit() for line in file)


def claim(folder: Path, rank: str | None) -> str:
    """Return a name that no other process has: its rank's, with a number from that rank's second process on, or
    without a rank the next in order.
    """
    names = (
        (f"process{number}" for number in count(1))
        if rank is None
        else (f"rank{rank}" if number == 1 else f"rank{rank}_{number}" for number in count(1))
    )
    for name in names:
        with suppress(FileExistsError):
            os.close(os.open(folder / f"{name}{PROCESS}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return name


def reached(folder: Path) -> tuple[int, int]:
    """Return how many processes have come to the update to stop at, and how many will."""
    # A file is made before it is written to.
    sizes = [int(path.read_text() or "1") for path in folder.glob(f"*{REACHED}")]
    return len(sizes), max(sizes, default=1)
