"""Digests of state: of tensors, numbers and text, nested as they may be."""

import base64
import datetime
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import PurePath
from types import SimpleNamespace

import numpy as np
import torch
import xxhash

from lab.trace_format import MOST_TAGS, PRECISIONS, TAG, UNSEEN, Rounding

DTYPES = {name: getattr(torch, name) for name in PRECISIONS}
PLAIN = (type(None), bool, int, float, complex, str)
LEAVES = (np.ndarray, np.generic, bytes, *PLAIN)
# Objects that are values and say all of theirs.
VALUES = (Enum, PurePath, Decimal, datetime.date, datetime.time, datetime.timedelta, range, bytearray)
DENSE = (torch.Tensor, torch.nn.Parameter)
# Of these and no others torch makes numpy arrays.
IN_NUMPY = {
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64),
}
# Of a tensor so many values are rounded, at so many places. Whether all of them are rounded is looked at besides.
SAMPLE, PLACES = 4096, 16
# Values that are rounded at once.
GROUP = 262144
# A cell shows numbers and text as they are up to so many characters.
LONGEST = 256


class Unseen:
    """Stands for something that has no digest, of which only the type can be told."""

    def __init__(self, value):
        self.type = value if isinstance(value, str) else type(value).__name__

    def __repr__(self):
        return f"{UNSEEN}{self.type}"


def digest(value):
    """Return a 128-bit digest of `value`, as 32 hex digits: of its values, dtypes and shapes, in the order of sorted keys.

    Where tensors lie, their strides, the keys' names and the order of a dict's entries make no difference. Of what has no digest its
    type stands for it.
    """
    return _joined(map(_leaf_digest, leaves(value)))


def cell(value):
    """Return what a column shows of `value`: a few numbers and texts as they are, the digest of anything else."""
    return show("", value)[""]


def show(name, value):
    """Return the columns `name`, what a cell shows of `value`, and `name`.unseen, the types of what in it has no digest."""
    digests, unseen = [], set()
    for leaf in leaves(value):
        digests.append(_leaf_digest(leaf))
        if isinstance(leaf, Unseen):
            unseen.add(leaf.type)
    return {name: _shown(value, digests, unseen), f"{name}.unseen": " ".join(sorted(unseen))}


