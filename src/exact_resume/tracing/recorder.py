"""A trace: row by row, digests of everything that goes into a batch or an update, so that two runs can be held against
each other.

    trace = Trace("trace.csv", model=model, optimizer=optimizer, scheduler=scheduler)
    ...
    trace.before_step(step, batch)
    loss = train_on(batch)
    trace.after_step(loss)

It needs torch, numpy and xxhash, and of this package format and digests, which say what stands in the file.
"""

import csv
import ctypes
import io
import random
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from types import FunctionType, MethodType
from typing import NamedTuple

import numpy as np
import torch

from exact_resume.tracing.appended_file import AppendedFile
from exact_resume.tracing.digests import Unseen, any_value, cell, describe, digest, leaves, show
from exact_resume.tracing.format import (
    AFTER,
    BATCH,
    CONFIGURATION,
    DETACHED,
    KINDS,
    LOSS,
    NUMBER,
    PRECISIONS,
    RATE,
    RESERVED,
    TITLE,
    UNITS,
    UNSEEN,
    VERSION,
)
from exact_resume.tracing.interrupts import raised_by_handler

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
OF_THE_PROCESS = ("torch.nn.parallel", "torch.distributed", "torch._dynamo")
# An attribute that holds more than so many values is data.
MOST_VALUES = 64
# Settings and attributes of up to so many characters are shown as they are, so that a diagnosis can name the one that
# differs.
LONGEST_SETTINGS = 512
# So many objects are looked through for generators, but none of these.
MOST_OBJECTS = 64
# Bytes of a number in the state of numpy's Mersenne Twister, which is its key's numbers and its position.
WORD = 4
NOT_LOOKED_THROUGH = tuple(CLASSES[kind] for kind in ("module", "optimizer", "scheduler", "scaler"))


