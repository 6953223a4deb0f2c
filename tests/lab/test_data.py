"""Batches come from the generator alone, and a token file that can't be trained on is refused in one line."""

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from conftest import failed_with_one_line
from exact_resume.errors import LabError
from exact_resume.lab import token_file
from exact_resume.lab.data import RandomCrops, load_tokens, make_batches


def test_targets_are_the_tokens_that_follow_the_inputs():
    inputs, targets = RandomCrops(np.arange(4000), 4, 16, seed=7).draw()
    assert inputs.shape == targets.shape == (4, 16)
    for row in range(4):
        first = inputs[row, 0].item()
        assert inputs[row].tolist() == list(range(first, first + 16))
        assert targets[row].tolist() == list(range(first + 1, first + 17))


@pytest.mark.parametrize("dtype", ["uint8", "<u2", ">i4", "int64"])
def test_token_file_is_the_one_that_numpy_writes(tmp_path, dtype):
    tokens = np.arange(1000).astype(dtype)
    np.save(tmp_path / "numpy.npy", tokens[:700])
    token_file.save(tmp_path / "ours.npy", tokens[:700])
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


def test_every_crop_can_be_drawn():
    crops = RandomCrops(np.arange(6, dtype=np.uint8), 64, 4, seed=0)
    assert {tuple(row) for _ in range(4) for row in crops.draw()[0].tolist()} == {(0, 1, 2, 3), (1, 2, 3, 4)}


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
    assert torch.equal(RandomCrops(loaded, 4, 16, 7).draw()[0], RandomCrops(tokens, 4, 16, 7).draw()[0])
    assert isinstance(loaded, np.memmap)


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.zeros((4, 100), np.uint8), "found an array of 2 dimensions, wanted 1"),
        (np.zeros(100), "found values of type float64, wanted integers"),
        (np.zeros(100, bool), "found values of type bool, wanted integers"),
        (np.zeros(16, np.uint8), "found 16 tokens, wanted at least 17"),
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


@pytest.mark.parametrize("share", ["0", "1", "1.5", "-0.1", "nan"])
def test_share_for_validation_that_leaves_nothing_is_refused(verb, tmp_path, share):
    (tmp_path / "text.txt").write_text("text" * 100)
    result = verb(
        "encode_corpus", "--corpus", "text.txt", f"--validation={share}", "--train", "train.npy", "--val", "val.npy"
    )
    assert failed_with_one_line(result).startswith("error: --validation: found")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00", b"PK\x03\x04broken"])
def test_file_that_is_no_array_is_refused(tmp_path, content):
    path = tmp_path / "tokens.npy"
    path.write_bytes(content)
    with pytest.raises(LabError, match=r"not a \.npy token file"):
        load_tokens(path, 256, 16)


def test_missing_token_file_is_refused(tmp_path):
    with pytest.raises(LabError, match="no such token file"):
        load_tokens(tmp_path / "none.npy", 256, 16)


@pytest.mark.parametrize("order", ["permutation", "skip"])
def test_every_epoch_has_every_sequence_once_and_in_another_order(order):
    tokens = np.arange(16 * 8 + 1)
    training = {"order": order, "batch_size": 2, "length": 16, "seed": 7, "augment": 0.0, "workers": 0}
    batches = make_batches(tokens, 1000, training)
    epochs = [[batches.draw()[0][:, 0].tolist() for _ in range(4)] for _ in range(3)]
    assert all(sorted(first for batch in epoch for first in batch) == list(range(0, 128, 16)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_workers_make_the_same_batches_as_one_process():
    tokens = np.random.default_rng(1).integers(0, 256, 200).astype(np.uint8)
    training = {"order": "permutation", "batch_size": 2, "length": 16, "seed": 7, "augment": 0.3}
    here, elsewhere = (make_batches(tokens, 256, {**training, "workers": workers}) for workers in (0, 2))
    for _ in range(14):
        for one, other in zip(here.draw(), elsewhere.draw()):
            assert torch.equal(one, other)


def test_augmentation_replaces_a_share_of_the_inputs_and_no_target():
    tokens = np.zeros(160_001, np.uint8)
    training = {"order": "skip", "batch_size": 100, "length": 16, "seed": 7, "augment": 0.25, "workers": 0}
    inputs, targets = make_batches(tokens, 256, training).draw()
    assert (inputs != 0).float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert not targets.any()


def test_augmentation_of_a_sequence_is_another_one_in_each_epoch():
    training = {"order": "skip", "batch_size": 1, "length": 64, "seed": 7, "augment": 0.5, "workers": 0}
    batches = make_batches(np.zeros(65, np.uint8), 256, training)
    first, second = batches.draw()[0], batches.draw()[0]
    assert not torch.equal(first, second)


def test_tokens_that_fill_no_batch_are_refused():
    training = {"order": "skip", "batch_size": 9, "length": 16, "seed": 7, "augment": 0.0, "workers": 0}
    with pytest.raises(LabError, match=r"config key training\.batch_size: found 9, wanted at most 8"):
        make_batches(np.zeros(129, np.uint8), 256, training)


class Noisy(torch.utils.data.Dataset):
    """Samples with noise from the worker's generator or, `seeded`, from one that the sample's number seeds."""

    def __init__(self, seeded):
        self.seeded = seeded

    def __len__(self):
        return 24

    def __getitem__(self, index):
        noise = np.random.default_rng((7, index)).random() if self.seeded else torch.rand(()).item()
        return torch.tensor([float(index), noise])


@pytest.mark.parametrize("seeded", [False, True])
def test_why_samples_are_seeded_stateful_dataloader_alone_loses_the_workers_generators(seeded):
    """torchdata's loader brings back the order after a resume in the middle of an epoch, but not what its workers
    draw.
    """

    def load(state=None, batches=6):
        torch.manual_seed(0)
        loader = StatefulDataLoader(Noisy(seeded), batch_size=4, shuffle=True, num_workers=2)
        if state:
            loader.load_state_dict(state)
        drawn = [batch for _, batch in zip(range(batches), loader)]
        return torch.stack(drawn), loader.state_dict()

    straight, _ = load()
    _, state = load(batches=2)
    resumed, _ = load(state, batches=4)
    assert torch.equal(resumed[..., 0], straight[2:, ..., 0])
    assert torch.equal(resumed[..., 1], straight[2:, ..., 1]) == seeded
