"""Each planted bug is named by its component and by what was done to it, and nothing else is accused."""

import pytest
from planted_trainer import BUGS, REMEMBERED, STEPS, Trainer, left_in_eval_mode

from exact_resume import diagnosis
from exact_resume.tracing.recorder import Trace

LOST = {
    "optimizer": "optimizer",
    "schedule": "schedule",
    "scaler": "scaler",
    "ema": "ema",
    "gradients": "model.gradients",
    "generator": "generator",
    "epoch": "epoch",
    "position": "position",
    "torch": "rng.torch",
    "numpy": "rng.numpy",
    "python": "rng.python",
}


@pytest.fixture
def traced(tmp_path):
    """A function that trains a trainer up to a step under a trace, and returns the trace as diagnose wants it."""
    made = []

    def train(trainer, until=STEPS):
        path = tmp_path / f"{len(made)}.csv"
        made.append(path)
        trace = Trace(path, **trainer.components())
        trainer.train(until, trace)
        trace.close()
        return diagnosis.read(path)

    return train


def stopped_at(*stops, load=Trainer.load):
    """The checkpoint that the last of these stops leaves, and the trainer of that process."""
    trainer = Trainer()
    for index, stop in enumerate(stops):
        if index:
            state = trainer.save()
            trainer = Trainer()
            load(trainer, state)
        trainer.train(stop)
    return trainer.save()


def accused(result):
    """What is accused of what, also the parts that are told with their component."""
    named = [
        (culprit, [culprit["component"], *(f"{culprit['component']}.{part}" for part in culprit.get("parts", []))])
        for culprit in result["culprits"]
    ]
    return {(name, culprit["action"]) for culprit, names in named for name in names}


def diagnosed(traced, bug, stop=8):
    reference = traced(Trainer())
    state = stopped_at(stop)
    trainer = Trainer()
    BUGS[bug](trainer, state)
    return diagnosis.diagnose(reference, [traced(trainer)])


EXPECTED = {
    "weights only": {(LOST[entry], "lost") for entry in REMEMBERED},
    "started over": {(LOST[entry], "lost") for entry in REMEMBERED} | {("model", "lost"), ("model.buffers", "lost")},
    "optimizer lost": {("optimizer", "lost")},
    "generator not restored": {("generator", "lost")},
    "epoch counter reset": {("epoch", "lost")},
    "position in the epoch lost": {("position", "lost")},
    "schedule from zero": {("schedule", "lost")},
    "gradients of a half-finished window lost": {("model.gradients", "lost")},
    "scaler lost": {("scaler", "lost")},
    "average lost": {("ema", "lost")},
    "torch's generator lost": {("rng.torch", "lost")},
    "numpy's generator lost": {("rng.numpy", "lost")},
    "Python's generator lost": {("rng.python", "lost")},
    "permutation redrawn from a mid-epoch generator, then skipped": {("generator", "skipped_ahead")},
    "schedule stepped twice on load": {("schedule", "skipped_ahead")},
    "off by one step": {("row", "rewound")},
    "half-precision weights in the checkpoint": {("model", "rounded"), ("model.buffers", "rounded")},
    "bfloat16 moments": {("optimizer", "rounded")},
    "average loaded as weights": {("model", "swapped")},
    "average made anew from the loaded weights": {("ema", "swapped")},
    "generators restored before the skip consumed them": {("rng.numpy", "skipped_ahead")},
    "optimizer state attached to the wrong parameters": {("optimizer", "reordered")},
    "parameters given to the optimizer in another order": {("optimizer", "reordered")},
    "batch-norm buffers not saved": {("model.buffers", "lost")},
    "an older checkpoint under the newer one's name": {("row", "skipped_ahead")},
    "hyperparameters of the optimizer changed on load": {("optimizer.settings", "different")},
    "a non-deterministic operation": set(),
    "position counted from the last start": set(),
}


