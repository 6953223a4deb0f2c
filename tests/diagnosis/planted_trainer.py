"""A small trainer that remembers everything that real ones do, and a switch for each way in which resuming it can go
wrong.

It trains a network with dropout and batch normalisation on 24 samples: epochs of six batches in random order with noise
on the samples, gradients gathered over three steps, float16 with a gradient scaler, a schedule, and an average of the
weights.
"""

import copy
import random

import numpy as np
import torch

STEPS = 20
SAMPLES, BATCH = 24, 4
BATCHES = SAMPLES // BATCH
WINDOW = 3
BUGS = {}


def bug(name):
    """Register the function below under this name: it is called instead of Trainer.load and has to put `state` into the
    trainer.
    """

    def register(function):
        BUGS[name] = function
        return function

    return register


class Loader:
    """Epochs in an order drawn from a generator; the noise on the samples comes from numpy's and Python's global
    generators.
    """

    def __init__(self):
        source = torch.Generator().manual_seed(11)
        self.inputs, self.targets = torch.randn(SAMPLES, 6, generator=source), torch.randn(SAMPLES, 1, generator=source)
        self.generator = torch.Generator().manual_seed(3)
        self.epoch, self.position, self.drawn_here = 0, 0, 0
        self.permute()

    def permute(self):
        self.before = self.generator.get_state()
        self.permutation = torch.randperm(SAMPLES, generator=self.generator)

    def draw(self):
        if self.position == BATCHES:
            self.epoch, self.position = self.epoch + 1, 0
            self.permute()
        chosen = self.permutation[self.position * BATCH : (self.position + 1) * BATCH]
        self.position += 1
        self.drawn_here += 1
        noise = torch.from_numpy(np.random.normal(size=(BATCH, 6)).astype(np.float32)) * 0.01 * (1 + self.epoch)
        return self.inputs[chosen] * random.choice((-1, 1)) + noise, self.targets[chosen]


class Schedule:
    """The learning rate decays by a tenth each step; the state is the number of steps taken."""

    def __init__(self, optimizer):
        self.optimizer, self.taken = optimizer, 0

    def step(self):
        self.taken += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * 0.9**self.taken

    def state_dict(self):
        return {"taken": self.taken}


