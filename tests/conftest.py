"""What the tests share: a tiny run, and the verbs and the pipeline called as a user calls them."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import forked
from exact_resume.lab import settings
from exact_resume.lab.run import Run

ROOT = Path(__file__).resolve().parents[1]
TINY_FILE = ROOT / "tests" / "tiny.yaml"
PROJECT = ["Snakefile", "config.yaml", "src", "workflow", "templates", "profiles", "envs"]


@pytest.fixture(scope="session")
def tiny():
    """The settings of config.yaml with those of tiny.yaml laid over them."""
    return settings.load(yaml.safe_load(TINY_FILE.read_text()))


@pytest.fixture(scope="session")
def tokens():
    return np.random.default_rng(1).integers(0, 256, 4000).astype(np.uint8)


@pytest.fixture
def make_run(tiny, tokens):
    """A function that makes a fresh tiny Run, as a new process would."""
    return lambda: Run(tiny, tokens)


@pytest.fixture
def verb(tmp_path):
    """A function that runs a step script in a process of its own, in `tmp_path`; with `environment` one that starts
    from nothing.
    """

    def call(name, *flags, **environment):
        script = ROOT / "workflow" / "scripts" / f"{name}.py"
        command = [sys.executable if environment else forked.python(), str(script), *map(str, flags)]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )

    return call


def snakemake(project, *flags, workdir=None, configfile=None):
    """Run Snakemake on the copy of the project in `project` with the tiny config, and with `configfile` laid over
    it.
    """
    configs = [str(path) for path in (TINY_FILE, configfile) if path]
    command = [
        forked.python(),
        "-m",
        "snakemake",
        "-s",
        str(project / "Snakefile"),
        *map(str, flags),
        "--configfile",
        *configs,
    ]
    return subprocess.run(command, cwd=workdir or project, capture_output=True, text=True, check=False)


def copy_project(target):
    """Copy what the pipeline is made of to the folder `target`."""
    target.mkdir(exist_ok=True)
    for name in PROJECT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / name)
    return target


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id):
    """A function that returns a copy of the project under a name, in which `make` was called with it; the workers of
    one call share it, so tests must leave it as it is.
    """
    folder = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent

    def call(name, make):
        project = folder / name
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not project.exists():
                making = copy_project(folder / f"{name}.making")
                make(making)
                making.rename(project)
        return project

    return call


@pytest.fixture(scope="session")
def built(made_once):
    """A copy of the project in which the tiny pipeline has run; tests must leave it as it is."""

    def build(project):
        result = snakemake(project, "-c1")
        assert result.returncode == 0, result.stderr
        (project / "stdout.txt").write_text(result.stdout)
        (project / "stderr.txt").write_text(result.stderr)

    return made_once("built", build)


@pytest.fixture
def project(built, tmp_path):
    """A copy of `built` with its results, for tests that change something."""
    target = tmp_path / "project"
    shutil.copytree(built, target, copy_function=shutil.copy2)
    return target


def failed_with_one_line(result):
    """Assert that a process failed as it should on a user's mistake, and return its one line."""
    assert result.returncode == 1, result.stdout + result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
