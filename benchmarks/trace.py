"""What tracing adds to a training step of the default model: traced and untraced steps of one run, in turns. Prints the
ratio.
"""

import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import numpy as np

from exact_resume.lab import settings
from exact_resume.lab.run import Run

ROUNDS, STEPS_A_ROUND = 60, 4


def main():
    chosen = settings.load({"training": {"steps": 10**6, "threads": 1}})
    run = Run(chosen, np.random.default_rng(0).integers(0, 256, 10**6).astype(np.uint8))
    gc.freeze()  # as train.py does
    with tempfile.TemporaryDirectory() as folder:
        trace = run.make_trace(f"{folder}/trace.csv")
        seconds(run, None)
        pairs = [(seconds(run, None), seconds(run, trace)) for _ in range(ROUNDS)]
        trace.close()
    plain, traced = (statistics.median(times) for times in zip(*pairs))
    print(f"step {plain * 1e3:.1f} ms, traced {traced * 1e3:.1f} ms")
    print(
        f"traced / untraced: {statistics.median(traced / plain for plain, traced in pairs):.3f} (wanted at most 1.05)"
    )


def seconds(run, trace):
    """Train STEPS_A_ROUND steps and return the seconds that one took."""
    start = time.perf_counter()
    for _ in run.train(run.step + STEPS_A_ROUND, trace):
        pass
    return (time.perf_counter() - start) / STEPS_A_ROUND


if __name__ == "__main__":
    main()
