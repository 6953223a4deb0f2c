"""How far a job is, for those who watch it: on the terminal, and as lines in the log that standard error leads to."""

import sys
from contextlib import suppress

from tqdm import tqdm

# About so many lines are written to a log.
LINES = 10


def say(line):
    """Write `line` to standard error and, where that leads to a log, to standard output too, if it is a terminal.

    Snakemake leads a job's standard error to its log. A terminal that is gone, or a log that can't be written, ends
    nothing.
    """
    for stream in (sys.stderr, sys.stdout):
        if stream is sys.stderr or (stream.isatty() and not sys.stderr.isatty()):
            with suppress(OSError):
                print(line, file=stream, flush=True)


def watched(items, name, unit, total, done=0):
    """Yield what the iterable `items` yields, and show how many of `total` there were, of which `done` were made
    before.

    The bar is on standard error or else on standard output, whichever is a terminal; a log gets lines.
    """
    terminal = next((stream for stream in (sys.stderr, sys.stdout) if stream.isatty()), None)
    every = max(1, total // LINES)
    with tqdm(
        desc=name, initial=done, total=total, unit=unit, file=terminal, disable=terminal is None, leave=False
    ) as bar:
        for number, item in enumerate(items, done + 1):
            yield item
            bar.update()
            if not sys.stderr.isatty() and (number % every == 0 or number == total):
                with suppress(OSError):
                    print(f"{name}: {unit} {number} of {total}", file=sys.stderr, flush=True)
