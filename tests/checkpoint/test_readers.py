"""A checkpoint of any usual form is read tensor by tensor; one that is broken or means harm is refused in one line."""

import io
import json
import pickle
import struct
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from forms import FORMS, write_distributed, write_sharded
from hostile_files import FILES, Calls
from safetensors.torch import save_file

from conftest import ROOT
from exact_resume.audit.own_folder import LeadsOut, OwnFolder
from exact_resume.checkpoint import contents as contents_module
from exact_resume.checkpoint import readers
from exact_resume.errors import LabError
from exact_resume.lab import state
from exact_resume.lab.run import Run

WEIGHTS = {
    "layer.weight": torch.arange(6.0).view(2, 3),
    "layer.bias": torch.tensor([-0.0, 1.5, 2.0], dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "nothing": torch.zeros(0, 3),
    "mask": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
}
# Which torch can't read from a file of the form before 1.6.
SMALL = {"small": torch.tensor([1.0, 0.5]).to(torch.float8_e4m3fn)}


def refusal(path):
    """The one line in which `path` is refused."""
    with pytest.raises(LabError) as refused:
        dict(readers.contents(path))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_tensors(form, tmp_path):
    weights = WEIGHTS if form == "legacy.pt" else WEIGHTS | SMALL
    FORMS[form](tmp_path / form, weights)
    opened = readers.contents(tmp_path / form)
    assert opened.keys() == weights.keys()
    for name, tensor in weights.items():
        found = opened[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert bytes(found.contiguous().view(-1).view(torch.uint8)) == bytes(tensor.view(-1).view(torch.uint8))
        assert opened.kinds[name] == contents_module.kind(tensor)
    assert not opened.others
    assert readers.read(tmp_path / form).keys() == weights.keys()
    files = [tmp_path / form] if (tmp_path / form).is_file() else (tmp_path / form).iterdir()
    assert opened.bytes == sum(file.stat().st_size for file in files if file.name != "config.json")


@pytest.mark.parametrize("write", [FORMS["weights.pth"], FORMS["legacy.pt"], write_distributed])
def test_nested_names_are_joined_with_dots_and_values_are_kept(write, tmp_path):
    state = {"model": OrderedDict(WEIGHTS), "optimizer": {"state": {0: {"step": 3, "lr": 0.5}}, "betas": (0.9, 0.95)}}
    write(tmp_path / "resume", {**state, "note": "text", "none": None})
    opened = readers.contents(tmp_path / "resume")
    assert opened.kinds.keys() == {f"model.{name}" for name in WEIGHTS}
    assert opened.others == {
        "optimizer.state.0.step": 3,
        "optimizer.state.0.lr": 0.5,
        "optimizer.betas.0": 0.9,
        "optimizer.betas.1": 0.95,
        "note": "text",
        "none": None,
    }
    assert opened.keys() == opened.kinds.keys()
    assert sorted(opened.top) == ["model", "none", "note", "optimizer"]


def test_tied_weights_and_views_are_read(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    torch.save({"a": whole, "tied": whole, "column": whole[:, 1], "turned": whole.T}, tmp_path / "a.pth")
    opened = readers.contents(tmp_path / "a.pth")
    assert all(torch.equal(opened[name], whole) for name in ("a", "tied"))
    assert torch.equal(opened["column"], whole[:, 1]) and torch.equal(opened["turned"], whole.T)


def test_tensors_stay_right_when_the_file_is_opened_anew(tmp_path, monkeypatch):
    """As it is after so many bytes, lest all of it stays in memory."""
    monkeypatch.setattr(contents_module, "KEPT_BYTES", 0)
    tensors = {f"w{number}": torch.full((5,), float(number)) for number in range(4)}
    for form, write in FORMS.items():
        write(tmp_path / form, tensors)
        opened = readers.contents(tmp_path / form)
        assert all(torch.equal(opened[name], tensors[name]) for name in [*tensors, *tensors])


def test_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(contents_module, "KEPT_BYTES", 0)
    torch.save({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "a.pth")
    opened = readers.contents(tmp_path / "a.pth")
    assert opened["a"].sum() == 2
    torch.save({"a": torch.ones(2), "b": torch.zeros(3)}, tmp_path / "a.pth")
    with pytest.raises(LabError, match=r"a\.pth: changed while it was read"):
        opened["b"]


# Broken and hostile ones.


@pytest.fixture(scope="module")
def good(tiny, tokens):
    """What the hostile files are made of: a resume file's contents."""
    run = Run(tiny, tokens)
    for _ in run.train(2):
        pass
    return state.capture(run.components)


@pytest.mark.parametrize("name", FILES)
def test_no_file_runs_code_or_ends_in_anything_but_tensors_or_one_line(name, good, tmp_path):
    path, harm = tmp_path / "resume.pth", tmp_path / "harm"
    FILES[name](path, good, harm)
    try:
        assert all(type(tensor) is torch.Tensor for tensor in readers.contents(path).values())
    except LabError as refused:
        assert str(refused).startswith(f"{path}: ")
        assert "\n" not in str(refused) and "weights_only" not in str(refused)
    assert not harm.exists()


@pytest.mark.parametrize("name", ["flipped bit in a tensor", "record shorter than its tensor", "record missing"])
def test_damaged_torch_file_is_refused(name, good, tmp_path):
    FILES[name](tmp_path / "resume.pth", good, tmp_path / "harm")
    assert refusal(tmp_path / "resume.pth").startswith(f"{tmp_path / 'resume.pth'}: ")


def test_containers_that_hold_each_other_many_times_over_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("exact_resume.checkpoint.torch_file.MOST_NAMES", 1000)
    value = 1
    for _ in range(15):
        value = [value, value]
    torch.save({"model": value}, tmp_path / "a.pth")
    assert refusal(tmp_path / "a.pth").endswith("found more than 1000 values, wanted fewer")
    value = {}
    for _ in range(30):
        value = {"a": value}
    torch.save(value, tmp_path / "a.pth")
    assert "containers in each other" in refusal(tmp_path / "a.pth")


def test_two_things_of_one_name_are_refused(tmp_path):
    torch.save({"a": {"b": 1}, "a.b": 2}, tmp_path / "a.pth")
    assert refusal(tmp_path / "a.pth").endswith("found two things called a.b, wanted one")


def test_broken_safetensors_are_refused(tmp_path):
    save_file({"w": torch.ones(100)}, tmp_path / "a.safetensors")
    content = (tmp_path / "a.safetensors").read_bytes()
    for broken in (content[:-4], content + b"more", struct.pack("<Q", 2**62) + content[8:], b""):
        (tmp_path / "a.safetensors").write_bytes(broken)
        assert refusal(tmp_path / "a.safetensors").startswith(f"{tmp_path / 'a.safetensors'}: not a safetensors file")


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: "{", "not an index of safetensors files"),
        (lambda index: "[" * 100_000, "not an index of safetensors files"),
        (lambda index: "[]", "found no weight_map"),
        (lambda index: json.dumps({"weight_map": {"w": "../model.safetensors"}}), "found '../model.safetensors' as a"),
        (lambda index: json.dumps({"weight_map": {"w": "config.json"}}), "found 'config.json' as a file"),
        (lambda index: json.dumps({"weight_map": {"w": "none.safetensors"}}), "none.safetensors: no such file"),
        (lambda index: index.replace("mask", "musk"), "found the tensor mask in model-0000"),
        (lambda index: index.replace("00001-of", "00002-of"), "model-00002-of-00002.safetensors, wanted"),
    ],
)
def test_index_that_is_not_right_is_refused(change, message, tmp_path):
    write_sharded(tmp_path / "model", WEIGHTS)
    index = tmp_path / "model" / INDEX
    index.write_text(change(index.read_text()))
    assert message in refusal(tmp_path / "model")


def test_tensor_in_two_shards_is_refused(tmp_path):
    write_sharded(tmp_path / "model", WEIGHTS)
    for file in sorted((tmp_path / "model").glob("*.safetensors")):
        save_file({"w": torch.ones(1)}, file)
    assert "found the tensor w, which is in model-00001-of-00002.safetensors too" in refusal(tmp_path / "model")


def test_shards_are_found_by_their_index_or_its_folder(tmp_path):
    write_sharded(tmp_path / "model", WEIGHTS)
    assert readers.contents(tmp_path / "model").keys() == readers.contents(tmp_path / "model" / INDEX).keys()


class Metadata:
    """The file .metadata of a distributed folder, to be changed."""

    def __init__(self, folder):
        self.path = folder / ".metadata"

    def change(self, change):
        found = pickle.loads(self.path.read_bytes())
        change(found)
        self.path.write_bytes(pickle.dumps(found))


@pytest.fixture
def distributed(tmp_path):
    write_distributed(tmp_path / "d", {"w": torch.ones(100), "step": 3})
    return tmp_path / "d"


def test_code_in_the_metadata_of_a_distributed_folder_does_not_run(distributed, tmp_path):
    for call in (Calls(exec, f"import os; os.mkdir({str(tmp_path / 'harm')!r})"), Calls(getattr, "text", "upper")):
        (distributed / ".metadata").write_bytes(pickle.dumps(call))
        assert "not safe to read: found builtins." in refusal(distributed)
    Metadata(distributed).path.write_bytes(b"\x80\x04nonsense")
    assert refusal(distributed).startswith(f"{distributed / '.metadata'}: damaged")
    assert not (tmp_path / "harm").exists()


def test_code_in_a_value_of_a_distributed_folder_does_not_run(distributed, tmp_path):
    buffer = io.BytesIO()
    torch.save(Calls(exec, f"import os; os.mkdir({str(tmp_path / 'harm')!r})"), buffer)

    def point_at_it(found):
        place = next(place for index, place in found.storage_data.items() if index.fqn == "step")
        place.relative_path, place.offset, place.length = "other.distcp", 0, len(buffer.getvalue())

    (distributed / "other.distcp").write_bytes(buffer.getvalue())
    Metadata(distributed).change(point_at_it)
    assert "not a checkpoint that is safe to read: found" in refusal(distributed)
    assert not (tmp_path / "harm").exists()


def lead_out(found):
    for place in found.storage_data.values():
        place.relative_path = "../d/__0_0.distcp"


def claim_more(found):
    found.state_dict_metadata["w"].size = torch.Size([2**40])


def claim_other(found):
    found.state_dict_metadata["w"].properties.dtype = torch.int32


def forget_a_place(found):
    found.storage_data = {index: place for index, place in found.storage_data.items() if index.fqn != "w"}


def forget_another_place(found):
    found.storage_data = {index: place for index, place in found.storage_data.items() if index.fqn != "step"}


def point_beyond(found):
    for place in found.storage_data.values():
        place.offset += 10**6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lead_out, "as a file, wanted names of files beside it"),
        (claim_more, "found parts of another size together"),
        (claim_other, "found float32 [100] in a part's place, wanted int32 [100]"),
        (forget_a_place, "found a part without a place"),
        (forget_another_place, "found no place for step"),
        (point_beyond, "__0_0.distcp: truncated"),
    ],
)
def test_metadata_that_are_not_right_are_refused(change, message, distributed):
    Metadata(distributed).change(change)
    assert message in refusal(distributed)


