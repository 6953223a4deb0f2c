"""Distances are told from sketches within their stated error, and a weight that is not a number is not taken for an
equal one.
"""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from exact_resume.checkpoint import comparison
from exact_resume.lab.sketch import WIDTH, Sketch
from measure_divergence import Ended, loss_gap, seen_batches, weights_gap


def ended(weights, losses=("1.000000",), batches=("a",), first=1, name="run"):
    steps = range(first, first + len(losses))
    sketches = np.zeros((len(losses) + 1, WIDTH))
    return Ended(name, name, weights, pd.Series(list(losses), index=steps), list(batches), sketches, sketches)


@pytest.mark.parametrize("seed", range(5))
def test_sketch_tells_the_distance_within_four_standard_errors(seed):
    generator = torch.Generator().manual_seed(seed)
    before = [torch.randn(size, generator=generator) for size in ((300, 200), (5000,), (7,))]
    tensors = [tensor.clone() for tensor in before]
    sketch = Sketch(tensors)
    first = sketch.take()
    for tensor in tensors:
        tensor.add_(torch.randn(tensor.shape, generator=generator) * 1e-3)
    estimate = (sketch.take() - first).norm().item()
    distance = math.sqrt(sum((new.double() - old.double()).square().sum().item() for new, old in zip(tensors, before)))
    assert estimate == pytest.approx(distance, rel=4 * math.sqrt(1 / (2 * WIDTH)))


def test_equal_weights_have_equal_sketches():
    tensors = [torch.randn(100, 100)]
    assert torch.equal(Sketch(tensors).take(), Sketch([tensors[0].clone()]).take())


def test_weight_that_is_not_a_number_is_no_equal_weight():
    straight = ended({"w": torch.ones(3)}, name="straight")
    broken = ended({"w": torch.tensor([1.0, math.nan, 1.0])}, name="broken")
    gap = weights_gap(straight, broken)
    assert not gap["identical"]
    assert gap["max_abs_diff"] == gap["rel_l2"] == comparison.LARGEST


def test_gap_is_the_largest_and_the_relative_difference():
    gap = weights_gap(ended({"w": torch.tensor([3.0, 4.0])}), ended({"w": torch.tensor([3.0, 4.5])}))
    assert gap["max_abs_diff"] == 0.5
    assert gap["rel_l2"] == pytest.approx(0.1)


@pytest.fixture
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_as_before")
def test_gap_is_the_same_with_any_number_of_threads():
    generator = torch.Generator().manual_seed(1)
    straight, run = (ended({"w": torch.randn(2_000_000, generator=generator)}) for _ in range(2))
    gaps = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        gaps.append(weights_gap(straight, run))
    assert gaps[0] == gaps[1] == gaps[2]


def test_losses_are_compared_digit_for_digit():
    straight = ended({}, ["5.000000", "4.000000", "3.000000"], name="straight")
    run = ended({}, ["4.000000", "3.000001"], first=2)
    gap = loss_gap(straight, run)
    assert (gap["first_differing_step"], gap["equal_loss_rows"]) == (3, 1)
    assert gap["loss_gap_first"] == gap["loss_gap_last"] == pytest.approx(1e-6)
    widest = loss_gap(straight, ended({}, ["5.000000", "3.500000", "3.000000"]))
    assert (widest["loss_gap_last"], widest["loss_gap_largest"]) == (0.0, 0.5)


def test_only_batches_before_the_resume_count_as_seen():
    straight = ended({}, ["1"] * 4, ["a", "b", "c", "d"])
    assert seen_batches(straight, ended({}, ["1"] * 2, ["c", "d"], first=3))["batches_seen_before"] == 0
    assert seen_batches(straight, ended({}, ["1"] * 2, ["a", "e"], first=3))["batches_seen_before"] == 1


@pytest.mark.parametrize(("drawn", "same"), [(["c", "d"], True), (["d", "c"], False), (["c", "a"], False)])
def test_same_batches_are_those_of_the_same_steps(drawn, same):
    straight = ended({}, ["1"] * 4, ["a", "b", "c", "d"])
    assert seen_batches(straight, ended({}, ["1"] * 2, drawn, first=3))["same_batches"] is same
