"""Whatever a checkpoint file is, no code in it runs and the user gets one line; a damaged one is never loaded as if it
were whole.
"""

import io
import json
import random

import numpy as np
import pytest
import torch
from hostile_files import FILES, RICH_FILES
from test_exactness import configured, stopped_at

from conftest import failed_with_one_line
from exact_resume.checkpoint import archive
from exact_resume.errors import LabError
from exact_resume.lab import data, state
from exact_resume.lab.run import Run

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
    assert len(FILES) >= 80


@pytest.mark.parametrize("name", FILES)
def test_hostile_file_is_refused_in_one_line_and_runs_nothing(name, good, make_run, tmp_path):
    path, harm = tmp_path / "resume.pth", tmp_path / "harm"
    FILES[name](path, good, harm)
    with pytest.raises(LabError) as refused:
        make_run().resume(archive.load(path), path, {})
    assert not harm.exists()
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)
    assert "weights_only" not in str(refused.value), "torch's advice to read it all the same"


@pytest.fixture(scope="module")
def rich(tiny):
    """A function that makes a run which remembers everything."""
    return configured(tiny, "everything")


@pytest.fixture(scope="module")
def rich_good(rich):
    return stopped_at(rich, 4)


@pytest.mark.parametrize("name", RICH_FILES)
def test_hostile_file_of_a_run_that_remembers_everything_is_refused_in_one_line(name, rich, rich_good, tmp_path):
    path = tmp_path / "resume.pth"
    RICH_FILES[name](path, rich_good)
    with pytest.raises(LabError) as refused:
        rich().resume(archive.load(path), path, {})
    assert str(refused.value).startswith(f"{path}: component ")
    assert "\n" not in str(refused.value)


def test_good_file_of_a_run_that_remembers_everything_is_not_refused(rich, rich_good, tmp_path):
    archive.save(tmp_path / "resume.pth", rich_good)
    rich().resume(archive.load(tmp_path / "resume.pth"), "resume.pth", {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other betas", "betas of group 0: found (0.8, 0.99), wanted (0.9, 0.999), this run's"),
        ("other weight decay", "weight_decay of group 0: found 0.5, wanted 0.01, this run's"),
        ("two groups", "wanted a list of 1"),
        ("two moments in one memory", "found in the memory of"),
        (
            "moments that are a view of one number",
            "optimizer.state.0.exp_avg: found a view of strides [0, 0], wanted a contiguous tensor",
        ),
        ("weights that say that they are finite", "found a tensor with attributes"),
        (
            "weights whose dict has items of its own",
            "model: found a dict with attributes, ['items'], wanted a plain one",
        ),
        ("legacy file with an archive behind it", "truncated or not a checkpoint"),
        ("fewer updates than steps", "component optimizer: found a count of 3, wanted 4, since the run is at step 4"),
    ],
)
def test_what_is_wrong_is_named(name, message, good, make_run, tmp_path):
    FILES[name](tmp_path / "resume.pth", good, tmp_path / "harm")
    with pytest.raises(LabError) as refused:
        make_run().resume(archive.load(tmp_path / "resume.pth"), "resume.pth", {})
    assert message in str(refused.value)


def test_train_refuses_a_file_that_would_corrupt_its_memory(verb, tmp_path, tiny, tokens, good):
    """With status 1 and one line, before AdamW writes a whole tensor into the storage of one number."""
    np.save(tmp_path / "train.npy", tokens)
    FILES["moments that are a view of one number"](tmp_path / "resume.pth", good, None)
    settings = json.dumps({name: tiny[name] for name in ("model", "training")})
    result = verb(
        "train", "--tokens", "train.npy", "--resume", "resume.pth", "--out", "out.pth", "--settings", settings
    )
    assert "resume.pth: optimizer.state.0.exp_avg: found a view of strides [0, 0]" in failed_with_one_line(result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["resume.pth", "train.npy"]


def test_good_file_is_not_refused(good, make_run, tmp_path):
    torch.save(good, tmp_path / "resume.pth")
    make_run().resume(archive.load(tmp_path / "resume.pth"), "resume.pth", {})


def test_no_mutation_of_a_good_file_is_loaded_as_something_else(tmp_path):
    """Flipped, overwritten, cut, inserted and exchanged bytes at random places: refused, or loaded with the values that
    were saved.
    """
    saved = {"w": torch.arange(24.0).view(4, 6), "step": 3, "name": "text"}
    path = tmp_path / "file.pth"
    archive.save(path, saved)
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
            loaded = archive.load(path)
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
    assert isinstance(
        np.load(io.BytesIO(npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}\n") + bytes(3))), np.ndarray
    )
