"""Whatever a checkpoint file is, no code in it runs and the user gets one line; a damaged one is never loaded as if it were whole."""

import io
import random

import numpy as np
import pytest
import torch

from hostile.files import FILES
from lab import checkpoint, data, state
from lab.errors import LabError
from lab.run import Run

MUTATIONS = 10_000


@pytest.fixture(scope="module")
def good(tiny, tokens):
    run = Run(tiny, tokens)
    for _ in run.train(4):
        pass
    buffer = io.BytesIO()
    torch.save(state.capture(run.components), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_there_are_enough_of_them():
    assert len(FILES) >= 30


@pytest.mark.parametrize("name", FILES)
def test_hostile_file_is_refused_in_one_line_and_runs_nothing(name, good, make_run, tmp_path):
    path, harm = tmp_path / "resume.pth", tmp_path / "harm"
    FILES[name](path, good, harm)
    with pytest.raises(LabError) as refused:
        make_run().resume(checkpoint.load(path), path, {})
    assert not harm.exists()
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)
    assert "weights_only" not in str(refused.value), "torch's advice to read it all the same"


def test_good_file_is_not_refused(good, make_run, tmp_path):
    torch.save(good, tmp_path / "resume.pth")
    make_run().resume(checkpoint.load(tmp_path / "resume.pth"), "resume.pth", {})


def test_no_mutation_of_a_good_file_is_loaded_as_something_else(tmp_path):
    """Flipped, overwritten, cut, inserted and exchanged bytes at random places: refused, or loaded with the values that were saved."""
    saved = {"w": torch.arange(24.0).view(4, 6), "step": 3, "name": "text"}
    path = tmp_path / "file.pth"
    checkpoint.save(path, saved)
    whole = path.read_bytes()
    generator = random.Random(0)
    refused = 0
    for _ in range(MUTATIONS):
        content = bytearray(whole)
        for _ in range(generator.choice((1, 1, 1, 2, 8))):
            place = generator.randrange(len(content))
            kind = generator.randrange(5)
            if kind == 0:
                content[place] ^= 1 << generator.randrange(8)
            elif kind == 1:
                content[place] = generator.randrange(256)
            elif kind == 2:
                del content[place : place + generator.randrange(1, 50)]
            elif kind == 3:
                content[place:place] = generator.randbytes(generator.randrange(1, 50))
            else:
                other = generator.randrange(len(content))
                content[place], content[other] = content[other], content[place]
            if not content:
                break
        path.write_bytes(content)
        try:
            loaded = checkpoint.load(path)
        except LabError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            assert loaded.keys() == saved.keys()
            assert torch.equal(loaded["w"], saved["w"])
            assert (loaded["step"], loaded["name"]) == (3, "text")
    assert refused > MUTATIONS / 2


def npy(header):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000,)}\n") + bytes(100),
        npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (-5,)}\n") + bytes(100),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (100,)}\n") + bytes(800),
        npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': ()}\n") + bytes(100),
        npy(b"{'descr': '|u1', 'shape': (100,)}\n") + bytes(100),
        npy(b"__import__('os').mkdir('harm')\n") + bytes(100),
        npy(b"{'descr': [('a', '<i4'), ('b', '<i4')], 'fortran_order': False, 'shape': (100,)}\n") + bytes(800),
        b"\x93NUMPY\x09\x00" + bytes(100),
    ],
)
def test_hostile_token_file_is_refused_in_one_line(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens.npy").write_bytes(content)
    with pytest.raises(LabError) as refused:
        data.load_tokens("tokens.npy", 256, 16)
    assert str(refused.value).startswith("tokens.npy: ")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "harm").exists()
    assert isinstance(np.load(io.BytesIO(npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}\n") + bytes(3))), np.ndarray)
