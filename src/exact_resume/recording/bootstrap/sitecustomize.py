"""Python imports this at the start of each process of a recorded program, since its folder stands first in PYTHONPATH.

It takes itself out of the way, gives way to the sitecustomize that would have been imported, and waits for torch. It
needs nothing but Python: most processes of a program never train.
"""

import importlib
import importlib.util
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

# The launcher says here what is recorded, as JSON.
VARIABLE = "EXACT_RESUME_RECORD"


class WaitsForTorch:
    """A finder of modules that finds none, and has torch watched as soon as it was imported."""

    def __init__(self, wanted):
        self.wanted = wanted

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            # It may come onto the path yet.
            sys.meta_path.insert(0, self)
            return spec
        spec.loader = ThenWatched(spec.loader, self.wanted)
        return spec


class ThenWatched:
    """Loads torch as `loader` does, and has it watched then."""

    def __init__(self, loader, wanted):
        self.loader, self.wanted = loader, wanted

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            watch(self.wanted)
        except Exception as error:
            with suppress(OSError), open(Path(self.wanted["folder"]) / "problems.txt", "a") as file:
                file.write(f"not watched: {type(error).__name__}: {' '.join(str(error).split())}\n")

    def __getattr__(self, name):
        return getattr(self.loader, name)


def watch(wanted):
    """Import the watcher from where it lies, whatever the program's own path is, with what it needs."""
    package, before, had, brought = Path(wanted["package"]), list(sys.path), set(sys.modules), []
    try:
        # At the end: what the program has comes first. Another Python's would not do.
        if wanted["python"] == list(sys.version_info[:2]):
            brought = [place for place in wanted["needed"] if place not in sys.path]
            sys.path += brought
        spec = importlib.util.spec_from_file_location(
            package.name, package / "__init__.py", submodule_search_locations=[str(package)]
        )
        if package.name not in sys.modules:
            module = sys.modules[package.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        watcher = importlib.import_module(f"{package.name}.recording.watcher")
    finally:
        sys.path[:] = before
        if brought:
            # The program is to find none that it hasn't; but numpy's modules import one another late.
            for name in [name for name in set(sys.modules) - had if "xxhash" in name]:
                del sys.modules[name]
    watcher.install(wanted)


def give_way():
    """Import the sitecustomize that there would be without this one."""
    own = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != own]
    this = sys.modules.pop("sitecustomize")
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    # Whoever imports this one finds what it has imported.
    sys.modules.setdefault("sitecustomize", this)


if __name__ == "sitecustomize":
    if VARIABLE in os.environ:
        sys.meta_path.insert(0, WaitsForTorch(json.loads(os.environ[VARIABLE])))
    give_way()
