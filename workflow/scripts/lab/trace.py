"""A trace: row by row, digests of everything that goes into a batch or an update, so that two runs can be held against each other.

    trace = Trace("trace.csv", model=model, optimizer=optimizer, scheduler=scheduler)
    ...
    trace.before_step(step, batch)
    loss = train_on(batch)
    trace.after_step(loss)

It needs torch, numpy and xxhash, and of this project trace_format and digests, which say what stands in the file.
"""

import csv
import io
import random
import sys
from collections.abc import Mapping
from contextlib import contextmanager

import numpy as np
import torch

from lab.appended_file import AppendedFile
from lab.digests import any_value, cell, describe, digest, show
from lab.trace_format import AFTER, BATCH, CONFIGURATION, KINDS, LOSS, NUMBER, RATE, RESERVED, TITLE, UNITS, UNSEEN, VERSION

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
CLASSES = {
    "module": torch.nn.Module,
    "optimizer": torch.optim.Optimizer,
    "scheduler": torch.optim.lr_scheduler.LRScheduler,
    "scaler": torch.amp.GradScaler,
    "loader": (torch.utils.data.DataLoader, torch.utils.data.Sampler, torch.utils.data.Dataset),
    "generator": GENERATORS,
}
# Attributes that every module has, whatever it remembers, and modules whose own ones go with the process.
OF_EVERY_MODULE = {*vars(torch.nn.Module()), "training"}
PLAIN_ATTRIBUTES = {bool, int, float, str}
OF_THE_PROCESS = ("torch.nn.parallel", "torch.distributed")
# So many objects are looked through for generators, but none of these.
MOST_OBJECTS = 64
NOT_LOOKED_THROUGH = tuple(CLASSES[kind] for kind in ("module", "optimizer", "scheduler", "scaler"))


