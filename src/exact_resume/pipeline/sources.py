"""What the code of a script means: its own, and that of all modules of the project that it reaches."""

import ast
import hashlib
import os
import warnings
from functools import cache
from pathlib import Path
from typing import NamedTuple

import exact_resume

# The package that this module lies in: it is found wherever a script lies.
PACKAGE = Path(exact_resume.__file__).parent
# Calls that import a module by its name.
IMPORTERS = ["import_module", "__import__", "run_module"]


def code_digest(script, roots=()):
    """Return the SHA-256, as hex, of what the code of `script` and of the modules that it reaches (see `sources`)
    means.

    Comments, docstrings, formatting and line numbers don't count, nor does the folder in which it all lies. What can't
    be parsed counts byte by byte: that it is broken is found out when it is run.
    """
    folders = [*_folders(script, roots), os.path.realpath(PACKAGE.parent)]
    digest = hashlib.sha256()
    for path in sources(script, roots):
        digest.update(f"{_name(path, folders)}\n{_module(path.read_bytes()).meaning}\n".encode())
    return digest.hexdigest()


def sources(script, roots=()):
    """Return the Path of `script` and, sorted, those of all modules that it imports, directly or through each other.

    They are looked for in the script's own folder and in the folders `roots`, in all of them, since a script may change
    the order; relative imports in the module's own. What is in none of these (the standard library, installed packages
    but this one) is left out, as are modules whose names are only known when the code runs. All paths are absolute,
    without links.
    """
    script = os.path.realpath(script)
    folders = _folders(script, roots)
    found, waiting = set(), [script]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for level, name in _module(Path(path).read_bytes()).imports:
            waiting += _relative(path, level, name) if level else modules(name, folders)
    return [Path(path) for path in (script, *sorted(found - {script}))]


def modules(name, folders):
    """Return the paths of the module with this dotted name and of the packages that it lies in, as far as they are in
    `folders` or in this package.
    """
    package, _, rest = name.partition(".")
    if package != PACKAGE.name:
        return [path for folder in folders for path in _modules_in(folder, name)]
    return _modules_in(PACKAGE.parent, exact_resume.LATE.get(rest, name))


class Module(NamedTuple):
    imports: tuple  # of pairs of the number of leading dots and a dotted name, maybe of no module
    meaning: str  # a SHA-256


def _folders(script, roots):
    return list(dict.fromkeys(map(os.path.realpath, [Path(os.path.realpath(script)).parent, *roots])))


def _name(path, folders):
    """The path below the innermost of `folders` that it lies in; it doesn't change when all of them are moved."""
    names = [os.path.relpath(path, folder) for folder in folders]
    return Path(min(names, key=lambda name: (name.startswith(os.pardir), len(name)))).as_posix()


def _relative(path, level, name):
    """The modules for an import with `level` leading dots in the module at `path`."""
    folder = Path(path).parents[level - 1] if level <= len(Path(path).parents) else Path(path).parent
    return [*_file(f"{folder}/__init__"), *_modules_in(folder, name)]


def _modules_in(folder, name):
    found, stem = [], str(folder)
    for part in name.split("."):
        stem = f"{stem}/{part}"
        here = _file(f"{stem}/__init__") or _file(stem)
        if not here and not os.path.isdir(stem):
            break
        found += here
    return found


def _file(stem):
    return [f"{stem}.py"] if os.path.isfile(f"{stem}.py") else []


@cache
def _module(content):
    """The Module that these bytes make."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(content)
        words = []
        _append_meaning(tree, words)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Module((), hashlib.sha256(content).hexdigest())
    return Module(tuple(dict.fromkeys(_imports(tree))), hashlib.sha256("\0".join(words).encode()).hexdigest())


def _imports(tree):
    for node in _run(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield node.level, module
            # Each name may be a module too.
            yield from ((node.level, f"{module}.{alias.name}".lstrip(".")) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.args[0].value
            if _name_of(node.func) in IMPORTERS and isinstance(name, str):
                yield len(name) - len(name.lstrip(".")), name.lstrip(".")


def _run(tree):
    """Yield the nodes of a syntax tree but those that only type checkers look at."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for_checkers = isinstance(node, ast.If) and _name_of(node.test) == "TYPE_CHECKING"
        waiting += node.orelse if for_checkers else ast.iter_child_nodes(node)


def _name_of(node):
    """The name that a node is, or the last part of one with dots; None of other nodes."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _append_meaning(node, words):
    """Append to `words` the syntax tree below `node`, without the statements that do nothing: docstrings, other bare
    constants, `pass`.
    """
    if not isinstance(node, ast.AST):
        words.append(repr(node))
        return
    words.append(type(node).__name__)
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, list):
            words.append("[")
            for item in value:
                if not _does_nothing(item):
                    _append_meaning(item, words)
            words.append("]")
        # The u in front of a text is formatting.
        elif field != "kind":
            _append_meaning(value, words)


def _does_nothing(node):
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
