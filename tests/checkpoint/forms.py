"""Writes tensors as checkpoints of every form, for tests."""

import json
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file


def write_torch(path, tensors):
    torch.save(tensors, path)


def write_legacy(path, tensors):
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


def write_safetensors(path, tensors):
    save_file(tensors, path)


def write_folder(path, tensors):
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text("{}")


def write_sharded(path, tensors):
    """Half of the tensors in each of two files, with their index."""
    path.mkdir()
    names, places = list(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, path / file)
        places |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def write_distributed(path, tensors):
    with warnings.catch_warnings():
        # That it isn't distributed.
        warnings.simplefilter("ignore")
        dcp.save(tensors, checkpoint_id=path, no_dist=True)


FORMS = {
    "weights.pth": write_torch,
    "weights.ckpt": write_torch,
    "legacy.pt": write_legacy,
    "weights.safetensors": write_safetensors,
    "folder": write_folder,
    "sharded": write_sharded,
    "distributed": write_distributed,
}