class Trace:
    """Writes the trace of a run to the CSV file `path`: `before_step` and `after_step` around each batch, or each update (`unit`).

    `components` are the things that the run remembers, by name: modules, optimizers, other objects with state_dict(), generators,
    tensors, or nested dicts and lists of those and of numbers and text. With `generators` the global ones of torch, numpy and
    Python are traced too. `configuration` is anything that says how the run was set up: traces with different ones can't be compared.

    Raises ValueError for a name that can't be a column's, and for modules and optimizers in dicts or lists, which wouldn't get all of
    their columns. From the first row on nothing that it does ends the run or changes a bit of it: what can't be looked at gets a cell that
    says so and a line on standard error. A file that can't be written ends the trace, not the run: `error` is then the OSError, else None.

    A row is handed to the system in one piece when its step ends, so that a killed run leaves whole rows. A run that kept what
    `state_dict` returned goes on with the file when it gives that as `resume`: what was written after it is cut away, and ValueError
    raised when the file doesn't hold what it did.
    """

    def __init__(self, path, /, *, unit="batch", generators=True, configuration=None, resume=None, **components):
        if unit not in UNITS:
            raise ValueError(f"trace: found {unit!r} as unit, wanted one of {', '.join(UNITS)}")
        for name, component in components.items():
            _check_name(name)
            parts = component.values() if isinstance(component, Mapping) else component if isinstance(component, (list, tuple)) else ()
            if any(isinstance(part, (torch.nn.Module, torch.optim.Optimizer)) for part in parts):
                raise ValueError(f"trace: {name} holds modules or optimizers, wanted each under a name of its own")
        self.components, self.generators, self.configuration = components, generators, digest(configuration)
        self.unit, self.row, self.error, self.told = unit, None, None, set()
        self.file = AppendedFile(path, resume)
        self.columns = _last_header(self.file)
        self.begun = self.columns is not None
        if not self.file.size:
            self._write([TITLE, VERSION, unit])

    def before_step(self, step, batch=None, lr=None, **others):
        """Write down all that goes into row number `step`: components, generators, `batch`, learning rate and `others`, by name.

        The learning rate is the registered optimizers' unless `lr` is given. Raises, at the first row, ValueError for a name that can't be
        a column's or that a component has.
        """
        for name in list(others):
            try:
                _check_name(name)
                if name in self.components:
                    raise ValueError(f"trace: found {name} as a component and among what the step is given, wanted another name")
            except ValueError as error:
                if not self.begun:
                    raise
                self._tell(str(error))
                del others[name]
        self.row = {NUMBER: int(step), CONFIGURATION: self.configuration}
        with self._undisturbed() as states:
            self.parameters = {name: dict(part.named_parameters()) for name, part in self.components.items() if kind_of(part) == "module"}
            # Two processes may give an optimizer its parameters in different orders; the modules' names are the same.
            owned = [parameter for parameters in self.parameters.values() for parameter in parameters.values()]
            self.places = {id(parameter): place for place, parameter in reversed(list(enumerate(owned)))}
            self.waiting = {name: _smallest_waiting(parameters) for name, parameters in self.parameters.items()}
            for name in self.components:
                self._add(name, lambda name=name: self._state(name))
            if self.generators:
                for name, state in generator_states(states).items():
                    self._add(f"rng.{name}", lambda name=name, state=state: {f"rng.{name}": digest(state)})
            self._add(RATE, lambda: {RATE: self._rate() if lr is None else cell(_rate(lr))})
            for name, value in {BATCH: batch, **others}.items():
                self._add(name, lambda name=name, value=value: show(name, value))

    def after_step(self, loss=None):
        """Write down what came out, `loss` and the state of what may have changed, and write the row to the file.

        Raises ValueError when before_step wasn't called.
        """
        if self.row is None:
            raise ValueError("trace: found after_step without before_step, wanted before_step first")
        with self._undisturbed():
            self._add(LOSS, lambda: {LOSS: "" if loss is None else repr(float(loss.item() if isinstance(loss, torch.Tensor) else loss))})
            for name, waiting in self.waiting.items():
                if waiting and _was_thrown_away(*waiting):
                    self.row.update(describe(f"{name}.gradients", {}))
            for name in self.components:
                self._add(f"{name}.{AFTER}", lambda name=name: self._outputs(name))
            if any(kind_of(component) == "optimizer" for component in self.components.values()):
                self._add(f"{RATE}.{AFTER}", lambda: {f"{RATE}.{AFTER}": self._rate()})
        if self.columns != list(self.row):
            self.columns = list(self.row)
            self._write(self.columns)
        self._write(self.row.values())
        self.row, self.begun = None, True

    def state_dict(self):
        """Return how much is written so far and a digest of it, for a run that keeps it and is killed. What is written is synced first."""
        return self.file.state_dict()

    def close(self):
        self.file.close()

    def _state(self, name):
        """Return the columns of the component `name` as they are before the step."""
        return state_columns(name, self.components[name], self.parameters.get(name), self.places, look=not self.begun)

    def _outputs(self, name):
        """Return the columns of the component `name` as it is after the step: of what holds tensors."""
        component = self.components[name]
        if kind_of(component) == "module":
            buffers = dict(component.named_buffers())
            return {f"{name}.{AFTER}": digest(self.parameters[name]), f"{name}.buffers.{AFTER}": digest(buffers)}
        if kind_of(component) == "optimizer":
            parts = optimizer_parts(component, self.places)
            return {f"{name}.{part}{AFTER}": digest(value) for part, value in parts.items() if part != "attributes."}
        if kind_of(component) in ("scheduler", "scaler", "loader", "generator"):
            return {}
        return {f"{name}.{AFTER}": digest(state_of(component)) if self.row.get(f"{name}.dtypes") else ""}

    def _rate(self):
        """Return the cell of the learning rates in the registered optimizers' groups, one if all are the same."""
        optimizers = [part for part in self.components.values() if kind_of(part) == "optimizer"]
        rates = [_rate(group.get("lr")) for part in optimizers for group in part.param_groups]
        return cell(rates[0] if len(set(map(repr, rates))) == 1 else rates)

    def _add(self, name, columns):
        """Add what `columns()` returns to the row, or where that fails, that `name` was not looked at and why."""
        try:
            added = columns()
        except Exception as error:
            why = type(error).__name__
            self.row.update({name: f"{UNSEEN}{why}", f"{name}.unseen": why})
            return self._tell(f"trace: {name} can't be looked at: {why}: {' '.join(str(error).split())}")
        self.row.update(added)
        for column, types in added.items():
            if column.endswith(".unseen") and types:
                self._tell(f"trace: {column.removesuffix('.unseen')} holds {types}, which has no digest: not looked at")

    @contextmanager
    def _undisturbed(self):
        """Yield the states of the global generators, and leave them and those that the components hold as they were.

        Some objects draw from a generator when they are asked for their state.
        """
        states = _global_states()
        held = [(generator, _get_state(generator)) for generator in self._held_generators()]
        try:
            yield states
        finally:
            if not _same(_global_states(), states):
                _set_global_states(states)
            for generator, state in held:
                if not _same(_get_state(generator), state):
                    _set_state(generator, state)

    def _held_generators(self):
        """Return the generators that loaders, samplers and the like among the components hold."""
        found, seen, waiting = [], set(), list(self.components.values())
        while waiting and len(seen) < MOST_OBJECTS:
            value = waiting.pop()
            if id(value) in seen or isinstance(value, (type, torch.Tensor, *NOT_LOOKED_THROUGH)):
                continue
            seen.add(id(value))
            if isinstance(value, GENERATORS):
                found.append(value)
            elif isinstance(value, (list, tuple)):
                waiting += value[:MOST_OBJECTS]
            elif isinstance(value, dict):
                waiting += list(value.values())[:MOST_OBJECTS]
            elif hasattr(value, "__dict__"):
                waiting += list(vars(value).values())
        return found

    def _tell(self, line):
        """Say a line on standard error, once."""
        if line not in self.told:
            self.told.add(line)
            print(line, file=sys.stderr)

    def _write(self, cells):
        if self.error:
            return
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        try:
            self.file.append(line.getvalue().encode())
        except OSError as error:
            self.error = error
            self._tell(f"trace: {self.file.path} can't be written: {error.strerror}; it ends here")


