"""A run: one process that trains from a step to a step."""

import torch
import torch.nn.functional as F

from lab import state
from lab.data import RandomCrops
from lab.determinism import make_deterministic
from lab.model import Decoder
from lab.optimizer import AdamW
from lab.schedule import CosineSchedule


class Run:
    """Model, optimizer, schedule and batches at step 0, made from the seed in one fixed order.

    `components` is all that the run remembers, by the names in the resume file.
    """

    def __init__(self, settings, tokens):
        training = settings["training"]
        make_deterministic(training["seed"], training["threads"], training["device"])
        self.training = training
        self.model = Decoder(settings["model"], training["length"]).to(training["device"])
        self.optimizer = AdamW(self.model.parameters(), lr=training["lr"], weight_decay=training["weight_decay"])
        self.schedule = CosineSchedule(training["lr"], training["steps"])
        self.batches = RandomCrops(tokens, training["batch_size"], training["length"], training["seed"])
        self.step = 0
        self.components = {
            "model": self.model,
            "optimizer": self.optimizer,
            "step": self.schedule,
            "gen_state": self.batches,
        }

    def resume(self, resume_state, path, recipe):
        """Go to the place that `resume_state`, read from `path`, was captured at. `recipe`: see `state.restore`. Raises LabError."""
        state.check(resume_state, list(self.components), self.training["steps"], path)
        state.restore(self.components, resume_state, path, recipe)
        # The place in the run is counted apart from the schedule, which a variant may forget.
        self.step = resume_state["step"]

    def train(self, until):
        """Train up to and including step `until`; after each step yield (step, loss, offsets of the batch in the tokens)."""
        self.model.train()
        while self.step < until:
            offsets, inputs, targets = self.batches.draw()
            lr = self.schedule.advance()
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            logits = self.model(inputs.to(self.training["device"]))
            loss = F.cross_entropy(logits.flatten(0, 1), targets.to(self.training["device"]).flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training["grad_clip"])
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            yield self.step, loss.item(), offsets
