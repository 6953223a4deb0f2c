"""Checkpoints are whole or absent, equal values give equal bytes, and a file that can't be resumed from is refused in
one line.
"""

import io
import os
import pickle
import subprocess
import warnings
import zipfile

import numpy as np
import pytest
import torch

import forked
from conftest import failed_with_one_line
from exact_resume.checkpoint import archive, atomic, readers
from exact_resume.errors import LabError
from exact_resume.lab import state


@pytest.fixture
def resume_state(make_run):
    run = make_run()
    for _ in run.train(4):
        pass
    return state.capture(run.components)


def test_equal_values_give_equal_bytes_whatever_the_path(tmp_path, resume_state):
    for name in ("a.pth", "another name.pth"):
        archive.save(tmp_path / name, resume_state)
    assert (tmp_path / "a.pth").read_bytes() == (tmp_path / "another name.pth").read_bytes()


def test_state_that_was_loaded_gives_the_bytes_that_it_came_from(tmp_path, make_run, resume_state):
    """Its strings and containers are other objects than those of a run that was never saved, which pickle can tell."""
    archive.save(tmp_path / "first.pth", resume_state)
    archive.save(tmp_path / "second.pth", archive.load(tmp_path / "first.pth"))
    resumed = make_run()
    resumed.resume(archive.load(tmp_path / "first.pth"), "first.pth", {})
    archive.save(tmp_path / "third.pth", state.capture(resumed.components))
    first, second, third = ((tmp_path / f"{name}.pth").read_bytes() for name in ("first", "second", "third"))
    assert first == second == third


def test_saved_state_comes_back_as_it_was(tmp_path, resume_state):
    archive.save(tmp_path / "resume.pth", resume_state)
    loaded = archive.load(tmp_path / "resume.pth")
    assert list(loaded) == ["model", "optimizer", "step", "gen_state"]
    assert loaded["step"] == 4
    assert torch.equal(loaded["gen_state"], resume_state["gen_state"])
    for name, tensor in resume_state["model"].items():
        assert torch.equal(loaded["model"][name], tensor)


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "resume.pth"
    archive.save(path, {"old": 1})
    before = path.read_bytes()
    with pytest.raises((AttributeError, pickle.PicklingError)):
        archive.save(path, {"new": lambda: None})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["resume.pth"]


def test_processes_that_save_to_one_path_at_once_never_mix(tmp_path, tmp_path_factory):
    """Three processes write values of their own size again and again; whatever is there at any moment is one of them,
    whole.
    """
    path = tmp_path / "shared" / "shared.pth"
    path.parent.mkdir()
    code = (
        "import sys, torch\nfrom exact_resume.checkpoint import archive\n"
        "for _ in range(60):\n    archive.save(sys.argv[1], {'value': torch.full((int(sys.argv[2]) * "
        "10_000,), float(sys.argv[2]))})"
    )
    script = tmp_path_factory.mktemp("script") / "save.py"
    script.write_text(code)
    command = [forked.python(), str(script), str(path)]
    processes = [subprocess.Popen([*command, str(value)], cwd=tmp_path) for value in (1, 2, 3)]
    seen = set()
    while any(process.poll() is None for process in processes):
        if path.exists():
            value = archive.load(path)["value"]
            assert len(set(value.tolist())) == 1
            assert len(value) == value[0] * 10_000
            seen.add(value[0].item())
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(seen) > 1
    assert os.listdir(path.parent) == ["shared.pth"]


def test_writer_whose_temporary_file_is_renamed_by_another_one_at_any_moment_tries_again(tmp_path, monkeypatch):
    """The other process ends its save while this one looks whether the file that it locked is still there."""
    path, look = tmp_path / "shared.txt", os.fstat

    def end_the_others_save(descriptor):
        monkeypatch.setattr(os, "fstat", look)
        os.replace(tmp_path / "shared.txt.tmp", path)
        return look(descriptor)

    monkeypatch.setattr(os, "fstat", end_the_others_save)
    atomic.write_text(path, "mine")
    assert os.fstat is look
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["shared.txt"]


