"""The modules, optimizers, schedulers, scalers, averages and loaders of a program, found as they are made or called."""

import weakref
from contextlib import suppress

import torch

from exact_resume.recording.patches import after_creations
from exact_resume.tracing.format import RESERVED

# Modules that only stand before another one.
WRAPPERS = {"module": ("torch.nn.parallel",), "_orig_mod": ("torch._dynamo",)}


class Found:
    """What a program has made, each under a name of its own: its class' name, with a number from the second on.

    Nothing is kept alive by it. `components` are functions by name that return the thing, or None once it is gone.
    """

    def __init__(self):
        self.components, self.unnamed, self.known = {}, [], {}

    def add(self, thing):
        """Take note of `thing`, once."""
        if not self.knows(thing):
            # A user's class may have slots and no weak references.
            with suppress(TypeError):
                self.known[id(thing)] = reference = weakref.ref(thing)
                self.unnamed.append(reference)

    def knows(self, thing):
        """Return whether note was taken of `thing`."""
        known = self.known.get(id(thing))
        return known is not None and known() is thing

    def settle(self):
        """Give names to what has none yet and is still there, and return them as components."""
        named, self.unnamed = self.unnamed, []
        new = {}
        for reference in named:
            thing = reference()
            if thing is not None:
                name = self._free_name(type(thing).__name__)
                self.components[name] = new[name] = lambda reference=reference: reference()
        return new

    def of(self, kind):
        """Return those that are instances of `kind` and still there."""
        return [thing for component in self.components.values() if isinstance(thing := component(), kind)]

    def _free_name(self, wanted):
        name, number = wanted, 1
        while name in self.components or name in RESERVED:
            number += 1
            name = f"{wanted}_{number}"
        return name


def unwrapped(module):
    """Return the module that a distributed or compiled one stands before."""
    while True:
        inner = next(
            (
                getattr(module, name)
                for name, places in WRAPPERS.items()
                if type(module).__module__.startswith(places)
                and isinstance(getattr(module, name, None), torch.nn.Module)
            ),
            None,
        )
        if inner is None:
            return module
        module = inner


def watch_creations(made):
    """Have `made` called with each thing that remembers something, when it was made."""
    schedulers = [
        kind
        for kind in vars(torch.optim.lr_scheduler).values()
        if isinstance(kind, type)
        and issubclass(kind, torch.optim.lr_scheduler.LRScheduler)
        and "__init__" in vars(kind)
    ]
    others = (torch.optim.Optimizer, torch.amp.GradScaler, torch.optim.swa_utils.AveragedModel)
    for kind in dict.fromkeys((*others, *schedulers, torch.utils.data.DataLoader)):
        after_creations(kind, made)