class Trace:
    """Writes the trace of a run to the CSV file `path`: `before_step` and `after_step` around each batch, or each
    update (`unit`).

    `components` are the things that the run remembers, by name: modules, optimizers, other objects with state_dict(),
    generators, tensors, or nested dicts and lists of those and of numbers and text; a function without arguments stands
    for what it returns in each row. With `generators` the global ones of torch, numpy and Python are traced too.
    `configuration` is anything that says how the run was set up: traces with different ones can't be compared.

    Raises ValueError for a name that can't be a column's, and for modules and optimizers in dicts or lists, which
    wouldn't get all of their columns. From the first row on nothing that it does ends the run or changes a bit of it:
    what can't be looked at gets a cell that says so and a line on standard error. A file that can't be written ends the
    trace, not the run: `error` is then the OSError, else None.

    A row is handed to the system in one piece when its step ends, so that a killed run leaves whole rows. A run that
    kept what `state_dict` returned goes on with the file when it gives that as `resume`: what was written after it is
    cut away, and ValueError raised when the file doesn't hold what it did.
    """

    def __init__(self, path, /, *, unit="batch", generators=True, configuration=None, resume=None, **components):
        if unit not in UNITS:
            raise ValueError(f"trace: found {unit!r} as unit, wanted one of {', '.join(UNITS)}")
        for name, component in components.items():
            _check_name(name)
            parts = (
                component.values()
                if isinstance(component, Mapping)
                else component
                if isinstance(component, (list, tuple))
                else ()
            )
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
        """Write down all that goes into row number `step`: components, generators, `batch`, learning rate and `others`,
        by name.

        The learning rate is the registered optimizers' unless `lr` is given. Raises, at the first row, ValueError for a
        name that can't be a column's or that a component has.
        """
        for name in list(others):
            try:
                _check_name(name)
                if name in self.components:
                    raise ValueError(
                        f"trace: found {name} as a component and among what the step is given, wanted another name"
                    )
            except ValueError as error:
                if not self.begun:
                    raise
                self._tell(str(error))
                del others[name]
        self.begin(step)
        self.give(batch, lr, **others)

    def begin(self, step, look=True, hooked=True):
        """Begin row number `step`: write down the components, as they are before it, and the generators. With `look`
        false, the generators alone. Unless gradients that wait are `hooked`, `backward_begins` has to be called.
        """
        self.row = {NUMBER: self._number(step), CONFIGURATION: self.configuration}
        self.states = _global_states()
        self.present, self.kinds, self.parts, self.waiting, self.hooked = {}, {}, {}, {}, hooked
        self.join(self.components if look else {})
        if self.generators:
            for name, state in global_generators(self.states).items():
                self._add(f"rng.{name}", lambda name=name, state=state: {f"rng.{name}": digest(state)})

    def join(self, components):
        """Write down `components`, a dict, as they are now, in the row that was begun."""
        for name, component in components.items():
            self.present[name] = part = self._guarded(name, lambda component=component: _present(component))
            self.kinds[name] = self._guarded(name, lambda part=part: kind_of(part)) or ""
            if self.kinds[name] == "module":
                parts = self._guarded(name, lambda part=part: parts_of(part)) or ModuleParts([], {}, {})
                self.parts[name] = parts
        # Two processes may give an optimizer its parameters in different orders; the modules' names are the same.
        owned = [parameter for parts in self.parts.values() for parameter in parts.parameters.values()]
        self.places = {id(parameter): place for place, parameter in reversed(list(enumerate(owned)))}
        for name in components:
            self._add(name, lambda name=name: self._state(name, self.present[name]))
            if name in self.parts:
                parameters = self.parts[name].parameters
                self.waiting[name] = self._guarded(name, lambda parameters=parameters: Waiting(parameters, self.hooked))

    def backward_begins(self):
        """Look which of the gradients that wait have stayed until a backward pass adds to them."""
        for name, waiting in self.waiting.items():
            self._guarded(name, waiting.look_at_all)

    def update_begins(self):
        """Write down the gradients that the update is made with, as something that came out of the row."""
        for name, parts in self.parts.items():
            gradients = f"{name}.gradients.{AFTER}"
            self._add(
                gradients,
                lambda parts=parts, gradients=gradients: {
                    gradients: digest([part.grad for part in parts.parameters.values()])
                },
            )

    def give(self, batch=None, lr=None, **others):
        """Write down what this row alone is given: `batch`, learning rate (see `before_step`) and `others`."""
        self._add(RATE, lambda: {RATE: self._rate() if lr is None else cell(_as_number(lr))})
        for name, value in {BATCH: batch, **others}.items():
            self._add(name, lambda name=name, value=value: show(name, value))

    def after_step(self, loss=None):
        """Write down what came out, `loss` and the state of what may have changed, and write the row to the file.
        Raises ValueError when before_step wasn't called.
        """
        if self.row is None:
            raise ValueError("trace: found after_step without before_step, wanted before_step first")
        self._add(LOSS, lambda: {LOSS: ""} if loss is None else show(LOSS, _as_number(loss)))
        for name, part in self.present.items():
            self._add(f"{name}.{AFTER}", lambda name=name, part=part: self._outputs(name, part))
        for name, waiting in self.waiting.items():
            if waiting and self._guarded(
                name, lambda name=name, waiting=waiting: waiting.were_of_no_use(self._moved(name))
            ):
                self.row.update(describe(f"{name}.gradients", {}))
        for name, kind in self.kinds.items():
            if kind == "optimizer":
                self._add(f"{name}.detached", lambda name=name: {f"{name}.detached": self._detached(name)})
        if "optimizer" in self.kinds.values():
            self._add(f"{RATE}.{AFTER}", lambda: {f"{RATE}.{AFTER}": self._rate()})
        if self.columns != list(self.row):
            self.columns = list(self.row)
            self._write(self.columns)
        self._write(self.row.values())
        self.row, self.begun = None, True
        self.present, self.parts, self.waiting = {}, {}, {}

    def state_dict(self):
        """Return how much is written so far and a digest of it, for a run that keeps it and is killed. What is written
        is synced first.
        """
        return self.file.state_dict()

    def close(self):
        self.file.close()

    def _number(self, step):
        try:
            return int(step)
        except (TypeError, ValueError) as error:
            if not self.begun:
                raise
            self._tell(f"trace: found {step!r} as a row's number, wanted a whole number: {error}")
            return 0

    def _state(self, name, part):
        """Return the columns of the component `name` as it is before the step."""
        return state_columns(name, part, self.parts.get(name), self.places, not self.begun, self.states)

    def _outputs(self, name, part):
        """Return the columns of the component `name` as it is after the step: of what holds tensors."""
        kind = self.kinds[name]
        if kind == "module":
            parameters, buffers = self.parts[name].parameters, self.parts[name].buffers
            buffers = dict(part.named_buffers()) if buffers else {}
            return {f"{name}.{AFTER}": digest(parameters), f"{name}.buffers.{AFTER}": digest(buffers)}
        if kind == "optimizer":
            parts = optimizer_parts(part, self.places)
            return {
                f"{name}.{AFTER}": digest(parts[""]),
                f"{name}.parameters.{AFTER}": digest(parts["parameters."]),
                f"{name}.settings.{AFTER}": _settings_cell(parts["settings."]),
            }
        if kind in ("scheduler", "scaler", "loader", "generator"):
            return {}
        # Numbers with decimals, of which an update makes other ones.
        held = bool(self.row.get(f"{name}.{PRECISIONS[0]}"))
        return {f"{name}.{AFTER}": digest(state_of(_present(self.components[name]))) if held else ""}

    def _rate(self):
        """Return the cell of the learning rates in the registered optimizers' groups: by optimizer if there are
        several, and one if all of its groups have the same.
        """
        optimizers = {name: part for name, part in self.present.items() if self.kinds[name] == "optimizer"}
        rates = {
            name: [_as_number(group.get("lr")) for group in part.param_groups] for name, part in optimizers.items()
        }
        rates = {name: found[0] if len(set(map(repr, found))) == 1 else found for name, found in rates.items()}
        return cell(next(iter(rates.values()), []) if len(rates) < 2 else rates)

    def _moved(self, column):
        """Whether what the column `column` shows is another one after this row's step."""
        return self.row.get(f"{column}.{AFTER}") not in (None, self.row.get(column))

    def _detached(self, name):
        """Return the cell that says whether the optimizer `name` has nothing to do with the registered modules.

        It has none of their parameters, and either these change without its own, or its own without theirs: float32
        masters change together with what they are the masters of.
        """
        held = any(id(owner) in self.places for group in self.present[name].param_groups for owner in group["params"])
        modules = any(self._moved(module) for module in self.parts)
        if held or not self.places or modules == self._moved(f"{name}.parameters"):
            return ""
        self._tell(
            f"trace: {name} holds none of the registered modules' parameters, wanted a function for what is made anew"
        )
        return DETACHED

    def _guarded(self, name, look):
        """Return what `look()` returns, or None and say why it can't be had."""
        try:
            return look()
        except Exception as error:
            if raised_by_handler(error):
                raise
            self._tell_failure(name, error)
            return None

    def _add(self, name, columns):
        """Add what `columns()` returns to the row, or where that fails, that `name` was not looked at and why."""
        try:
            added = columns()
        except Exception as error:
            if raised_by_handler(error):
                raise
            why = type(error).__name__
            self.row.update({name: f"{UNSEEN}{why}", f"{name}.unseen": why})
            return self._tell_failure(name, error)
        self.row.update(added)
        for column, types in added.items():
            if column.endswith(".unseen") and types:
                self._tell(f"trace: {column.removesuffix('.unseen')} holds {types}, which has no digest: not looked at")

    def _tell_failure(self, name, error):
        self._tell(f"trace: {name} can't be looked at: {type(error).__name__}: {' '.join(str(error).split())}")

    def _tell(self, line):
        """Say a line on standard error, once."""
        if line not in self.told:
            self.told.add(line)
            with suppress(OSError, ValueError):
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