def test_previous_checkpoint_is_kept_and_taken_when_the_new_one_is_damaged(tmp_path, capsys):
    path = tmp_path / "rolling.pth"
    for step in (1, 2, 3):
        archive.save(path, {"step": step}, keep_previous=True)
    assert archive.load_newest(path) == {"step": 3}
    assert capsys.readouterr().err == ""
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    assert archive.load_newest(path) == {"step": 2}
    said = capsys.readouterr().err
    assert "rolling.pth: truncated" in said
    assert said.count("\n") == 1
    assert not path.exists(), "the next save would keep it in place of the whole one"
    assert archive.load_newest(path) == {"step": 2}
    archive.save(path, {"step": 4}, keep_previous=True)
    assert archive.load(atomic.previous(path)) == {"step": 2}
    path.unlink()
    atomic.previous(path).write_bytes(b"")
    with pytest.raises(LabError, match=r"rolling.pth.previous: truncated"):
        archive.load_newest(path)


def test_previous_checkpoint_is_kept_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 2):
        archive.save(tmp_path / "rolling.pth", {"step": step}, keep_previous=True)
    assert archive.load(tmp_path / "rolling.pth") == {"step": 2}
    assert archive.load(tmp_path / "rolling.pth.previous") == {"step": 1}


def test_file_appears_under_its_name_only_when_it_is_whole(tmp_path):
    path = tmp_path / "out.txt"
    with atomic.replacing(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        assert (tmp_path / "out.txt.tmp").read_text() == "half"
    assert path.read_text() == "half"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_path_that_cant_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"file/out.pth: can't be written: (Not a directory|File exists)"):
        archive.save(tmp_path / "file" / "out.pth", {})


def test_half_precision_keeps_tied_weights_tied(make_run, tmp_path):
    model = make_run().model
    archive.save(tmp_path / "full.pth", model.state_dict())
    archive.save(tmp_path / "half.pth", archive.halved(model.state_dict()))
    half = archive.load(tmp_path / "half.pth")
    assert all(tensor.dtype == torch.float16 for tensor in half.values())
    assert half["lm_head.weight"].data_ptr() == half["model.embed_tokens.weight"].data_ptr()
    widened = archive.load_weights(tmp_path / "half.pth", make_run().model)
    for name, tensor in model.state_dict().items():
        assert widened.state_dict()[name].dtype == torch.float32
        assert torch.equal(widened.state_dict()[name], tensor.half().float())


def test_loading_runs_no_code(tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save({"model": Harmful()}, tmp_path / "harmful.pth")
    with pytest.raises(LabError, match=r"harmful.pth: not a checkpoint that is safe to read"):
        archive.load(tmp_path / "harmful.pth")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99, -1])
def test_truncated_file_is_refused(tmp_path, resume_state, kept):
    path = tmp_path / "resume.pth"
    archive.save(path, resume_state)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)] if isinstance(kept, float) else content[:kept])
    with pytest.raises(LabError, match=r"resume.pth: truncated or not a checkpoint"):
        archive.load(path)


@pytest.mark.parametrize("record", ["data.pkl", "byteorder"])
def test_archive_without_a_checkpoint_is_refused(tmp_path, record):
    with zipfile.ZipFile(tmp_path / "other.pth", "w") as other:
        other.writestr(f"archive/{record}", b"other")
    with pytest.raises(LabError, match=r"other.pth: not a checkpoint"):
        archive.load(tmp_path / "other.pth")


