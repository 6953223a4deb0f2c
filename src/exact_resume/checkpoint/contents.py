"""What a checkpoint holds, whatever form it has: tensors by name, read one at a time, and plain values by name."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from exact_resume.errors import LabError

# How the forms are told by their names: files that torch.save wrote, safetensors files and an index of them, and the
# file in a folder that torch.distributed.checkpoint wrote.
TORCH, SAFETENSORS, INDEX, METADATA = (".pth", ".pt"), ".safetensors", ".safetensors.index.json", ".metadata"
# What was read stays in memory until so many bytes have been; then the file is opened anew.
KEPT_BYTES = 2**25


class Kind(NamedTuple):
    """What is known of a tensor before it is read."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes these take."""
        return self.elements * getattr(torch, self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Contents(Mapping):
    """The tensors of the checkpoint at `path` by name, as `plain` gives them; each is read when it is asked for.

    `kinds` has the Kind of each, `others` what else the checkpoint holds, by name. A name is the way to what it names
    in nested dicts and lists, joined with dots. `form` says what kind of a checkpoint it is, `checked` what held it
    together when it was opened, `top` the keys that it has at the top, and `bytes` how large its files are.
    """

    form: str
    checked: str

    def __init__(self, path: Path):
        self.path = path
        self.kinds: dict[str, Kind] = {}
        self.others: dict[str, Any] = {}
        self.top: list[str] = []
        self.bytes = 0
        self._kept = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._kept > KEPT_BYTES:
            self._reopen()
            self._kept = 0
        tensor = plain(self.path, name, self._tensor(name))
        self._kept += tensor.nbytes
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self.kinds

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def strays(self) -> Iterator[tuple[Any, str]]:
        """Yield what it has at the top besides tensors by name: the key, and the type's name."""
        for name, value in self.others.items():
            yield name, type(value).__name__

    def _tensor(self, name):
        """Return the tensor `name`, of whatever class and layout."""
        raise NotImplementedError

    def _reopen(self):
        """Let go of the memory that was taken by what was read."""


def kind(tensor: torch.Tensor) -> Kind:
    """Return the Kind of `tensor`."""
    return Kind(name_of(tensor.dtype), tuple(tensor.shape))


def name_of(dtype: torch.dtype) -> str:
    """Return how the dtype is called in torch."""
    return str(dtype).removeprefix("torch.")


def plain(path: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as one of torch.Tensor itself that needs no gradients. Raises LabError unless it is dense and
    of its own size.
    """
    # A file may call a tensor anything, and hold any of a tensor's methods under another meaning: torch's own are
    # called.
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        raise LabError(
            f"{path}: tensor {name}: found {tensor.layout}, {tensor.dtype}, on {tensor.device}, wanted a dense tensor"
        )
    tensor = torch.Tensor.detach(tensor).as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise LabError(f"{path}: tensor {name}: found {list(tensor.shape)} made of fewer values, wanted a dense tensor")
    return tensor
