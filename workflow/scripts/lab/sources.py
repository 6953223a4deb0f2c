"""Which files of this project a script is made of."""

import ast
from pathlib import Path


def sources(script):
    """Return the Path of `script` and, sorted, those of all modules beside it that it imports, directly or through each other."""
    script = Path(script)
    folder = script.parent
    found, waiting = set(), [script]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for module in _imports(path):
            candidates = [folder.joinpath(*module.split(".")).with_suffix(".py"), folder.joinpath(*module.split("."), "__init__.py")]
            waiting.extend(candidate for candidate in candidates if candidate.exists())
    return [script, *sorted(found - {script})]


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
