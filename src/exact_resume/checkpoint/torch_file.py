"""Checkpoints that torch.save wrote: any nesting of dicts and lists of tensors and plain values."""

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from exact_resume.checkpoint import archive
from exact_resume.checkpoint.contents import Contents, kind
from exact_resume.errors import LabError

# More than any checkpoint has; a small file can have containers that hold each other many times over.
MOST_NAMES = 2**22


class TorchFile(Contents):
    """The contents of the torch file `real`, which is called `path`.

    A file of torch 1.6 or later is an archive whose records have checksums; it is mapped, so that what isn't read
    takes no memory. An older one is no archive: it can't be mapped and is in memory as a whole.
    """

    form = "torch"

    def __init__(self, path: Path, real: Path):
        super().__init__(path)
        self.real = real
        self.bytes = os.stat(real).st_size
        self.places, self.was = None, _identity(real)
        if zipfile.is_zipfile(real):
            self.places = archive.tensor_records(real)
            self.checked = "CRC-32"
            root = self._load()
        else:
            self.form, self.checked = "torch, before 1.6", "no checksums"
            root = archive.read_unverified(real)
        self._root_type, self._types = type(root).__name__, {}
        if isinstance(root, dict):
            self._types = {key: type(value).__name__ for key, value in dict.items(root)}
            self.top = list(map(str, self._types))
        self._take(root)

    def strays(self) -> Iterator[tuple[Any, str]]:
        """Yield what it has at the top besides tensors by name. Raises LabError when it holds no dict."""
        if self._root_type not in ("dict", "OrderedDict"):
            raise LabError(f"{self.path}: found {self._root_type}, wanted the model's tensors by name")
        for key, name in self._types.items():
            if not isinstance(key, str) or key not in self.kinds:
                yield key, name

    def _tensor(self, name):
        return self._tensors[name]

    def _reopen(self):
        if self.places is not None:
            if _identity(self.real) != self.was:
                raise LabError(f"{self.path}: changed while it was read, wanted it to stay")
            self._tensors = None
            self._take(self._load())

    def _load(self):
        """Return what the file holds, mapped where it is as torch.save writes it, else read whole."""
        with archive.refusing(self.real):
            root = archive.torch_load(self.real, mapped=True)
            if _is_in_place(root, self.places, self.path):
                return root
        # Reading, torch sees to it that a tensor has the size of its record; mapping it doesn't.
        self.places = None
        return archive.read(self.real)

    def _take(self, root):
        self._tensors, self.others = {}, {}
        for name, part in walk(root, self.path):
            if name in self._tensors or name in self.others:
                raise LabError(f"{self.path}: found two things called {name}, wanted one")
            (self._tensors if isinstance(part, torch.Tensor) else self.others)[name] = part
        self.kinds = {name: kind(tensor) for name, tensor in self._tensors.items()}


def walk(root: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield name and value of all that `root`, read from `path`, holds that is no container, or an empty one.

    Raises LabError when containers are in each other too deeply, or hold too much.
    """
    waiting, found = [((), root)], 0
    while waiting:
        place, part = waiting.pop()
        if len(place) > archive.DEEPEST:
            raise LabError(f"{path}: found more than {archive.DEEPEST} containers in each other, wanted fewer")
        # A file may give a dict attributes, such as `items`.
        items = list(dict.items(part)) if isinstance(part, dict) else []
        if isinstance(part, (list, tuple)):
            items = list(enumerate(part))
        if items:
            waiting += [((*place, key), item) for key, item in reversed(items)]
            continue
        found += 1
        if found + len(waiting) > MOST_NAMES:
            raise LabError(f"{path}: found more than {MOST_NAMES} values, wanted fewer")
        yield ".".join(map(str, place)), part


def _is_in_place(root, places, path):
    """Whether the tensors in `root`, which was mapped, have just the file's records as their storages."""
    tensors = [part for _, part in walk(root, path) if isinstance(part, torch.Tensor)]
    if not all(tensor.layout == torch.strided and tensor.is_cpu for tensor in tensors):
        return False
    storages = [tensor.untyped_storage() for tensor in tensors]
    found = sorted({(storage.data_ptr(), storage.nbytes()) for storage in storages if storage.nbytes()})
    wanted = [(begin, size) for begin, size in places if size]
    start = found[0][0] - wanted[0][0] if found and wanted else 0
    return found == [(start + begin, size) for begin, size in wanted]


def _identity(path):
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
