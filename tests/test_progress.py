"""A training job that is killed goes on from its progress and ends with the bytes that it would have had; other progress is not trusted."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import yaml

from conftest import ROOT, TINY_FILE, copy_project, failed_with_one_line

STEPS = 70
OUTPUTS = ("out.pth", "out.csv", "out.npz", "trace.csv")
# Everything that a run can remember, so that all of it has to be in the progress.
MODEL = {**yaml.safe_load(TINY_FILE.read_text())["model"], "dropout": 0.1}
TRAINING = {
    "batch_size": 2,
    "length": 16,
    "accumulation": 3,
    "precision": "float16",
    "growth_interval": 1,
    "ema": 0.9,
    "order": "permutation",
}


class Job:
    """A call of train.py in a folder, which can be started, waited for and ended."""

    def __init__(self, folder, *flags, steps=STEPS, scripts=ROOT / "workflow" / "scripts", **training):
        self.folder = folder
        settings = {"model": MODEL, "training": {**TRAINING, "steps": steps, **training}}
        files = ["--tokens", "train.npy", "--out", "out.pth", "--log", "out.csv", "--record", "out.npz", "--trace", "trace.csv"]
        self.command = [sys.executable, str(scripts / "train.py"), *files, "--settings", json.dumps(settings), "--save-every", "7", *flags]

    def start(self):
        return subprocess.Popen(self.command, cwd=self.folder, stderr=subprocess.PIPE, text=True)

    def run(self):
        return subprocess.run(self.command, cwd=self.folder, capture_output=True, text=True, check=False)

    def end(self, number, kept="out.pth.progress"):
        """Start it, send the signal when it has kept some progress in this file, and return its status and what it said."""
        process = self.start()
        while not (self.folder / kept).exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate()[1]
        return process.returncode, said

    def outputs(self):
        return {name: (self.folder / name).read_bytes() for name in OUTPUTS if (self.folder / name).exists()}


def with_tokens(folder):
    np.save(folder / "train.npy", np.random.default_rng(1).integers(0, 256, 4000).astype(np.uint8))
    return folder


@pytest.fixture
def folder(tmp_path):
    return with_tokens(tmp_path)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The outputs of the run of STEPS steps that nothing ends."""
    return undisturbed(Job(with_tokens(tmp_path_factory.mktemp("undisturbed"))))


def undisturbed(job):
    result = job.run()
    assert result.returncode == 0, result.stderr
    outputs = job.outputs()
    assert set(outputs) == set(OUTPUTS)
    for name in OUTPUTS:
        (job.folder / name).unlink()
    return outputs


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_ended_run_goes_on_and_ends_with_the_same_bytes(folder, expected, number, status):
    job = Job(folder)
    returncode, said = job.end(number)
    assert returncode == status
    if number != signal.SIGKILL:
        assert f"ended by {number.name} after step" in said
    result = job.run()
    assert "out.pth.progress: continued after step" in result.stderr
    assert job.outputs() == expected
    assert not list(folder.glob("*.progress*")), "a finished job leaves no progress"


@pytest.mark.parametrize("training", [{}, {"precision": "float32", "ema": 0.0, "accumulation": 1, "order": "crops"}])
def test_stopped_run_that_is_killed_leaves_the_same_resume_file(folder, training):
    job = Job(folder, "--stop-at", "60", **training)
    expected = undisturbed(job)
    job.end(signal.SIGKILL)
    assert "continued after step" in job.run().stderr
    assert job.outputs() == expected


def test_variant_that_lost_state_goes_on_as_it_was(folder):
    """Its schedule counts otherwise than the run, which no resume file says."""
    resume = Job(folder, "--stop-at", "30")
    assert resume.run().returncode == 0
    (folder / "out.pth").rename(folder / "resume.pth")
    job = Job(folder, "--resume", "resume.pth", "--omit", "step", "--omit", "scaler", "--omit", "rng")
    expected = undisturbed(job)
    job.end(signal.SIGKILL)
    assert "continued after step" in job.run().stderr
    assert job.outputs() == expected


def other_code(folder):
    project = copy_project(folder / "project")
    path = project / "workflow/scripts/lab/model.py"
    path.write_text(path.read_text() + "\nMORE = 1\n")
    return {"scripts": project / "workflow" / "scripts"}


def other_data(folder):
    np.save(folder / "train.npy", np.random.default_rng(2).integers(0, 256, 4000).astype(np.uint8))
    return {}