@pytest.mark.parametrize("bug", BUGS)
def test_bug_is_named_and_nothing_else_is(traced, bug):
    result = diagnosed(traced, bug)
    assert accused(result) == EXPECTED[bug], diagnosis.sentence(result)


def test_moves_are_told_in_steps(traced):
    moves = {
        "schedule stepped twice on load": 1,
        "off by one step": 1,
        "an older checkpoint under the newer one's name": 2,
        # The generator of the third epoch, which begins with step 13, at step 9.
        "permutation redrawn from a mid-epoch generator, then skipped": 4,
    }
    for bug, by in moves.items():
        assert [culprit["by"] for culprit in diagnosed(traced, bug)["culprits"]] == [by], bug


def test_off_by_one_also_tells_the_step_that_was_trained_twice(traced):
    reference = traced(Trainer())
    first = Trainer()
    leg = traced(first, 8)
    state = first.save()
    second = Trainer()
    BUGS["off by one step"](second, state)
    result = diagnosis.diagnose(reference, [leg, traced(second)])
    assert (result["row"], result["as_row"]) == (8, 9)
    assert result["notes"] == [{"kind": "repeated", "rows": [8]}]


def test_rounding_names_its_precision(traced):
    assert diagnosed(traced, "half-precision weights in the checkpoint")["culprits"][0]["to"] == "float16"
    assert diagnosed(traced, "bfloat16 moments")["culprits"][0]["to"] == "bfloat16"


def test_swapping_names_the_other_component(traced):
    assert diagnosed(traced, "average loaded as weights")["culprits"][0]["other"] == "ema"
    assert diagnosed(traced, "average made anew from the loaded weights")["culprits"][0]["other"] == "model"


def test_computation_that_does_not_repeat_is_told_from_lost_state(traced):
    result = diagnosed(traced, "a non-deterministic operation")
    assert (result["verdict"], result["row"], result["culprits"]) == ("computation", 9, [])


def test_second_resume_that_is_misaligned_is_found_where_it_happens(traced):
    load = BUGS["position counted from the last start"]
    reference = traced(Trainer())
    assert diagnosed(traced, "position counted from the last start")["verdict"] == "identical", (
        "the first resume is right"
    )
    trainer = Trainer()
    load(trainer, stopped_at(8, 12, load=load))
    result = diagnosis.diagnose(reference, [traced(trainer)])
    assert result["row"] == 13
    # Four batches since the last start, as after step 10, instead of the end of the second epoch.
    assert {"component": "position", "action": "rewound", "by": 2} in result["culprits"]
    assert accused(result) <= {("position", "rewound"), ("epoch", "rewound"), ("generator", "rewound")}


def test_save_that_leaves_the_model_in_eval_mode_is_named(traced):
    reference = traced(Trainer())
    trainer = Trainer()
    legs = [traced(trainer, 8)]
    left_in_eval_mode(trainer)
    legs.append(traced(trainer))
    result = diagnosis.diagnose(reference, legs)
    assert result["culprits"] == [
        {"component": "model.mode", "action": "different", "found": "eval", "wanted": "train"}
    ]
    assert result["row"] == 9


@pytest.mark.parametrize("stops", [(1,), (6,), (7,), (8,), (9,), (12,), (19,), (8, 12), (3, 7, 9, 18)])
def test_correct_trainer_is_identical(traced, stops):
    reference = traced(Trainer())
    trainer = Trainer()
    trainer.load(stopped_at(*stops))
    result = diagnosis.diagnose(reference, [traced(trainer)])
    assert (result["verdict"], result["last_row"], result["culprits"]) == ("identical", STEPS, [])


def test_trainer_that_saves_at_every_step_is_identical(traced):
    reference = traced(Trainer())
    trainer = Trainer()
    legs = []
    for step in range(1, STEPS + 1):
        legs.append(traced(trainer, step))
        trainer.save()
    assert diagnosis.diagnose(reference, legs)["verdict"] == "identical"
