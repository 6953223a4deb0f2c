"""Records of a program that was stopped and resumed, held against one of its uninterrupted run."""

import json
import sys

import pytest
from recordings import PROGRAM, recorder, run

from exact_resume.errors import LabError
from exact_resume.recording.diagnosing import diagnose_paths

UPDATES, SAVED, KILLED = 9, 4, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder with the records of an uninterrupted run, and of one that was killed an update after it had saved."""
    folder = tmp_path_factory.mktemp("runs")
    call = recorder(folder)
    flags = ["--updates", UPDATES, "--save-every", SAVED]
    assert call("straight", *PROGRAM, "--out", "straight-out", *flags).returncode == 0
    assert call("stopped", *PROGRAM, "--out", "out", *flags, flags=["--kill-after", KILLED]).returncode == 0
    return folder


@pytest.fixture
def resumed(folder, tmp_path):
    """A function that resumes the run that was killed, recorded, and returns the diagnosis of all its legs."""

    def call(*flags, first=None):
        command = [*PROGRAM, "--out", folder / "out", "--updates", UPDATES, "--save-every", 100, *flags]
        result = recorder(tmp_path)("resumed", *command)
        assert result.returncode == 0, result.stderr
        return diagnose_paths(folder / "straight", [folder / "stopped", tmp_path / "resumed"], first_update=first)

    return call


def test_exact_resume_is_identical_and_what_was_trained_again_a_note(resumed):
    found = resumed("--resume")
    assert found["verdict"] == "identical"
    assert f"update {KILLED} trained more than once" in found["sentence"]


@pytest.mark.parametrize(
    ("lost", "culprit", "action"),
    [
        ("optimizer", "AdamW", "AdamW was lost (it is as before training)"),
        ("scheduler", "LinearLR", "LinearLR was lost"),
        ("rng", "rng.torch", "rng.torch was lost (it is as before training)"),
        ("model", "Sequential", "Sequential was lost (it is as before training)"),
    ],
)
def test_what_was_lost_is_named_at_the_update_where_it_was(lost, culprit, action, resumed):
    found = resumed("--resume", "--lose", lost)
    assert found["verdict"] == "inputs"
    assert found["sentence"].startswith(f"differs from update {SAVED + 1}")
    assert f": {action}" in found["sentence"]


def test_run_that_began_again_is_told_so(resumed):
    found = resumed()
    assert "started from scratch" in found["sentence"] or "trained more than once" in found["sentence"]


def test_process_that_holds_nothing_of_the_reference_is_placed_by_hand(folder, resumed, tmp_path):
    program = "import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    step = "model(torch.ones(3, 2)).mean().backward(); optimizer.step()\n"
    call = recorder(tmp_path)
    assert call("a", sys.executable, "-c", f"{program}{step * 4}").returncode == 0
    assert call("b", sys.executable, "-c", f"{program}{step * 2}").returncode == 0
    with pytest.raises(LabError, match="wanted --first-update, the number of that update in the reference"):
        diagnose_paths(tmp_path / "a", [tmp_path / "b"])
    found = diagnose_paths(tmp_path / "a", [tmp_path / "b"], first_update=3)
    assert found["sentence"].startswith("differs from update 3")


def test_each_rank_has_a_diagnosis(tmp_path):
    call = recorder(tmp_path)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, PROGRAM[1]]
    call("straight", *ranks, "--out", "s")
    call("stopped", *ranks, "--out", "o", flags=["--kill-after", 3])
    call("resumed", *ranks, "--out", "o", "--resume", "--lose", "rng")
    found = diagnose_paths(tmp_path / "straight", [tmp_path / "stopped", tmp_path / "resumed"])
    assert set(found["processes"]) == {"rank0", "rank1"}
    assert found["verdict"] == "inputs"
    assert found["sentence"].startswith("all 2 processes: differs from update 3: rng.torch was lost")


def test_command_reads_records(folder):
    command = [sys.executable, "-m", "exact_resume", "diagnose"]
    result = run([*command, "straight", "straight", "--json"], folder)
    assert json.loads(result.stdout)["verdict"] == "identical"
    for arguments, message in {
        ("straight", "out"): "out: found no record.json, wanted the folder of a record",
        ("straight", "straight/record.json"): "straight/record.json: found a file, wanted the folder of a record",
        ("straight", "nothing"): "nothing: ",
        ("straight/process1.trace.csv", "stopped"): "straight/process1.trace.csv: found a file, wanted the folder",
    }.items():
        result = run([*command, *arguments], folder)
        assert result.returncode == 2
        assert result.stderr.startswith(f"error: {message}") and result.stderr.count("\n") == 1, result.stderr
