"""Stopped and resumed equals uninterrupted, bit for bit."""

import hashlib
import io
import json
import subprocess
import sys

import hypothesis
import hypothesis.strategies
import numpy as np
import pytest
import torch
import yaml

from conftest import ROOT, TINY_FILE, failed_with_one_line
from exact_resume import diagnosis
from exact_resume.checkpoint import archive
from exact_resume.lab import settings, state
from exact_resume.lab.run import Run
from exact_resume.lab.sketch import Sketch
from exact_resume.tracing.recorder import digest

TINY_STEPS = 8


# All the state that a run may have, a little of each kind and everything at once: overrides of the model and training
# sections.
CONFIGURATIONS = {
    "default": ({}, {}),
    "dropout": ({"dropout": 0.1}, {}),
    "accumulation": ({}, {"accumulation": 3}),
    "bfloat16": ({}, {"precision": "bfloat16"}),
    "float16": ({}, {"precision": "float16", "growth_interval": 1}),
    "ema": ({}, {"ema": 0.9}),
    "permutation": ({}, {"order": "permutation", "augment": 0.2}),
    "skip": ({}, {"order": "skip", "augment": 0.2}),
    "workers": ({}, {"order": "permutation", "workers": 2, "augment": 0.2}),
    "everything": (
        {"dropout": 0.1},
        {
            "accumulation": 3,
            "precision": "float16",
            "growth_interval": 1,
            "ema": 0.9,
            "order": "permutation",
            "augment": 0.2,
        },
    ),
}
# Of 200 tokens an epoch has six batches of two sequences of 16, so that runs of eight steps cross its end.
FEW_TOKENS = np.random.default_rng(1).integers(0, 256, 200).astype(np.uint8)


def configured(tiny, name):
    """A function that makes a fresh run of this configuration, as a new process would."""
    model, training = CONFIGURATIONS[name]
    chosen = settings.load({"model": {**tiny["model"], **model}, "training": {**tiny["training"], **training}})
    return lambda: Run(chosen, FEW_TOKENS)


def weights_bytes(run):
    buffer = io.BytesIO()
    torch.save(run.weights(), buffer)
    return buffer.getvalue()


def finish(run, until=TINY_STEPS):
    return [(step, f"{loss:.6f}") for step, loss in run.train(until)]


def captured(run):
    """What a resume file of this run gives when it is read, with nothing shared with the run."""
    buffer = io.BytesIO()
    torch.save(state.capture(run.components), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def stopped_at(make_run, stop):
    run = make_run()
    finish(run, stop)
    return captured(run)


def resumed(make_run, resume_state, recipe=None):
    """A fresh run, made after all others so that it seeds the global generators as a new process would, at the place of
    `resume_state`.
    """
    run = make_run()
    run.resume(resume_state, "resume.pth", recipe or {})
    return run


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_resume_at_any_step_gives_the_same_bytes(tiny, name):
    make_run = configured(tiny, name)
    straight = make_run()
    losses = finish(straight)
    for stop in range(1, TINY_STEPS):
        run = resumed(make_run, stopped_at(make_run, stop))
        assert finish(run) == losses[stop:], stop
        assert weights_bytes(run) == weights_bytes(straight), stop


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True)
@hypothesis.given(
    name=hypothesis.strategies.sampled_from([name for name in CONFIGURATIONS if name != "workers"]),
    stops=hypothesis.strategies.sets(hypothesis.strategies.integers(1, TINY_STEPS - 1), min_size=2),
)
def test_any_chain_of_stops_gives_the_same_bytes(tiny, name, stops):
    make_run = configured(tiny, name)
    straight = make_run()
    finish(straight)
    first, *others = sorted(stops)
    resume_state = stopped_at(make_run, first)
    for stop in [*others, TINY_STEPS]:
        run = resumed(make_run, resume_state)
        finish(run, stop)
        resume_state = captured(run)
    assert weights_bytes(run) == weights_bytes(straight)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_saving_at_every_step_changes_no_bit(tiny, name, tmp_path):
    make_run = configured(tiny, name)
    straight = make_run()
    finish(straight)
    saving = make_run()
    for _ in saving.train(TINY_STEPS):
        archive.save(tmp_path / "resume.pth", state.capture(saving.components))
    assert weights_bytes(saving) == weights_bytes(straight)