def other_machine(folder):
    project = copy_project(folder / "project")
    path = project / "workflow/scripts/lab/fingerprint.py"
    path.write_text(path.read_text().replace('"torch": version("torch")', '"torch": "0"'))
    return {"scripts": project / "workflow" / "scripts"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda folder: {"lr": 0.001}, "other configuration"),
        (other_data, "other data"),
        (other_code, "other code"),
        (other_machine, "other code and torch or CPU"),
    ],
)
def test_progress_made_otherwise_is_said_and_discarded(folder, change, named):
    Job(folder).end(signal.SIGKILL)
    job = Job(folder, **change(folder))
    result = job.run()
    assert f"out.pth.progress: made with {named}; discarded, the run begins anew" in result.stderr
    found = job.outputs()
    assert undisturbed(job) == found


def flip(content):
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


@pytest.mark.parametrize("damage", [flip, lambda content: content[:1000], lambda content: b""])
def test_damaged_progress_is_said_and_discarded(folder, expected, damage):
    job = Job(folder)
    job.end(signal.SIGKILL)
    for path in folder.glob("out.pth.progress*"):
        path.write_bytes(damage(path.read_bytes()))
    result = job.run()
    assert result.returncode == 0
    assert "discarded, the run begins anew" in result.stderr
    assert job.outputs() == expected


def test_run_whose_progress_is_damaged_goes_on_from_the_one_before(folder, expected):
    job = Job(folder)
    job.end(signal.SIGKILL, kept="out.pth.progress.previous")
    path = folder / "out.pth.progress"
    path.write_bytes(flip(path.read_bytes()))
    result = job.run()
    assert "is damaged: its CRC-32 is not the one that was written; taking out.pth.progress.previous" in result.stderr
    assert "out.pth.progress: continued after step" in result.stderr
    assert job.outputs() == expected
    assert not list(folder.glob("*.progress*"))


def test_full_disk_is_one_line_and_tears_nothing(folder, expected):
    """A limit on the size of files stands for the disk; with room again the same command ends with the same bytes."""
    job = Job(folder)
    command = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", *job.command]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert failed_with_one_line(result) == "error: out.pth.progress: can't be written: File too large"
    assert {path.name for path in folder.iterdir()} <= {"train.npy", "trace.csv"}
    assert job.run().returncode == 0
    assert job.outputs() == expected


def test_full_disk_is_named_when_tokens_are_written(tmp_path):
    script = str(ROOT / "workflow" / "scripts" / "encode_corpus.py")
    command = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", sys.executable, script, "--train", "train.npy", "--val", "val.npy"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed_with_one_line(result) == "error: train.npy: can't be written: File too large"
    assert not list(tmp_path.iterdir())


@pytest.mark.pipeline
def test_pipeline_that_is_killed_at_random_moments_makes_the_same_artifacts():
    command = [sys.executable, str(ROOT / "tests" / "kill_anywhere.py"), "--kills", "3", "--longest", "6"]
    command += ["--targets", "results/optim.json", "results/resumed.pth", "results/noskip.pth"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 kills (SIGKILL)" in result.stdout


def train_with_a_retry(folder, number=None):
    """Run the pipeline up to straight.pth in `folder`, with one retry; send the training job the signal when it has kept some progress.

    Return the weights file's bytes and the job's log.
    """
    folder.mkdir()
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "-c1", "results/straight.pth", "--retries", "1"]
    configs = ["--configfile", str(TINY_FILE), str(ROOT / "tests" / "kill_anywhere.yaml")]
    process = subprocess.Popen([*command, *configs], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if number is not None:
        while not (folder / "results" / "straight.pth.progress").exists():
            assert process.poll() is None
            time.sleep(0.01)
        (job,) = [child for child in psutil.Process(process.pid).children(recursive=True) if is_training(child)]
        job.send_signal(number)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    return (folder / "results" / "straight.pth").read_bytes(), (folder / "results" / "logs" / "straight.log").read_text()


def is_training(process):
    program, *script = process.cmdline()[:2]
    return "python" in program and script[0].endswith("train.py")


@pytest.mark.pipeline
def test_job_that_is_ended_is_retried_and_goes_on(tmp_path):
    """As on a preemptible machine: SIGTERM, within whose grace the progress is saved, or SIGKILL at once."""
    expected, _ = train_with_a_retry(tmp_path / "undisturbed")
    for number in (signal.SIGTERM, signal.SIGKILL):
        weights, log = train_with_a_retry(tmp_path / number.name, number)
        assert "continued after step" in log
        assert weights == expected


CAN_MOUNT = subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.pipeline
@pytest.mark.skipif(not CAN_MOUNT, reason="this user may not mount a small file system")
def test_pipeline_whose_disk_gets_full_goes_on_with_room():
    command = [sys.executable, str(ROOT / "tests" / "full_disk.py"), "--targets", "results/optim.json", "results/fp16.json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "one clear line, nothing torn, the same bytes with room again" in result.stdout
