"""State that hides: each way to lose it ends in a diagnosis that names it, and a run that loses nothing is accused of
nothing.

Every test trains a small program twice, at once and in two processes' worth of parts, and holds the traces against each
other.
"""

import copy

import pytest
import torch

from exact_resume import diagnosis
from exact_resume.tracing.recorder import Trace

STEPS, STOP = 12, 6


class Program:
    """A regression on fixed batches. `state()` and `load()` are what its checkpoint holds; tests lose parts of it."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.data = torch.randn(STEPS, 3, 5, generator=torch.Generator().manual_seed(2))
        self.extra = {}

    def components(self):
        return {"model": self.model, "optimizer": self.optimizer, **self.extra}

    def given(self, step):
        """What before_step is told beside the batch."""
        return {}

    def loss(self, batch):
        return (self.model(batch[:, :4]) - batch[:, 4:]).square().mean()

    def update(self, step, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def batch(self, step):
        return self.data[step - 1]

    def train(self, first, last, path):
        trace = Trace(path, **self.components())
        for step in range(first, last + 1):
            batch = self.batch(step)
            trace.before_step(step, batch, **self.given(step))
            loss = self.loss(batch)
            self.update(step, loss)
            trace.after_step(loss)
        trace.close()
        return diagnosis.read(path)

    def state(self):
        return copy.deepcopy(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "extra": self.extra}
        )

    def load(self, state):
        state = copy.deepcopy(state)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, value in state["extra"].items():
            if isinstance(value, torch.Tensor) and self.extra[name] is not None:
                self.extra[name].copy_(value)
            else:
                self.extra[name] = value


@pytest.fixture
def diagnosed(tmp_path):
    """A function that gives the diagnosis of a program that is stopped, and resumed in another object after
    `lose(program, state)`.
    """

    def run(program, lose=None, stop=STOP, steps=STEPS, **known):
        reference = program().train(1, steps, tmp_path / "straight.csv")
        first = program()
        first.train(1, stop, tmp_path / "first.csv")
        state = first.state()
        second = program()
        second.load(state)
        if lose:
            lose(second, state)
        return diagnosis.diagnose(reference, [second.train(stop + 1, steps, tmp_path / "second.csv")], **known)

    return run


def named(result):
    return {(culprit["component"], culprit["action"]) for culprit in result["culprits"]}


class RolloutBuffer(Program):
    """Holds nothing until step 3, and an average from step 4 on, both of which the loss is taken with."""

    def __init__(self):
        super().__init__()
        self.extra = {"buffer": [], "average": None}

    def components(self):
        return {**super().components(), "buffer": self.extra["buffer"], "average": Average(self)}

    def loss(self, batch):
        kept = sum(one.mean() for one in self.extra["buffer"][-2:])
        drift = 0 if self.extra["average"] is None else (self.model[0].weight - self.extra["average"]).square().sum()
        return super().loss(batch) * (1 + 0.1 * kept) + 0.1 * drift

    def update(self, step, loss):
        super().update(step, loss)
        if step >= 3:
            self.extra["buffer"].append(self.model[2].weight.detach().clone())
        if step >= 4:
            weight = self.model[0].weight.detach()
            self.extra["average"] = (
                weight.clone() if self.extra["average"] is None else self.extra["average"].lerp(weight, 0.1)
            )

    def load(self, state):
        super().load({**state, "extra": {"average": state["extra"]["average"]}})
        self.extra["buffer"][:] = state["extra"]["buffer"]


class Average:
    """An object of one's own whose state is None at first and a tensor later."""

    def __init__(self, program):
        self.program = program

    def state_dict(self):
        return self.program.extra["average"]


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 9])
def test_state_that_appears_in_the_middle_of_a_run_makes_no_correct_run_inexact(diagnosed, stop):
    result = diagnosed(RolloutBuffer, stop=stop)
    assert (result["verdict"], result["last_row"], result["latent"]) == ("identical", STEPS, [])


