"""Checkpoint files: written whole or not at all, read without running what is in them."""

import pickle
import zipfile

import torch

from lab.atomic import replacing
from lab.errors import LabError


def save(path, value):
    """Write `value` to `path` with torch.save, whole or not at all; equal values give equal bytes.

    The archive goes through a file object because torch.save writes a path's own name into the archive.
    """
    with replacing(path) as file:
        torch.save(value, file)


def load(path, device="cpu"):
    """Return what torch.save wrote to `path`, with `weights_only=True`, so that no code in the file can run.

    Raises LabError when it is missing, truncated or no such file.
    """
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise LabError(f"{path}: truncated or not a checkpoint, wanted an archive written by torch.save")
            file.seek(0)
            return torch.load(file, map_location=device, weights_only=True)
    except OSError as error:
        raise LabError(f"{path}: can't be read: {error.strerror or error}") from error
    except (RuntimeError, pickle.UnpicklingError, ValueError, EOFError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise LabError(f"{path}: not a checkpoint that is safe to read: {str(error).strip().splitlines()[0]}") from error


def halved(state_dict):
    """Return `state_dict` with its tensors in float16. Names that share memory go on sharing it, so tied weights are stored once."""
    done = {}
    result = {}
    for name, tensor in state_dict.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in done:
            done[place] = tensor.half()
        result[name] = done[place]
    return result


def load_weights(path, module):
    """Load the state_dict in `path` into `module`, half precision widened to the module's dtype. Raises LabError when it doesn't fit."""
    fill(module, load(path), path)
    return module


def fill(module, state_dict, path):
    """Copy `state_dict`, read from `path`, into `module`. Raises LabError naming a tensor that is missing, extra or misshapen."""
    if not isinstance(state_dict, dict):
        raise LabError(f"{path}: found {type(state_dict).__name__}, wanted the model's tensors by name")
    own = module.state_dict()
    for name in sorted(set(own) ^ set(state_dict), key=str):
        raise LabError(f"{path}: tensor {name} is {'missing' if name in own else 'unknown'}; wanted the tensors of the configured model")
    for name, tensor in state_dict.items():
        if not isinstance(tensor, torch.Tensor) or tensor.shape != own[name].shape:
            found = list(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise LabError(f"{path}: tensor {name}: found shape {found}, wanted {list(own[name].shape)} (another model?)")
    module.load_state_dict(state_dict)
