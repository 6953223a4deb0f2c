"""Compare the traces of a reference run and of another one, and say which piece of state the other one lost."""

import argparse
import json
from pathlib import Path

import command_line
from exact_resume.checkpoint import atomic
from exact_resume.recording.diagnosing import diagnose_paths


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference", metavar="REFERENCE.csv", type=Path, help="trace of the uninterrupted run")
    parser.add_argument(
        "others",
        nargs="+",
        metavar="OTHER.csv",
        type=Path,
        help="trace of the other run, or of each of its processes in order",
    )
    parser.add_argument(
        "--repeat",
        metavar="CSV",
        type=Path,
        help="trace of a second uninterrupted run, which tells whether runs repeat",
    )
    parser.add_argument(
        "--unused", action="store_true", help="also name generators that differ and are never drawn from"
    )
    parser.add_argument("--json", metavar="FILE", help="JSON to write: the diagnosis and its sentence")
    args = parser.parse_args()
    found = diagnose_paths(args.reference, args.others, args.repeat, args.unused)
    if args.json:
        atomic.write_text(args.json, json.dumps(found, indent=2) + "\n")
    print(found["sentence"])


if __name__ == "__main__":
    command_line.run(main)
