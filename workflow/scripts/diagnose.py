"""Compare the traces of a reference run and of another one, and say which piece of state the other one lost."""

import argparse
import json

import command_line
from lab import atomic, diagnosis


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference", metavar="REFERENCE.csv", help="trace of the uninterrupted run")
    parser.add_argument("other", nargs="+", metavar="OTHER.csv", help="trace of the other run, or of each of its processes in order")
    parser.add_argument("--json", help="JSON to write: verdict, step, culprits, sentence")
    args = parser.parse_args()
    result = diagnosis.diagnose((args.reference, diagnosis.read(args.reference)), [(path, diagnosis.read(path)) for path in args.other])
    result["sentence"] = diagnosis.sentence(result)
    if args.json:
        atomic.write_text(args.json, json.dumps(result, indent=2) + "\n")
    print(result["sentence"])


if __name__ == "__main__":
    command_line.run(main)
