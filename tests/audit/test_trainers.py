"""Trainers speak the audit's flags, and what they resume exactly and what they lose is what is said of them."""

import json
import os
import subprocess

import numpy as np
import pytest
import torch

import forked
from conftest import ROOT, failed_with_one_line
from exact_resume import diagnosis
from exact_resume.checkpoint import archive

EXAMPLE = [ROOT / "examples" / "my_trainer.py"]
TUTORIAL = [ROOT / "workflow" / "trainers" / "pytorch_tutorial.py"]
TINY = {
    "model": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2},
    "training": {"length": 16},
}
LAB = [ROOT / "workflow" / "scripts" / "train.py", "--save-every", 0, "--settings", json.dumps(TINY)]
# Over an epoch's end, which is after update 12.
STEPS, MID_EPOCH, BOUNDARY = 14, 5, 12


@pytest.fixture
def train(tmp_path):
    """A function that runs a trainer in a process of its own: `out`, log and trace in `tmp_path` are named after
    `name`.
    """
    np.save(tmp_path / "tokens.npy", np.random.default_rng(2).integers(0, 256, 6500).astype(np.uint8))

    def call(trainer, name, *flags):
        own = [
            "--tokens",
            "tokens.npy",
            "--steps",
            STEPS,
            "--out",
            name,
            "--log",
            f"{name}.csv",
            "--trace",
            f"{name}.trace",
        ]
        command = [forked.python(), *map(str, [*trainer, *own, *flags])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return call


def finished(result):
    assert result.returncode == 0, result.stderr


def told(folder, *names):
    """What the diagnosis says of the run whose processes had these names, against the one called straight."""
    traces = [diagnosis.read(folder / f"{name}.trace") for name in ("straight", *names)]
    return diagnosis.sentence(diagnosis.diagnose(traces[0], traces[1:]))


def equal_weights(one, other):
    one, other = archive.load(one), archive.load(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def losses(folder, *names):
    return [line for name in names for line in (folder / f"{name}.csv").read_text().splitlines()[1:]]


@pytest.mark.parametrize("trainer", [EXAMPLE, [*TUTORIAL, "--fixed"]], ids=["example", "fixed tutorial"])
def test_saving_changes_nothing_and_two_resumes_are_exact(trainer, train, tmp_path):
    finished(train(trainer, "straight"))
    finished(train(trainer, "saving", "--save-at", MID_EPOCH, "--save-to", "saved"))
    finished(train(trainer, "stopped", "--resume", "saved", "--stop-at", BOUNDARY))
    finished(train(trainer, "resumed", "--resume", "stopped"))
    assert equal_weights(tmp_path / "saving", tmp_path / "straight")
    assert equal_weights(tmp_path / "resumed", tmp_path / "straight")
    assert losses(tmp_path, "saving") == losses(tmp_path, "straight")
    assert losses(tmp_path, "stopped", "resumed") == losses(tmp_path, "straight")[MID_EPOCH:]
    assert [int(line.split(",")[0]) for line in losses(tmp_path, "straight")] == list(range(1, STEPS + 1))
    assert told(tmp_path, "stopped", "resumed") == told(tmp_path, "saving")
    assert told(tmp_path, "saving").startswith("identical")


@pytest.mark.parametrize("trainer", [EXAMPLE, [*TUTORIAL, "--fixed"], LAB], ids=["example", "fixed tutorial", "lab"])
@pytest.mark.parametrize("save_at", [2, MID_EPOCH])
def test_one_process_saves_and_stops_also_at_the_same_step(trainer, save_at, train, tmp_path):
    finished(train(trainer, "straight"))
    finished(train(trainer, "stopped", "--save-at", save_at, "--save-to", "saved", "--stop-at", MID_EPOCH))
    for name in ("saved", "stopped"):
        finished(train(trainer, f"from {name}", "--resume", name))
        assert equal_weights(tmp_path / f"from {name}", tmp_path / "straight")
    assert losses(tmp_path, "from saved") == losses(tmp_path, "straight")[save_at:]


def test_the_tutorials_checkpoint_loses_schedule_and_generator_even_at_an_epochs_end(train, tmp_path):
    finished(train(TUTORIAL, "straight"))
    finished(train(TUTORIAL, "stopped", "--stop-at", BOUNDARY))
    finished(train(TUTORIAL, "resumed", "--resume", "stopped"))
    assert not equal_weights(tmp_path / "resumed", tmp_path / "straight")
    assert "scheduler was lost" in told(tmp_path, "resumed")
    assert "rng.torch was lost" in told(tmp_path, "resumed")


def test_the_example_without_one_line_loses_its_optimizer(train, tmp_path):
    text = EXAMPLE[0].read_text()
    line = '    optimizer.load_state_dict(checkpoint["optimizer"])\n'
    assert text.count(line) == 1
    (tmp_path / "broken.py").write_text(text.replace(line, ""))
    finished(train(EXAMPLE, "straight"))
    finished(train(["broken.py"], "stopped", "--stop-at", MID_EPOCH))
    finished(train(["broken.py"], "resumed", "--resume", "stopped"))
    assert not equal_weights(tmp_path / "resumed", tmp_path / "straight")
    assert told(tmp_path, "resumed").startswith(f"differs from batch {MID_EPOCH + 1}: optimizer was lost")


def test_the_example_is_short():
    assert len(EXAMPLE[0].read_text().splitlines()) < 60


def test_a_token_file_that_is_too_short_is_refused_in_one_line(train, tmp_path):
    np.save(tmp_path / "tokens.npy", np.zeros(100, dtype=np.uint8))
    assert (
        failed_with_one_line(train(TUTORIAL, "straight")) == "error: tokens.npy: found 100 tokens, wanted at least 6240"
    )


def test_where_to_save_belongs_to_when(train):
    result = train(TUTORIAL, "straight", "--save-at", 3)
    assert result.returncode == 2
    assert "--save-at and --save-to belong together" in result.stderr
