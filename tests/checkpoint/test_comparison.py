"""Two checkpoints are equal when each bit is, and else how far they are apart is told, tensor by tensor, in little
memory.
"""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from forms import FORMS

from exact_resume.checkpoint import comparison, readers
from exact_resume.checkpoint.sums import PiecewiseSum


@pytest.fixture
def compare(tmp_path):
    """A function that writes two values with torch.save and compares the files."""

    def call(first, second):
        torch.save(first, tmp_path / "first.pth")
        torch.save(second, tmp_path / "second.pth")
        return comparison.compare(readers.contents(tmp_path / "first.pth"), readers.contents(tmp_path / "second.pth"))

    return call


# Sums.


@pytest.mark.parametrize("seed", range(20))
def test_sum_of_pieces_has_the_bits_of_the_sum_of_all(seed):
    random = np.random.default_rng(seed)
    numbers = random.normal(size=int(random.integers(0, 20_000))) * 10.0 ** random.integers(-9, 9)
    cuts = sorted(random.integers(0, len(numbers) + 1, size=random.integers(0, 40)))
    total = PiecewiseSum(len(numbers))
    for piece in np.split(numbers, cuts):
        total.add(piece)
    assert total.total == numbers.sum()


def test_more_numbers_than_announced_are_an_error():
    with pytest.raises(ValueError, match="found 1 numbers more"):
        PiecewiseSum(2).add(np.ones(3))


def distance_at_once(reference, weights):
    """The definition, with all numbers in one array."""
    whole = np.concatenate([tensor.double().flatten().numpy() for tensor in reference.values()])
    difference = np.concatenate([weights[name].double().flatten().numpy() for name in reference]) - whole
    return {
        "max_abs_diff": float(np.abs(difference).max()),
        "rel_l2": float(np.sqrt(np.square(difference).sum() / np.square(whole).sum())),
    }


def test_distance_has_the_bits_of_its_definition(compare):
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-3, 1.0):
        reference = {f"w{size}": torch.randn(size, 7, generator=generator) for size in (1, 100, 9_999, 12_345)}
        weights = {name: w + scale * torch.randn(w.shape, generator=generator) for name, w in reference.items()}
        wanted = distance_at_once(reference, weights)
        assert comparison.distance(reference, weights) == wanted
        found = compare(reference, weights)
        assert {"max_abs_diff": found.max_abs_diff, "rel_l2": found.rel_l2} == wanted
        for one in found.differences:
            own = distance_at_once({one.name: reference[one.name]}, weights)
            assert {"max_abs_diff": one.max_abs_diff, "rel_l2": one.rel_l2} == own


def test_numbers_whose_squares_overflow_have_a_distance(compare):
    large = torch.full((3,), 1e200, dtype=torch.float64)
    found = compare({"w": large, "v": torch.ones(1)}, {"w": large * 1.5, "v": torch.ones(1)})
    assert found.rel_l2 == pytest.approx(0.5)
    assert found.differences[0].rel_l2 == pytest.approx(0.5)
    assert found.max_abs_diff == pytest.approx(0.5e200)


# What is told of a pair of tensors.


@pytest.mark.parametrize(
    ("first", "second", "what", "largest", "equal_after"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), "values", 0.5, None),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "bits", 0, None),
        (torch.tensor(1.0), torch.tensor(2.0), "values", 1, None),
        (torch.tensor([True]), torch.tensor([False]), "values", 1, None),
        (torch.tensor([3]), torch.tensor([5]), "values", 2, None),
        (torch.tensor([2**62]), torch.tensor([2**62 + 1]), "bits", 0, None),
        (torch.tensor([1 + 2j]), torch.tensor([1 - 2j]), "values", 4, None),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), "dtype", 0, "float64"),
        (torch.tensor([1.0]), torch.tensor([1]), "dtype", 0, None),
        (torch.zeros(0), torch.zeros(0, dtype=torch.float16), "dtype", 0, "float32"),
        (torch.tensor([0.1]), torch.tensor([0.1]).half(), "dtype", 2.4e-5, "float16"),
        (torch.tensor([0.1]), torch.tensor([0.1]).bfloat16().float(), "values", 9.8e-5, "bfloat16"),
        (torch.tensor([0.1]).double(), torch.tensor([0.1]).half().double(), "values", 2.5e-5, "float16"),
        (torch.tensor([0.3]), torch.tensor([0.3]).to(torch.float8_e4m3fn), "dtype", 0.0125, "float8_e4m3fn"),
        (torch.tensor([1e6]), torch.tensor([2e6]), "values", 1e6, None),
        (
            torch.zeros(1, dtype=torch.uint8).view(torch.bits8),
            torch.ones(1, dtype=torch.uint8).view(torch.bits8),
            "values",
            0,
            None,
        ),
    ],
)
def test_difference_of_two_tensors(first, second, what, largest, equal_after, compare):
    found = compare({"w": first}, {"w": second})
    (one,) = found.differences
    assert (one.name, one.what, one.equal_after) == ("w", what, equal_after)
    assert one.max_abs_diff == pytest.approx(largest, rel=0.1)
    assert one.max_abs_diff == found.max_abs_diff
    assert math.isfinite(one.rel_l2)
    assert (found.tensors, found.equal_tensors, found.equal) == (1, 0, False)
    assert compare({"w": first}, {"w": first}).equal


