"""Snakemake's lock, when the Snakemake that set it is gone."""

import atexit
import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path

# Open and locked until this process ends, however it ends.
_held = []


def lift_stale_lock(folder):
    """Remove the lock that a killed Snakemake left in `folder`, its .snakemake, and note that this process may set one
    there.

    Each Snakemake that calls this keeps a file beside the lock, which names the machine and is itself locked while that
    process lives; one that ends removes its folder of locks whole. A lock goes only if its holders are known, were on
    this machine and are gone: whether one on another machine, which shares the folder, lives can't be told here. Where
    files can't be locked, nothing is done.
    """
    locks = Path(folder).resolve() / "locks"
    with suppress(OSError):
        locks.mkdir(parents=True, exist_ok=True)
        holders = list(locks.glob("*.holder"))
        if holders and not any(map(_may_live, holders)):
            for path in [*locks.glob("*.lock"), *holders]:
                path.unlink(missing_ok=True)
        _hold(locks / f"{platform.node()}.{os.getpid()}.holder")


def in_one_line(record):
    """A filter for Snakemake's logger: what it says of a lock becomes one line. Returns True, for all records are
    kept.
    """
    if getattr(record, "exception", None) == "LockException":
        others = [
            path.stem.rpartition(".")
            for path in Path(".snakemake", "locks").resolve().glob("*.holder")
            if path not in dict(_held)
        ]
        who = (
            " and ".join(f"process {number} on {node}" for node, _, number in others)
            or "a Snakemake that can't be told to have ended"
        )
        record.msg = (
            f"error: {Path.cwd()}: in use by {who}; wait for it, work in another folder (-d FOLDER), or if it is gone, "
            "call `snakemake --unlock`"
        )
    return True


def _may_live(path):
    """Whether the process that keeps the file `path` may be alive."""
    with open(path, "r+", encoding="utf-8") as file:
        return file.read() != _machine() or not _lock(file)


def _hold(path):
    # It gets its name only when it is locked: without a lock it is a dead one's.
    waiting = path.with_suffix(".waiting")
    file = open(waiting, "w", encoding="utf-8")  # noqa: SIM115, held open
    _lock(file)
    file.write(_machine())
    file.flush()
    waiting.rename(path)
    _held.append((path, file))
    atexit.register(_remove, path)


def _remove(path):
    with suppress(OSError):
        path.unlink()


def _lock(file):
    """Lock the open `file`, unless another process has; return whether it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _machine():
    """What tells this machine from others, even when it was started anew."""
    identity = Path("/etc/machine-id")
    return f"{platform.node()}\n{identity.read_text(encoding='utf-8') if identity.exists() else ''}"
