"""Weights in safetensors files: one, or several with an index. The format has no checksums, just sizes."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from exact_resume.checkpoint.contents import SAFETENSORS, Contents, kind
from exact_resume.errors import LabError

# An index is a name or two for each tensor.
LONGEST_INDEX = 2**28


class SafetensorsFiles(Contents):
    """The contents of safetensors files, by their paths, each with where it is to be read; `path` names them all."""

    form, checked = "safetensors", "sizes"

    def __init__(self, path: Path, files: dict[Path, Path]):
        super().__init__(path)
        self.files, self._places, self._open = files, {}, {}
        for file, real in files.items():
            handle = self._handle(file)
            for name in handle.keys():  # noqa: SIM118 (not a dict)
                if name in self._places:
                    raise LabError(f"{file}: found the tensor {name}, which is in {self._places[name].name} too")
                self._places[name], self.kinds[name] = file, kind(handle.get_tensor(name))
            self.bytes += os.stat(real).st_size
        self.top = list(self.kinds)

    def _tensor(self, name):
        return self._handle(self._places[name]).get_tensor(name)

    def _reopen(self):
        self._open.clear()

    def _handle(self, file):
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.files[file], framework="pt")
            except (OSError, SafetensorError) as error:
                raise LabError(f"{file}: not a safetensors file: {error}") from error
        return self._open[file]


class Sharded(SafetensorsFiles):
    """The contents of the files in which the index `path` says that the tensors are; they lie beside it."""

    form = "sharded safetensors"

    def __init__(self, path: Path, real: Callable[[Path], Path]):
        index = real(path)
        places = _places(path, index)
        names = sorted(set(places.values()))
        super().__init__(path, {path.with_name(name): real(path.with_name(name)) for name in names})
        found = {name: file.name for name, file in self._places.items()}
        for name in sorted(places.keys() ^ found.keys()):
            where = f"no tensor {name} in {places[name]}" if name in places else f"the tensor {name} in {found[name]}"
            raise LabError(f"{path}: found {where}, wanted the tensors that the index names")
        for name in sorted(places):
            if places[name] != found[name]:
                raise LabError(f"{path}: tensor {name}: found in {found[name]}, wanted in {places[name]}")
        self.bytes += os.stat(index).st_size


def _places(path, index):
    """Return the file's name for each tensor's that the index says. Raises LabError unless they are beside it."""
    try:
        if os.stat(index).st_size > LONGEST_INDEX:
            raise LabError(f"{path}: found more than {LONGEST_INDEX} bytes, wanted an index of safetensors files")
        content = json.loads(index.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise LabError(f"{path}: not an index of safetensors files: {error}") from error
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places:
        raise LabError(f"{path}: found no weight_map, wanted an index of safetensors files")
    for name in places.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(SAFETENSORS):
            raise LabError(f"{path}: found {name!r} as a file, wanted names of safetensors files beside it")
    return places
