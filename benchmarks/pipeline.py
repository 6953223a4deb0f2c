"""What the pipeline costs beside the training itself, in ratios measured in one run.

- overhead: the whole of `snakemake -c1 report.md`, less the training steps in it (their number times the measured time of a step),
  divided by its jobs, against `python -c "import torch"`;
- two cores: -c1 against -c2;
- up to date: a call with nothing to be done against `snakemake --version`.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))

from lab import settings
from lab.run import Run

PROJECT = ["Snakefile", "config.yaml", "workflow", "templates", "profiles", "envs"]
PYTHON_RUNS = 5


def main():
    config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        one, two = (copied(Path(folder) / name) for name in ("one", "two"))
        imports = repeated([sys.executable, "-c", "import torch"], ROOT)
        one_core = seconds(snakemake("-c1", "report.md"), one)
        step = step_seconds(np.load(one / "results" / "train.npy"))
        two_cores = seconds(snakemake("-c2", "report.md"), two)
        idle = repeated(snakemake("-c1", "report.md"), one)
        version = repeated(snakemake("--version"), one)
        jobs = len(list((one / "results" / "logs").iterdir()))

    steps, stop_at = config["training"]["steps"], config["training"]["stop_at"]
    trained = 2 * steps + stop_at + len(config["variants"]) * (steps - stop_at)
    overhead = (one_core - trained * step) / jobs
    print(f"-c1 {one_core:.1f} s, -c2 {two_cores:.1f} s; {jobs} jobs; {trained} steps of {step * 1e3:.1f} ms; import torch {imports:.2f} s")
    print(f"overhead a job / import torch: {overhead / imports:.2f} (wanted at most 1.50)")
    print(f"-c1 / -c2: {one_core / two_cores:.2f} (wanted at least 1.50)")
    print(f"up to date {idle:.2f} s / snakemake --version {version:.2f} s: {idle / version:.2f} (wanted at most 2.50)")


def copied(target):
    """Copy what the pipeline is made of into the new folder `target`."""
    target.mkdir()
    for name in PROJECT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, target / name)
    return target


def snakemake(*flags):
    return [str(Path(sys.executable).with_name("snakemake")), *flags]


def seconds(command, folder):
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return time.perf_counter() - start


def repeated(command, folder):
    """Run `command` once to warm up, then PYTHON_RUNS times, and return the median seconds."""
    seconds(command, folder)
    return statistics.median(seconds(command, folder) for _ in range(PYTHON_RUNS))


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
