"""Render the report from the measurements."""

import argparse
import csv
import json
from pathlib import Path

import command_line
from exact_resume.checkpoint import atomic
from exact_resume.lab import settings
from exact_resume.pipeline.document import link, render

INPUTS = ["verdict", "divergence", "numel", "file", "half", "machine"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--template", required=True, help="jinja2 template")
    for name in INPUTS:
        parser.add_argument(f"--{name}", required=True, help="JSON to show")
    parser.add_argument(
        "--diagnosis", action="append", required=True, metavar="JSON", help="VARIANT.json of diagnose.py; repeatable"
    )
    parser.add_argument("--log", required=True, help="straight_log.csv")
    parser.add_argument("--losses", required=True, help="picture of the loss curves")
    parser.add_argument("--pictured-divergence", required=True, help="picture of the distances")
    parser.add_argument("--out", required=True, help="Markdown file to write")
    parser.add_argument("--settings", metavar="JSON", default="{}", help="settings laid over config.yaml's")
    args = parser.parse_args()

    facts = {name: json.loads(Path(getattr(args, name)).read_text(encoding="utf-8")) for name in INPUTS}
    facts["settings"] = settings.load(settings.parse_overrides(args.settings))
    facts["variants"] = settings.all_variants(facts["settings"])
    facts["stops"] = settings.stops(facts["settings"]["training"])
    facts["diagnoses"] = {
        Path(path).stem: json.loads(Path(path).read_text(encoding="utf-8")) for path in args.diagnosis
    }
    with open(args.log, newline="", encoding="utf-8") as file:
        facts["losses"] = list(csv.DictReader(file))
    pictures = {"losses": args.losses, "divergence": args.pictured_divergence}
    facts["pictures"] = {name: link(path, args.out) for name, path in pictures.items()}
    atomic.write_text(args.out, render(Path(args.template), facts))


if __name__ == "__main__":
    command_line.run(main)
