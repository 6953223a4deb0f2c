"""Render the audit's document from the results of all trainers."""

import argparse
import json
from collections import Counter
from pathlib import Path

import command_line
from exact_resume.audit import result as audit_result
from exact_resume.checkpoint import atomic
from exact_resume.errors import LabError
from exact_resume.pipeline.document import link, render


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", metavar="JSON", help="result of audit_trainer.py")
    parser.add_argument("--template", required=True, help="jinja2 template")
    parser.add_argument("--picture", required=True, help="picture of plot_audit.py")
    parser.add_argument(
        "--fixed-by",
        action="append",
        default=[],
        metavar="NAME=OTHER",
        help="OTHER is the trainer NAME with its cure; repeatable",
    )
    parser.add_argument(
        "--advice", action="append", default=[], metavar="NAME=TEXT", help="what a user of NAME can do; repeatable"
    )
    parser.add_argument("--out", required=True, help="Markdown file to write")
    args = parser.parse_args()

    results = [json.loads(Path(path).read_text(encoding="utf-8")) for path in args.results]
    lost = Counter(component for result in results for component in audit_result.culprits(result))
    facts = {
        "results": {
            result["name"]: {**result, "cases": audit_result.cases(result), "notes": notes(result)}
            for result in results
        },
        "stops": list(dict.fromkeys(name for result in results for name in result["stops"])),
        "cures": dict(pair("--fixed-by", text) for text in args.fixed_by),
        "advice": dict(pair("--advice", text) for text in args.advice),
        "lost": sorted(lost.items(), key=lambda item: (-item[1], item[0])),
        "picture": link(args.picture, args.out),
    }
    atomic.write_text(args.out, render(Path(args.template), facts))


def notes(result):
    """Return the notes of a result's cases, each with the names of the cases that it is on."""
    found = {}
    for name, case in audit_result.cases(result).items():
        for note in case["notes"]:
            found.setdefault(note, []).append(name)
    return found


def pair(flag, text):
    """Return what stands before and behind the first = in `text`. Raises LabError when there is none."""
    name, equals, other = text.partition("=")
    if not equals:
        raise LabError(f"{flag}: found {text!r}, wanted a name, = and what belongs to it")
    return name, other


if __name__ == "__main__":
    command_line.run(main)
