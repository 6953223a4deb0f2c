"""The losses that a trainer logs: CSV with the columns step and train_loss, others beside them, written in any of the
usual ways.
"""

import csv
from contextlib import suppress

from exact_resume.errors import LabError

STEP, LOSS = "step", "train_loss"
# A message shows so much of what was found.
LONGEST = 40


def read(path):
    """Return the (step, loss) pairs in the file at `path` in their order, each a whole number and the loss as it is
    written.

    Raises LabError, one line, when it is empty, no text, without these columns, or has no numbers in them.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, skipinitialspace=True)
            header = next(rows, None)
            if header is None:
                raise LabError(f"{path}: empty, wanted a CSV with the columns {STEP},{LOSS}")
            missing = next((column for column in (STEP, LOSS) if column not in header), None)
            if missing:
                raise LabError(
                    f"{path}: no column {missing}: found {','.join(header)[:LONGEST]!r}, wanted the columns "
                    f"{STEP},{LOSS}"
                )
            places = [header.index(column) for column in (STEP, LOSS)]
            # Who appends to a log may begin each part with a header.
            return [_pair(path, rows.line_num, row, places) for row in rows if row and row != header]
    except UnicodeDecodeError as error:
        raise LabError(f"{path}: no text, wanted a CSV with the columns {STEP},{LOSS}") from error
    except csv.Error as error:
        raise LabError(f"{path}: {error}, wanted a CSV with the columns {STEP},{LOSS}") from error


def _pair(path, line, row, places):
    cells = [row[place] if place < len(row) else "" for place in places]
    # A step may be written with decimals, a loss may be nan.
    with suppress(ValueError, OverflowError):
        float(cells[1])
        if float(cells[0]) == int(float(cells[0])):
            return int(float(cells[0])), cells[1]
    wrong = [f"{name} {cell[:LONGEST]!r}" for name, cell in zip((STEP, LOSS), cells)]
    raise LabError(f"{path}: line {line}: found {' and '.join(wrong)}, wanted a whole number and a number")
