"""A run: one process that trains from a step to a step."""

import torch
import torch.nn.functional as F

from lab import state
from lab.average import ExponentialMovingAverage
from lab.data import make_batches
from lab.determinism import make_deterministic
from lab.errors import LabError
from lab.generators import GlobalGenerators
from lab.gradients import Gradients
from lab.model import Decoder
from lab.optimizer import AdamW
from lab.schedule import CosineSchedule
from lab.settings import components, deciding
from lab.trace import Trace


class Run:
    """Model, optimizer, schedule and batches at step 0, made from the seed in one fixed order.

    `components` is all that the run remembers, by the names in the resume file.
    """

    def __init__(self, settings, tokens):
        training = settings["training"]
        make_deterministic(training["seed"], training["threads"], training["device"])
        self.settings, self.training = settings, training
        self.model = Decoder(settings["model"], training["length"]).to(training["device"])
        self.optimizer = AdamW(self.model.parameters(), lr=training["lr"], weight_decay=training["weight_decay"])
        self.schedule = CosineSchedule(training["lr"], training["steps"])
        self.batches = make_batches(tokens, settings["model"]["vocab_size"], training)
        self.scaler = torch.amp.GradScaler(
            training["device"], growth_interval=training["growth_interval"], enabled=training["precision"] == "float16"
        )
        self.average = ExponentialMovingAverage(self.model, training["ema"]) if training["ema"] else None
        self.position = Position(self.schedule)
        remembered = {
            "model": self.model,
            "optimizer": self.optimizer,
            "step": self.position,
            "gen_state": self.batches,
            "gradients": Gradients(self.model),
            "scaler": self.scaler,
            "ema": self.average,
            "rng": GlobalGenerators(training["device"]),
        }
        self.components = {name: remembered[name] for name in components(settings)}

    @property
    def step(self):
        """The number of steps taken."""
        return self.position.step

    def resume(self, resume_state, path, recipe):
        """Go to the place that `resume_state`, read from `path`, was captured at. `recipe`: see `state.restore`. Raises LabError."""
        state.check(resume_state, list(self.components), self.training["steps"], path)
        state.restore(self.components, resume_state, path, recipe)
        updates = resume_state["step"] // self.training["accumulation"]
        # With a gradient scaler all of them may have overflowed so far, and none been made.
        if (
            updates
            and not self.scaler.is_enabled()
            and "optimizer" not in recipe.get("omit", [])
            and not any(self.optimizer.state.values())
        ):
            raise LabError(f"{path}: component optimizer: found no moments, wanted those of {updates} updates")
        # A run that was given no position still knows where it is, but its schedule counts from 0.
        self.position.step = resume_state["step"]

    def snapshot(self):
        """Return all that it takes to go on from here as if nothing had happened, whatever a recipe left out before."""
        return {"components": state.capture(self.components), "schedule": self.schedule.state_dict()}

    def load_snapshot(self, snapshot, path):
        """Go to the place that `snapshot`, read from `path`, was taken at. Raises LabError when it doesn't fit."""
        state.restore(self.components, snapshot["components"], path, {})
        # A variant's schedule may count otherwise than the run.
        self.schedule.load_state_dict(snapshot["schedule"])

    def make_trace(self, path):
        """Return a Trace of this run that writes to `path`. It sees the global generators and the gradients by itself."""
        registered = {name: component for name, component in self.components.items() if name not in ("gradients", "rng")}
        configuration = {"model": self.settings["model"], "training": deciding(self.training)}
        return Trace(path, configuration=configuration, **{**registered, "step": self.schedule})

    def weights(self):
        """Return the state_dict that the run is for: the model's, with the averages in the parameters' places where there are any."""
        weights = self.model.state_dict()
        if self.average:
            # The head is the embedding under another name.
            averages = self.average.state_dict()
            weights.update(averages, **{"lm_head.weight": averages["model.embed_tokens.weight"]})
        return weights

    def train(self, until, trace=None):
        """Train up to and including step `until`; after each step yield (step, loss). A step is one batch, forward and backward."""
        self.model.train()
        while self.step < until:
            inputs, targets = (tokens.to(self.training["device"]) for tokens in self.batches.draw())
            lr = self.schedule.advance()
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            if trace:
                trace.before_step(self.step + 1, (inputs, targets), lr)
            loss = self._gather_gradients(inputs, targets)
            self.position.step += 1
            if self.step % self.training["accumulation"] == 0 or self.step == self.training["steps"]:
                self._update()
            if trace:
                trace.after_step(loss)
            yield self.step, loss

    def _gather_gradients(self, inputs, targets):
        precision = self.training["precision"]
        with torch.autocast(self.training["device"], getattr(torch, precision), enabled=precision != "float32"):
            logits = self.model(inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        self.scaler.scale(loss / self.training["accumulation"]).backward()
        return loss.item()

    def _update(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training["grad_clip"])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.average:
            self.average.update()


class Position:
    """The step that a run is at (int). Restoring it sets the schedule, which counts by itself, to the same step."""

    def __init__(self, schedule):
        self.schedule, self.step = schedule, 0

    def state_dict(self):
        return self.step

    def load_state_dict(self, state):
        self.step = state
        self.schedule.load_state_dict(state)
