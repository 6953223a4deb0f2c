"""Print every claim of a verdict, and fail when the run isn't exact: an expectation that is missed is only told."""

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
        print(f"{mark(claim)}  {claim['claim']}  found {claim['value']}, wanted {claim['wanted']}")
    if not verdict["lossless"]:
        print("FAIL  No variant restores everything, so whether a resumed run is exact was not tried.")
    exactness, expectations = verdict["exactness"], verdict["expectations"]
    print(
        f"{exactness['met']} of {exactness['of']} claims of exactness hold; {expectations['met']} of "
        f"{expectations['of']} expectations met"
    )
    sys.exit(0 if verdict["passed"] else 1)


def mark(claim):
    """Return the word that a claim's line begins with."""
    if claim["exactness"]:
        return "pass" if claim["passed"] else "FAIL"
    return "met " if claim["passed"] else "miss"


if __name__ == "__main__":
    command_line.run(main)
