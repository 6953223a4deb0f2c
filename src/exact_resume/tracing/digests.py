"""Digests of state: of tensors, numbers and text, nested as they may be."""

import base64
import datetime
import operator
import random
import weakref
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

from exact_resume.tracing.format import MOST_TAGS, PRECISIONS, TAG, UNSEEN, Rounding

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
SAMPLE, PLACES = 1024, 16
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


class Digested:
    """The digest of `value`, and what it takes to tell later whether the tensors in it have been written to since.

    Reading all of a run's state costs most of what a trace costs, and the weights after a step are nearly always those
    before the next one.
    """

    def __init__(self, value):
        found = list(leaves(value))
        self.digests, samples = _digests_and_samples(found)
        tensors = list(filter(_has_decimals, found))
        self.tensors, self.marks = list(map(weakref.ref, tensors)), _marks(tensors)
        self.sample = _sample_digest(samples)

    def __str__(self):
        return _joined(self.digests)

    def digests_and_samples(self, found):
        """Return `_digests_and_samples` of the leaves `found`, with the digests of tensors that are known when all of
        them have stayed.

        A tensor has stayed when it is the same object at the same place, torch has counted no write to it, and no
        sample differs: writes through `.data` or numpy aren't counted. One that also misses all samples shows when the
        step has ended.
        """
        tensors, samples = list(filter(_has_decimals, found)), _joined_samples(map(_sample, found))
        known = [tensor() for tensor in self.tensors]
        same = len(found) == len(self.digests) and len(known) == len(tensors) and all(map(operator.is_, known, tensors))
        if not same or _marks(tensors) != self.marks or _sample_digest(samples) != self.sample:
            return list(map(_leaf_digest, found)), samples
        return [own if _has_decimals(leaf) else _leaf_digest(leaf) for leaf, own in zip(found, self.digests)], samples


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
    found = list(leaves(value))
    unseen = {leaf.type for leaf in found if isinstance(leaf, Unseen)}
    return {name: _shown(value, found, unseen, longest), f"{name}.unseen": " ".join(sorted(unseen))}


def leaves(value):
    """Yield the tensors, arrays, numbers and texts in `value`, dicts in the order of their sorted keys, and Unseen for
    all else.
    """
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


def describe(name, value, look=True, known=None):
    """Return the columns of `value` as a dict: `name` and the helpers that tell what was done to it; see format.

    With `look` it is looked at whether its tensors hold just rounded values. `known` is what was Digested of it before,
    if it was.
    """
    found = list(leaves(value))
    digests, samples = known.digests_and_samples(found) if known else _digests_and_samples(found)
    tensors = [leaf for leaf in found if isinstance(leaf, torch.Tensor)]
    dtypes = " ".join(sorted({str(leaf.dtype).removeprefix("torch.") for leaf in tensors}))
    unseen = {leaf.type for leaf in found if isinstance(leaf, Unseen)}
    tags = (
        base64.b64encode(b"".join(one[-TAG * 3 // 4 :] for one in digests)).decode()
        if 1 < len(digests) <= MOST_TAGS
        else ""
    )
    return {
        name: _joined(digests) if dtypes else _shown(value, found, unseen),
        **{
            f"{name}.{precision}": rounding for precision, rounding in _roundings(found, digests, samples, look).items()
        },
        f"{name}.unordered": _joined(sorted(digests)) if dtypes else "",
        f"{name}.each": tags,
        f"{name}.dtypes": dtypes,
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


def _marks(tensors):
    """Return what changes when one of `tensors` is given other memory or, as far as torch sees it, written to; of
    scalars the value.
    """
    # Torch counts no writes to tensors of its inference mode.
    return [
        (tensor.data_ptr(), not tensor.is_inference() and tensor._version, None if tensor.dim() else tensor.item())
        for tensor in tensors
    ]


def _has_decimals(leaf):
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _digests_and_samples(found):
    """Return the digests of the leaves `found`, and `_joined_samples` of them."""
    digests, samples = [], []
    for leaf in found:
        # One right after the other, while its values lie in the processor's cache.
        digests.append(_leaf_digest(leaf))
        samples.append(_sample(leaf))
    return digests, _joined_samples(samples)


def _sample(leaf):
    """Return the dtype and some values of a tensor of decimals; None for other leaves, and for a tensor without
    dimensions.
    """
    if not _has_decimals(leaf) or not leaf.dim():
        return None
    # Numpy cuts in a tenth of the time.
    in_numpy = leaf.is_cpu and leaf.dtype in IN_NUMPY
    values = (_buffer(leaf) if in_numpy else leaf.detach()).reshape(-1)
    size = len(values)
    if size > SAMPLE:
        values = values[: size // PLACES * PLACES].reshape(PLACES, -1)[:, : SAMPLE // PLACES]
    return leaf.dtype, values if in_numpy else _buffer(values)


def _joined_samples(samples):
    """Return what `_sample` returned as tensors of about GROUP values: many small conversions cost more."""
    joined, groups = [], {}
    for dtype, values in filter(None, samples):
        groups.setdefault((dtype, values.ndim), []).append(values)
    for (dtype, _), pieces in groups.items():
        for begin in range(0, len(pieces), GROUP // SAMPLE):
            joined.append(torch.from_numpy(np.concatenate(pieces[begin : begin + GROUP // SAMPLE])).view(dtype))
    return joined


def _sample_digest(samples):
    return _joined(xxhash.xxh3_128_digest(_buffer(values)) for values in samples)


def _roundings(found, digests, samples, look):
    """Return by precision the text of the Rounding of the leaves `found`, "" where none of them is a tensor of
    decimals.
    """
    tensors, scalars, as_they_are, others = [], [], [], []
    for leaf, own in zip(found, digests):
        if not _has_decimals(leaf):
            others.append(own)
        elif leaf.dim():
            tensors.append(leaf)
            others.append(_header("float", leaf.shape))
        else:
            scalars.append(leaf.detach())
            as_they_are.append(own)
    if not tensors and not scalars:
        return dict.fromkeys(PRECISIONS, "")
    joined_scalars = _joined_samples((scalar.dtype, _buffer(scalar).reshape(-1)) for scalar in scalars)
    texts = {}
    for precision, dtype in DTYPES.items():
        rounding = Rounding(_joined([*others, _rounded_digest(samples, dtype)]), look and _are_rounded(tensors, dtype))
        if scalars:
            rounding.scalars = _joined([_rounded_digest(joined_scalars, dtype)])
            rounding.exact_scalars, rounding.as_they_are = look and _are_rounded(scalars, dtype), _joined(as_they_are)
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


def _buffer(values):
    """Return the tensor's values as a contiguous numpy array on the CPU, of bytes where numpy doesn't know the
    dtype.
    """
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