class ModuleParts(NamedTuple):
    """The modules in a module, and its parameters and buffers by name, each of them once."""

    modules: list
    parameters: dict
    buffers: dict


def parts_of(module):
    """Return the ModuleParts of a module: what modules(), named_parameters() and named_buffers() give, in one walk
    instead of three.
    """
    modules, parameters, buffers, seen = [], {}, {}, set()
    for prefix, part in module.named_modules():
        modules.append(part)
        for found, own in ((parameters, part._parameters), (buffers, part._buffers)):
            for key, tensor in own.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[f"{prefix}.{key}" if prefix else key] = tensor
    return ModuleParts(modules, parameters, buffers)


def state_columns(name, component, parts=None, places=None, look=True, states=None):
    """Return a component's columns and their cells as a dict; see format for what they are.

    `parts` are a module's parts_of, where they are at hand: finding them takes time. `places` are numbers by the id of
    parameters, in the order of which an optimizer's state is taken; state of parameters without one comes last, in the
    optimizer's order. `look`: see `describe`. `states`: the global generators' _global_states now, if they are at hand.
    """
    kind = kind_of(component)
    if kind == "module":
        modules, parameters, buffers = parts or parts_of(component)
        gradients = {
            key: part.grad for key, part in parameters.items() if part.grad is not None and any_value(part.grad)
        }
        attributes = {place: own for place, module in enumerate(modules) if (own := _attributes(module, states))}
        return {
            **describe(name, parameters, look),
            **describe(f"{name}.buffers", buffers, look),
            # None, zero and never computed are the same to a step.
            **describe(f"{name}.gradients", {key: gradients.get(key) for key in parameters} if gradients else {}, look),
            f"{name}.mode": _flags([module.training for module in modules], "train", "eval"),
            f"{name}.trainable": _flags([part.requires_grad for part in parameters.values()], "all", "none"),
            f"{name}.attributes": cell(attributes, LONGEST_SETTINGS),
            f"{name}.kind": kind,
        }
    if kind == "optimizer":
        parts = optimizer_parts(component, places or {})
        return {
            **describe(name, parts[""], look),
            **describe(f"{name}.parameters", parts["parameters."], look),
            f"{name}.settings": _settings_cell(parts["settings."]),
            f"{name}.attributes": _settings_cell(parts["attributes."]),
            f"{name}.kind": kind,
        }
    return {**describe(name, state_of(component, states), look), f"{name}.kind": kind}


