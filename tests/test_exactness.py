"""Stopped and resumed equals uninterrupted, bit for bit."""

import hashlib
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

from conftest import ROOT, TINY_FILE
from lab import checkpoint, state
from lab.run import Run
from lab.sketch import Sketch

TINY_STEPS = 8


def weights_bytes(run):
    buffer = io.BytesIO()
    torch.save(run.model.state_dict(), buffer)
    return buffer.getvalue()


def finish(run, until=TINY_STEPS):
    return [(step, f"{loss:.6f}") for step, loss, _ in run.train(until)]


@pytest.mark.parametrize("stop_at", range(1, TINY_STEPS))
def test_resume_at_any_step_gives_the_same_bytes(make_run, tmp_path, stop_at):
    straight = make_run()
    losses = finish(straight)
    stopped = make_run()
    finish(stopped, stop_at)
    checkpoint.save(tmp_path / "resume.pth", state.capture(stopped.components))
    resumed = make_run()
    resumed.resume(checkpoint.load(tmp_path / "resume.pth"), "resume.pth", {})
    assert finish(resumed) == losses[stop_at:]
    assert weights_bytes(resumed) == weights_bytes(straight)


def test_replaying_the_generator_gives_the_same_bytes(make_run):
    straight, stopped, replayed = make_run(), make_run(), make_run()
    finish(straight)
    finish(stopped, 3)
    replayed.resume(state.capture(stopped.components), "memory", {"replay": ["gen_state"]})
    finish(replayed)
    assert weights_bytes(replayed) == weights_bytes(straight)


@pytest.mark.parametrize(
    ("treatment", "component"),
    [("omit", "model"), ("omit", "optimizer"), ("omit", "step"), ("omit", "gen_state"), ("round", "model"), ("round", "optimizer")],
)
def test_leaving_any_component_out_gives_other_bytes(make_run, tmp_path, treatment, component):
    straight, stopped = make_run(), make_run()
    finish(straight)
    finish(stopped, 4)
    checkpoint.save(tmp_path / "resume.pth", state.capture(stopped.components))
    lossy = make_run()
    lossy.resume(checkpoint.load(tmp_path / "resume.pth"), "resume.pth", {treatment: [component]})
    finish(lossy)
    assert weights_bytes(lossy) != weights_bytes(straight)


def test_sketching_the_weights_changes_no_bit(make_run):
    plain, sketched = make_run(), make_run()
    finish(plain)
    sketch = Sketch(sketched.model.parameters())
    for _ in sketched.train(TINY_STEPS):
        sketch.take()
    assert weights_bytes(sketched) == weights_bytes(plain)


def test_our_optimizer_steps_as_torchs_own_does(make_run):
    ours, theirs = make_run(), make_run()
    theirs.optimizer = torch.optim.AdamW(theirs.model.parameters(), lr=0.003, weight_decay=0.01, fused=True)
    finish(ours)
    finish(theirs)
    assert weights_bytes(ours) == weights_bytes(theirs)
    assert ours.optimizer.state_dict().keys() == theirs.optimizer.state_dict().keys()


def test_processes_with_other_thread_environments_write_the_same_bytes(verb, tmp_path, tokens):
    """The claim of the lab's steps 1 to 3 as a user types them, with the thread count of the environment changed between them."""
    np.save(tmp_path / "train.npy", tokens)
    tiny = yaml.safe_load(TINY_FILE.read_text())
    common = ["--tokens", "train.npy", "--settings", json.dumps({name: tiny[name] for name in ("model", "training")})]
    for flags, threads in (
        (["--out", "straight.pth", "--log", "straight_log.csv"], "1"),
        (["--out", "resume.pth", "--stop-at", "3"], "2"),
        (["--out", "resumed.pth", "--log", "resumed_log.csv", "--resume", "resume.pth"], "3"),
    ):
        result = verb("train", *common, *flags, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
        assert result.returncode == 0, result.stderr
    digests = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("straight.pth", "resumed.pth")}
    assert digests["straight.pth"] == digests["resumed.pth"]
    straight, resumed = ((tmp_path / name).read_text().splitlines() for name in ("straight_log.csv", "resumed_log.csv"))
    assert straight[0] == resumed[0] == "step,train_loss"
    assert straight[4:] == resumed[1:]
    assert list(checkpoint.load(tmp_path / "resume.pth")) == ["model", "optimizer", "step", "gen_state"]
    assert not list(tmp_path.glob("*.tmp"))


def test_thread_count_is_the_configs(make_run):
    torch.set_num_threads(2)
    assert make_run().training["threads"] == 1
    assert torch.get_num_threads() == 1


def test_nondeterministic_kernels_are_refused(make_run):
    make_run()
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_training_never_imports_the_compiler():
    """torch._dynamo takes longer to import than torch itself; nothing here compiles."""
    code = (
        "import sys, numpy as np\n"
        "from lab import settings\nfrom lab.run import Run\n"
        "run = Run(settings.load({'training': {'steps': 2, 'length': 16}}), np.zeros(100, np.uint8))\n"
        "list(run.train(2)); run.optimizer.load_state_dict(run.optimizer.state_dict())\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "workflow" / "scripts", capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_resume_on_a_gpu_gives_the_same_bytes(tiny, tokens, tmp_path):
    on_gpu = {**tiny, "training": {**tiny["training"], "device": "cuda"}}
    straight, stopped, resumed = (Run(on_gpu, tokens) for _ in range(3))
    finish(straight)
    finish(stopped, 3)
    checkpoint.save(tmp_path / "resume.pth", state.capture(stopped.components))
    resumed.resume(checkpoint.load(tmp_path / "resume.pth", "cpu"), "resume.pth", {})
    finish(resumed)
    assert weights_bytes(resumed) == weights_bytes(straight)
