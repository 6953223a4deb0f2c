"""A run: one process that trains from a step to a step."""

import torch
import torch.nn.functional as F

from exact_resume.errors import LabError
from exact_resume.lab import state
from exact_resume.lab.average import ExponentialMovingAverage
from exact_resume.lab.components import existing
from exact_resume.lab.data import make_batches
from exact_resume.lab.determinism import make_deterministic
from exact_resume.lab.generators import GlobalGenerators
from exact_resume.lab.gradients import Gradients
from exact_resume.lab.model import Decoder
from exact_resume.lab.optimizer import AdamW
from exact_resume.lab.scaler import GradScaler
from exact_resume.lab.schedule import CosineSchedule
from exact_resume.lab.settings import deciding
from exact_resume.tracing.recorder import Trace


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
        self.scaler = GradScaler(
            training["device"], growth_interval=training["growth_interval"], enabled=training["precision"] == "float16"
        )
        self.average = ExponentialMovingAverage(self.model, training["ema"]) if training["ema"] else None
        self.gradients = Gradients(self.model)
        self.generators = GlobalGenerators(training["device"])
        self.position = Position(self.schedule)
        self.components = {component.name: getattr(self, component.attribute) for component in existing(settings)}

    @property
    def step(self):
        """The number of steps taken."""
        return self.position.step

    def resume(self, resume_state, path, recipe):
        """Go to the place that `resume_state`, read from `path`, was captured at. `recipe`: see `state.restore`. Raises
        LabError.
        """
        state.check(resume_state, list(self.components), 1, self.training["steps"] - 1, path)
        state.restore(self.components, resume_state, path, recipe)
        # A run that was given no position still knows where it is, but its schedule counts from 0.
        self.position.step = resume_state["step"]
        self._check_counts({}, [*recipe.get("omit", []), *recipe.get("round", [])], path)
        if "gradients" not in recipe.get("omit", []):
            self._check_gradients(path)

    def snapshot(self):
        """Return all that it takes to go on from here as if nothing had happened, whatever a recipe left out before."""
        return {"components": state.capture(self.components), "schedule": self.schedule.state_dict()}

    def load_snapshot(self, snapshot, until, path):
        """Go to the place that `snapshot`, read from `path`, was taken at: later than here, and no later than step
        `until`.

        Raises LabError when it doesn't fit, also when something was restored already: then only another Run can be
        trained.
        """
        if type(snapshot) is not dict or snapshot.keys() != {"components", "schedule"}:
            raise LabError(f"{path}: found no components and schedule, wanted those of a run")
        state.check(snapshot["components"], list(self.components), self.step + 1, until, path)
        # What a variant left out it never catches up with.
        behind = {name: due - count for name, (count, due) in self._counts().items()}
        state.restore(self.components, snapshot["components"], path, {})
        state.restore({"schedule": self.schedule}, snapshot, path, {})
        self._check_counts(behind, [], path)
        self._check_gradients(path)

    def _counts(self):
        """Return by name what the components that count have counted, and how much there was to count up to here."""
        accumulation, steps = self.training["accumulation"], self.training["steps"]
        updates = self.step // accumulation + (self.step == steps and steps % accumulation > 0)
        drawn = self.step if self.batches.drawn is None else self.batches.drawn
        return {
            "step": (self.schedule.step, self.step),
            "gen_state": (drawn, self.step),
            "optimizer": (self.optimizer.updates, updates),
        }

    def _check_counts(self, behind, changed, path):
        """Raise LabError when a component that is none of the `changed` has counted anything else than what there was,
        less its number in `behind`.
        """
        for name, (count, due) in self._counts().items():
            wanted = due - behind.get(name, 0)
            # A gradient scaler leaves out updates that overflow.
            overflowed = name == "optimizer" and self.scaler.is_enabled() and count < wanted
            if name not in changed and count != wanted and not overflowed:
                raise LabError(
                    f"{path}: component {name}: found a count of {count}, wanted {wanted}, since the run is "
                    f"at step {self.step}"
                )

    def _check_gradients(self, path):
        """Raise LabError unless gradients wait just where there is an update that they can wait for."""
        inside = self.step % self.training["accumulation"] > 0 and self.step < self.training["steps"]
        if self.gradients.waiting != inside:
            found, wanted = ("none", "those of all parameters") if inside else ("some", "none")
            raise LabError(
                f"{path}: component gradients: found {found}, wanted {wanted}, since the run is at step {self.step}"
            )

    def make_trace(self, path, resume=None):
        """Return a Trace of this run that writes to `path`, or goes on there from its state `resume`. It sees the
        global generators and the gradients by itself.
        """
        registered = {part.name: getattr(self, part.attribute) for part in existing(self.settings) if part.traced}
        configuration = {"model": self.settings["model"], "training": deciding(self.training)}
        return Trace(path, resume=resume, configuration=configuration, **{**registered, "step": self.schedule})

    def weights(self):
        """Return the state_dict that the run is for: the model's, with the averages in the parameters' places where
        there are any.
        """
        weights = self.model.state_dict()
        if self.average:
            # The head is the embedding under another name.
            averages = self.average.state_dict()
            weights.update(averages, **{"lm_head.weight": averages["model.embed_tokens.weight"]})
        return weights

    def train(self, until, trace=None):
        """Train up to and including step `until`; after each step yield (step, loss). A step is one batch, forward and
        backward.
        """
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