def leaves(value):
    """Yield the tensors, arrays, numbers and texts in `value`, dicts in the order of their sorted keys, and Unseen for all else."""
    if _is_leaf(value):
        yield value
    elif isinstance(value, Mapping):
        for key in _sorted_keys(value):
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
        yield from _leaves_of_tensor(value)
    elif isinstance(value, np.ndarray):
        # Of objects, whose bytes are addresses.
        yield from leaves(value.tolist())
    elif isinstance(value, (set, frozenset)):
        yield from sorted((item if _is_leaf(item) else Unseen(item) for item in value), key=lambda item: (type(item).__name__, repr(item)))
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
    """Return the columns of `value` as a dict: `name` and the helpers that tell what was done to it; see trace_format.

    With `look` it is looked at whether its tensors hold just rounded values.
    """
    digests, dtypes, unseen, without_values = [], set(), set(), []
    tensors, scalars = _Roundings(look), _Roundings(look)
    for leaf in leaves(value):
        digests.append(_leaf_digest(leaf))
        if isinstance(leaf, torch.Tensor):
            dtypes.add(str(leaf.dtype).removeprefix("torch."))
            if leaf.is_floating_point():
                # Right after its digest, while its values lie in the processor's cache.
                if leaf.dim():
                    tensors.add(leaf.detach())
                    without_values.append(_header("float", leaf.shape))
                else:
                    scalars.add(leaf.detach(), digests[-1])
                continue
        elif isinstance(leaf, Unseen):
            unseen.add(leaf.type)
        without_values.append(digests[-1])
    rounded = dict.fromkeys(PRECISIONS, "")
    if tensors.begun or scalars.begun:
        rounded = {precision: str(rounding) for precision, rounding in _roundings(tensors, scalars, without_values).items()}
    tags = base64.b64encode(b"".join(one[-TAG * 3 // 4 :] for one in digests)).decode() if 1 < len(digests) <= MOST_TAGS else ""
    return {
        name: _joined(digests) if dtypes else _shown(value, digests, unseen),
        **{f"{name}.{precision}": rounding for precision, rounding in rounded.items()},
        f"{name}.unordered": _joined(sorted(digests)) if dtypes else "",
        f"{name}.each": tags,
        f"{name}.dtypes": " ".join(sorted(dtypes)),
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


def _shown(value, digests, unseen):
    if len(digests) == len(unseen) == 1:
        return f"{UNSEEN}{next(iter(unseen))}"
    plain = _plain_text(value) if digests and not unseen else None
    return _joined(digests) if plain is None or len(plain) > LONGEST else plain


def _plain_text(value):
    """Return numbers and text, few and nested as they may be, as text; None when there is anything else in it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Mapping) and len(value) <= LONGEST // 4:
        items = {str(key): _plain_text(item) for key, item in value.items()}
        return None if None in items.values() else "{" + ", ".join(f"{key}: {items[key]}" for key in sorted(items)) + "}"
    if isinstance(value, (list, tuple, deque)) and len(value) <= LONGEST // 3:
        items = [_plain_text(item) for item in value]
        return None if None in items else f"[{', '.join(items)}]"
    return None


class _Roundings:
    """Digests of tensors' values, rounded to each precision."""

    def __init__(self, look):
        self.look, self.exact = look, dict.fromkeys(PRECISIONS, look)
        self.begun, self.as_they_are = False, []
        # By their number of dimensions: samples of large tensors have two.
        self.pieces = {1: [], 2: []}

    def add(self, tensor, digest=b""):
        self.begun = True
        self.as_they_are.append(digest)
        if self.look:
            values = tensor.reshape(-1)
            self.exact = {precision: exact and _is_rounded(values, DTYPES[precision]) for precision, exact in self.exact.items()}
        if tensor.numel() > SAMPLE:
            if tensor.numel() % PLACES:
                tensor = tensor.reshape(-1)[: tensor.numel() // PLACES * PLACES]
            self.pieces[2].append(tensor.reshape(PLACES, -1)[:, : SAMPLE // PLACES])
        else:
            self.pieces[1].append(tensor if tensor.dim() == 1 else tensor.reshape(-1))

    def digests(self, others=()):
        """Return by precision the digest of the tensors that were added, rounded, and of `others`, what else tells them apart."""
        hashers = {precision: xxhash.xxh3_128() for precision in PRECISIONS}
        for pieces in self.pieces.values():
            for values in _joined_pieces(pieces):
                for precision, dtype in DTYPES.items():
                    hashers[precision].update(_buffer(values.to(dtype)))
        return {precision: _joined([*others, hasher.digest()]) for precision, hasher in hashers.items()}


def _joined_pieces(pieces):
    """Yield tensors of about GROUP values that `pieces`, of one number of dimensions, are joined to: many small conversions cost more."""
    group, size = [], 0
    for piece in pieces:
        if group and (size + piece.numel() > GROUP or piece.dtype != group[0].dtype or piece.device != group[0].device):
            yield torch.cat(group)
            group, size = [], 0
        group.append(piece)
        size += piece.numel()
    if group:
        yield torch.cat(group)


def _roundings(tensors, scalars, without_values):
    """Return the Roundings by precision."""
    found = {name: Rounding(digest, tensors.exact[name]) for name, digest in tensors.digests(without_values).items()}
    if scalars.begun:
        as_they_are = _joined(scalars.as_they_are)
        for name, digest in scalars.digests().items():
            own = found[name]
            own.scalars, own.exact_scalars, own.as_they_are = digest, scalars.exact[name], as_they_are
    return found


def _is_rounded(values, dtype):
    # Most are told by their first values. Of the bits, since NaN equals nothing.
    return all(torch.equal(part.to(dtype).to(part.dtype).view(torch.uint8), part.view(torch.uint8)) for part in (values[:64], values))


def _buffer(values):
    """Return the tensor's values as a contiguous numpy array on the CPU, of bytes where numpy doesn't know the dtype."""
    if values.requires_grad:
        values = values.detach()
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
        return _header(leaf.dtype, leaf.shape) + xxhash.xxh3_128_digest(_buffer(leaf))
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