def test_damage_in_a_distributed_folder_is_found(distributed):
    """Its own reader doesn't look at the checksums."""
    content = bytearray((distributed / "__0_0.distcp").read_bytes())
    content[content.index(struct.pack("<f", 1.0) * 20) + 3] ^= 1
    (distributed / "__0_0.distcp").write_bytes(content)
    assert "is damaged: its CRC-32" in refusal(distributed)
    (distributed / "__0_0.distcp").unlink()
    assert refusal(distributed).endswith("__0_0.distcp: no such file")


SAVE = """
import sys, torch
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(15.0).view(5, 3)
dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)]), "same": torch.ones(2)}, checkpoint_id=folder)
dist.destroy_process_group()
"""


def test_folder_that_several_processes_wrote_is_read(tmp_path):
    command = [sys.executable, "-c", SAVE]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), str(tmp_path / "d")], cwd=ROOT)
        for rank in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(list((tmp_path / "d").glob("*.distcp"))) == 2
    opened = readers.contents(tmp_path / "d")
    assert torch.equal(opened["w"], torch.arange(15.0).view(5, 3))
    assert torch.equal(opened["same"], torch.ones(2))


# What an audit reads as final weights.


def test_audit_reads_no_file_outside_its_own_folder(tmp_path):
    """Neither a shard nor a part of a distributed folder may be a link that leads out."""
    place = OwnFolder(tmp_path / "work")
    place.make()
    for form, file in {"sharded": "model-00002-of-00002.safetensors", "distributed": "__0_0.distcp"}.items():
        FORMS[form](tmp_path / "work" / form, WEIGHTS)
        assert readers.read(tmp_path / "work" / form, place.real).keys() == WEIGHTS.keys()
        (tmp_path / "work" / form / file).rename(tmp_path / file)
        (tmp_path / "work" / form / file).symlink_to(tmp_path / file)
        with pytest.raises(LeadsOut):
            readers.read(tmp_path / "work" / form, place.real)


def test_weights_that_an_audit_read_stay_when_the_file_goes_away(tmp_path):
    for form, write in FORMS.items():
        write(tmp_path / form, {"w": torch.ones(1000)})
        weights = readers.read(tmp_path / form)
        for file in [tmp_path / form] if (tmp_path / form).is_file() else (tmp_path / form).iterdir():
            file.write_bytes(bytes(file.stat().st_size))
        assert torch.equal(weights["w"], torch.ones(1000))


def test_distributed_folder_with_other_values_is_no_final_weights(distributed):
    with pytest.raises(LabError, match="found int under 'step', wanted nothing but the model's tensors by name"):
        readers.read(distributed)
