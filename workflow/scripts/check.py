"""Print every claim of a verdict and fail when one fails."""

import argparse
import json
import sys
from pathlib import Path

import command_line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verdict", help="JSON of judge.py")
    args = parser.parse_args()
    verdict = json.loads(Path(args.verdict).read_text(encoding="utf-8"))
    for claim in verdict["claims"]:
        print(f"{'pass' if claim['passed'] else 'FAIL'}  {claim['claim']}  found {claim['value']}, wanted {claim['wanted']}")
    failed = sum(not claim["passed"] for claim in verdict["claims"])
    print(f"{len(verdict['claims']) - failed} of {len(verdict['claims'])} claims hold")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    command_line.run(main)