@pytest.mark.parametrize("name", ["default", "permutation", "skip", "workers"])
@pytest.mark.parametrize("stop", [3, 6, 7])
def test_replaying_the_batches_gives_the_same_bytes(tiny, name, stop):
    make_run = configured(tiny, name)
    straight = make_run()
    finish(straight)
    run = resumed(make_run, stopped_at(make_run, stop), {"replay": ["gen_state"]})
    finish(run)
    assert weights_bytes(run) == weights_bytes(straight)


@pytest.mark.parametrize(
    ("name", "treatment", "component"),
    [
        *(("default", "omit", component) for component in ("model", "optimizer", "step", "gen_state")),
        *(("default", "round", component) for component in ("model", "optimizer")),
        *(("everything", "omit", component) for component in ("gradients", "scaler", "ema", "rng", "gen_state")),
        *(("everything", "round", component) for component in ("gradients", "ema")),
        ("skip", "omit", "gen_state"),
    ],
)
def test_leaving_any_component_out_gives_other_bytes(tiny, name, treatment, component):
    make_run = configured(tiny, name)
    straight = make_run()
    finish(straight)
    lossy = resumed(make_run, stopped_at(make_run, 4), {treatment: [component]})
    finish(lossy)
    assert weights_bytes(lossy) != weights_bytes(straight)


def test_run_ends_with_the_averages_when_it_makes_some(tiny):
    run = configured(tiny, "ema")()
    expected = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
    for _ in run.train(TINY_STEPS):
        for name, parameter in run.model.named_parameters():
            expected[name] = 0.9 * expected[name] + 0.1 * parameter.detach()
    weights = run.weights()
    assert weights.keys() == run.model.state_dict().keys()
    for name, average in expected.items():
        torch.testing.assert_close(weights[name], average)
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_accumulated_steps_equal_one_large_batch(tiny):
    """Three batches of two with one update after them move the weights as one batch of six does, but for rounding."""
    small = configured(tiny, "accumulation")()
    weights = {name: parameter.detach().clone() for name, parameter in small.model.named_parameters()}
    batches = [small.batches.draw() for _ in range(3)]
    small.batches.load_state_dict(configured(tiny, "accumulation")().batches.state_dict())
    for _ in small.train(2):
        assert all(torch.equal(parameter, weights[name]) for name, parameter in small.model.named_parameters())
    large = torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])
    loss = torch.nn.functional.cross_entropy(small.model(large[0]).flatten(0, 1), large[1].flatten())
    gradients = torch.autograd.grad(loss, list(small.model.parameters()))
    small._gather_gradients(*batches[2])
    for parameter, gradient in zip(small.model.parameters(), gradients):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_sketching_the_weights_changes_no_bit(make_run):
    plain = make_run()
    finish(plain)
    sketched = make_run()
    sketch = Sketch(sketched.model.parameters())
    for _ in sketched.train(TINY_STEPS):
        sketch.take()
    assert weights_bytes(sketched) == weights_bytes(plain)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_tracing_changes_no_bit(tiny, name, tmp_path):
    make_run = configured(tiny, name)
    plain = make_run()
    finish(plain)
    traced = make_run()
    trace = traced.make_trace(tmp_path / "trace.csv")
    losses = list(traced.train(TINY_STEPS, trace))
    assert weights_bytes(traced) == weights_bytes(plain)
    assert [repr(loss) for _, loss in losses] == [
        row.cells["loss"] for row in diagnosis.read(tmp_path / "trace.csv").rows
    ]


def test_our_optimizer_steps_as_torchs_own_does(make_run):
    ours, theirs = make_run(), make_run()
    theirs.optimizer = torch.optim.AdamW(theirs.model.parameters(), lr=0.003, weight_decay=0.01, fused=True)
    finish(ours)
    finish(theirs)
    assert weights_bytes(ours) == weights_bytes(theirs)
    assert ours.optimizer.state_dict().keys() == theirs.optimizer.state_dict().keys()


