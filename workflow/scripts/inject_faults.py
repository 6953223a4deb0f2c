"""Put each way to save a checkpoint through kills, errors, power losses, bit flips and truncation, and count what can
be loaded then.
"""

import argparse
import json

import torch

import command_line
from exact_resume.checkpoint import atomic
from exact_resume.faults import injection
from exact_resume.faults.savers import SAVERS
from exact_resume.lab import settings
from exact_resume.pipeline.watching import watched


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", required=True, help="JSON to write: for each saver and fault the cases: tried, good, silent"
    )
    parser.add_argument("--settings", metavar="JSON", default="{}", help="settings laid over config.yaml's: crash")
    args = parser.parse_args()
    chosen = settings.load(settings.parse_overrides(args.settings))["crash"]
    # A fork has no other threads.
    torch.set_num_threads(1)
    counted = {}
    for name, saver in watched(SAVERS.items(), "crash", "saver", len(SAVERS)):
        counted[name] = injection.count(saver, chosen["seed"], chosen["bit_flips"], chosen["truncations"])
    atomic.write_text(args.out, json.dumps({"savers": counted}, indent=2) + "\n")


if __name__ == "__main__":
    command_line.run(main)