def test_bits_of_a_nan_count_and_a_nan_is_infinitely_far_from_a_number(compare):
    nan, other = (np.array([bits, 0x3F800000], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001))
    first, second = {"w": torch.from_numpy(nan)}, {"w": torch.from_numpy(other)}
    assert compare(first, first).equal
    (one,) = compare(first, second).differences
    assert (one.what, one.max_abs_diff, one.not_finite) == ("bits", 0, 0)
    found = compare(first, {"w": torch.tensor([2.0, 1.0])})
    assert found.differences[0].not_finite == 1
    assert found.max_abs_diff == found.rel_l2 == comparison.LARGEST
    infinite = {"w": torch.tensor([math.inf, 1.0])}
    assert compare(infinite, {"w": torch.tensor([math.inf, 2.0])}).max_abs_diff == 1
    assert compare(infinite, {"w": torch.tensor([-math.inf, 1.0])}).differences[0].not_finite == 1


# What is told of two checkpoints.


def test_names_of_one_alone_shapes_and_kinds_are_told(compare):
    first = {"gone": torch.ones(2), "shape": torch.ones(2, 3), "kind": torch.ones(1), "same": torch.ones(1)}
    second = {"new": 3, "shape": torch.ones(3, 2), "kind": 1.0, "same": torch.ones(1)}
    found = compare(first, second)
    assert [(one.what, one.name, one.first, one.second) for one in found.differences] == [
        ("missing", "gone", "float32 [2]", None),
        ("kind", "kind", "float32 [1]", "1.0"),
        ("extra", "new", None, "3"),
        ("shape", "shape", "float32 [2, 3]", "float32 [3, 2]"),
    ]
    assert (found.tensors, found.equal_tensors, found.values) == (2, 1, 0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("a", "b"),
        (None, 0),
        ([], [1]),
        ({}, []),
        (torch.float32, torch.float16),
        ({1, 2}, {1, 3}),
    ],
)
def test_values_are_compared_bit_for_bit(first, second, compare):
    assert compare({"nested": [{"v": first}]}, {"nested": [{"v": first}]}).equal
    assert not compare({"nested": [{"v": first}]}, {"nested": [{"v": second}]}).equal


def test_nan_among_values_is_equal_to_itself(compare):
    assert compare({"best": math.nan}, {"best": math.nan}).equal


def test_which_kind_of_container_holds_things_does_not_count(compare):
    assert compare({"betas": (0.9, 0.95), "e": ()}, {"betas": [0.9, 0.95], "e": []}).equal


def test_what_is_farthest_apart_comes_first(compare):
    first = {name: torch.ones(2) for name in "abcd"} | {"gone": torch.ones(1)}
    second = {"a": torch.ones(2) * 1.1, "b": torch.ones(2) * 3, "c": torch.tensor([1, math.nan]), "d": torch.ones(2)}
    assert [one.name for one in compare(first, second).differences] == ["gone", "c", "b", "a"]


def test_tied_weights_are_equal_to_copies(compare):
    weight = torch.randn(3, 3)
    assert compare({"a": weight, "b": weight}, {"a": weight, "b": weight.clone()}).equal
    assert compare({"a": weight.T}, {"a": weight.T.contiguous()}).equal


@pytest.mark.parametrize("first", FORMS)
def test_checkpoints_of_any_two_forms_are_compared(first, tmp_path):
    tensors = {"a.w": torch.randn(70, 70), "a.b": torch.zeros(0, 2), "n": torch.tensor(3)}
    for form, write in FORMS.items():
        write(tmp_path / form, tensors)
    for second in FORMS:
        found = comparison.compare(readers.contents(tmp_path / first), readers.contents(tmp_path / second))
        assert found.equal and found.tensors == 3


# Memory.

PEAK = r"""
import re, sys
from exact_resume.checkpoint import comparison, readers
import exact_resume.checkpoint.safetensors_file, exact_resume.checkpoint.distributed
found = comparison.compare(*map(readers.contents, sys.argv[1:3]))
status = open("/proc/self/status").read()
print(1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1]), len(found.differences))
"""


def peak(*paths):
    """The most memory that comparing the paths took, in bytes, and how many differences it found.

    What getrusage says of a process is at least what the one that started it had.
    """
    command = [sys.executable, "-c", PEAK, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(map(int, result.stdout.split()))


@pytest.mark.parametrize("form", ["weights.pth", "weights.safetensors", "sharded", "distributed"])
def test_comparing_takes_little_more_memory_than_two_tensors(form, tmp_path):
    size, count = 2**22, 96
    for name, number in (("small", 1), ("large", count)):
        for other in range(2):
            tensors = {f"w{index}": torch.full((size // 4,), 1.0 + index + other) for index in range(number)}
            (tmp_path / f"{name}{other}").mkdir()
            FORMS[form](tmp_path / f"{name}{other}" / form, tensors)
    small, _ = peak(*(tmp_path / f"small{other}" / form for other in range(2)))
    large, differences = peak(*(tmp_path / f"large{other}" / form for other in range(2)))
    assert differences == count
    # Two files of 384 MiB: of each 32 MiB are kept, and some tensors.
    assert large - small < 2 * 2**25 + 8 * size
