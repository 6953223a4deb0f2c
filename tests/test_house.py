"""The package's rooms: what imports what."""

import ast
import graphlib
from pathlib import Path

import pytest

from exact_resume.pipeline.sources import PACKAGE

# From the lowest floor to the highest; rooms of one floor don't know each other.
FLOORS = [
    ["errors", "project"],
    ["tracing"],
    ["checkpoint", "diagnosis"],
    ["lab", "faults", "pipeline"],
    ["recording"],
    ["audit"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(PACKAGE.rglob("*.py"))
# The package itself, whose names are imported late, belongs to no floor.
INSIDE = [path for path in MODULES if path != PACKAGE / "__init__.py"]


def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def imported(path):
    """The names of all modules that the one at `path` imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in NAMES else node.module for name in whole}
    return names


def room(name):
    return name.split(".")[1]


@pytest.mark.parametrize("path", INSIDE, ids=name_of)
def test_imports_lead_downwards(path):
    own = room(name_of(path))
    others = {room(name) for name in imported(path) if name.startswith("exact_resume.")} - {own}
    assert {other for other in others if FLOOR[other] >= FLOOR[own]} == set()


def test_no_modules_import_each_other_in_a_circle():
    inside = {name_of(path): imported(path) & NAMES - {name_of(path), "exact_resume"} for path in INSIDE}
    order = list(graphlib.TopologicalSorter(inside).static_order())
    assert set(inside) <= set(order)


def test_nouns_know_neither_snakemake_nor_a_command_line():
    foreign = {"snakemake", "argparse", "typer", "click"}
    knowing = {name_of(path) for path in INSIDE if {name.split(".")[0] for name in imported(path)} & foreign}
    assert knowing == {"exact_resume.cli"}


def test_every_room_says_what_it_is_for():
    for folder in filter(Path.is_dir, PACKAGE.iterdir()):
        if folder.name != "__pycache__":
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder
