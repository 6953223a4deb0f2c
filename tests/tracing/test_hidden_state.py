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
    assert result["culprits"] == [{"component": "lr", "action": "changed_inside", "found": "0.002", "wanted": "0.014"}]
    assert (
        diagnosis.sentence(result)
        == f"differs from batch {STOP + 1}: lr changed inside the step (found 0.002, wanted 0.014)"
    )

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


# What is told of a component and its parts is told once.


class Averaged(Program):
    """With batch normalisation, and an average of all that the model holds, which the run would be tested with."""

    def __init__(self):
        super().__init__()
        self.model.append(torch.nn.BatchNorm1d(1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.swa = torch.optim.swa_utils.AveragedModel(self.model, use_buffers=True)

    def components(self):
        return {**super().components(), "swa": self.swa}

    def loss(self, batch):
        kept = [part.detach() for part in (*self.swa.module.parameters(), self.swa.module[3].running_var)]
        return super().loss(batch) * (1 + 0.01 * sum(part.square().sum() for part in kept))

    def update(self, step, loss):
        super().update(step, loss)
        self.swa.update_parameters(self.model)

    def state(self):
        return {**super().state(), "swa": copy.deepcopy(self.swa.state_dict())}

    def load(self, state):
        super().load(state)
        self.swa.load_state_dict(copy.deepcopy(state["swa"]))


def new_average(program, state):
    program.swa = torch.optim.swa_utils.AveragedModel(Averaged().model, use_buffers=True)


def weights_from_average(program, state):
    program.model.load_state_dict(program.swa.module.state_dict())


def double_average(program, state):
    for tensor in program.swa.state_dict().values():
        tensor.mul_(2)


def narrow_average(program, state):
    for tensor in program.swa.module.state_dict().values():
        tensor.copy_(tensor.half())


@pytest.mark.parametrize(
    ("lose", "told"),
    [
        (new_average, "swa was lost (it is as before training)"),
        (narrow_average, "swa was rounded to float16"),
        (double_average, "swa is different (10 of 10 tensors and values)"),
    ],
)
def test_what_was_done_to_a_component_and_its_parts_is_told_once(diagnosed, lose, told):
    assert diagnosed(Averaged)["verdict"] == "identical"
    result = diagnosed(Averaged, lose)
    assert diagnosis.sentence(result) == f"differs from batch {STOP + 1}: {told}"
    assert result["culprits"][0]["parts"] == ["buffers"]


def test_swap_of_a_component_and_its_parts_is_told_once(diagnosed):
    class Bare(Averaged):
        def components(self):
            return {**super().components(), "swa": self.swa.module}

    result = diagnosed(Bare, weights_from_average)
    assert diagnosis.sentence(result) == f"differs from batch {STOP + 1}: model holds the values of swa"


def test_what_was_done_to_a_part_alone_is_told_of_the_part(diagnosed):
    result = diagnosed(Averaged, lambda program, _: program.model[3].reset_running_stats())
    assert named(result) == {("model.buffers", "lost")}


# Of what is plain the entries that differ are named.


@pytest.mark.parametrize(
    ("lose", "told"),
    [
        (
            lambda program, _: program.optimizer.param_groups[0].update(weight_decay=0.5, eps=1e-6),
            "optimizer.settings is different (eps: found 1e-06, wanted 1e-08; weight_decay: found 0.5, wanted 0)",
        ),
        (
            lambda program, _: program.optimizer.param_groups[0].update(betas=(0.8, 0.999)),
            "optimizer.settings is different (betas.0: found 0.8, wanted 0.9)",
        ),
        (
            lambda program, _: program.optimizer.param_groups[0].update(mine="a, {b"),
            "optimizer.settings is different (mine: found 'a, {b', wanted nothing)",
        ),
        (
            lambda program, _: setattr(program.model[1], "scale", 2),
            "model.attributes is different (2.scale: found 2, wanted 1)",
        ),
        (lambda program, _: program.extra["kept"].update(best=9), "kept is different (best: found 9, wanted 5)"),
    ],
)
def test_entries_that_differ_are_named(diagnosed, lose, told):
    class Plain(Program):
        def __init__(self):
            super().__init__()
            self.model[1].scale = 1
            self.extra = {"kept": {"best": 5, "name": "x: y"}}

        def loss(self, batch):
            mine = self.optimizer.param_groups[0].get("mine", "")
            return super().loss(batch) * self.model[1].scale * self.extra["kept"]["best"] + len(mine)

    assert told in diagnosis.sentence(diagnosed(Plain, lose))


# Two models that take turns, as generator and critic do.


class Turns(Program):
    """The critic is trained at every third step only, and its optimizer clears its gradients before that."""

    def __init__(self):
        super().__init__()
        self.critic = torch.nn.Linear(4, 1)
        self.critics = torch.optim.Adam(self.critic.parameters(), lr=0.02)

    def components(self):
        return {**super().components(), "critic": self.critic, "critics": self.critics}

    def update(self, step, loss):
        super().update(step, loss)
        if step % 3 == 0:
            self.critics.zero_grad()
            self.critic(self.batch(step)[:, :4]).square().mean().backward()
            self.critics.step()
        for optimizer in (self.optimizer, self.critics):
            optimizer.param_groups[0]["lr"] *= 0.9

    def state(self):
        return {**super().state(), "critic": copy.deepcopy([self.critic.state_dict(), self.critics.state_dict()])}

    def load(self, state):
        super().load(state)
        self.critic.load_state_dict(state["critic"][0])
        self.critics.load_state_dict(copy.deepcopy(state["critic"][1]))


def test_gradients_that_nothing_touches_are_not_named_beside_the_cause(diagnosed):
    assert diagnosed(Turns)["verdict"] == "identical"
    result = diagnosed(Turns, lambda program, _: program.optimizer.state.clear())
    assert named(result) == {("optimizer", "lost")}


def test_gradients_that_an_update_is_made_with_are_touched_though_no_others_are_added(diagnosed):
    class Late(Program):
        """Each update is made with the gradients of the batch before."""

        def update(self, step, loss):
            gradients = torch.autograd.grad(loss, list(self.model.parameters()))
            self.optimizer.step()
            for part, gradient in zip(self.model.parameters(), gradients):
                part.grad = gradient

        def state(self):
            return {**super().state(), "gradients": [copy.deepcopy(part.grad) for part in self.model.parameters()]}

        def load(self, state):
            super().load(state)
            for part, gradient in zip(self.model.parameters(), state["gradients"]):
                part.grad = gradient

    assert diagnosed(Late)["verdict"] == "identical"
    assert named(diagnosed(Late, lambda program, _: program.optimizer.zero_grad())) == {("model.gradients", "lost")}


@pytest.mark.parametrize("name", ["optimizer", "critics"])
def test_rate_tells_of_which_optimizer_it_is(diagnosed, name):
    right = []

    def reset(program, state):
        group = program.components()[name].param_groups[0]
        right.append(group["lr"])
        group["lr"] = 1.5

    result = diagnosed(Turns, reset)
    assert f"lr is different ({name}: found 1.5, wanted {right[0]!r})" in diagnosis.sentence(result)
    assert named(result) == {("lr", "different")}


def test_rate_of_an_optimizer_that_was_lost_is_explained_by_it_alone(diagnosed):
    def lose(program, state):
        fresh = Turns()
        program.optimizer.load_state_dict(fresh.optimizer.state_dict())

    result = diagnosed(Turns, lose)
    assert (named(result), result["explained"]) == ({("optimizer", "lost")}, ["lr"])

    def lose_both(program, state):
        lose(program, state)
        program.critics.param_groups[0]["lr"] = 1.5

    result = diagnosed(Turns, lose_both)
    assert {culprit["component"] for culprit in result["culprits"]} == {"optimizer", "lr"}


# What is registered and no longer used.


@pytest.mark.parametrize("dead", ["optimizer", "model", "optimizer of nobody"])
def test_registered_optimizer_that_holds_none_of_the_modules_parameters_is_told(diagnosed, capsys, dead):
    class Anew(Program):
        """Its optimizer, or its model with the optimizer, is made anew after the third step; the trace knows the first
        ones.
        """

        def components(self):
            if dead == "model":
                return {"model": self.model, "optimizer": lambda: self.optimizer}
            return super().components()

        def update(self, step, loss):
            super().update(step, loss)
            if step == 3:
                if dead != "optimizer of nobody":
                    self.model = copy.deepcopy(self.model)
                self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    class Function(Anew):
        def components(self):
            return {"model": (lambda: self.model) if dead == "optimizer" else self.model, "optimizer": self.optimizer}

    if dead == "optimizer of nobody":

        class Function(Program):
            """Registers an optimizer of a copy of the model."""

            def components(self):
                copied = copy.deepcopy(self.model)
                return {"model": self.model, "optimizer": torch.optim.SGD(copied.parameters(), lr=0.1)}

    result = diagnosed(Anew if dead == "model" else Function)
    said = capsys.readouterr().err.splitlines()
    assert (
        said[0]
        == "trace: optimizer holds none of the registered modules' parameters, wanted a function for what is made anew"
    )
    first = 1 if dead == "optimizer of nobody" else 4
    assert {"kind": "detached", "component": "optimizer", "rows": [first]} in result["notes"]
    assert f"optimizer holds none of the registered modules' parameters, as batch {first} shows" in diagnosis.sentence(
        result
    )


@pytest.mark.parametrize("program", [Masters, Turns, Averaged])
def test_optimizer_that_trains_what_is_registered_is_not_told(diagnosed, capsys, program):
    assert diagnosed(program)["notes"] == []
    assert capsys.readouterr().err == ""