def _settings_cell(parts):
    """Return the cell of an optimizer's settings or attributes, a list of dicts: of the one, where there is just
    one.
    """
    return cell(parts[0] if len(parts) == 1 else parts, LONGEST_SETTINGS)


def kind_of(component):
    """Return which of KINDS a component is of, "" for none of them."""
    found = next((kind for kind in KINDS if isinstance(component, CLASSES[kind])), "")
    is_loader = type(component).__name__.lower().endswith(("loader", "sampler")) and hasattr(component, "__iter__")
    return found or ("loader" if is_loader else "")


def _present(component):
    """Return what a component is in this row."""
    return component() if isinstance(component, (FunctionType, MethodType)) else component


def state_of(component, states=None):
    """Return what a component that is neither a module nor an optimizer remembers: what its state_dict() returns, or
    else itself.

    `states`: see `state_columns`.
    """
    if isinstance(component, type) or not callable(getattr(component, "state_dict", None)):
        return loader_parts(component) if isinstance(component, torch.utils.data.DataLoader) else component
    iterator = next((name for name in ("_iterator", "_it") if hasattr(component, name)), None)
    if (iterator and getattr(component, iterator) is None) or getattr(
        component, "_BaseNode__initialized", True
    ) is False:
        # A loader of torchdata's that hasn't begun would begin in order to tell, and then not begin again.
        loaded = next(
            (
                getattr(component, name)
                for name in ("next_iter_state", "_next_iter_state_dict")
                if hasattr(component, name)
            ),
            None,
        )
        return {"begun": False, "loaded": loaded}
    if type(component).__module__.startswith("torch.") and isinstance(component, NOT_LOOKED_THROUGH):
        # Torch's own schedulers and scalers draw nothing.
        return component.state_dict()
    with _undisturbed(component, states):
        return component.state_dict()


