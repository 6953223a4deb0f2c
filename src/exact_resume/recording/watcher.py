"""Inside a program that is recorded: a row of a trace for each call of an optimizer's step.

Nothing that is done here changes a bit of the program, ends it or prints: what can't be looked at is noted in the
record's folder.
"""

import json
import os
import platform
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from exact_resume.pipeline.fingerprint import environment
from exact_resume.recording import folder as record
from exact_resume.recording.discovery import Found, unwrapped, watch_creations
from exact_resume.recording.patches import before_backward, before_outermost_calls
from exact_resume.tracing.digests import digest, leaves, show
from exact_resume.tracing.format import BATCH
from exact_resume.tracing.interrupts import raised_by_handler
from exact_resume.tracing.recorder import Trace

# Seconds between two looks whether the program is told to stop.
LOOK_EVERY = 0.005


def install(wanted):
    """Watch this process from now on, as the dict `wanted` of the launcher says: `folder`, `kill_after`, `window`."""
    watcher = Watcher(wanted)

    def step_begins(optimizer, args, kwargs):
        if not torch.compiler.is_compiling():
            watcher.guarded(watcher.step_begins, optimizer)

    def step_ended(optimizer, args, kwargs):
        if not torch.compiler.is_compiling():
            watcher.guarded(watcher.step_ended, optimizer)

    register_optimizer_step_pre_hook(step_begins)
    register_optimizer_step_post_hook(step_ended)
    before_outermost_calls(lambda *call: watcher.guarded(watcher.called, *call))
    before_backward(lambda tensors: watcher.guarded(watcher.backward_begins, tensors))
    watch_creations(lambda thing: watcher.guarded(watcher.found.add, thing))
    os.register_at_fork(after_in_child=watcher.start_anew)
    watcher.see(f"torch was imported by {' '.join(sys.orig_argv)}")


