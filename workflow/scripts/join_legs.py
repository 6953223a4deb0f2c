"""Join what the legs of a run, from stop to stop, each wrote: logs, records of sketches and traces."""

import argparse
from pathlib import Path

import numpy as np

import command_line
from exact_resume.checkpoint import atomic

JOINED = ["log", "record", "trace"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in JOINED:
        parser.add_argument(
            f"--{name}", nargs="+", required=True, metavar="FILE", help=f"the legs' {name}s, in their order"
        )
        parser.add_argument(f"--out-{name}", required=True, metavar="FILE", help=f"{name} to write")
    args = parser.parse_args()
    atomic.write_text(args.out_log, joined_rows(args.log))
    atomic.write_text(args.out_trace, joined_rows(args.trace))
    legs = [dict(np.load(path)) for path in args.record]
    # A leg begins with the sketch of what it was given, which its predecessor ended with.
    record = {name: np.concatenate([legs[0][name], *(leg[name][1:] for leg in legs[1:])]) for name in legs[0]}
    with atomic.replacing(args.out_record) as file:
        np.savez(file, **record)


def joined_rows(paths):
    """Return the text of the CSV files `paths`, which have the same header, with one header and all rows."""
    texts = [Path(path).read_text(encoding="utf-8").splitlines(keepends=True) for path in paths]
    return "".join([texts[0][0], *(line for text in texts for line in text[1:])])


if __name__ == "__main__":
    command_line.run(main)