def loader_parts(loader):
    """Return what a DataLoader holds that decides on its order: its generator, and of its samplers what they remember,
    or else their generators and plain attributes.
    """
    samplers = {"sampler": loader.sampler, "batch_sampler": loader.batch_sampler}
    remembered = {}
    for name, sampler in samplers.items():
        own = getattr(sampler, "__dict__", {})
        remembered[name] = (
            state_of(sampler)
            if callable(getattr(sampler, "state_dict", None))
            else {key: value for key, value in own.items() if type(value) in PLAIN_ATTRIBUTES or _is_generator(value)}
        )
    return {"generator": loader.generator, **remembered}


def _is_generator(value):
    return isinstance(value, GENERATORS)


def optimizer_parts(optimizer, places):
    """Return what an optimizer remembers, with the optimizers inside it: its state under "", and under "parameters.",
    "settings." and "attributes." the parameters that have no place in `places`, the hyperparameters but for the
    learning rate, and plain attributes.
    """
    optimizers = _with_inner_ones(optimizer)
    # Read directly: Optimizer.state_dict() imports torch's compiler.
    groups = list({id(group): group for part in optimizers for group in part.param_groups}.values())
    states = list({id(part.state): part.state for part in optimizers}.values())
    owners = list({id(owner): owner for group in groups for owner in group["params"]}.values())
    place = {id(owner): places.get(id(owner), len(places) + index) for index, owner in enumerate(owners)}
    settings = [
        {
            **{key: group[key] for key in group if key != "lr"},
            "params": cell(sorted(place[id(owner)] for owner in group["params"]), 64),
        }
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


def global_generators(states):
    """Return `_global_states` in a form that is quick to digest."""
    version, internal, gauss = states["python"]
    return {**states, "python": [version, np.array(internal, dtype=np.uint32), gauss]}


@contextmanager
def _undisturbed(component, states=None):
    """Leave the global generators, and those that `component` holds, where they are now: some objects draw when they
    tell their state.

    Those of an object with a thread of its own are left alone, since that may draw from them meanwhile. `states`: see
    `state_columns`.
    """
    states = states or _global_states()
    places = _global_places(states)
    held = [(generator, _get_state(generator)) for generator in _held_generators(component)]
    try:
        yield
    finally:
        if not _same(_global_places(states), places):
            _set_global_states(states)
        for generator, state in held:
            if not _same(_get_state(generator), state):
                _set_state(generator, state)


def _held_generators(component):
    """Return the generators that a loader, sampler or the like holds."""
    found, seen, waiting = [], set(), [component]
    while waiting and len(seen) < MOST_OBJECTS:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, torch.Tensor, random.SystemRandom, *NOT_LOOKED_THROUGH)):
            continue
        seen.add(id(value))
        if isinstance(value, threading.Thread):
            return []
        if isinstance(value, GENERATORS):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            waiting += value[:MOST_OBJECTS]
        elif isinstance(value, dict):
            waiting += list(value.values())[:MOST_OBJECTS]
        elif isinstance(getattr(value, "__dict__", None), dict):
            waiting += list(vars(value).values())
    return found


