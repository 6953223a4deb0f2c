"""A trace: step by step, digests of everything that goes into a training step, so that two runs can be held against each other.

Put this file on a trainer's path (it needs torch, numpy and xxhash, nothing else):

    trace = Trace("trace.csv", model=model, optimizer=optimizer, scheduler=scheduler)
    ...
    trace.before_step(step, batch)
    loss = train_on(batch)
    trace.after_step(loss)

The columns of the CSV, one row a step:

- `at_step`: the step's number; `configuration`: digest of what was given as such;
- NAME: a registered component. Of a module the parameters, of an optimizer its state, of another object what its state_dict() returns.
  Numbers and text stand as they are, all else as a digest;
- NAME.float16, NAME.bfloat16: digests of the component rounded to that precision. `=` before one says that the component holds just
  the rounded values, `~` that it holds more;
- NAME.unordered: a digest that doesn't see in which order the tensors stand;
- NAME.buffers and NAME.gradients of a module, each with its roundings, and NAME.mode; NAME.settings of an optimizer: its
  hyperparameters, but for the learning rate, and which parameters they are for;
- NAME.kind: scheduler or scaler, of torch's own ones;
- rng.torch, rng.cuda, rng.numpy, rng.python: the global generators;
- `lr`, `batch` and whatever else before_step was given: what goes into this step alone;
- `loss` and NAME.after, the parameters of each module: what came out of the step.
"""

import csv
import errno
import io
import os
import random
from collections import deque
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
import xxhash

PRECISIONS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
PLAIN = (type(None), bool, int, float, complex, str)
LEAVES = (torch.Tensor, np.ndarray, np.generic, bytes, *PLAIN)
# Of these and no others torch makes numpy arrays.
IN_NUMPY = {
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64),
}
KINDS = {"scheduler": torch.optim.lr_scheduler.LRScheduler, "scaler": torch.amp.GradScaler}
# Columns of their own.
RESERVED = ("at_step", "configuration", "lr", "batch", "loss", "rng")
# This many values of a tensor are looked at before all of it is, to see whether rounding changes it.
GLANCE = 64
GROUP = 262144
# Bytes that are read of a file at once.
CHUNK = 2**20


class Trace:
    """Writes the trace of a run to the CSV file `path`: `before_step` and `after_step` around each training step.

    `components` are the things that the run remembers, by name: modules, optimizers, other objects with state_dict(), generators,
    tensors, or nested dicts and lists of those and of numbers and text. With `generators` the global ones of torch, numpy and
    Python are traced too. `configuration` is anything that says how the run was set up: traces with different ones can't be compared.
    Reads only; nothing that it does changes a bit of the run. Raises ValueError for a name that can't be a column's, and for modules and
    optimizers in dicts or lists, which wouldn't get all of their columns.

    A row is handed to the system in one piece when its step ends, so that a killed run leaves whole rows. A run that kept what
    `state_dict` returned goes on with the file when it gives that as `resume`: what was written after it is cut away, and ValueError
    raised when the file doesn't hold what it did.
    """

    def __init__(self, path, /, *, generators=True, configuration=None, resume=None, **components):
        for name, component in components.items():
            _check_name(name)
            parts = component.values() if isinstance(component, Mapping) else component if isinstance(component, (list, tuple)) else ()
            if any(isinstance(part, (torch.nn.Module, torch.optim.Optimizer)) for part in parts):
                raise ValueError(f"trace: {name} holds modules or optimizers, wanted each under a name of its own")
        self.components, self.generators, self.configuration = components, generators, digest(configuration)
        self.row, self.parameters = None, {}
        self.file = AppendedFile(path, resume)
        header = next(self.file.contents(), b"").partition(b"\n")[0]
        self.columns = next(csv.reader([header.decode()])) if header else None

    def before_step(self, step, batch=None, lr=None, **others):
        """Take down all that goes into step number `step`: components, generators, `batch`, learning rate and `others`, by name.

        The learning rate is the registered optimizer's unless `lr` is given. Raises TypeError for a value that has no digest and ValueError
        for a name that can't be a column's or that a component has.
        """
        for name in others:
            _check_name(name)
            if name in self.components:
                raise ValueError(f"trace: found {name} as a component and among what the step is given, wanted another name")
        self.row = {"at_step": int(step), "configuration": self.configuration}
        rates = []
        self.parameters = {
            name: dict(part.named_parameters()) for name, part in self.components.items() if isinstance(part, torch.nn.Module)
        }
        # Two processes may give an optimizer its parameters in different orders; the modules' names are the same.
        owned = [parameter for parameters in self.parameters.values() for parameter in parameters.values()]
        places = {id(parameter): place for place, parameter in enumerate(owned)}
        for name, component in self.components.items():
            self.row.update(state_columns(name, component, self.parameters.get(name), places))
            if isinstance(component, torch.optim.Optimizer):
                rates += [float(group["lr"]) for group in component.param_groups]
        if self.generators:
            self.row.update({f"rng.{name}": digest(state) for name, state in global_generators().items()})
        self.row["lr"] = cell(rates[0] if len(set(rates)) == 1 else rates) if lr is None else cell(lr)
        self.row["batch"] = cell(batch)
        self.row.update({name: cell(value) for name, value in others.items()})

    def after_step(self, loss=None):
        """Take down what came out of the step, `loss` and the modules' parameters, and write the row.

        Raises ValueError when the step was given other values than the first one.
        """
        self.row["loss"] = "" if loss is None else repr(float(loss.item() if isinstance(loss, torch.Tensor) else loss))
        self.row.update({f"{name}.after": digest(parameters) for name, parameters in self.parameters.items()})
        if self.columns is None:
            self.columns = list(self.row)
            self._write(self.columns)
        missing = [name for name in self.columns if name not in self.row]
        if missing:
            raise ValueError(f"trace: step {self.row['at_step']} has no {missing[0]}, which the first step had")
        self._write([self.row[name] for name in self.columns])

    def state_dict(self):
        """Return how much is written so far and a digest of it, for a run that keeps it and is killed. What is written is synced first."""
        return self.file.state_dict()

    def close(self):
        self.file.close()

    def _write(self, cells):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self.file.append(line.getvalue().encode())


