"""Opens a checkpoint, in whichever of the usual forms."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from exact_resume.checkpoint.contents import INDEX, METADATA, SAFETENSORS, TORCH, Contents
from exact_resume.checkpoint.torch_file import TorchFile
from exact_resume.errors import LabError


class NotFinite(LabError):
    """Weights that hold NaN or an infinity."""


def contents(path: str | Path, real: Callable[[Path], Path | None] = Path) -> Contents:
    """Return the Contents of the checkpoint at `path`: a file that torch.save wrote, a .safetensors file, the index
    .safetensors.index.json of several ones, a folder that torch.distributed.checkpoint wrote, or a folder with an index
    or with just one .pth, .pt or .safetensors file.

    `real` says where a file that was found is to be read, or raises LabError. Raises LabError, one line, when there is
    nothing of the kind, or it isn't whole or not safe to read.
    """

    def found(file: Path) -> Path:
        place = real(file)
        if place is None or not place.is_file():
            raise LabError(f"{file}: no such file")
        return place

    path = Path(path)
    if path.is_dir() and (path / METADATA).is_file():
        # Seconds to import.
        from exact_resume.checkpoint.distributed import DistributedFolder

        return DistributedFolder(path, found)
    path = _file(path)
    if not path.name.endswith((SAFETENSORS, INDEX)):
        return TorchFile(path, found(path))
    # Only who writes such files needs the package.
    try:
        from exact_resume.checkpoint.safetensors_file import SafetensorsFiles, Sharded
    except ImportError as error:
        raise LabError(f"{path}: can't be read without the package safetensors") from error
    return Sharded(path, found) if path.name.endswith(INDEX) else SafetensorsFiles(path, {path: found(path)})


def read(path: str | Path, real: Callable[[Path], Path | None] = Path) -> dict[str, torch.Tensor]:
    """Return the weights at `path`, a checkpoint as `contents` takes it, as a dict of tensors by name, in memory.

    The tensors are plain ones that need no gradients, whatever the file holds: parameters, buffers, views. Raises
    LabError as `contents` does, and when there is anything else than tensors by name; NotFinite when a value is none.
    """
    weights = contents(path, real)
    for name, kind in weights.strays():
        raise LabError(f"{weights.path}: found {kind} under {name!r}, wanted nothing but the model's tensors by name")
    # The file may go away.
    found = {name: _finite(weights.path, name, tensor).clone() for name, tensor in weights.items()}
    if not found:
        raise LabError(f"{weights.path}: found no tensors, wanted the model's")
    return found


def _finite(path, name, tensor):
    # Not all types of one byte know isfinite, and some types hold no numbers that could be infinite.
    with suppress(NotImplementedError):
        if not bool(torch.isfinite(tensor if tensor.element_size() > 1 else tensor.float()).all()):
            raise NotFinite(f"{path}: tensor {name} holds values that are not finite")
    return tensor


def _file(path):
    """Return the file to open for `path`, itself or in the folder that it is. Raises LabError when there is none."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith((*TORCH, SAFETENSORS, INDEX)))
        indices = [file for file in files if file.name.endswith(INDEX)]
        found = indices or files
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise LabError(
                f"{path}: found {names}, wanted a folder with just one .pth, .pt or .safetensors file, or an index"
            )
        return found[0]
    if not path.exists():
        raise LabError(f"{path}: no such file or folder, wanted a checkpoint")
    if not path.is_file():
        raise LabError(f"{path}: found neither a file nor a folder, wanted a checkpoint")
    return path
