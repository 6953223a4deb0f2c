"""Digests of state: of tensors, numbers and text, nested as they may be."""

import base64
import ctypes
import datetime
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from functools import cache, lru_cache
from pathlib import PurePath
from types import SimpleNamespace

import numpy as np
import torch
import xxhash

from exact_resume.tracing.format import MOST_TAGS, PRECISIONS, TAG, UNSEEN, Rounding

DTYPES = {name: getattr(torch, name) for name in PRECISIONS}
PLAIN = (type(None), bool, int, float, complex, str)
LEAVES = (np.ndarray, np.generic, bytes, *PLAIN)
# Objects that are values and say all of theirs.
VALUES = (Enum, PurePath, Decimal, datetime.date, datetime.time, datetime.timedelta, range, bytearray)
DENSE = (torch.Tensor, torch.nn.Parameter)
# These and no others numpy knows.
IN_NUMPY = {
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64),
}
# Of a tensor so many values are rounded, at so many places. Whether all of them are rounded is looked at besides.
SAMPLE, PLACES = 256, 16
# Kinds of leaves: tensors of decimals, with and without dimensions, and all else.
TENSOR, SCALAR, OTHER = "tensor", "scalar", "other"
# A cell shows numbers and text as they are up to so many characters.
LONGEST = 256


class Unseen:
    """Stands for something that has no digest, of which only the type can be told."""

    def __init__(self, value):
        self.type = value if isinstance(value, str) else type(value).__name__

    def __repr__(self):
        return f"{UNSEEN}{self.type}"


class Reading:
    """The digests of the leaves `found`, and what tells roundings of them: values of its tensors of decimals, and all
    of its scalars, which are those without dimensions.
    """

    def __init__(self, found):
        self.leaves, self.kinds = found, list(map(_kind, found))
        self.tensors, self.scalars = self.of_kind(TENSOR), self.of_kind(SCALAR)
        self.joined_scalars = _joined_scalars(self.scalars)
        scalars = iter(_scalar_digests(self.joined_scalars, self.scalars))
        self.digests, samples = [], {}
        for leaf, kind in zip(found, self.kinds):
            if kind == TENSOR:
                memory = _memory(leaf)
                self.digests.append(_tensor_digest(leaf, memory))
                # Right after it was digested, while its values lie in the processor's cache.
                samples.setdefault(leaf.dtype, []).append(_sample(leaf, memory))
            else:
                self.digests.append(next(scalars) if kind == SCALAR else _leaf_digest(leaf))
        # One of each dtype: many small conversions cost more.
        self.samples = [torch.frombuffer(np.concatenate(bits), dtype=dtype) for dtype, bits in samples.items()]

    def of_kind(self, kind, values=None):
        """Return the leaves of a kind, or of `values`, one a leaf, theirs."""
        return [value for value, own in zip(values or self.leaves, self.kinds) if own == kind]


def digest(value):
    """Return a 128-bit digest of `value`, as 32 hex digits: of its values, dtypes and shapes, in the order of sorted
    keys.

    Where tensors lie, their strides, the keys' names and the order of a dict's entries make no difference. Of what has
    no digest its type stands for it.
    """
    return _joined(map(_leaf_digest, leaves(value)))


def cell(value, longest=LONGEST):
    """Return what a column shows of `value`: numbers and texts of up to `longest` characters as they are, the digest of
    anything else.
    """
    return show("", value, longest)[""]


def show(name, value, longest=LONGEST):
    """Return the columns `name`, what a cell shows of `value`, and `name`.unseen, the types of what in it has no
    digest.
    """
    found = leaves(value)
    unseen = {leaf.type for leaf in found if isinstance(leaf, Unseen)}
    return {name: _shown(value, found, unseen, longest), f"{name}.unseen": " ".join(sorted(unseen))}


def leaves(value):
    """Return the tensors, arrays, numbers and texts in `value`, dicts in the order of their sorted keys, and Unseen for
    all else.
    """
    found = []
    _collect(value, found)
    return found


def _collect(value, found):
    """Add the leaves of `value` to the list `found`: what state is mostly made of here, which a generator for each part
    of it would take longer to yield.
    """
    if type(value) is not dict and _is_leaf(value):
        found.append(value)
    elif isinstance(value, (dict, Mapping)):
        for key in _sorted_keys(value):
            _collect(value[key], found)
    elif isinstance(value, (list, tuple, deque)):
        for item in value:
            _collect(item, found)
    else:
        found.extend(_leaves_of_object(value))


