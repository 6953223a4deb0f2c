"""A training job that is killed goes on from its progress and ends with the bytes that it would have had; other
progress is not trusted.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml

import command_line
import forked
import train
from conftest import ROOT, TINY_FILE, copy_project, failed_with_one_line
from exact_resume.checkpoint import archive

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

    def __init__(self, folder, *flags, steps=STEPS, scripts=ROOT / "workflow" / "scripts", python=None, **training):
        self.folder = folder
        settings = {"model": MODEL, "training": {**TRAINING, "steps": steps, **training}}
        files = [
            "--tokens",
            "train.npy",
            "--out",
            "out.pth",
            "--log",
            "out.csv",
            "--record",
            "out.npz",
            "--trace",
            "trace.csv",
        ]
        self.command = [
            python or forked.python(),
            str(scripts / "train.py"),
            *files,
            "--settings",
            json.dumps(settings),
            "--save-every",
            "7",
            *flags,
        ]

    def start(self):
        return subprocess.Popen(self.command, cwd=self.folder, stderr=subprocess.PIPE, text=True)

    def run(self):
        return subprocess.run(self.command, cwd=self.folder, capture_output=True, text=True, check=False)

    def end(self, number, kept="out.pth.progress"):
        """Start it, send the signal when it has kept some progress in this file, and return its status and what it
        said.
        """
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
    returncode, said = Job(folder, python=sys.executable).end(number)
    assert returncode == status
    if number != signal.SIGKILL:
        assert f"ended by {number.name} after step" in said
    job = Job(folder)
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
    path = project / "src/exact_resume/lab/model.py"
    path.write_text(path.read_text() + "\nMORE = 1\n")
    return {"scripts": project / "workflow" / "scripts"}


def other_data(folder):
    np.save(folder / "train.npy", np.random.default_rng(2).integers(0, 256, 4000).astype(np.uint8))
    return {}


def other_machine(folder):
    project = copy_project(folder / "project")
    path = project / "src/exact_resume/pipeline/fingerprint.py"
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
    for path in filter(Path.exists, each_progress(folder)):
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


def short_job(folder):
    """A job of nine steps that keeps its progress after the fourth and the eighth, inside of accumulation windows."""
    return Job(folder, "--save-every", "4", steps=9)


def run_here(job):
    """Run the job in this process. Return the line that it failed with, or None."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(job.folder)
        patch.setattr(sys, "argv", job.command[1:])
        try:
            command_line.run(train.main)
        except SystemExit as failure:
            return failure.code
    return None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outputs of the short job that nothing ends."""
    job = short_job(with_tokens(tmp_path_factory.mktemp("whole")))
    assert run_here(job) is None
    return job.outputs()


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A folder with what the short job leaves when it can't write its output."""
    folder = with_tokens(tmp_path_factory.mktemp("ended"))
    (folder / "out.pth.tmp").mkdir()
    assert run_here(short_job(folder)) == "error: out.pth: can't be written: Is a directory"
    (folder / "out.pth.tmp").rmdir()
    return folder


@pytest.fixture
def finish(ended, tmp_path, capsys):
    """A function that calls the short job once more in a copy of `ended` after `damage` was done there.

    It returns what the job said, but for how far it was, and what it wrote.
    """

    def call(damage):
        job = short_job(tmp_path / "copy")
        shutil.copytree(ended, job.folder)
        (job.folder / "out.csv").unlink()
        damage(job.folder)
        capsys.readouterr()
        assert run_here(job) is None
        left = [path.name for path in job.folder.glob("*.progress*") if ".aside" not in path.name]
        assert not left, "a finished job leaves no progress"
        return re.sub(r"out: step \d+ of 9\n", "", capsys.readouterr().err), job.outputs()

    return call


DAMAGES = {}


def damage(function):
    """Register a function of a folder that makes both progress files there such that nothing can be continued."""
    DAMAGES[function.__name__.replace("_", " ")] = function
    return function


def each_progress(folder):
    return [folder / "out.pth.progress", folder / "out.pth.progress.previous"]


def saved_otherwise(name, change):
    """Register a damage that saves what `change` makes of the progress."""

    def resave(folder):
        for path in each_progress(folder):
            torch.save(change(archive.load(path)), path)

    DAMAGES[name] = resave


def inside(*keys, **entries):
    """Return a function that lays `entries` over the dict at `keys` of what it is given."""

    def change(value, keys=keys):
        return {**value, keys[0]: change(value[keys[0]], keys[1:])} if keys else {**value, **entries}

    return change