def state_columns(name, component, parameters=None, places=None, look=True):
    """Return a component's columns and their cells as a dict; see trace_format for what they are.

    `parameters` is a module's dict(named_parameters()), where it is at hand: finding them takes time. `places` are numbers by the id of
    parameters, in the order of which an optimizer's state is taken; state of parameters without one comes last, in the optimizer's order.
    `look`: see `describe`.
    """
    kind = kind_of(component)
    if kind == "module":
        parameters = dict(component.named_parameters()) if parameters is None else parameters
        gradients = {key: part.grad for key, part in parameters.items() if part.grad is not None and any_value(part.grad)}
        modules = list(component.modules())
        return {
            **describe(name, parameters, look),
            **describe(f"{name}.buffers", dict(component.named_buffers()), look),
            # None, zero and never computed are the same to a step.
            **describe(f"{name}.gradients", {key: gradients.get(key) for key in parameters} if gradients else {}, look),
            f"{name}.mode": _flags([module.training for module in modules], "train", "eval"),
            f"{name}.trainable": _flags([part.requires_grad for part in parameters.values()], "all", "none"),
            f"{name}.attributes": cell([_attributes(module) for module in modules]),
            f"{name}.kind": kind,
        }
    if kind == "optimizer":
        parts = optimizer_parts(component, places or {})
        return {
            **describe(name, parts[""], look),
            **describe(f"{name}.parameters", parts["parameters."], look),
            f"{name}.settings": digest(parts["settings."]),
            f"{name}.attributes": cell(parts["attributes."]),
            f"{name}.kind": kind,
        }
    return {**describe(name, state_of(component), look), f"{name}.kind": kind}


def kind_of(component):
    """Return which of KINDS a component is of, "" for none of them."""
    found = next((kind for kind in KINDS if isinstance(component, CLASSES[kind])), "")
    return found or ("loader" if hasattr(component, "__iter__") and hasattr(component, "state_dict") else "")


def state_of(component):
    """Return what a component that is neither a module nor an optimizer remembers: what its state_dict() returns, or else itself."""
    if isinstance(component, type) or not callable(getattr(component, "state_dict", None)):
        return component
    iterator = next((name for name in ("_iterator", "_it") if hasattr(component, name)), None)
    if (iterator and getattr(component, iterator) is None) or getattr(component, "_BaseNode__initialized", True) is False:
        # A loader of torchdata's that hasn't begun would begin in order to tell, and then not begin again.
        loaded = next((getattr(component, name) for name in ("next_iter_state", "_next_iter_state_dict") if hasattr(component, name)), None)
        return {"begun": False, "loaded": loaded}
    return component.state_dict()