class AppendedFile:
    """A file at `path` that grows by whole pieces: a new one, or, with `resume`, the one that a `state_dict` was taken of.

    Of that one what comes after is cut away. Raises ValueError when the file doesn't begin with what it held then.
    """

    def __init__(self, path, resume=None):
        self.path, self.size, self.hasher = Path(path), 0, xxhash.xxh3_128()
        if resume is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "w+b", buffering=0)  # noqa: SIM115, kept open
            return
        try:
            self.file = open(path, "r+b", buffering=0)  # noqa: SIM115, kept open
        except OSError as error:
            raise ValueError(f"{path}: can't be gone on with: {error.strerror}") from error
        try:
            self._go_on(resume)
        except BaseException:
            self.close()
            raise

    def _go_on(self, resume):
        if not isinstance(resume, dict) or resume.keys() != {"bytes", "digest"} or type(resume["bytes"]) is not int or resume["bytes"] < 0:
            raise ValueError(f"{self.path}: found no size and digest to go on from")
        self.size = resume["bytes"]
        for chunk in self._chunks():
            self.hasher.update(chunk)
        if self.hasher.hexdigest() != resume["digest"]:
            raise ValueError(f"{self.path}: found other bytes than those that were written")
        self.file.truncate(self.size)
        self.file.seek(self.size)

    def append(self, content):
        """Write `content` at the end in one piece. Raises OSError when not all of it can be written; then no part of it stays."""
        if self.file.write(content) < len(content):
            # A full disk takes a part.
            self.file.truncate(self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self.size += len(content)
        self.hasher.update(content)

    def contents(self):
        """Yield what was appended, from the beginning on, in pieces. It is read from the file that was opened, whatever its name is by now.

        Raises ValueError, after the last piece, when somebody else has changed it.
        """
        found = xxhash.xxh3_128()
        for chunk in self._chunks():
            found.update(chunk)
            yield chunk
        if found.digest() != self.hasher.digest():
            raise ValueError(f"{self.path}: found other bytes than those that were written")

    def _chunks(self):
        for begin in range(0, self.size, CHUNK):
            wanted = min(CHUNK, self.size - begin)
            try:
                chunk = os.pread(self.file.fileno(), wanted, begin)
            except OSError as error:
                raise ValueError(f"{self.path}: can't be read: {error.strerror}") from error
            if len(chunk) < wanted:
                raise ValueError(f"{self.path}: found fewer bytes than the {self.size} that were written")
            yield chunk

    def state_dict(self):
        """Return how many bytes were appended and a digest of them, once they are on the disk."""
        os.fsync(self.file.fileno())
        return {"bytes": self.size, "digest": self.hasher.hexdigest()}

    def close(self):
        self.file.close()


def digest(value):
    """Return a 128-bit digest of `value`, as 32 hex digits: of its values, dtypes and shapes, in the order of sorted keys.

    Where tensors lie, their strides, the keys' names and the order of a dict's entries make no difference.
    """
    return _joined(_leaf_digest(leaf) for leaf in leaves(value))


def cell(value):
    """Return what a column shows of `value`: a number or text as it is, the digest of anything else."""
    if isinstance(value, PLAIN):
        return repr(value)
    return digest(value)


def state_columns(name, component, parameters=None, places=None):
    """Return a component's columns and their cells as a dict; see the module's text for what they are.

    `parameters` is a module's dict(named_parameters()), where it is at hand: finding them takes time. `places` are numbers by the id of
    parameters, in the order of which an optimizer's state is taken; state of parameters without one comes last, in the optimizer's order.
    """
    if isinstance(component, torch.nn.Module):
        parameters = dict(component.named_parameters()) if parameters is None else parameters
        gradients = {key: parameter.grad for key, parameter in parameters.items() if parameter.grad is not None and _any(parameter.grad)}
        return {
            **_tensor_columns(name, parameters, scalars=True),
            **_tensor_columns(f"{name}.buffers", dict(component.named_buffers()), scalars=True),
            # None, zero and never computed are the same to a step.
            **_tensor_columns(f"{name}.gradients", {key: gradients.get(key) for key in parameters} if gradients else {}, scalars=True),
            f"{name}.mode": _mode(component),
        }
    if isinstance(component, torch.optim.Optimizer):
        owners = [parameter for group in component.param_groups for parameter in group["params"]]
        places = places or {}
        place = {id(owner): places.get(id(owner), len(places) + index) for index, owner in enumerate(owners)}
        # Read directly: Optimizer.state_dict() imports torch's compiler.
        state = {place[id(owner)]: component.state[owner] for owner in owners if owner in component.state}
        settings = [
            {**{key: group[key] for key in group if key != "lr"}, "params": sorted(place[id(owner)] for owner in group["params"])}
            for group in component.param_groups
        ]
        return {**_tensor_columns(name, state), f"{name}.settings": digest(settings)}
    kind = {f"{name}.kind": kind for kind, wanted in KINDS.items() if isinstance(component, wanted)}
    value = component.state_dict() if hasattr(component, "state_dict") else component
    if any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in leaves(value)):
        return {**_tensor_columns(name, value), **kind}
    return {name: cell(value), **kind}


