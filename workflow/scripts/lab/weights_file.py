"""The weights that a trainer leaves, in whichever of the usual forms."""

import zipfile
from pathlib import Path

import torch

from lab import checkpoint
from lab.errors import LabError

TORCH, SAFETENSORS = (".pth", ".pt"), ".safetensors"


class NotFinite(LabError):
    """Weights that hold NaN or an infinity."""


def read(path):
    """Return the weights at `path` as a dict of tensors by name: a .pth or .pt file, a .safetensors file, or a folder with one of them.

    Raises LabError, one line, when there is nothing of the kind, or anything else than tensors by name; NotFinite when a value is none.
    """
    path = _file(Path(path))
    weights = _read_safetensors(path) if path.suffix == SAFETENSORS else _read_torch(path)
    if not isinstance(weights, dict):
        raise LabError(f"{path}: found {type(weights).__name__}, wanted the model's tensors by name")
    if not weights:
        raise LabError(f"{path}: found no tensors, wanted the model's")
    for name, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor) or not isinstance(name, str):
            raise LabError(f"{path}: found {type(tensor).__name__} under {name!r}, wanted nothing but the model's tensors by name")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_conj() or tensor.is_neg():
            raise LabError(f"{path}: tensor {name}: found {tensor.layout}, {tensor.dtype}, on {tensor.device}, wanted a dense tensor")
        # Types of one byte are widened, since not all of them know isfinite.
        if not bool((tensor if tensor.element_size() > 1 else tensor.float()).isfinite().all()):
            raise NotFinite(f"{path}: tensor {name} holds values that are not finite")
    return weights


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


def _read_torch(path):
    # Before torch 1.6 files were no archives; they carry no checksums.
    if zipfile.is_zipfile(path):
        return checkpoint.read(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LabError(f"{path}: not a torch file that is safe to read: {reason}") from error


def _read_safetensors(path):
    # Only trainers that write such files need the package.
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise LabError(f"{path}: can't be read without the package safetensors") from error
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise LabError(f"{path}: not a safetensors file: {error}") from error
