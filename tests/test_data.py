"""Batches come from the generator alone, and a token file that can't be trained on is refused in one line."""

import numpy as np
import pytest
import torch

from lab.data import RandomCrops, load_tokens
from lab.errors import LabError


def test_targets_are_the_tokens_that_follow_the_inputs(tokens):
    offsets, inputs, targets = RandomCrops(tokens, 4, 16, seed=7).draw()
    for row, offset in enumerate(offsets.tolist()):
        assert inputs[row].tolist() == tokens[offset : offset + 16].tolist()
        assert targets[row].tolist() == tokens[offset + 1 : offset + 17].tolist()


def test_every_crop_can_be_drawn():
    crops = RandomCrops(np.arange(6, dtype=np.uint8), 64, 4, seed=0)
    assert {tuple(row) for _ in range(4) for row in crops.draw()[1].tolist()} == {(0, 1, 2, 3), (1, 2, 3, 4)}


@pytest.mark.parametrize("drawn", [0, 1, 30])
def test_replayed_generator_is_where_the_stored_one_is(tokens, drawn):
    first, second = RandomCrops(tokens, 8, 16, seed=7), RandomCrops(tokens, 8, 16, seed=7)
    for _ in range(drawn):
        first.draw()
    second.draw()
    second.replay(drawn)
    assert torch.equal(first.state_dict(), second.state_dict())


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int64, ">u2"])
def test_any_integer_dtype_gives_the_same_batches(tmp_path, tokens, dtype):
    np.save(tmp_path / "tokens.npy", tokens.astype(dtype))
    loaded = load_tokens(tmp_path / "tokens.npy", 256, 16)
    assert torch.equal(RandomCrops(loaded, 4, 16, 7).draw()[1], RandomCrops(tokens, 4, 16, 7).draw()[1])
    assert isinstance(loaded, np.memmap)


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.zeros((4, 100), np.uint8), "found an array of 2 dimensions, wanted 1"),
        (np.zeros(100), "found values of type float64, wanted integers"),
        (np.zeros(100, bool), "found values of type bool, wanted integers"),
        (np.zeros(16, np.uint8), "found 16 tokens, wanted more than the sequence length 16"),
        (np.full(100, 300, np.uint16), "found token 300, wanted tokens in 0...255"),
        (np.full(100, -1, np.int32), "found token -1, wanted tokens in 0...255"),
        (np.array([{}] * 100), "not a .npy token file"),
    ],
)
def test_unusable_token_file_is_refused_by_name(tmp_path, array, found):
    path = tmp_path / "tokens.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(LabError) as refused:
        load_tokens(path, 256, 16)
    assert str(refused.value).startswith(f"{path}: {found}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00", b"PK\x03\x04broken"])
def test_file_that_is_no_array_is_refused(tmp_path, content):
    path = tmp_path / "tokens.npy"
    path.write_bytes(content)
    with pytest.raises(LabError, match=r"not a \.npy token file"):
        load_tokens(path, 256, 16)


def test_missing_token_file_is_refused(tmp_path):
    with pytest.raises(LabError, match="no such token file"):
        load_tokens(tmp_path / "none.npy", 256, 16)