def _leaves_of_object(value):
    """Yield the leaves of what is neither one itself nor a dict or list of some."""
    if isinstance(value, torch.Tensor):
        yield from _leaves_of_tensor(value)
    elif isinstance(value, np.ndarray):
        # Of objects, whose bytes are addresses.
        yield from leaves(value.tolist())
    elif isinstance(value, (set, frozenset)):
        yield from sorted(
            (item if _is_leaf(item) else Unseen(item) for item in value),
            key=lambda item: (type(item).__name__, repr(item)),
        )
    elif isinstance(value, Unseen):
        yield value
    elif isinstance(value, torch.Generator):
        yield value.get_state()
    elif isinstance(value, np.random.Generator):
        yield from leaves(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield from leaves(value.get_state())
    elif isinstance(value, random.Random):
        yield from leaves(value.getstate())
    elif isinstance(value, (torch.dtype, torch.device)):
        yield str(value)
    elif isinstance(value, VALUES):
        yield repr(value)
    elif not isinstance(value, type) and (is_dataclass(value) or isinstance(value, SimpleNamespace)):
        yield from leaves(vars(value))
    elif isinstance(value, type) or not callable(getattr(value, "state_dict", None)):
        yield Unseen(value)
    else:
        yield from leaves(value.state_dict())


def describe(name, value, look=True):
    """Return the columns of `value` as a dict: `name` and the helpers that tell what was done to it; see format.

    With `look` it is looked at whether its tensors hold just rounded values.
    """
    found = leaves(value)
    reading = Reading(found)
    digests = reading.digests
    dtypes = {leaf.dtype for leaf in found if isinstance(leaf, torch.Tensor)}
    unseen = {leaf.type for leaf in found if isinstance(leaf, Unseen)}
    tags = (
        base64.b64encode(b"".join(one[-TAG * 3 // 4 :] for one in digests)).decode()
        if 1 < len(digests) <= MOST_TAGS
        else ""
    )
    return {
        name: _joined(digests) if dtypes else _shown(value, found, unseen),
        **{f"{name}.{precision}": rounding for precision, rounding in _roundings(reading, look).items()},
        f"{name}.unordered": _joined(sorted(digests)) if dtypes else "",
        f"{name}.each": tags,
        f"{name}.dtypes": " ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)),
        f"{name}.unseen": " ".join(sorted(unseen)),
    }


def any_value(tensor):
    """Whether a tensor holds anything but zeros."""
    return bool((tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor).any())


def _sorted_keys(mapping):
    try:
        return sorted(mapping)
    except TypeError:
        return sorted(mapping, key=lambda key: (type(key).__name__, str(key)))


def _is_leaf(value):
    kind = type(value)
    if kind in DENSE:
        return value.layout is torch.strided and not value.is_meta and not value.is_quantized and not value.is_nested
    return isinstance(value, LEAVES) and not (isinstance(value, np.ndarray) and value.dtype.hasobject)


def _leaves_of_tensor(tensor):
    """Yield the dense tensors that another kind of tensor is made of."""
    if tensor.is_meta or torch.nn.parameter.is_lazy(tensor):
        yield Unseen(tensor if torch.nn.parameter.is_lazy(tensor) else "Tensor on meta")
    elif hasattr(tensor, "to_local") and hasattr(tensor, "placements"):
        # A DTensor: this process' part, and which part that is.
        yield repr(tuple(tensor.placements))
        yield from leaves(tensor.to_local().detach())
    elif hasattr(tensor, "__tensor_flatten__"):
        names, context = tensor.__tensor_flatten__()
        yield from (str(tuple(tensor.shape)), *(leaf for name in names for leaf in leaves(getattr(tensor, name))))
        yield from leaves(context)
    elif tensor.layout is torch.sparse_coo:
        tensor = tensor.detach().coalesce()
        yield from (repr(tuple(tensor.shape)), tensor.indices(), tensor.values())
    elif tensor.is_nested:
        yield from (part.detach() for part in tensor.unbind())
    elif tensor.is_quantized:
        yield from (tensor.int_repr(), tensor.dequantize())
    elif tensor.layout is not torch.strided:
        yield tensor.detach().to_dense()
    else:
        yield tensor.detach().as_subclass(torch.Tensor)


def _shown(value, found, unseen, longest=LONGEST):
    """Return what a cell shows of `value`, whose leaves are `found`."""
    if len(found) == len(unseen) == 1:
        return f"{UNSEEN}{next(iter(unseen))}"
    plain = _plain_text(value) if found and not unseen else None
    if plain is None:
        return _joined(map(_leaf_digest, found))
    return plain if len(plain) <= longest else _joined([plain.encode()])


def _plain_text(value):
    """Return numbers and text, few and nested as they may be, as text; None when there is anything else in it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Mapping) and len(value) <= LONGEST // 4:
        items = {str(key): _plain_text(item) for key, item in value.items()}
        return (
            None if None in items.values() else "{" + ", ".join(f"{key}: {items[key]}" for key in sorted(items)) + "}"
        )
    if isinstance(value, (list, tuple, deque)) and len(value) <= LONGEST // 3:
        items = [_plain_text(item) for item in value]
        return None if None in items else f"[{', '.join(items)}]"
    return None


def _kind(leaf):
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return OTHER
    return TENSOR if leaf.dim() else SCALAR


def _sample(tensor, memory):
    """Return the bits of some values of a tensor of decimals, whose _memory is `memory`, as a numpy array of integers:
    of SAMPLE at PLACES places, or of all where there are fewer.
    """
    bits, size = np.dtype(f"i{tensor.element_size()}"), tensor.numel()
    if memory is None:
        values = tensor.detach().reshape(-1)
        if size > SAMPLE:
            values = values[: size // PLACES * PLACES].reshape(PLACES, -1)[:, : SAMPLE // PLACES].reshape(-1)
        return _buffer(values).view(bits)
    if size <= SAMPLE:
        return np.frombuffer(memory, bits)
    places = np.ndarray((PLACES, SAMPLE // PLACES), bits, memory, 0, (size // PLACES * bits.itemsize, bits.itemsize))
    return places.reshape(-1)


def _joined_scalars(scalars):
    """Return the tensors without dimensions as one tensor by dtype and device: one transfer instead of many."""
    groups = {}
    for scalar in scalars:
        groups.setdefault((scalar.dtype, scalar.device), []).append(scalar.detach())
    return {key: torch.stack(group).cpu() for key, group in groups.items()}


def _scalar_digests(joined, scalars):
    """Return the digests of the tensors without dimensions, whose values are `joined`."""
    values = {key: iter(_buffer(group.view(torch.uint8)).reshape(len(group), -1)) for key, group in joined.items()}
    # Counts of updates, all the same as a rule.
    known, digests = {}, []
    for scalar in scalars:
        own = (scalar.dtype, next(values[scalar.dtype, scalar.device]).tobytes())
        if own not in known:
            known[own] = _header(scalar.dtype, ()) + xxhash.xxh3_128_digest(own[1])
        digests.append(known[own])
    return digests


def _roundings(reading, look):
    """Return by precision the text of the Rounding of what `reading` read, "" where none of it is a tensor of
    decimals.
    """
    if not reading.tensors and not reading.scalars:
        return dict.fromkeys(PRECISIONS, "")
    others = [
        _header("float", leaf.shape) if kind == TENSOR else own
        for leaf, own, kind in zip(reading.leaves, reading.digests, reading.kinds)
        if kind != SCALAR
    ]
    texts = {}
    for precision, dtype in DTYPES.items():
        rounded = _joined([*others, _rounded_digest(reading.samples, dtype)])
        rounding = Rounding(rounded, look and _are_rounded(reading.tensors, dtype))
        if reading.scalars:
            rounding.scalars = _joined([_rounded_digest(reading.joined_scalars.values(), dtype)])
            rounding.exact_scalars = look and _are_rounded(reading.scalars, dtype)
            rounding.as_they_are = _joined(reading.of_kind(SCALAR, reading.digests))
        texts[precision] = str(rounding)
    return texts


def _rounded_digest(samples, dtype):
    hasher = xxhash.xxh3_128()
    for values in samples:
        hasher.update(_buffer(values.to(dtype)))
    return hasher.digest()


def _are_rounded(tensors, dtype):
    return all(_is_rounded(tensor.detach().reshape(-1), dtype) for tensor in tensors)


def _is_rounded(values, dtype):
    # Most are told by their first values. Of the bits, since NaN equals nothing.
    return all(
        torch.equal(part.to(dtype).to(part.dtype).view(torch.uint8), part.view(torch.uint8))
        for part in (values[:64], values)
    )


def _memory(tensor):
    """Return the memory of a tensor, without holding on to it, where its values lie there one after the other as they
    are; else None.
    """
    if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.is_conj() or tensor.is_neg():
        return None
    address = tensor.data_ptr()
    # Nothing lies at address 0: it is empty, or its memory was given back.
    return _bytes(tensor.nbytes).from_address(address) if address else None


@lru_cache(1024)
def _bytes(size):
    """Return the type of `size` bytes in memory."""
    return ctypes.c_char * size


def _buffer(tensor):
    """Return the tensor's values as a contiguous numpy array on the CPU, of bytes where numpy doesn't know the
    dtype.
    """
    if tensor.is_cpu and tensor.numel() and not tensor.data_ptr():
        raise ValueError("a tensor's memory was given back")
    values = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    # Tensor.numpy() needs a numpy that torch found when it was imported.
    return np.from_dlpack(values if values.dtype in IN_NUMPY else values.flatten().view(torch.uint8))


def _tensor_digest(tensor, memory):
    """Return the digest of a tensor whose _memory is `memory`."""
    own = xxhash.xxh3_128_digest(_buffer(tensor) if memory is None else memory)
    return _header(tensor.dtype, tensor.shape) + own


def _leaf_digest(leaf):
    if isinstance(leaf, torch.Tensor):
        return _tensor_digest(leaf, _memory(leaf))
    if isinstance(leaf, np.generic) and isinstance(leaf.item(), PLAIN):
        # A number of numpy's comes back from many files as one of Python's.
        leaf = leaf.item()
    if isinstance(leaf, (np.ndarray, np.generic)):
        return _header(leaf.dtype, leaf.shape) + xxhash.xxh3_128_digest(leaf.tobytes())
    return xxhash.xxh3_128_digest(f"{type(leaf).__name__} {leaf!r}".encode())


@cache
def _header(dtype, shape):
    """Return what tells tensors of the same bytes apart; the same for torch's and numpy's names of a dtype."""
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)} ".encode()


def _joined(digests):
    return xxhash.xxh3_128(b"".join(digests)).hexdigest()