COMPONENTS = ("state", "run", "components")
saved_otherwise("a list", lambda saved: [saved])
saved_otherwise("nothing", lambda saved: None)
saved_otherwise("no identity", lambda saved: {"state": saved["state"]})
saved_otherwise("an identity that is a list", inside(identity=[1]))
saved_otherwise("an identity that is a tensor", inside(identity=torch.zeros(2)))
saved_otherwise("a state that is a number", inside(state=3))
saved_otherwise("a state without a journal", lambda saved: {**saved, "state": {"run": saved["state"]["run"]}})
saved_otherwise("a run that is a number", inside("state", run=3))
saved_otherwise("a run that is a list", inside("state", run=["components", "schedule"]))
saved_otherwise("components that are a list", inside("state", "run", components=[]))
saved_otherwise("no components", inside("state", "run", components={}))
saved_otherwise("a component too many", inside(*COMPONENTS, more=1))
saved_otherwise("a step beyond the last", inside(*COMPONENTS, step=10))
saved_otherwise("a step that others have not made", inside(*COMPONENTS, step=5))
saved_otherwise("a schedule that counts otherwise", inside("state", "run", schedule=3))
saved_otherwise("a schedule that is true", inside("state", "run", schedule=True))
saved_otherwise("a journal that is a list", inside("state", journal=[]))
saved_otherwise("a journal without a trace", inside("state", journal={"losses": 1, "sketches": 1}))
saved_otherwise("losses of a negative size", inside("state", "journal", losses={"bytes": -1, "digest": ""}))
saved_otherwise("losses of another digest", inside("state", "journal", "losses", digest="0"))
saved_otherwise("losses of no size", inside("state", "journal", losses=None))
saved_otherwise(
    "empty losses", inside("state", "journal", losses={"bytes": 0, "digest": "99aa06d3014798d86001c324468d497f"})
)
saved_otherwise(
    "fewer sketches", inside("state", "journal", sketches={"bytes": 0, "digest": "99aa06d3014798d86001c324468d497f"})
)
saved_otherwise("more trace than there is", inside("state", "journal", "trace", bytes=10**12))


@damage
def only_some_gradients(folder):
    change = inside(*COMPONENTS, gradients={"lm_head.weight": torch.zeros(256, 32)})
    for path in each_progress(folder):
        torch.save(change(archive.load(path)), path)


@damage
def moments_that_are_views_of_one_number(folder):
    for path in each_progress(folder):
        saved = archive.load(path)
        moments = saved["state"]["run"]["components"]["optimizer"]["state"][0]
        moments["exp_avg"] = torch.zeros(1).expand(moments["exp_avg"].shape)
        torch.save(saved, path)


@damage
def folders_in_place_of_progress(folder):
    for path in each_progress(folder):
        path.unlink()
        path.mkdir()


@damage
def a_pipe_in_place_of_progress(folder):
    first, second = each_progress(folder)
    first.unlink()
    second.unlink()
    os.mkfifo(first)


@damage
def links_to_nothing(folder):
    for path in each_progress(folder):
        path.unlink()
        path.symlink_to(folder / "nothing")


@damage
def legacy_files(folder):
    for path in each_progress(folder):
        torch.save(archive.load(path), path, _use_new_zipfile_serialization=False)


@damage
def no_losses(folder):
    (folder / "out.pth.progress.losses").unlink()


@damage
def a_folder_in_place_of_the_losses(folder):
    (folder / "out.pth.progress.losses").unlink()
    (folder / "out.pth.progress.losses").mkdir()


@damage
def a_pipe_in_place_of_the_trace(folder):
    (folder / "out.pth.progress.trace").unlink()
    os.mkfifo(folder / "out.pth.progress.trace")


@damage
def sketches_cut_short(folder):
    os.truncate(folder / "out.pth.progress.sketches", 100)


@damage
def one_bit_of_the_trace_flipped(folder):
    path = folder / "out.pth.progress.trace"
    content = path.read_bytes()
    path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])


@damage
def a_folder_that_somebody_keeps_files_in(folder):
    for path in each_progress(folder):
        path.unlink()
        path.mkdir()
        (path / "mine.txt").write_text("mine")


@pytest.mark.parametrize("name", DAMAGES)
def test_progress_of_which_nothing_can_be_continued_is_said_in_one_line_and_discarded(name, finish, whole, tmp_path):
    said, outputs = finish(DAMAGES[name])
    assert said.endswith("; discarded, the run begins anew\n")
    assert said.count("\n") == 1
    assert outputs == whole
    if name == "a folder that somebody keeps files in":
        assert [path.read_text() for path in sorted(tmp_path.glob("copy/*.aside/mine.txt"))] == ["mine", "mine"]


@pytest.mark.parametrize("kind", ["losses", "sketches", "trace"])
def test_what_was_kept_after_the_last_progress_is_cut_away(kind, finish, whole):
    """Whole rows, parts of one, or what nobody wrote: the offset in the progress is what counts."""

    def more(folder):
        with open(folder / f"out.pth.progress.{kind}", "ab") as file:
            file.write(b"more of it\n" * 10_000)

    said, outputs = finish(more)
    assert "continued after step" in said
    assert said.count("\n") == 1
    assert outputs == whole


