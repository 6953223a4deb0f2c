"""What the pipeline costs beside the training itself, in ratios measured in one run.

- overhead: the whole of `snakemake -c1 report.md`, less the training steps in it (their number times the measured time
  of a step), divided by its jobs, against `python -c "import torch"`;
- two cores: -c1 against -c2;
- up to date: a call with nothing to be done against `snakemake --version`.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from exact_resume.lab import settings
from exact_resume.lab.run import Run

SNAKEMAKE = Path(sys.executable).with_name("snakemake")
REPEATS = 5


def main():
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one"), Path(folder, "two")
        imports = repeated([sys.executable, "-c", "import torch"])
        one_core = seconds(report(one, cores=1))
        step = step_seconds(np.load(one / "results" / "train.npy"))
        two_cores = seconds(report(two, cores=2))
        idle = repeated(report(one, cores=1))
        version = repeated([SNAKEMAKE, "--version"])
        jobs = len(list((one / "results" / "logs").iterdir()))

    chosen = settings.load()
    steps, stop_at = chosen["training"]["steps"], settings.stops(chosen["training"])[0]
    trained = 2 * steps + stop_at + len(settings.all_variants(chosen)) * (steps - stop_at)
    overhead = (one_core - trained * step) / jobs
    print(
        f"-c1 {one_core:.1f} s, -c2 {two_cores:.1f} s; {jobs} jobs; {trained} steps of {step * 1e3:.1f} ms; "
        f"import torch {imports:.2f} s"
    )
    print(f"overhead a job / import torch: {overhead / imports:.2f} (wanted at most 1.50)")
    print(f"-c1 / -c2: {one_core / two_cores:.2f} (wanted at least 1.50)")
    print(f"up to date {idle:.2f} s / snakemake --version {version:.2f} s: {idle / version:.2f} (wanted at most 2.50)")


def report(folder, cores):
    """Return the command that makes the report in `folder`."""
    return [SNAKEMAKE, "-s", ROOT / "Snakefile", "-d", folder, f"-c{cores}", "report.md"]


def seconds(command):
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - start


def repeated(command):
    """Run `command` once to warm up, then REPEATS times, and return the median seconds."""
    seconds(command)
    return statistics.median(seconds(command) for _ in range(REPEATS))


def step_seconds(tokens):
    """Return the seconds of a bare training step: the mean over a run after two steps of warm-up."""
    run = Run(settings.load(), tokens)
    for _ in run.train(2):
        pass
    start = time.perf_counter()
    for _ in run.train(run.training["steps"]):
        pass
    return (time.perf_counter() - start) / (run.training["steps"] - 2)


if __name__ == "__main__":
    main()