def _global_states():
    """Return the states of the global generators by name; the CUDA devices' where torch has started them."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return {**states, "numpy": np.random.get_state(legacy=False), "python": random.getstate()}


def _global_places(states):
    """Return what tells whether the global generators still stand at `states`, in a fifth of the time: numpy's by its
    memory, where that says all.
    """
    numpys, generator = states["numpy"], np.random.get_bit_generator()
    in_memory = numpys["bit_generator"] == "MT19937" == type(generator).__name__ and not numpys["has_gauss"]
    size = WORD * len(numpys["state"]["key"]) + WORD if in_memory else 0
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if "cuda" in states else [],
        "numpy": ctypes.string_at(generator.ctypes.state_address, size)
        if in_memory
        else np.random.get_state(legacy=False),
        "python": random.getstate(),
    }


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
        raise ValueError(
            f"trace: found {name} as a name, wanted one without a dot that is none of {', '.join(RESERVED)}"
        )


def _last_header(file):
    """Return the columns of the last header in the AppendedFile `file`, a trace; None if it has none."""
    lines = b"".join(file.contents()).decode().splitlines()
    return next((next(csv.reader([line])) for line in reversed(lines) if line.startswith(f"{NUMBER},")), None)


def _as_number(value):
    """Return a number as one of Python's, whatever it is, and anything else as it is."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, (int, float, np.number)) else value


def _flags(flags, every, none):
    if len(set(flags)) <= 1:
        return every if all(flags) else none
    return f"{sum(flags)} of {len(flags)} {every} {digest(flags)}"


def _attributes(module, states=None):
    """Return what a module remembers beside its parameters and buffers: attributes that are numbers, text, tensors or a
    few of these, and its extra state. `states`: see `state_columns`.
    """
    if type(module).__module__.startswith(OF_THE_PROCESS):
        return {}
    own = vars(module)
    plain = {key: value for key, value in own.items() if key not in OF_EVERY_MODULE and _is_state(key, value)}
    if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
        with _undisturbed(module, states):
            plain["get_extra_state"] = module.get_extra_state()
    return plain


def _is_state(key, value):
    """Whether a module's attribute is something that it remembers: not what stands for another object, or for this
    process.
    """
    if key.startswith("_torchdynamo"):
        return False
    if isinstance(value, (dict, list, tuple, set, deque)) and len(value) <= MOST_VALUES:
        return not any(isinstance(leaf, Unseen) for leaf in leaves(value))
    return type(value) in PLAIN_ATTRIBUTES or isinstance(value, (torch.Tensor, np.ndarray))


class Waiting:
    """The gradients that wait in `parameters` before a step: whether the backward pass finds them, or they were cleared
    before it, or nothing touches them.
    """

    def __init__(self, parameters, hooked=True):
        self.found = {}
        self.waiting = [
            part for part in parameters.values() if part.grad is not None and part.requires_grad and part.is_leaf
        ]
        # Called before a gradient is added to the one that waits.
        hooked = self.waiting if hooked else []
        self.hooks = [part.register_hook(lambda _, part=part: self.look(part)) for part in hooked]

    def look_at_all(self):
        for parameter in self.waiting:
            self.look(parameter)

    def look(self, parameter):
        # Later ones of this step are added to the first.
        if id(parameter) not in self.found:
            self.found[id(parameter)] = parameter.grad is not None and any_value(parameter.grad)

    def were_of_no_use(self, updated):
        """Return whether nothing came of them in the step: all that it came upon were cleared before, or it came upon
        none, and no update (`updated`) was made with them. To be called once, when the step has ended.
        """
        for hook in self.hooks:
            hook.remove()
        return not any(self.found.values()) if self.found else not updated


def _with_inner_ones(optimizer):
    """Return an optimizer and those inside it: in its attributes, or in lists and dicts there."""
    found, waiting = [], [optimizer]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, torch.optim.Optimizer):
            if all(value is not other for other in found):
                found.append(value)
                waiting += [
                    part for key, part in vars(value).items() if key not in ("state", "param_groups", "defaults")
                ]
        elif isinstance(value, (list, tuple)):
            waiting += [part for part in value if isinstance(part, torch.optim.Optimizer)]
        elif isinstance(value, dict):
            waiting += [part for part in value.values() if isinstance(part, torch.optim.Optimizer)]
    return found


def _by_owner(state, place):
    """Return an optimizer's state by the places of the parameters that it is of; what is of none of them by a name of
    its own.
    """
    return {place.get(id(owner), f"other {index}"): value for index, (owner, value) in enumerate(state.items())}
