"""Peak memory of a training process, against what it can't do without.

That is `import torch`, weights, gradients, both moments (four float32 numbers a parameter) and the activations that the
backward pass needs. Prints the ratio peak / needed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "workflow" / "scripts"
sys.path.insert(0, str(SCRIPTS))

import numpy as np
import torch
import torch.nn.functional as F

from exact_resume.lab import settings
from exact_resume.lab.run import Run


def main():
    overrides = {"training": {"steps": 8}}
    tokens = np.random.default_rng(0).integers(0, 256, 10**6).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/train.npy", tokens)
        files = ["--tokens", f"{folder}/train.npy", "--out", f"{folder}/out.pth"]
        peak = peak_bytes([sys.executable, SCRIPTS / "train.py", *files, "--settings", json.dumps(overrides)])
    imported = peak_bytes([sys.executable, "-c", "import torch"])
    run = Run(settings.load(overrides), tokens)
    state = 4 * 4 * sum(parameter.numel() for parameter in run.model.parameters())
    activations = activation_bytes(run)
    needed = imported + state + activations
    mib = 2**20
    print(
        f"peak {peak / mib:.0f} MiB; import torch {imported / mib:.0f}, state {state / mib:.0f}, "
        f"activations {activations / mib:.0f} MiB"
    )
    print(f"peak / needed: {peak / needed:.2f} (wanted at most 1.30)")


def peak_bytes(command):
    """Run `command` and return the largest resident size that it had, in bytes."""
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[1]} failed")
    return usage.ru_maxrss * 1024


def activation_bytes(run):
    """Return the bytes of the tensors that autograd keeps for one backward pass, each storage once and without the
    parameters.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in run.model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        inputs, targets = run.batches.draw()
        loss = F.cross_entropy(run.model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    return sum(size for size, _ in kept.values())


if __name__ == "__main__":
    main()