def optimizer_parts(optimizer, places):
    """Return what an optimizer remembers, with the optimizers inside it: its state under "", and under "parameters.", "settings." and
    "attributes." the parameters that have no place in `places`, the hyperparameters but for the learning rate, and plain attributes.
    """
    optimizers = _with_inner_ones(optimizer)
    # Read directly: Optimizer.state_dict() imports torch's compiler.
    groups = list({id(group): group for part in optimizers for group in part.param_groups}.values())
    states = list({id(part.state): part.state for part in optimizers}.values())
    owners = list({id(owner): owner for group in groups for owner in group["params"]}.values())
    place = {id(owner): places.get(id(owner), len(places) + index) for index, owner in enumerate(owners)}
    settings = [
        {**{key: group[key] for key in group if key != "lr"}, "params": repr(sorted(place[id(owner)] for owner in group["params"]))}
        for group in groups
    ]
    attributes = [
        {key: value for key, value in vars(part).items() if type(value) in PLAIN_ATTRIBUTES and not key.startswith("_")}
        for part in optimizers
    ]
    return {
        "": [_by_owner(state, place) for state in states] if len(states) > 1 else _by_owner(states[0], place),
        "parameters.": [owner for owner in owners if id(owner) not in places],
        "settings.": settings,
        "attributes.": attributes,
    }


def global_generators():
    """Return the states of the global generators by name; the CUDA devices' where torch has started them."""
    return generator_states(_global_states())


def generator_states(states):
    """Return the states of generators by name, as what the generators give, in a form that is quick to digest."""
    version, internal, gauss = states["python"]
    return {**states, "python": [version, np.array(internal, dtype=np.uint32), gauss]}


def _global_states():
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return {**states, "numpy": np.random.get_state(), "python": random.getstate()}


def _set_global_states(states):
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])


def _get_state(generator):
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator, state):
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _same(one, other):
    """Whether two states of generators, nested as they may be, are the same."""
    if isinstance(one, dict):
        return all(_same(part, other[name]) for name, part in one.items())
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, (list, tuple)) and len(one) < 100:
        return all(map(_same, one, other))
    return one == other


def _check_name(name):
    if "." in name or name in RESERVED:
        raise ValueError(f"trace: found {name} as a name, wanted one without a dot that is none of {', '.join(RESERVED)}")


def _last_header(file):
    """Return the columns of the last header in the AppendedFile `file`, a trace; None if it has none."""
    lines = b"".join(file.contents()).decode().splitlines()
    return next((next(csv.reader([line])) for line in reversed(lines) if line.startswith(f"{NUMBER},")), None)


def _rate(value):
    """Return a learning rate as a number of Python's, whatever number it is, and anything else as it is."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, (int, float, np.number)) else value


def _flags(flags, every, none):
    if len(set(flags)) <= 1:
        return every if all(flags) else none
    return f"{sum(flags)} of {len(flags)} {every} {digest(flags)}"


def _attributes(module):
    """Return what a module remembers beside its tensors: its attributes that are numbers, text, true or false, and its extra state."""
    if type(module).__module__.startswith(OF_THE_PROCESS):
        return {}
    plain = {key: value for key, value in vars(module).items() if isinstance(value, (bool, int, float, str)) and key not in OF_EVERY_MODULE}
    if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
        plain["get_extra_state"] = module.get_extra_state()
    return plain


def _smallest_waiting(parameters):
    """Return the smallest of the parameters that have a gradient, and that; None if there is none."""
    waiting = [parameter for parameter in parameters.values() if parameter.grad is not None]
    smallest = min(waiting, key=torch.Tensor.numel, default=None)
    return None if smallest is None else (smallest, smallest.grad)


def _was_thrown_away(parameter, gradient):
    """Whether a gradient that waited before the step was cleared, and not added to: then it was no state.

    Backward passes add to a gradient in place, unless they build a graph.
    """
    return parameter.grad is not None and parameter.grad is not gradient and not parameter.grad.requires_grad


def _with_inner_ones(optimizer):
    """Return an optimizer and those inside it: in its attributes, or in lists and dicts there."""
    found, waiting = [], [optimizer]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, torch.optim.Optimizer):
            if all(value is not other for other in found):
                found.append(value)
                waiting += [part for key, part in vars(value).items() if key not in ("state", "param_groups", "defaults")]
        elif isinstance(value, (list, tuple)):
            waiting += [part for part in value if isinstance(part, torch.optim.Optimizer)]
        elif isinstance(value, dict):
            waiting += [part for part in value.values() if isinstance(part, torch.optim.Optimizer)]
    return found


def _by_owner(state, place):
    """Return an optimizer's state by the places of the parameters that it is of; what is of none of them by a name of its own."""
    return {place.get(id(owner), f"other {index}"): value for index, (owner, value) in enumerate(state.items())}
