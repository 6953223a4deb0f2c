"""Render the table of what each way to save survives."""

import argparse
import json
from pathlib import Path

import command_line
from exact_resume.checkpoint import atomic
from exact_resume.lab import settings
from exact_resume.pipeline.document import link, render


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--template", required=True, help="jinja2 template")
    parser.add_argument("--counted", required=True, help="JSON of inject_faults.py")
    parser.add_argument("--picture", required=True, help="picture of the table")
    parser.add_argument("--out", required=True, help="Markdown file to write")
    parser.add_argument("--settings", metavar="JSON", default="{}", help="settings laid over config.yaml's")
    args = parser.parse_args()
    facts = {
        "savers": json.loads(Path(args.counted).read_text(encoding="utf-8"))["savers"],
        "settings": settings.load(settings.parse_overrides(args.settings)),
        "picture": link(args.picture, args.out),
    }
    atomic.write_text(args.out, render(Path(args.template), facts))


if __name__ == "__main__":
    command_line.run(main)
