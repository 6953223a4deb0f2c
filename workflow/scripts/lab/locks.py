"""Snakemake's lock, when the Snakemake that set it is gone."""

import fcntl

# Held until this process ends, however it ends: the system lets go of it then.
_held = []


def lift_stale_lock(folder):
    """Remove the locks that a killed Snakemake left in `folder`, its .snakemake, unless another one that called this is alive.

    Every one holds the file `alive` there while it lives, so that the one that gets hold of it is alone.
    """
    folder.mkdir(exist_ok=True)
    alive = open(folder / "alive", "w")  # noqa: SIM115, held open
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        alive.close()
        return
    _held.append(alive)
    for lock in folder.glob("locks/*.lock"):
        lock.unlink(missing_ok=True)
