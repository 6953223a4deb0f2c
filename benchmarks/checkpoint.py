"""What durable saving and verified loading cost beside plain torch.save and torch.load, at MiniMind's two sizes with
optimizer state.

Files go to a folder in this project's. Times are medians of turns in one run. Memory is how far the peak of a process
of its own grows while it saves or loads, against the checkpoint's size.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import torch

from exact_resume.checkpoint import archive

# Parameters of MiniMind's small and base models.
SIZES = {"26 M": 26_000_000, "104 M": 104_000_000}
TURNS = 9
# Ours, what it is held against, and the largest ratio of the times that is wanted: beside a save that leaves the bytes
# in memory, beside one that waits for the disk too, and beside a load that verifies nothing.
COMPARED = [("durable save", "save", 1.1), ("durable save", "save and sync", 1.1), ("verified load", "load", 1.5)]


def main():
    if len(sys.argv) > 1:
        print(peak_beyond(sys.argv[1], Path(sys.argv[2])))
        return
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        for name, parameters in SIZES.items():
            measure(name, value_of(parameters), Path(folder))


def measure(name, value, folder):
    plain, durable = folder / "plain.pth", folder / "durable.pth"
    calls = {
        "save": lambda: torch.save(value, plain),
        "save and sync": lambda: save_and_sync(value, folder / "synced.pth"),
        "durable save": lambda: archive.save(durable, value),
        "load": lambda: torch.load(plain, weights_only=True),
        "verified load": lambda: archive.load(durable),
    }
    times = {kind: [] for kind in calls}
    for call in calls.values():
        call()
    order = random.Random(0)
    for _ in range(TURNS):
        # In another order each turn, and with nothing left to be written: what one leaves to the disk costs the next
        # one time.
        for kind in order.sample(list(calls), len(calls)):
            os.sync()
            start = time.perf_counter()
            calls[kind]()
            times[kind].append(time.perf_counter() - start)
    size = durable.stat().st_size
    print(f"{name} parameters, checkpoint of {size / 2**20:.0f} MiB")
    for ours, theirs, wanted in COMPARED:
        own, other = (statistics.median(times[kind]) for kind in (ours, theirs))
        print(
            f"  {ours} {own:.2f} s, torch's {theirs} {other:.2f} s, ratio {own / other:.2f} (wanted at most {wanted})"
        )
    for kind in ("save", "load"):
        command = [sys.executable, __file__, kind, str(durable)]
        extra = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"  {kind}: extra memory / checkpoint: {extra / size:.2f} (wanted at most 1.15)")


def save_and_sync(value, path):
    torch.save(value, path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def value_of(parameters):
    """Return a resume file's contents for a model of about so many float32 parameters, in tensors of a million."""
    tensors = {str(index): torch.randn(1_000_000) for index in range(parameters // 1_000_000)}
    moments = {
        index: {"exp_avg": value.clone(), "exp_avg_sq": value.square()} for index, value in enumerate(tensors.values())
    }
    return {"model": tensors, "optimizer": {"state": moments}, "step": 30}


def peak_beyond(kind, path):
    """Return by how many bytes the process's peak grows while it loads `path`, or saves what it holds beside it."""
    value = None if kind == "load" else torch.load(path, weights_only=True)
    before = peak_bytes()
    if kind == "load":
        archive.load(path)
    else:
        archive.save(path.with_name("again.pth"), value)
    return peak_bytes() - before


def peak_bytes():
    """Return the largest resident size that this program has had, in bytes. Not getrusage's, which counts what ran
    before exec too.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