def test_state_that_appears_in_the_middle_of_a_run_is_missed_when_it_is_lost(diagnosed):
    assert named(diagnosed(RolloutBuffer, lambda program, _: program.extra["buffer"].clear())) == {("buffer", "lost")}
    assert named(diagnosed(RolloutBuffer, lambda program, _: program.extra.update(average=None))) == {
        ("average", "lost")
    }


def test_component_that_only_one_run_has_is_a_finding_and_no_refusal(diagnosed):
    class Unregistered(RolloutBuffer):
        registered = True

        def components(self):
            components = super().components()
            return (
                components if self.registered else {name: components[name] for name in components if name != "average"}
            )

    result = diagnosed(Unregistered, lambda program, _: setattr(program, "registered", False))
    assert (result["verdict"], result["culprits"]) == ("identical", [])
    assert result["latent"] == [{"component": "average", "action": "absent", "since": STOP + 1}]
    assert "average differs without an effect" in diagnosis.sentence(result)

    def lose(program, state):
        program.registered = False
        program.extra["average"] = None

    result = diagnosed(Unregistered, lose)
    assert result["culprits"] == [{"component": "average", "action": "absent"}]
    assert "average was lost (this run has none)" in diagnosis.sentence(result)


class Nested(torch.optim.Optimizer):
    """An optimizer that keeps others inside, as SAM and Lookahead do, and all of their state with them."""

    def __init__(self, parameters, wrap):
        self.inner = torch.optim.Adam(parameters, lr=0.01)
        super().__init__(self.inner.param_groups, {})
        self.param_groups = self.inner.param_groups
        self.held = wrap(self.inner)
        if not isinstance(self.held, torch.optim.Optimizer):
            del self.inner

    def step(self):
        inner = self.held
        while not isinstance(inner, torch.optim.Optimizer):
            inner = next(iter(inner.values() if isinstance(inner, dict) else inner))
        inner.step()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        """Forgets what is inside."""


@pytest.mark.parametrize(
    "wrap",
    [lambda inner: inner, lambda inner: [inner], lambda inner: {"one": inner}],
    ids=["attribute", "list", "dict"],
)
def test_optimizer_inside_an_optimizer_is_looked_at(diagnosed, wrap):
    class Sharpness(Program):
        def __init__(self):
            super().__init__()
            self.optimizer = Nested(self.model.parameters(), wrap)

    assert named(diagnosed(Sharpness)) == {("optimizer", "lost")}


class Masters(Program):
    """Weights in bfloat16 whose float32 originals only the optimizer has, and a weight of the loss that it alone has
    too.
    """

    def __init__(self):
        super().__init__()
        self.masters = [parameter.detach().clone().requires_grad_() for parameter in self.model.parameters()]
        self.model.bfloat16()
        self.weight = torch.ones((), requires_grad=True)
        self.optimizer = torch.optim.Adam([*self.masters, self.weight], lr=0.01)

    def loss(self, batch):
        return super().loss(batch.bfloat16()).float() * self.weight

    def update(self, step, loss):
        self.optimizer.zero_grad()
        self.model.zero_grad()
        loss.backward()
        for master, parameter in zip(self.masters, self.model.parameters()):
            master.grad = parameter.grad.float()
        self.optimizer.step()
        for master, parameter in zip(self.masters, self.model.parameters()):
            parameter.data.copy_(master)

    def state(self):
        return {**super().state(), "masters": copy.deepcopy([*self.masters, self.weight])}

    def load(self, state):
        super().load(state)
        for own, saved in zip([*self.masters, self.weight], state["masters"]):
            own.data.copy_(saved)


def test_parameters_that_only_the_optimizer_has_are_looked_at_and_their_rounding_is_told(diagnosed):
    def from_weights(program, state):
        for master, parameter in zip(program.masters, program.model.parameters()):
            master.data.copy_(parameter)
        program.weight.data.copy_(state["masters"][-1].bfloat16())

    assert diagnosed(Masters)["verdict"] == "identical"
    assert diagnosed(Masters, from_weights)["culprits"] == [
        {"component": "optimizer.parameters", "action": "rounded", "to": "bfloat16"}
    ]
    one = diagnosed(Masters, lambda program, _: program.weight.data.fill_(1.0))["culprits"]
    assert one == [{"component": "optimizer.parameters", "action": "different", "tensors": [1, 5]}]