class Trainer:
    """What a new process makes before it loads anything."""

    def __init__(self):
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(6)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 6),
            torch.nn.BatchNorm1d(6),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(6, 6),
            torch.nn.Linear(6, 1),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, foreach=False)
        self.schedule = Schedule(self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
        self.average = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        self.loader = Loader()
        self.step = 0
        self.noise = 0.0

    def components(self):
        """What a trace is told of: everything but gradients, mode and global generators, which it sees by itself."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "scaler": self.scaler,
            "ema": self.average,
            "generator": self.loader.generator,
        }

    def train(self, until, trace=None):
        while self.step < until:
            inputs, targets = self.loader.draw()
            self.schedule.step()
            self.step += 1
            if trace:
                trace.before_step(self.step, (inputs, targets), epoch=self.loader.epoch, position=self.loader.position)
            with torch.autocast("cpu", torch.float16):
                outputs = self.model(inputs)
            loss = (outputs.float() - targets).square().mean() + self.noise * sum(
                p.sum() for p in self.model.parameters()
            )
            self.scaler.scale(loss / WINDOW).backward()
            if self.step % WINDOW == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
                for name, parameter in self.model.named_parameters():
                    self.average[name].lerp_(parameter.detach(), 0.1)
            if trace:
                trace.after_step(loss)

    def save(self):
        numpy_name, *numpy_rest = np.random.get_state()
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.taken,
                "scaler": self.scaler.state_dict(),
                "ema": self.average,
                "gradients": {
                    name: parameter.grad
                    for name, parameter in self.model.named_parameters()
                    if parameter.grad is not None
                },
                "generator": self.loader.before,
                "generator_now": self.loader.generator.get_state(),
                "epoch": self.loader.epoch,
                "position": self.loader.position,
                "drawn_here": self.loader.drawn_here,
                "step": self.step,
                "torch": torch.get_rng_state(),
                "numpy": (numpy_name, *numpy_rest),
                "python": random.getstate(),
            }
        )

    def load(self, state, but=()):
        """Restore everything from `state` but the entries named in `but`."""
        state = {name: value for name, value in copy.deepcopy(state).items() if name not in but}
        self.step = state["step"]
        if "model" in state:
            self.model.load_state_dict(state["model"])
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        if "schedule" in state:
            self.schedule.taken = state["schedule"]
        if "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])
        if "ema" in state:
            self.average.update(state["ema"])
        for name, gradient in state.get("gradients", {}).items():
            self.model.get_parameter(name).grad = gradient
        if "generator" in state:
            self.loader.generator.set_state(state["generator"])
            self.loader.permute()
        self.loader.epoch = state.get("epoch", 0)
        self.loader.position = state.get("position", 0)
        if "torch" in state:
            torch.set_rng_state(state["torch"])
        if "numpy" in state:
            np.random.set_state(state["numpy"])
        if "python" in state:
            random.setstate(state["python"])


def forgetting(name, *entries):
    """Register a bug: these entries are not in the checkpoint."""
    BUGS[name] = lambda trainer, state: trainer.load(state, but=entries)


REMEMBERED = (
    "optimizer",
    "schedule",
    "scaler",
    "ema",
    "gradients",
    "generator",
    "epoch",
    "position",
    "torch",
    "numpy",
    "python",
)
forgetting("weights only", *REMEMBERED)
forgetting("started over", "model", *REMEMBERED)
forgetting("optimizer lost", "optimizer")
forgetting("generator not restored", "generator")
forgetting("epoch counter reset", "epoch")
forgetting("position in the epoch lost", "position")
forgetting("schedule from zero", "schedule")
forgetting("gradients of a half-finished window lost", "gradients")
forgetting("scaler lost", "scaler")
forgetting("average lost", "ema")
forgetting("torch's generator lost", "torch")
forgetting("numpy's generator lost", "numpy")
forgetting("Python's generator lost", "python")


@bug("permutation redrawn from a mid-epoch generator, then skipped")
def redrawn(trainer, state):
    trainer.load({**state, "generator": state["generator_now"]})


@bug("schedule stepped twice on load")
def stepped_twice(trainer, state):
    trainer.load(state)
    trainer.schedule.step()


@bug("off by one step")
def off_by_one(trainer, state):
    trainer.load({**state, "step": state["step"] - 1})


@bug("half-precision weights in the checkpoint")
def half_weights(trainer, state):
    trainer.load({**state, "model": {name: value.half() for name, value in state["model"].items()}})


@bug("bfloat16 moments")
def bfloat16_moments(trainer, state):
    trainer.load(state)
    for moments in trainer.optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            moments[name] = moments[name].bfloat16().float()


@bug("average loaded as weights")
def average_as_weights(trainer, state):
    trainer.load({**state, "model": {**state["model"], **state["ema"]}})


@bug("average made anew from the loaded weights")
def average_made_anew(trainer, state):
    trainer.load(state)
    trainer.average.update({name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()})


@bug("generators restored before the skip consumed them")
def consumed_by_the_skip(trainer, state):
    trainer.load(state)
    for _ in range(state["position"]):
        np.random.normal(size=(BATCH, 6))


@bug("optimizer state attached to the wrong parameters")
def wrong_parameters(trainer, state):
    moments = state["optimizer"]["state"]
    swapped = {**moments, 0: moments[4], 4: moments[0]}
    trainer.load({**state, "optimizer": {**state["optimizer"], "state": swapped}})


@bug("parameters given to the optimizer in another order")
def other_order(trainer, state):
    first, *between, second = (list(trainer.model[index].parameters()) for index in (0, 1, 3))
    parameters = [*second, *between[0], *first, *trainer.model[4].parameters()]
    trainer.optimizer = trainer.schedule.optimizer = torch.optim.AdamW(parameters, lr=0.01, foreach=False)
    trainer.load(state)


@bug("batch-norm buffers not saved")
def no_buffers(trainer, state):
    fresh = {
        name: value
        for name, value in trainer.model.state_dict().items()
        if name not in dict(trainer.model.named_parameters())
    }
    trainer.load({**state, "model": {**state["model"], **copy.deepcopy(fresh)}})


@bug("an older checkpoint under the newer one's name")
def older_checkpoint(trainer, state):
    older = Trainer()
    older.train(state["step"] - 2)
    trainer.load({**older.save(), "step": state["step"]})


@bug("hyperparameters of the optimizer changed on load")
def other_hyperparameters(trainer, state):
    trainer.load(state)
    trainer.optimizer.param_groups[0]["weight_decay"] = 0.5


@bug("a non-deterministic operation")
def non_deterministic(trainer, state):
    trainer.load(state)
    trainer.noise = 1e-3


@bug("position counted from the last start")
def counted_from_the_start(trainer, state):
    trainer.load({**state, "position": (state["drawn_here"] - 1) % BATCHES + 1})


def left_in_eval_mode(trainer):
    """Not a bug of loading: saving evaluates first and doesn't go back."""
    trainer.model.eval()
    return trainer.save()
