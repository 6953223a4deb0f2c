"""How far two runs, or two checkpoints, are apart."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from exact_resume.checkpoint import archive
from exact_resume.checkpoint.contents import Contents, kind, name_of
from exact_resume.checkpoint.sums import PiecewiseSum
from exact_resume.errors import LabError
from exact_resume.tracing.format import PRECISIONS

# What a square of 0 is divided by, so that the quotient stays a number.
TINY = np.finfo(np.float64).tiny
# What is larger is told as this, since JSON has no infinity.
LARGEST = float(np.finfo(np.float64).max)
# Numbers are held against each other so many at a time: they fit into a core's cache, and torch, which would split more
# among threads, doesn't wait for any.
PIECE = 2**15
# A power of two changes no digit, and keeps squares from overflowing.
SCALE = 2.0**-524
# From fine to coarse.
ROUNDINGS = ("float32", *PRECISIONS)

Weights = Mapping[str, torch.Tensor]


def check_same_tensors(reference: Weights, weights: Weights, reference_path: str, path: str) -> None:
    """Raise LabError naming both paths unless the dicts of tensors have the same names, shapes and dtypes."""
    for name in sorted(reference.keys() ^ weights.keys()):
        raise LabError(
            f"{path}: tensor {name} is {'missing' if name in reference else 'unknown'}; "
            f"wanted the tensors of {reference_path}"
        )
    for name, tensor in weights.items():
        found, wanted = kind(tensor), kind(reference[name])
        if found != wanted:
            raise LabError(f"{path}: tensor {name}: found {found}, wanted {wanted} as in {reference_path}")


def distance(reference: Weights, weights: Weights) -> dict[str, float]:
    """Return max_abs_diff, the largest absolute difference of any element, and rel_l2, |weights - reference| /
    |reference| (L2, in float64), of two dicts of tensors with the same names and shapes, as finite floats.

    A complex number counts as two. Where one number is NaN or infinite and the other isn't the same, the difference is
    the largest float. Tensors of types that hold no numbers of a known size, such as torch.bits8, are left out; with
    nothing left both are 0.
    """

    kinds = {name: (kind(tensor), kind(weights[name])) for name, tensor in reference.items()}
    return _measured(lambda: _numbers(reference, weights, kinds), _count(kinds)).distance()


def same_bits(reference: Weights, weights: Weights) -> bool:
    """Whether two dicts of the same tensors hold the same bits: unlike in a difference, 0 and -0 are not the same."""
    return all(_same_bits(tensor, weights[name]) for name, tensor in reference.items())


def first_difference(reference: Mapping[int, str], losses: Mapping[int, str]) -> int | None:
    """Return the first step of `losses` whose loss, as logged, is not the one in `reference`, both texts by step; None
    if none is.
    """
    return next((step for step, loss in losses.items() if reference.get(step) != loss), None)


@dataclass
class Difference:
    """What differs under a name in two checkpoints.

    `what`: missing, in the second one; extra, in it alone; kind, where one is a tensor and the other isn't; shape;
    dtype; values; bits, where no number differs (0 and -0, other bits of a NaN). `first` and `second` say what stands
    there: dtype and shape of a tensor, or the value. Of tensors of one shape `max_abs_diff` and `rel_l2` are as
    `distance` defines them, `not_finite` counts the places where a number is NaN or infinite and the other isn't the
    same, and `equal_after` is the finest rounding after which both have the same bits.
    """

    name: str
    what: str
    first: str | None = None
    second: str | None = None
    max_abs_diff: float | None = None
    rel_l2: float | None = None
    not_finite: int | None = None
    equal_after: str | None = None

    def order(self) -> tuple:
        """Sorts what is farthest apart first; what has no distance comes before all that has one."""
        far = () if self.rel_l2 is None else (-(self.not_finite > 0), -self.rel_l2, -self.max_abs_diff)
        return bool(far), far, self.name


@dataclass
class Comparison:
    """What two checkpoints have in common and what not: the differences, farthest apart first; how many tensors and
    other values are under the same name in both, and how many of these are equal; and the distance of all tensors of
    one shape together.
    """

    differences: list[Difference]
    tensors: int
    equal_tensors: int
    values: int
    equal_values: int
    max_abs_diff: float
    rel_l2: float

    @property
    def equal(self) -> bool:
        """Whether both hold the same, bit for bit."""
        return not self.differences


def compare(reference: Contents, other: Contents) -> Comparison:
    """Hold two checkpoints against each other, one tensor of each at a time."""
    kinds = {name: (reference.kinds[name], other.kinds[name]) for name in reference if name in other}
    measurable = {name: pair for name, pair in kinds.items() if pair[0].shape == pair[1].shape}
    total = Meter(_count(measurable))
    tensors = [
        _tensor_difference(name, reference[name], other[name], total)
        if name in measurable
        else Difference(name, "shape", *map(str, pair))
        for name, pair in kinds.items()
    ]
    both = [name for name in reference.others if name in other.others]
    values = [_value_difference(name, reference.others[name], other.others[name]) for name in both]
    if total.overflowed:
        total = _scaled(lambda: _numbers(reference, other, measurable), _count(measurable))
    return Comparison(
        differences=sorted(filter(None, [*_one_sided(reference, other), *values, *tensors]), key=Difference.order),
        tensors=len(tensors),
        equal_tensors=tensors.count(None),
        values=len(values),
        equal_values=values.count(None),
        **total.distance(),
    )


class Piece(NamedTuple):
    """What numbers, and those in their place, add to a Meter: the largest difference, in how many places one is NaN or
    infinite and the other isn't the same, and squares of the differences and of the numbers.
    """

    largest: float
    not_finite: int
    apart: np.ndarray
    whole: np.ndarray


class Meter:
    """How far numbers are from others: the largest difference, and all of them together as a multiple of the numbers.

    `add` is given `count` numbers piece by piece.
    """

    def __init__(self, count: int):
        self.largest, self.not_finite = 0.0, 0
        self.apart, self.whole = PiecewiseSum(count), PiecewiseSum(count)

    def add(self, piece: Piece) -> None:
        """Take the next numbers."""
        self.largest = max(self.largest, piece.largest)
        self.not_finite += piece.not_finite
        with np.errstate(over="ignore"):
            self.apart.add(piece.apart)
            self.whole.add(piece.whole)

    @property
    def overflowed(self) -> bool:
        """Whether a sum, now complete, is too large for a float."""
        return not np.isfinite(self.apart.total + self.whole.total)

    def distance(self) -> dict[str, float]:
        """Return what the function `distance` does."""
        with np.errstate(over="ignore"):
            relative = np.sqrt(self.apart.total / max(self.whole.total, TINY))
        return {"max_abs_diff": min(self.largest, LARGEST), "rel_l2": min(float(relative), LARGEST)}


def _measured(numbers, count, total=None):
    """Return a Meter of the pairs of arrays that `numbers()` yields. The Meter `total` is given them too."""
    meter = Meter(count)
    for pair in numbers():
        piece = _piece(*pair)
        meter.add(piece)
        if total:
            total.add(piece)
    return _scaled(numbers, count) if meter.overflowed else meter


def _scaled(numbers, count):
    """The same of numbers whose squares overflow."""
    meter = Meter(count)
    for pair in numbers():
        meter.add(_piece(*pair, SCALE))
    return meter


def _piece(wanted, found, scale=1.0):
    with np.errstate(over="ignore", invalid="ignore"):
        difference, not_finite = found - wanted, 0
        if not (np.isfinite(wanted).all() and np.isfinite(found).all()):
            odd = ~(np.isfinite(wanted) & np.isfinite(found))
            same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
            difference = np.where(odd, np.where(same, 0.0, np.inf), difference)
            wanted, not_finite = np.where(odd, 0.0, wanted), int((odd & ~same).sum())
        largest = float(max(difference.max(initial=0.0), -difference.min(initial=0.0)))
        if scale != 1.0:
            difference, wanted = difference * scale, wanted * scale
        return Piece(largest, not_finite, np.square(difference), np.square(wanted))


def _numbers(reference, other, kinds):
    """Yield the numbers of the tensors with these names and pairs of Kinds, in float64, flat, some at a time."""
    for name, pair in kinds.items():
        if _count({name: pair}):
            for pieces in _pieces(reference[name], other[name]):
                # In numpy, whose sums go one way with any number of threads.
                yield tuple(_as_numbers(tensor, "complex" in pair[0].dtype + pair[1].dtype) for tensor in pieces)


def _as_numbers(tensor, is_complex):
    tensor = torch.view_as_real(tensor.to(torch.complex128)).flatten() if is_complex else tensor.double()
    return tensor.numpy()


def _count(kinds):
    """Return how many numbers `_numbers` yields for these Kinds."""
    return sum(
        first.elements * (2 if "complex" in first.dtype + second.dtype else 1)
        for first, second in kinds.values()
        if _holds_numbers(first.dtype) and _holds_numbers(second.dtype)
    )


@cache
def _holds_numbers(dtype):
    """Whether the dtype of this name has a conversion to numbers."""
    try:
        torch.empty(1, dtype=getattr(torch, dtype)).to(torch.complex128)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _pieces(first, second):
    """Yield the elements of two tensors of one shape, flat, so many at a time."""
    first, second = first.detach().reshape(-1), second.detach().reshape(-1)
    for start in range(0, len(first), PIECE):
        yield first[start : start + PIECE], second[start : start + PIECE]


def _same_bits(first, second):
    return kind(first) == kind(second) and all(
        np.array_equal(_bits(one), _bits(other)) for one, other in _pieces(first, second)
    )


def _bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


def _tensor_difference(name, first, second, total):
    """Return the Difference of two tensors of one shape, or None. The Meter `total` is given their numbers."""
    kinds = {name: (kind(first), kind(second))}
    meter = _measured(lambda: _numbers({name: first}, {name: second}, kinds), _count(kinds), total)
    if _same_bits(first, second):
        return None
    what = "values" if meter.largest or not _count(kinds) else "bits"
    if first.dtype != second.dtype:
        what = "dtype"
    return Difference(
        name,
        what,
        *map(str, kinds[name]),
        **meter.distance(),
        not_finite=meter.not_finite,
        equal_after=_rounding(first, second),
    )


def _rounding(first, second):
    """Return the finest rounding after which both tensors have the same bits, or None."""
    if not (first.is_floating_point() and second.is_floating_point()):
        return None
    dtypes = {first.dtype, second.dtype, *(getattr(torch, name) for name in ROUNDINGS)}
    for dtype in sorted(dtypes, key=lambda dtype: (torch.finfo(dtype).eps, str(dtype))):
        if all(_equal_after(*piece, dtype) for piece in _pieces(first, second)):
            return name_of(dtype)
    return None


def _equal_after(first, second, dtype):
    try:
        first, second = first.to(dtype), second.to(dtype)
        return np.array_equal(_bits(first), _bits(second)) and bool(torch.isfinite(first.float()).all())
    except (NotImplementedError, RuntimeError):
        return False


def _value_difference(name, first, second):
    """Return the Difference of two values that are no tensors, or None."""
    if _exact(first) == _exact(second):
        return None
    return Difference(name, "values", shown(first), shown(second))


def _exact(value):
    """Return what is equal for values of one type that are equal bit for bit."""
    if isinstance(value, float):
        return type(value), struct.pack("<d", value)
    # Those that are empty; of others the parts are compared.
    if isinstance(value, (dict, list, tuple)):
        return dict if isinstance(value, dict) else list
    return type(value), sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else repr(value)


def shown(value: Any) -> str:
    """Return a value that is no tensor as a text of one line, shortened, with its type where that isn't plain."""
    plain = value is None or isinstance(value, (str, bool, int, float, dict, list, tuple))
    return archive.show(value) if plain else f"{archive.show(value)} ({type(value).__name__})"


def _one_sided(reference, other):
    """Yield a Difference for each name that only one of two checkpoints has, or has as a tensor."""
    for name in [*reference, *reference.others]:
        if name not in other and name not in other.others:
            yield Difference(name, "missing", first=_described(reference, name))
        elif (name in reference) != (name in other):
            yield Difference(name, "kind", _described(reference, name), _described(other, name))
    for name in [*other, *other.others]:
        if name not in reference and name not in reference.others:
            yield Difference(name, "extra", second=_described(other, name))


def _described(contents, name):
    return str(contents.kinds[name]) if name in contents else shown(contents.others[name])