def test_records_that_hold_what_the_progress_before_had_are_gone_on_with_from_there(finish, whole):
    """The newer progress is whole, but of the losses only what the older one names reached the disk."""

    def cut(folder):
        older = archive.load(folder / "out.pth.progress.previous")
        os.truncate(folder / "out.pth.progress.losses", older["state"]["journal"]["losses"]["bytes"])

    said, outputs = finish(cut)
    assert "found fewer bytes than the" in said
    assert "taking out.pth.progress.previous, which was saved before it" in said
    assert "continued after step" in said
    assert outputs == whole


def test_save_writes_no_more_in_a_longer_run(ended):
    """What a run leaves a row of at each step is in files that grow, and not in the progress."""
    late, early = each_progress(ended)
    assert [archive.load(path)["state"]["run"]["components"]["step"] for path in (early, late)] == [4, 8]
    assert abs(early.stat().st_size - late.stat().st_size) < 100


def test_two_runs_of_one_output_at_once_end_with_the_same_bytes_or_one_refuses(folder, expected):
    """As when a cluster starts a job again whose first one lives."""
    job = Job(folder)
    processes = [job.start() for _ in range(3)]
    said = [process.communicate()[1] for process in processes]
    statuses = [process.returncode for process in processes]
    assert 0 in statuses
    for status, text in zip(statuses, said):
        if status:
            assert status == 1
            assert text.startswith("error: out.pth.progress.lock: held by another process")
            assert text.count("\n") == 1
    assert job.outputs() == expected
    assert not list(folder.glob("*.progress*"))


def test_two_runs_of_one_output_do_no_harm_where_there_are_no_locks(folder, expected):
    """As on a network file system without them: each ends with the same bytes, or with one line."""
    scripts = copy_project(folder / "project") / "workflow" / "scripts"
    path = scripts.parents[1] / "src" / "exact_resume" / "checkpoint" / "atomic.py"
    path.write_text(
        path.read_text()
        + "\n\ndef no_locks(*_):\n    raise OSError(errno.ENOLCK, 'none')\n\n\nfcntl.flock = no_locks\n"
    )
    job = Job(folder, scripts=scripts)
    first = job.start()
    while not (folder / "out.pth.progress").exists():
        assert first.poll() is None
        time.sleep(0.01)
    second = job.run()
    said = [first.communicate()[1], second.stderr]
    assert 0 in (first.returncode, second.returncode)
    for status, text in zip((first.returncode, second.returncode), said):
        assert status == 0 or text.startswith("error: ")
        assert "Traceback" not in text
    assert job.outputs() == expected
    assert not list(folder.glob("*.tmp"))


def test_lock_of_a_killed_run_is_no_obstacle(folder, expected):
    job = Job(folder)
    job.end(signal.SIGKILL)
    assert (folder / "out.pth.progress.lock").exists()
    assert job.run().returncode == 0
    assert job.outputs() == expected
    assert not list(folder.glob("*.progress*"))


def test_full_disk_is_one_line_and_tears_nothing(folder, expected):
    """A limit on the size of files stands for the disk; with room again the same command ends with the same bytes."""
    job = Job(folder, python=sys.executable)
    command = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", *job.command]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert failed_with_one_line(result) == "error: out.pth.progress.sketches: File too large"
    assert [path.name for path in folder.iterdir()] == ["train.npy"]
    assert job.run().returncode == 0
    assert job.outputs() == expected


def test_full_disk_is_named_when_tokens_are_written(tmp_path):
    script = str(ROOT / "workflow" / "scripts" / "encode_corpus.py")
    command = [
        "bash",
        "-c",
        'ulimit -f 100; exec "$@"',
        "bash",
        sys.executable,
        script,
        "--train",
        "train.npy",
        "--val",
        "val.npy",
    ]
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
    """Run the pipeline up to straight.pth in `folder`, with one retry; send the training job the signal when it has
    kept some progress.

    Return the weights file's bytes and the job's log.
    """
    folder.mkdir()
    command = [
        sys.executable if number else forked.python(),
        "-m",
        "snakemake",
        "-s",
        str(ROOT / "Snakefile"),
        "-c1",
        "results/straight.pth",
        "--retries",
        "1",
    ]
    configs = ["--configfile", str(TINY_FILE), str(ROOT / "tests" / "kill_anywhere.yaml")]
    process = subprocess.Popen(
        [*command, *configs], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if number is not None:
        while not (folder / "results" / "straight.pth.progress").exists():
            assert process.poll() is None
            time.sleep(0.01)
        (job,) = [child for child in psutil.Process(process.pid).children(recursive=True) if is_training(child)]
        job.send_signal(number)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    return (folder / "results" / "straight.pth").read_bytes(), (
        folder / "results" / "logs" / "straight.log"
    ).read_text()


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


CAN_MOUNT = (
    subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False).returncode == 0
)


@pytest.mark.pipeline
@pytest.mark.skipif(not CAN_MOUNT, reason="this user may not mount a small file system")
def test_pipeline_whose_disk_gets_full_goes_on_with_room():
    command = [
        sys.executable,
        str(ROOT / "tests" / "full_disk.py"),
        "--targets",
        "results/optim.json",
        "results/fp16.json",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "one clear line, nothing torn, the same bytes with room again" in result.stdout