def test_counts_of_an_optimizer_that_were_rounded_with_the_moments_are_told_as_rounded(diagnosed):
    """float16 can't hold 2049."""

    class Long(Program):
        def __init__(self):
            super().__init__()
            super().update(0, self.loss(self.batch(1)))
            for state in self.optimizer.state.values():
                state["step"] += 2048 - STOP

    def halve(program, state):
        for values in program.optimizer.state.values():
            values.update({name: value.half().float() for name, value in values.items()})

    assert diagnosed(Long, halve)["culprits"] == [{"component": "optimizer", "action": "rounded", "to": "float16"}]


class Staged(Program):
    """Its first layer is frozen after step 3, initialised once by data, and has an extra state."""

    class Layer(torch.nn.Linear):
        calls = 0

        def get_extra_state(self):
            return {"calls": self.calls}

        def set_extra_state(self, state):
            self.calls = state["calls"]

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model[2] = self.Layer(8, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.model[0]._initialised = False

    def loss(self, batch):
        if not self.model[0]._initialised:
            self.model[0].bias.data.copy_(batch.mean())
            self.model[0]._initialised = True
        self.model[2].calls += 1
        return super().loss(batch) / self.model[2].calls

    def update(self, step, loss):
        super().update(step, loss)
        if step == 3:
            self.model[0].requires_grad_(False)

    def load(self, state):
        super().load(state)
        self.model[0]._initialised = True
        self.model[0].requires_grad_(False)


def test_flags_plain_attributes_and_extra_state_of_a_module_are_looked_at(diagnosed):
    assert diagnosed(Staged)["verdict"] == "identical"
    frozen = diagnosed(Staged, lambda program, _: program.model[0].requires_grad_(True))["culprits"]
    assert [(culprit["component"], culprit["found"]) for culprit in frozen] == [("model.trainable", "all")]
    again = diagnosed(Staged, lambda program, _: setattr(program.model[0], "_initialised", False))
    assert named(again) == {("model.attributes", "different")}
    extra = diagnosed(Staged, lambda program, _: setattr(program.model[2], "calls", 0))
    assert named(extra) == {("model.attributes", "different")}


def test_rate_that_changes_inside_the_step_is_told_as_that(diagnosed):
    class WarmUp(Program):
        taken = 0

        def update(self, step, loss):
            self.taken += 1
            for group in self.optimizer.param_groups:
                group["lr"] = 0.002 * min(self.taken, 8)
            super().update(step, loss)

        def load(self, state):
            super().load(state)
            self.taken = STOP

    assert diagnosed(WarmUp)["verdict"] == "identical"
    result = diagnosed(WarmUp, lambda program, _: setattr(program, "taken", 0))
    assert result["culprits"] == [{"component": "lr", "action": "changed_inside"}]
    assert diagnosis.sentence(result) == f"differs from batch {STOP + 1}: lr changed inside the step"

    def other_betas(program, state):
        def update(step, loss):
            program.optimizer.param_groups[0]["betas"] = (0.8, 0.99)
            Program.update(program, step, loss)

        program.update = update

    assert named(diagnosed(Program, other_betas)) == {("optimizer.settings", "changed_inside")}


class Hidden(Program):
    """Its loss has a factor that nobody saves or traces."""

    factor = 1.0

    def loss(self, batch):
        self.factor *= 0.9
        return super().loss(batch) * self.factor


def test_what_two_uninterrupted_runs_tell_decides_what_an_unexplained_difference_is_called(diagnosed):
    text = diagnosis.sentence(diagnosed(Hidden))
    assert (
        "the computation is not repeatable (threads, kernel, hardware), or something goes into it that is not traced"
        in text
    )
    result = diagnosed(Hidden, repeatable=True)
    assert (result["verdict"], result["outputs"]) == ("untraced", ["loss", "model.after", "optimizer.after"])
    assert "state that is in no checkpoint and not traced" in diagnosis.sentence(
        result
    ) and "hardware" not in diagnosis.sentence(result)


def test_run_that_went_on_exactly_and_kept_something_else_is_told_as_that(diagnosed):
    result = diagnosed(Program, repeatable=True, same_weights=False)
    assert result["verdict"] == "kept"
    assert diagnosis.sentence(result) == "training went on exactly; what was kept (best weights, average) differs"
    assert diagnosed(Program, same_weights=True)["verdict"] == "identical"


def test_fault_inside_the_update_shows_in_the_update_where_it_happens(diagnosed):
    def skip_one(program, state):
        def update(step, loss):
            Program.update(program, step, loss)
            if step == STOP + 3:
                next(iter(program.optimizer.state.values()))["exp_avg"].zero_()

        program.update = update

    result = diagnosed(Program, skip_one)
    assert (result["row"], result["outputs"]) == (STOP + 3, ["optimizer.after"])


class Loader:
    """Gives the batches in an order; a resumed one describes its place by other numbers, as some loaders do."""

    def __init__(self):
        self.place, self.base, self.order = 0, 0, list(range(STEPS))

    def __iter__(self):
        return self

    def state_dict(self):
        return {"yielded": self.place - self.base, "base": self.base}


class Loaded(Program):
    def __init__(self):
        super().__init__()
        self.loader = Loader()
        self.dropout = torch.nn.Dropout(0.2)

    def components(self):
        return {**super().components(), "loader": self.loader}

    def batch(self, step):
        self.loader.place += 1
        return self.data[self.loader.order[self.loader.place - 1]]

    def loss(self, batch):
        return super().loss(self.dropout(batch) if self.loader.place >= STOP + 4 else batch)

    def state(self):
        return {**super().state(), "rng": torch.get_rng_state()}

    def load(self, state):
        super().load(state)
        self.loader.place = self.loader.base = STOP
        torch.set_rng_state(state["rng"])


def test_loader_that_only_describes_its_place_otherwise_makes_no_exact_run_inexact(diagnosed):
    result = diagnosed(Loaded)
    assert (result["verdict"], result["culprits"]) == ("identical", [])
    assert [entry["component"] for entry in result["latent"]] == ["loader"]


def test_loader_that_only_describes_its_place_otherwise_hides_no_loss_at_once_nor_later(diagnosed):
    result = diagnosed(Loaded, lambda program, _: program.optimizer.state.clear())
    assert (named(result), result["row"]) == ({("optimizer", "lost")}, STOP + 1)
    # Dropout draws from the generator only at the fourth batch.
    result = diagnosed(Loaded, lambda program, _: torch.manual_seed(9))
    assert named(result) == {("rng.torch", "different")}
    assert (result["row"], result["shows"]) == (STOP + 1, STOP + 4)
    assert (
        f"differs from batch {STOP + 1}, which shows from batch {STOP + 4} on: rng.torch is different"
        in diagnosis.sentence(result)
    )


def test_loader_that_gives_other_batches_is_accused_where_it_does(diagnosed):
    def reorder(program, state):
        program.loader.order[STOP + 2 :] = program.loader.order[: STOP + 1 : -1]

    result = diagnosed(Loaded, reorder)
    assert [culprit["component"] for culprit in result["culprits"]] == ["loader"]
    assert (result["explained"], result["shows"]) == (["batch"], STOP + 3)


class Scheduled(Program):
    """The rate halves after step 10."""

    def __init__(self):
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10, 0.5)

    def components(self):
        return {**super().components(), "scheduler": self.scheduler}

    def update(self, step, loss):
        super().update(step, loss)
        self.scheduler.step()

    def state(self):
        return {**super().state(), "scheduler": self.scheduler.state_dict()}

    def load(self, state):
        super().load(state)
        self.scheduler.load_state_dict(state["scheduler"])


