"""Count what a resume file holds: elements of the weights and of the optimizer's state, keys and bytes."""

import argparse
import json
from pathlib import Path

import torch

import command_line
from exact_resume.checkpoint import archive, atomic
from exact_resume.lab import settings, state

# The output head shares the embedding's memory, so it is not counted a second time.
SHARED = "lm_head.weight"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", required=True, help="resume file to read")
    parser.add_argument("--weights", required=True, help="weights file whose size it is compared with")
    parser.add_argument("--numel", required=True, help="JSON to write: model_numel, optimizer_numel, ratio")
    parser.add_argument("--file", required=True, help="JSON to write: keys, step, resume_bytes, weights_bytes, ratio")
    parser.add_argument("--settings", metavar="JSON", default="{}", help="settings laid over config.yaml's")
    args = parser.parse_args()
    chosen = settings.load(settings.parse_overrides(args.settings))
    resume = archive.load(args.resume)
    state.check(resume, list(settings.components(chosen)), 1, chosen["training"]["steps"] - 1, args.resume)

    model = sum(tensor.numel() for name, tensor in resume["model"].items() if name != SHARED)
    moments = [
        value
        for entry in resume["optimizer"]["state"].values()
        for value in entry.values()
        if torch.is_tensor(value) and value.dim() > 0
    ]
    optimizer = sum(tensor.numel() for tensor in moments)
    write(args.numel, {"model_numel": model, "optimizer_numel": optimizer, "ratio": optimizer / model})

    resume_bytes, weights_bytes = Path(args.resume).stat().st_size, Path(args.weights).stat().st_size
    file = {"keys": list(resume), "step": resume["step"], "resume_bytes": resume_bytes, "weights_bytes": weights_bytes}
    write(args.file, {**file, "ratio": resume_bytes / weights_bytes})


def write(path, counts):
    atomic.write_text(path, json.dumps(counts, indent=2) + "\n")


if __name__ == "__main__":
    command_line.run(main)
