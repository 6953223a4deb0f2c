"""Print the verdict of every audited trainer and fail when one that is expected to be exact is not."""

import argparse
import json
import sys
from pathlib import Path

import command_line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", metavar="JSON", help="result of audit_trainer.py")
    parser.add_argument(
        "--exact", action="append", default=[], metavar="NAME", help="trainer that is expected to be exact; repeatable"
    )
    args = parser.parse_args()
    results = [json.loads(Path(path).read_text(encoding="utf-8")) for path in args.results]
    failed = [result["name"] for result in results if result["name"] in args.exact and result["outcome"] != "exact"]
    for result in results:
        mark = "FAIL" if result["name"] in failed else "pass" if result["name"] in args.exact else "    "
        print(f"{mark}  {result['name']}: {result['verdict']}")
    print(f"{len(args.exact) - len(failed)} of {len(args.exact)} trainers that are expected to be exact are")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    command_line.run(main)