def forget_the_schedule(program, state):
    program.scheduler = torch.optim.lr_scheduler.StepLR(program.optimizer, 10, 0.5)


def test_lost_state_that_shows_no_effect_yet_is_latent(diagnosed):
    result = diagnosed(Scheduled, forget_the_schedule, steps=9)
    assert (result["verdict"], result["culprits"]) == ("identical", [])
    assert result["latent"] == [{"component": "scheduler", "action": "lost", "since": STOP + 1}]
    assert "latent, without an effect so far: scheduler was lost" in diagnosis.sentence(result)


def test_lost_state_that_shows_later_is_a_culprit_from_where_it_was_lost(diagnosed):
    result = diagnosed(Scheduled, forget_the_schedule)
    assert named(result) == {("scheduler", "lost")}
    assert (result["row"], result["shows"], result["explained"]) == (STOP + 1, 10, [])


def test_resumed_process_that_trains_nothing_is_told_as_that(diagnosed, tmp_path):
    reference = Program().train(1, STEPS, tmp_path / "a.csv")
    first = Program().train(1, STOP, tmp_path / "b.csv")
    nothing = Program().train(1, 0, tmp_path / "c.csv")
    for legs in ([first, nothing], [nothing]):
        result = diagnosis.diagnose(reference, legs)
        assert result["verdict"] == "trained_nothing"
        assert diagnosis.sentence(result).startswith("the resumed process trained no batch")


