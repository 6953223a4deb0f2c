"""Folders that torch.distributed.checkpoint wrote: a file .metadata, and others that it says the places in.

Its own reader unpickles .metadata, and values that are no tensors, with whatever code is in them; here neither can run
any. The checksums that the files have, and that it doesn't look at, are checked.
"""

import math
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata

from exact_resume.checkpoint import archive
from exact_resume.checkpoint.contents import METADATA, Contents, Kind, kind, name_of
from exact_resume.checkpoint.torch_file import walk
from exact_resume.errors import LabError

DTYPES = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
# All that .metadata is made of; none of it does anything when it is called.
ALLOWED = {
    "torch": {"Size", "device", *DTYPES},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
}


class DistributedFolder(Contents):
    """The contents of the folder `path`, whichever number of processes wrote it. `real` says where a file is to be
    read, or raises LabError.
    """

    form, checked = "torch.distributed.checkpoint", "CRC-32"

    def __init__(self, path: Path, real: Callable[[Path], Path]):
        super().__init__(path)
        self.metadata = _read_metadata(path / METADATA, real(path / METADATA))
        described, items = self.metadata.state_dict_metadata, self.metadata.storage_data
        self.files = {name: real(path / name) for name in _file_names(path, items)}
        self.bytes = sum(os.stat(file).st_size for file in [real(path / METADATA), *self.files.values()])
        self.top = list(dict.fromkeys(str(_top(self.metadata, name)) for name in described))
        for name, one in described.items():
            if isinstance(one, metadata.TensorStorageMetadata):
                self.kinds[name] = Kind(name_of(one.properties.dtype), tuple(one.size))
                self._check_tensor(name, one)
        for index, place in items.items():
            content = self._content(place)
            value = archive.read_part(content, path / place.relative_path)
            if index.fqn in self.kinds:
                self._check_part(index, value)
            else:
                self._take(index.fqn, value)
        for name in described.keys() - self.kinds.keys() - {index.fqn for index in items}:
            raise LabError(f"{path}: found no place for {name}, wanted all that {METADATA} names")

    def _take(self, name, value):
        for below, part in walk(value, self.path):
            full = f"{name}.{below}" if below else name
            if isinstance(part, torch.Tensor):
                raise LabError(f"{self.path}: {full}: found a tensor among the other values, wanted one of its own")
            if full in self.others or full in self.kinds:
                raise LabError(f"{self.path}: found two things called {full}, wanted one")
            self.others[full] = part

    def _check_tensor(self, name, one):
        """Raise LabError unless the tensor's parts lie in it and are as large as it is, and each has a place."""
        for chunk in one.chunks:
            ends = [offset + size for offset, size in zip(chunk.offsets, chunk.sizes)]
            inside = len(ends) == len(one.size) and all(
                offset >= 0 and offset + size <= whole
                for offset, size, whole in zip(chunk.offsets, chunk.sizes, one.size)
            )
            if not inside or metadata.MetadataIndex(name, chunk.offsets) not in self.metadata.storage_data:
                raise LabError(f"{self.path}: tensor {name}: found a part without a place, wanted all of its parts")
        if sum(math.prod(chunk.sizes) for chunk in one.chunks) != math.prod(one.size):
            raise LabError(f"{self.path}: tensor {name}: found parts of another size together, wanted {list(one.size)}")

    def _check_part(self, index, value):
        """Raise LabError unless `value`, read from the place of a tensor's part, is that part."""
        sizes = {
            tuple(chunk.offsets): tuple(chunk.sizes) for chunk in self.metadata.state_dict_metadata[index.fqn].chunks
        }
        wanted = Kind(self.kinds[index.fqn].dtype, sizes.get(tuple(index.offset or ()), ()))
        found = kind(value) if isinstance(value, torch.Tensor) else type(value).__name__
        if found != wanted:
            raise LabError(f"{self.path}: tensor {index.fqn}: found {found} in a part's place, wanted {wanted}")

    def _content(self, place):
        """Return the bytes at a place in one of the files. Raises LabError where there are fewer."""
        file = self.path / place.relative_path
        try:
            with open(self.files[place.relative_path], "rb") as opened:
                opened.seek(place.offset)
                content = opened.read(place.length)
        except OSError as error:
            raise LabError(f"{file}: can't be read: {error.strerror or error}") from error
        if len(content) != place.length:
            raise LabError(f"{file}: truncated, wanted at least {place.offset + place.length} bytes")
        return content

    def _tensor(self, name):
        wanted = self.kinds[name]
        tensor = torch.zeros(wanted.shape, dtype=getattr(torch, wanted.dtype))
        with archive.refusing(self.path), warnings.catch_warnings():
            # That it isn't distributed.
            warnings.simplefilter("ignore")
            dcp.load(
                {name: tensor},
                storage_reader=_Reader(self.path, self.metadata),
                planner=_Planner(flatten_state_dict=False, flatten_sharded_tensors=False),
                no_dist=True,
            )
        return tensor


