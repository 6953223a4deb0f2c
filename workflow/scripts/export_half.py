"""Save weights in half precision, and measure the file and what it changes in the logits."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import command_line
from exact_resume.checkpoint import archive, atomic
from exact_resume.lab import data, settings
from exact_resume.lab.determinism import make_deterministic
from exact_resume.lab.model import Decoder

# The lab compares the logits on this many tokens.
TOKENS = 128


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True, help="state_dict to read (.pth)")
    parser.add_argument("--val", required=True, help=f"token file whose first {TOKENS} tokens are fed to both models")
    parser.add_argument("--out", required=True, help="half-precision state_dict to write (.pth)")
    parser.add_argument("--report", required=True, help="JSON to write: fp32_bytes, fp16_bytes, max_logit_diff")
    parser.add_argument("--settings", metavar="JSON", default="{}", help="settings laid over config.yaml's")
    args = parser.parse_args()
    chosen = settings.load(settings.parse_overrides(args.settings))
    tokens = data.load_tokens(args.val, chosen["model"]["vocab_size"], TOKENS - 1)
    prompt = torch.from_numpy(np.array(tokens[:TOKENS], dtype=np.int64))[None]
    make_deterministic(chosen["training"]["seed"], chosen["training"]["threads"], "cpu")

    archive.save(args.out, archive.halved(archive.load(args.weights)))
    with torch.no_grad():
        full, half = (load_model(path, chosen["model"])(prompt) for path in (args.weights, args.out))
    measured = {
        "fp32_bytes": Path(args.weights).stat().st_size,
        "fp16_bytes": Path(args.out).stat().st_size,
        "max_logit_diff": (full - half).abs().max().item(),
    }
    atomic.write_text(args.report, json.dumps(measured, indent=2) + "\n")


def load_model(path, model_settings):
    """Return a float32 Decoder with the weights in `path`, whatever their precision there."""
    return archive.load_weights(path, Decoder(model_settings, TOKENS).eval())


if __name__ == "__main__":
    command_line.run(main)