class Watcher:
    """Sees a process' updates, and writes a row for each."""

    def __init__(self, wanted):
        self.folder, self.kill_after, self.window = Path(wanted["folder"]), wanted["kill_after"], wanted["window"]
        self.found, self.inner, self.seen = Found(), weakref.WeakSet(), set()
        self.start_anew()

    def start_anew(self):
        """Forget what was written, in a process that was forked: it has a trace of its own once it trains."""
        self.trace, self.rows, self.begun = None, 0, False
        # Optimizers that are stepping, outermost first.
        self.stepping, self.at_work = [], False
        self.batches, self.losses, self.made_before = [], [], 0

    def guarded(self, look, *about):
        """Call `look`, whose failure is noted and nothing else. What it does itself isn't watched."""
        if self.at_work:
            return
        self.at_work = True
        try:
            look(*about)
        except Exception as error:
            if raised_by_handler(error):
                raise
            self.note(f"{look.__name__}: {type(error).__name__}: {' '.join(str(error).split())}")
        finally:
            self.at_work = False

    def called(self, module, args, kwargs):
        """Before a module is called: an update begins with the first one that trains, and what it is given is a batch
        of the update's.
        """
        if _trains(module):
            self.see(f"{type(module).__name__} was called in training")
            self.root(unwrapped(module))
            self.begin()
            # What another module made is nothing that was given.
            given = [leaf for leaf in leaves((args, kwargs)) if not getattr(leaf, "requires_grad", False)]
            # Shown now, since it may be written to before the update is made.
            self.batches.append(show(BATCH, given))

    def root(self, module):
        """Take note of an outermost module, but for one that is a part of another."""
        if self.found.knows(module) or module in self.inner:
            return
        roots = self.found.of(torch.nn.Module)
        if any(module is part for root in roots for part in root.modules()):
            self.inner.add(module)
        else:
            self.found.add(module)

    def begin(self):
        """Begin an update's row, or add to it what was not there when it was begun."""
        if self.begun:
            new = self.found.settle()
            self.trace.join(new if self.in_window() else {})
            return
        if self.rows == self.kill_after:
            self.stop()
        if self.trace is None:
            self.open_trace()
        self.found.settle()
        self.begun, self.batches, self.losses = True, [], []
        self.trace.begin(self.rows + 1, look=self.in_window(), hooked=False)

    def backward_begins(self, tensors):
        """Before a backward pass: what it starts from is the loss, and gradients that wait now have waited for it.

        An update begins here where its forward pass was none of a module's.
        """
        self.begin()
        if not self.losses:
            self.trace.backward_begins()
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        self.losses += [float(tensor.detach()) for tensor in tensors if tensor.numel() == 1]

    def step_begins(self, optimizer):
        """Before an optimizer steps, unless it is one inside another."""
        self.see(f"{type(optimizer).__name__} was stepped")
        if optimizer in self.stepping:
            # A step that ended with an exception.
            self.stepping.clear()
        self.stepping.append(optimizer)
        if len(self.stepping) == 1:
            self.found.add(optimizer)
            self.begin()
            self.trace.update_begins()
            self.made_before = len(self.losses)

    def step_ended(self, optimizer):
        while self.stepping and self.stepping.pop() is not optimizer:
            continue
        if self.stepping or not self.begun:
            return
        if not self.rows:
            self.name_trace()
        if len(self.losses) > self.made_before:
            # Its closure made the gradients.
            self.trace.update_begins()
        self.trace.give()
        self.trace.row.update(self.batch())
        self.trace.after_step(self.losses[0] if len(self.losses) == 1 else self.losses or None)
        self.begun, self.rows = False, self.rows + 1

    def batch(self):
        """Return the columns of all that was given in this update: of one batch as it is, of several their digest."""
        if len(self.batches) == 1:
            return self.batches[0]
        unseen = sorted({types for batch in self.batches for types in batch[f"{BATCH}.unseen"].split()})
        return {BATCH: digest([batch[BATCH] for batch in self.batches]), f"{BATCH}.unseen": " ".join(unseen)}

    def in_window(self):
        """Whether the row that begins is one in which all is looked at."""
        return self.window is None or self.window[0] <= self.rows + 1 <= self.window[1]

    def open_trace(self):
        self.trace = ProgramTrace(self.folder / f"{os.getpid()}{record.BEGUN}", self.note)
        self.trace.components = self.found.components

    def name_trace(self):
        """Take a name for the trace, now that the process has trained, and write down what the process is."""
        name = record.claim(self.folder, os.environ.get("RANK"))
        path = self.folder / f"{name}{record.TRACE}"
        os.rename(self.trace.file.path, path)
        self.trace.file.path = path
        facts = {
            "argv": sys.orig_argv,
            "rank": int(os.environ.get("RANK", "0")),
            "world_size": _world_size(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "environment": environment(),
        }
        (self.folder / f"{name}{record.PROCESS}").write_text(json.dumps(facts, indent=2) + "\n")

    def stop(self):
        """Say that the update has come before which the program is to stop, and wait until it is told to."""
        rank = os.environ.get("RANK")
        reached = self.folder / f"{os.getpid() if rank is None else rank}{record.REACHED}"
        reached.write_text(str(_world_size()))
        while not (self.folder / record.TOLD).exists():
            time.sleep(LOOK_EVERY)

    def see(self, what):
        """Note something that the program did, once."""
        if what not in self.seen:
            self.seen.add(what)
            self._append(record.SEEN, what)

    def note(self, problem):
        if problem not in self.seen:
            self.seen.add(problem)
            self._append(record.PROBLEMS, problem)

    def _append(self, name, line):
        with suppress(OSError), open(self.folder / name, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{line}\n")


class ProgramTrace(Trace):
    """A trace of a program, to whose standard error nothing is written: `note` takes what can't be looked at."""

    def __init__(self, path, note):
        super().__init__(path, unit="update")
        self.note = note

    def _tell(self, line):
        self.note(line)


def _world_size():
    return int(os.environ.get("WORLD_SIZE", "1"))


def _trains(module):
    """Whether a call of `module` is one of training: what has no parameters that are trained, is evaluated, or runs
    once more in a backward pass, is none.
    """
    return (
        module.training
        and torch.is_grad_enabled()
        and not torch._C._get_tracing_state()
        and torch._C._current_graph_task_id() == -1
        and any(parameter.requires_grad for parameter in module.parameters())
    )
