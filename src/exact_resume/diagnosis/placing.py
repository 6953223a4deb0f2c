"""Where in the reference a process of a recorded program begins: each counts its updates from 1, resumed or not."""

from collections import Counter
from dataclasses import replace

from exact_resume.errors import LabError
from exact_resume.tracing.format import EMPTY, PARTS, PRECISIONS, Rounding, part

# What a resumed process holds tells where it stands; what it draws may begin anew, or anywhere.
TELLING_KINDS = ("module", "optimizer", "scheduler")


def placed(reference, leg, first=None):
    """Return the TraceFile `leg`, of a recorded process, with its rows counted as in `reference`: from `first` on, or
    from where the reference holds what the process begins with.

    Most of its modules, optimizers and schedulers decide. What is as before training tells nothing, unless all of it
    is: then the process began from scratch. Raises LabError when nothing that the reference holds is there.
    """
    if not leg.rows:
        return leg
    if first is None:
        first = _place(reference, leg)
    moved = first - leg.rows[0].number
    return replace(leg, rows=[replace(row, number=row.number + moved) for row in leg.rows])


def _place(reference, leg):
    cells, fresh = leg.rows[0].cells, reference.rows[0].cells
    names = [
        column.removesuffix(".kind")
        for column, kind in cells.items()
        if part(column) == "kind" and kind in TELLING_KINDS
    ]
    names = [name for name in names if cells[name] and part(name) not in PARTS]
    if all(cells[name] in (EMPTY, fresh.get(name)) for name in names):
        return reference.rows[0].number
    votes = Counter()
    for name in names:
        if cells[name] not in (EMPTY, fresh.get(name)):
            votes.update(row.number for row in reference.rows if _holds(cells, row.cells, name))
    if not votes:
        raise LabError(
            f"{leg.path}: found no weights, optimizer or schedule of {reference.path} in its first update, wanted "
            "--first-update, the number of that update in the reference"
        )
    # Of what repeats in the reference, the later place is the one that was trained to.
    return max(votes, key=lambda number: (votes[number], number))


def _holds(cells, wanted, name):
    """Whether the reference's row `wanted` holds what `name` is in `cells`, perhaps in a higher precision."""
    if cells[name] == wanted.get(name):
        return True
    roundings = (
        tuple(Rounding.read(one.get(f"{name}.{precision}", "")) for one in (cells, wanted)) for precision in PRECISIONS
    )
    return any(rounded.digest and rounded.makes(full) for rounded, full in roundings)
