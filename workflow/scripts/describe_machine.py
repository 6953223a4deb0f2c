"""Say what the results were made with: versions, CPU, threads, data."""

import argparse
import hashlib
import json
import platform
from importlib.metadata import version

import command_line
from exact_resume.checkpoint import atomic
from exact_resume.lab import settings
from exact_resume.pipeline import fingerprint


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", required=True, help="token file trained on")
    parser.add_argument("--val", required=True, help="token file for validation")
    parser.add_argument("--out", required=True, help="JSON to write")
    parser.add_argument("--settings", metavar="JSON", default="{}", help="settings laid over config.yaml's")
    args = parser.parse_args()
    training = settings.load(settings.parse_overrides(args.settings))["training"]
    made_with = {
        **fingerprint.fingerprint(training["device"]),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "snakemake": version("snakemake"),
        "device": training["device"],
        "threads": training["threads"],
        "train_sha256": sha256(args.train),
        "val_sha256": sha256(args.val),
    }
    atomic.write_text(args.out, json.dumps(made_with, indent=2) + "\n")


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    command_line.run(main)