def test_processes_with_other_thread_environments_write_the_same_bytes(verb, tmp_path, tokens):
    """The claim of the lab's steps 1 to 3 as a user types them, with the thread count of the environment changed
    between them.
    """
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
    digests = {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("straight.pth", "resumed.pth")
    }
    assert digests["straight.pth"] == digests["resumed.pth"]
    straight, resumed = ((tmp_path / name).read_text().splitlines() for name in ("straight_log.csv", "resumed_log.csv"))
    assert straight[0] == resumed[0] == "step,train_loss"
    assert straight[4:] == resumed[1:]
    assert list(archive.load(tmp_path / "resume.pth")) == ["model", "optimizer", "step", "gen_state"]
    assert not list(tmp_path.glob("*.tmp"))


def test_file_saved_on_the_way_is_the_one_that_a_stop_leaves_and_changes_no_bit(verb, tmp_path, tokens):
    """Also when the run that saves is itself a resumed one; the steps are counted by the flag."""
    np.save(tmp_path / "train.npy", tokens)
    settings = json.dumps(
        {"model": {**yaml.safe_load(TINY_FILE.read_text())["model"], "dropout": 0.1}, "training": {"length": 16}}
    )
    runs = {
        "straight.pth": [],
        "saving.pth": ["--save-at", "5", "--save-to", "saved.pth"],
        "stopped.pth": ["--stop-at", "5"],
        "early.pth": ["--stop-at", "2"],
        "resumed.pth": ["--resume", "early.pth", "--save-at", "5", "--save-to", "saved_later.pth"],
    }
    for out, flags in runs.items():
        result = verb("train", "--tokens", "train.npy", "--steps", "7", "--out", out, "--settings", settings, *flags)
        assert result.returncode == 0, result.stderr
    content = {path.name: path.read_bytes() for path in tmp_path.glob("*.pth")}
    assert content["straight.pth"] == content["saving.pth"] == content["resumed.pth"]
    assert content["stopped.pth"] == content["saved.pth"]
    # Pickle writes down which texts are one object, so that only what is in it is the same here.
    stopped, saved_later = (archive.load(tmp_path / name) for name in ("stopped.pth", "saved_later.pth"))
    assert {name: digest(value) for name, value in stopped.items()} == {
        name: digest(value) for name, value in saved_later.items()
    }
    again = ["--resume", "stopped.pth", "--save-at", "5", "--save-to", "saved.pth"]
    result = verb("train", "--tokens", "train.npy", "--steps", "7", "--out", "no.pth", "--settings", settings, *again)
    assert "--save-at: found 5, wanted a step after 5, where stopped.pth stands" in failed_with_one_line(result)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--out", "a.pth", "--log", "./a.pth"),
            "--log: found {folder}/a.pth, which is --out too, wanted a file of its own",
        ),
        (("--out", "train.npy"), "--out: found {folder}/train.npy, which is --tokens too, wanted a file of its own"),
        (("--out", "a.pth", "--log", "."), "--log: found {folder}, which is a folder, wanted a file to write"),
    ],
)
def test_output_that_would_overwrite_something_is_refused_before_training(verb, tmp_path, tokens, flags, message):
    np.save(tmp_path / "train.npy", tokens)
    before = (tmp_path / "train.npy").read_bytes()
    result = verb("train", "--tokens", "train.npy", *flags)
    assert failed_with_one_line(result) == f"error: {message.format(folder=tmp_path.resolve())}"
    assert [path.name for path in tmp_path.iterdir()] == ["train.npy"]
    assert (tmp_path / "train.npy").read_bytes() == before


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
        "from exact_resume.lab import settings\nfrom exact_resume.lab.run import Run\n"
        "run = Run(settings.load({'training': {'steps': 2, 'length': 16}}), np.zeros(100, np.uint8))\n"
        "list(run.train(2)); run.optimizer.load_state_dict(run.optimizer.state_dict())\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "workflow" / "scripts", capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_resume_on_a_gpu_gives_the_same_bytes(tiny, tokens):
    on_gpu = {**tiny, "training": {**tiny["training"], "device": "cuda"}}
    make_run = lambda: Run(on_gpu, tokens)  # noqa: E731
    straight = make_run()
    finish(straight)
    run = resumed(make_run, stopped_at(make_run, 3))
    finish(run)
    assert weights_bytes(run) == weights_bytes(straight)