class Replay(Program):
    """Batches come out of a buffer of numbers with decimals; what is given beside them repeats every four steps."""

    def __init__(self):
        super().__init__()
        self.extra = {"replay": self.data.clone()}

    def batch(self, step):
        self.extra["replay"].copy_(self.extra["replay"].roll(1, 0))
        return self.extra["replay"][0]

    def given(self, step):
        return {"phase": self.phase(step), "cycle": self.phase(step) * 2 % 6}

    def phase(self, step):
        return step % 4


def test_batch_is_explained_by_a_buffer_of_numbers_and_one_cause_is_told_once(diagnosed):
    result = diagnosed(Replay, lambda program, _: program.extra["replay"].copy_(program.data))
    assert [culprit["component"] for culprit in result["culprits"]] == ["replay"]
    assert result["explained"] == ["batch"]


def test_moves_of_what_repeats_do_not_contradict_each_other(diagnosed):
    def ahead(program, state):
        program.phase = lambda step: (step + 1) % 4
        program.loss = lambda batch: Program.loss(program, batch) * 1.5

    moves = {(culprit["action"], culprit.get("by")) for culprit in diagnosed(Replay, ahead)["culprits"]}
    assert len(moves) == 1, moves


def test_difference_tells_how_much_of_a_component_it_is(diagnosed):
    def scale_one(program, state):
        next(iter(program.optimizer.state.values()))["exp_avg"].mul_(2)

    result = diagnosed(Program, scale_one)
    assert result["culprits"] == [{"component": "optimizer", "action": "different", "tensors": [1, 12]}]
    assert "optimizer is different (1 of 12 tensors and values)" in diagnosis.sentence(result)

    class Kept(Program):
        def __init__(self):
            super().__init__()
            self.extra = {"kept": {"one": torch.ones(2), "two": torch.ones(3), "name": "best"}}

        def update(self, step, loss):
            super().update(step, loss)
            self.extra["kept"]["one"] = self.extra["kept"]["one"] * 1.1

        def load(self, state):
            self.extra["kept"].update(state["extra"].pop("kept"))
            super().load(state)

    def narrow(program, state):
        program.extra["kept"]["one"] = program.extra["kept"]["one"].bfloat16() * 3

    told = diagnosis.sentence(diagnosed(Kept, narrow))
    assert "kept is different (found bfloat16 float32, wanted float32; 1 of 3 tensors and values)" in told
