"""The weights that a trainer leaves, in whichever of the usual forms."""

import zipfile
from contextlib import suppress
from pathlib import Path

import torch

from exact_resume.checkpoint import archive
from exact_resume.errors import LabError

TORCH, SAFETENSORS = (".pth", ".pt"), ".safetensors"


class NotFinite(LabError):
    """Weights that hold NaN or an infinity."""


def read(path, real=Path):
    """Return the weights at `path` as a dict of tensors by name: a .pth or .pt file, a .safetensors file, or a folder
    with one of them.

    The tensors are plain ones that need no gradients, whatever the file holds: parameters, buffers, views. `real` says
    where the file that was found is to be read, or raises LabError. Raises LabError, one line, when there is nothing of
    the kind, or anything else than tensors by name; NotFinite when a value is none.
    """
    path = _file(Path(path))
    # A file may call a tensor or a text anything, and hold any of a tensor's methods under another meaning: torch's own
    # are called.
    weights = _read_safetensors(path, real(path)) if path.suffix == SAFETENSORS else _read_torch(path, real(path))
    if not isinstance(weights, dict):
        raise LabError(f"{path}: found {type(weights).__name__}, wanted the model's tensors by name")
    found = {name: _plain(path, name, tensor) for name, tensor in dict.items(weights)}
    if not found:
        raise LabError(f"{path}: found no tensors, wanted the model's")
    return found


def _plain(path, name, tensor):
    """Return the tensor as one of torch.Tensor itself. Raises LabError unless it is dense, of its own size, and finite."""
    if not isinstance(tensor, torch.Tensor) or not isinstance(name, str):
        raise LabError(
            f"{path}: found {type(tensor).__name__} under {name!r}, wanted nothing but the model's tensors by name"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        raise LabError(
            f"{path}: tensor {name}: found {tensor.layout}, {tensor.dtype}, on {tensor.device}, wanted a dense tensor"
        )
    tensor = torch.Tensor.detach(tensor).as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise LabError(f"{path}: tensor {name}: found {list(tensor.shape)} made of fewer values, wanted a dense tensor")
    # Not all types of one byte know isfinite, and some types hold no numbers that could be infinite.
    with suppress(NotImplementedError):
        if not bool(torch.isfinite(tensor if tensor.element_size() > 1 else tensor.float()).all()):
            raise NotFinite(f"{path}: tensor {name} holds values that are not finite")
    return tensor


def _file(path):
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in (*TORCH, SAFETENSORS))
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise LabError(f"{path}: found {names}, wanted a folder with just one .pth, .pt or .safetensors file")
        return found[0]
    if not path.is_file():
        raise LabError(f"{path}: no such file or folder, wanted the final weights")
    if path.suffix not in (*TORCH, SAFETENSORS):
        raise LabError(f"{path}: wanted a name that ends in .pth, .pt or .safetensors")
    return path


def _read_torch(path, real):
    # Before torch 1.6 files were no archives; they carry no checksums.
    if zipfile.is_zipfile(real):
        return archive.read(real)
    try:
        return archive.torch_load(real)
    except Exception as error:
        raise LabError(f"{path}: not a torch file that is safe to read: {archive.reason(error)}") from error


def _read_safetensors(path, real):
    # Only trainers that write such files need the package.
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise LabError(f"{path}: can't be read without the package safetensors") from error
    try:
        return load_file(real)
    except (OSError, SafetensorError) as error:
        raise LabError(f"{path}: not a safetensors file: {error}") from error