def archive_of(path, **records):
    """Write an archive with a good checkpoint's records, and `records` instead of or beside them; None takes one
    away.
    """
    whole = io.BytesIO()
    torch.save({"w": torch.ones(2)}, whole)
    with zipfile.ZipFile(whole) as old:
        found = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in {**found, **records}.items():
            if content is not None:
                new.writestr(name if name.startswith("other/") else f"archive/{name}", content)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            {"constants.pkl": b"x"},
            "not a checkpoint: found the record 'archive/constants.pkl', wanted none but those that torch.save writes",
        ),
        ({"code/__torch__.py": b"x", "constants.pkl": b"x"}, "not a checkpoint: found the record 'archive/co"),
        ({"data/0.py": b"x"}, "not a checkpoint: found the record 'archive/data/0.py', wanted none"),
        ({"other/data.pkl": b"x"}, "not a checkpoint: found the record 'other/data.pkl', wanted none"),
        ({"a" * 999: b"x"}, "not a checkpoint: found the record 'archive/aaa"),
        ({"data.pkl": None}, "not a checkpoint: found no record data.pkl"),
        ({"byteorder": b"big"}, "found numbers in the byte order 'big', wanted 'little', this machine's"),
        ({"byteorder": b"little\n"}, "found numbers in the byte order 'little\\n', wanted 'little'"),
        ({"byteorder": b""}, "found numbers in the byte order '', wanted 'little'"),
        ({"data.pkl": b""}, "not a checkpoint that is safe to read: "),
    ],
)
def test_archive_of_something_else_is_refused_in_one_exact_line_without_a_warning(tmp_path, records, message):
    path = tmp_path / "other.pth"
    archive_of(path, **records)
    with warnings.catch_warnings(), pytest.raises(LabError) as refused:
        warnings.simplefilter("error")
        archive.load(path)
    told = str(refused.value)
    assert told.startswith(f"{path}: {message}")
    assert "\n" not in told and "RuntimeError" not in told and len(told) < 300


def test_archives_of_torch_before_it_noted_its_byte_order_are_read(tmp_path):
    archive_of(
        tmp_path / "old.pth",
        byteorder=None,
        **{".format_version": None, ".storage_alignment": None, ".data/serialization_id": None},
    )
    assert torch.equal(archive.load(tmp_path / "old.pth")["w"], torch.ones(2))


def test_program_of_torchs_is_no_checkpoint(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), tmp_path / "program.pt")
        warnings.simplefilter("error")
        for read in (archive.load, readers.read):
            with pytest.raises(
                LabError, match=r"program.pt: not a checkpoint: found the record 'program/\S+', wanted none but those"
            ):
                read(tmp_path / "program.pt")


def test_missing_file_and_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.pth", tmp_path):
        with pytest.raises(LabError, match="can't be read"):
            archive.load(path)


def without(name):
    return lambda saved: saved.pop(name)


def replaced(name, value):
    return lambda saved: saved.update({name: value})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("optimizer"), "component optimizer is missing from the resume file"),
        (without("gen_state"), "component gen_state is missing from the resume file"),
        (replaced("scaler", {}), "component scaler is unknown"),
        (replaced("step", 8), "component step: found 8, wanted a whole number in 1...7"),
        (replaced("step", 99), "component step: found 99, wanted a whole number in 1...7"),
        (replaced("step", -1), "component step: found -1, wanted a whole number"),
        (replaced("step", "4"), "component step: found '4', wanted a whole number"),
        (replaced("gen_state", torch.zeros(3, dtype=torch.uint8)), "component gen_state doesn't fit this run"),
        (replaced("gen_state", 5), "component gen_state doesn't fit this run"),
        (replaced("optimizer", {}), "component optimizer doesn't fit this run"),
        (replaced("model", {}), "is missing; wanted the tensors of the configured model"),
        (replaced("model", 3), "found int, wanted the model's tensors by name"),
        (
            lambda saved: saved["model"].update({"lm_head.weight": torch.zeros(9, 32)}),
            "found shape [9, 32], wanted [256, 32]",
        ),
        (
            lambda saved: saved["optimizer"]["state"][0].update(exp_avg=torch.zeros(5)),
            "exp_avg of parameter 0: found shape [5]",
        ),
    ],
)
def test_resume_file_that_doesnt_fit_is_refused(make_run, resume_state, damage, message):
    damage(resume_state)
    with pytest.raises(LabError) as refused:
        make_run().resume(resume_state, "resume.pth", {})
    assert str(refused.value).startswith("resume.pth: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_train_refuses_a_bad_resume_file_in_one_line_and_leaves_nothing(verb, tmp_path, tokens):
    np.save(tmp_path / "train.npy", tokens)
    (tmp_path / "resume.pth").write_bytes(b"no checkpoint")
    result = verb("train", "--tokens", "train.npy", "--resume", "resume.pth", "--out", "out.pth", "--log", "out.csv")
    assert "resume.pth: truncated or not a checkpoint" in failed_with_one_line(result)
    assert sorted(os.listdir(tmp_path)) == ["resume.pth", "train.npy"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    """As root one could replace a device."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LabError, match=r"pipe: found what is no file"):
        archive.save(tmp_path / "pipe", {"w": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()
