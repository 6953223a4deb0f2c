"""Snakemake's lock, when the Snakemake that set it is gone."""

import fcntl

# Held until this process ends, however it ends: the system lets go of it then.
_held = []


def lift_stale_lock(folder):
    """Remove the locks that a killed Snakemake left in `folder`, its .snakemake, unless another one that called this is alive.

    Every one holds the file `alive` there while it lives, together with the others; who gets it alone is alone.
    """
    folder.mkdir(exist_ok=True)
    alive = open(folder / "alive", "w")  # noqa: SIM115, held open
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        for lock in folder.glob("locks/*.lock"):
            lock.unlink(missing_ok=True)
    fcntl.flock(alive, fcntl.LOCK_SH)
    _held.append(alive)