def global_generators():
    """Return the states of the global generators by name; the CUDA devices' where torch has started them."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    name, keys, *rest = np.random.get_state()
    version, internal, gauss = random.getstate()
    return {**states, "numpy": [name, keys, *rest], "python": [version, np.array(internal, dtype=np.uint32), gauss]}


def leaves(value):
    """Yield the tensors, arrays, numbers and texts in `value`, dicts in the order of their sorted keys.

    Raises TypeError for an object without state_dict() that is none of those.
    """
    if _is_leaf(value):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            item = value[key]
            # A generator for each takes longer than to look.
            if _is_leaf(item):
                yield item
            else:
                yield from leaves(item)
    elif isinstance(value, (list, tuple, deque)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, torch.Tensor):
        yield from _leaves_of_sparse(value.detach())
    elif isinstance(value, np.ndarray):
        # Of objects, whose bytes are addresses.
        yield from leaves(value.tolist())
    elif isinstance(value, (set, frozenset)):
        yield from sorted(map(repr, value))
    elif hasattr(value, "state_dict"):
        yield from leaves(value.state_dict())
    elif isinstance(value, torch.Generator):
        yield value.get_state()
    elif isinstance(value, np.random.Generator):
        yield from leaves(value.bit_generator.state)
    elif isinstance(value, random.Random):
        yield from leaves(value.getstate())
    elif isinstance(value, (torch.dtype, torch.device)):
        yield str(value)
    else:
        raise TypeError(f"trace: found a {type(value).__name__}, wanted tensors, numbers, text or an object with state_dict()")


def _is_leaf(value):
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided
    return isinstance(value, LEAVES) and not (isinstance(value, np.ndarray) and value.dtype.hasobject)


def _leaves_of_sparse(tensor):
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        yield from (repr(tuple(tensor.shape)), tensor.indices(), tensor.values())
    else:
        yield tensor.to_dense()


def _any(gradient):
    return bool((gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient).any())


def _check_name(name):
    if "." in name or name in RESERVED:
        raise ValueError(f"trace: found {name} as a name, wanted one without a dot that is none of {', '.join(RESERVED)}")


def _tensor_columns(name, value, scalars=False):
    """Return the columns of `value`'s tensors. With `scalars` those without dimensions, which in an optimizer's state count steps, are
    rounded too.
    """
    digests, without_values, roundings = [], [], _Roundings()
    for leaf in leaves(value):
        digests.append(_leaf_digest(leaf))
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and (scalars or leaf.dim() > 0):
            # Right after its digest, while its values lie in the processor's cache.
            roundings.add(leaf.detach())
            without_values.append(_header("float", leaf.shape))
        else:
            without_values.append(digests[-1])
    rounded = {f"{name}.{precision}": rounding for precision, rounding in roundings.digests(without_values).items()}
    return {name: _joined(digests), **rounded, f"{name}.unordered": _joined(sorted(digests))}


class _Roundings:
    """Digests of tensors' values, rounded to each precision. Tensors are gathered to about GROUP values: many small conversions cost
    more than few.
    """

    def __init__(self):
        self.hashers = {precision: xxhash.xxh3_128() for precision in PRECISIONS}
        self.exact = dict.fromkeys(PRECISIONS, True)
        self.group, self.size = [], 0

    def add(self, tensor):
        group = self.group
        if group and (self.size + tensor.numel() > GROUP or tensor.dtype != group[0].dtype or tensor.device != group[0].device):
            self._round_group()
        self.group.append(tensor.flatten())
        self.size += tensor.numel()

    def _round_group(self):
        values = torch.cat(self.group) if len(self.group) > 1 else self.group[0]
        self.group, self.size = [], 0
        for precision, dtype in PRECISIONS.items():
            narrow = values.to(dtype)
            if self.exact[precision]:
                self.exact[precision] = _equal(narrow[:GLANCE], values[:GLANCE]) and _equal(narrow, values)
            self.hashers[precision].update(_buffer(narrow))

    def digests(self, others):
        """Return, by precision, the digest of the tensors that were added and of `others`, what else tells them apart."""
        if self.group:
            self._round_group()
        return {name: ("=" if self.exact[name] else "~") + _joined([*others, self.hashers[name].digest()]) for name in PRECISIONS}


def _equal(narrow, values):
    # Of the bits, since NaN equals nothing.
    return torch.equal(narrow.to(values.dtype).view(torch.uint8), values.view(torch.uint8))


def _buffer(values):
    """Return the tensor's values as a contiguous numpy array on the CPU, of bytes where numpy doesn't know the dtype."""
    if not (values.is_cpu and values.is_contiguous()):
        values = values.cpu().contiguous()
    if values.dtype not in IN_NUMPY:
        values = values.flatten().view(torch.uint8)
    try:
        return values.numpy()
    except RuntimeError:
        # A view that torch conjugates or negates when it is read.
        return values.resolve_conj().resolve_neg().numpy()


def _leaf_digest(leaf):
    if isinstance(leaf, torch.Tensor):
        return _header(leaf.dtype, leaf.shape) + xxhash.xxh3_128_digest(_buffer(leaf.detach() if leaf.requires_grad else leaf))
    if isinstance(leaf, (np.ndarray, np.generic)):
        return _header(leaf.dtype, leaf.shape) + xxhash.xxh3_128_digest(leaf.tobytes())
    return xxhash.xxh3_128_digest(f"{type(leaf).__name__} {leaf!r}".encode())


@cache
def _header(dtype, shape):
    """Return what tells tensors of the same bytes apart; the same for torch's and numpy's names of a dtype."""
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)} ".encode()


def _joined(digests):
    return xxhash.xxh3_128(b"".join(digests)).hexdigest()


def _mode(module):
    flags = [part.training for part in module.modules()]
    if len(set(flags)) == 1:
        return "train" if flags[0] else "eval"
    return f"mixed {digest(flags)}"