class _Reader(dcp.FileSystemReader):
    """Reads from a folder whose metadata were read before."""

    def __init__(self, path, read):
        super().__init__(path)
        self.read = read

    def read_metadata(self, *_: Any, **__: Any) -> metadata.Metadata:
        return self.read


class _Planner(dcp.DefaultLoadPlanner):
    """Loads tensors and nothing else."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        raise LabError(f"found no tensor under {read_item.dest_index.fqn}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in ALLOWED.get(module, ()):
            raise LabError(f"found {module}.{name}")
        return super().find_class(module, name)


def _read_metadata(path, real):
    """Return the Metadata in the file `real`, called `path`. Raises LabError when it holds anything else."""
    try:
        with open(real, "rb") as file:
            found = _Unpickler(file).load()
        wrong = _fault(found)
    except LabError as error:
        raise LabError(f"{path}: not safe to read: {error}, wanted what torch.distributed.checkpoint writes") from error
    except OSError as error:
        raise LabError(f"{path}: can't be read: {error.strerror or error}") from error
    except Exception as error:
        # Whatever a damaged or hostile file makes the unpickler trip over.
        raise LabError(f"{path}: damaged, wanted what torch.distributed.checkpoint writes") from error
    if wrong:
        raise LabError(f"{path}: found {wrong}, wanted what torch.distributed.checkpoint writes")
    return found


def _fault(found):
    """Return what in the unpickled metadata is of another type than it should be, or None."""
    if type(found) is not metadata.Metadata:
        return type(found).__name__
    if type(found.state_dict_metadata) is not dict or type(found.storage_data) is not dict:
        return "no names or no places"
    for name, one in found.state_dict_metadata.items():
        if type(one) is metadata.TensorStorageMetadata:
            sizes = [one.size, *(size for chunk in one.chunks for size in (chunk.offsets, chunk.sizes))]
            if not isinstance(one.properties.dtype, torch.dtype) or any(type(size) is not torch.Size for size in sizes):
                return f"no dtype or sizes of {name!r}"
        elif type(one) is not metadata.BytesStorageMetadata or type(name) is not str:
            return f"{type(one).__name__} under {name!r}"
    for index, place in found.storage_data.items():
        if type(index) is not metadata.MetadataIndex or type(place) is not filesystem._StorageInfo:
            return "places of another kind"
        if not (type(place.offset) is int and type(place.length) is int and min(place.offset, place.length) >= 0):
            return f"no place for {index.fqn!r}"
        if index.fqn not in found.state_dict_metadata:
            return f"a place for {index.fqn!r}, which has no name"
    return None


def _file_names(path, items):
    """Return the names of the files that things lie in. Raises LabError unless they are in the folder."""
    names = sorted({str(place.relative_path) for place in items.values()})
    for name in names:
        if Path(name).name != name:
            raise LabError(f"{path / METADATA}: found {name!r} as a file, wanted names of files beside it")
    return names


def _top(found, name):
    """Return the key at the top of what was saved under which `name` was, where that is known."""
    where = found.planner_data.get(name) if isinstance(found.planner_data, dict) else None
    return where[0] if isinstance(where, tuple) and where else name
