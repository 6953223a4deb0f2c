"""Capturing and restoring what a run remembers: a dict of named components that speak state_dict() and
load_state_dict().
"""

import torch

from exact_resume.checkpoint import archive
from exact_resume.errors import LabError


def capture(components):
    """Return the resume file's contents: the state of each component by name."""
    return {name: component.state_dict() for name, component in components.items()}


def restore(components, state, path, recipe):
    """Put `state`, read from the resume file `path`, back into `components`, as `recipe` says.

    `recipe` maps omit, round and replay to component names: those omitted stay as they were made, those rounded lose
    what float16 can't hold, those replayed are brought to their place from the seed instead of from the file. Raises
    LabError naming the component that is missing, unknown or doesn't fit.
    """
    for name, component in components.items():
        if name in recipe.get("omit", []):
            continue
        if name in recipe.get("replay", []):
            component.replay(state["step"])
            continue
        value = rounded(state[name]) if name in recipe.get("round", []) else state[name]
        if isinstance(component, torch.nn.Module):
            archive.fill(component, value, path)
            continue
        try:
            component.load_state_dict(value)
        except Exception as error:
            # Whatever a hostile file makes torch trip over.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise LabError(f"{path}: component {name} doesn't fit this run: {reason}") from error


def check(state, names, first, last, path):
    """Raise LabError unless `state`, read from `path`, has just the components `names` and a step in
    `first`...`last`.
    """
    if type(state) is not dict:
        raise LabError(
            f"{path}: found {type(state).__name__}, wanted a resume file with the components {', '.join(names)}"
        )
    for name in names:
        if name not in state:
            raise LabError(
                f"{path}: component {name} is missing from the resume file; found {archive.show(list(state))}"
            )
    for name in state:
        if name not in names:
            raise LabError(f"{path}: component {name} is unknown; wanted {', '.join(names)}")
    step = state["step"]
    if type(step) is not int or not first <= step <= last:
        raise LabError(f"{path}: component step: found {archive.show(step)}, wanted a whole number in {first}...{last}")


def rounded(value):
    """Return `value` with every float32 tensor in it rounded to float16 and back, as after a save in half precision."""
    if isinstance(value, torch.Tensor):
        return value.half().to(value.dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value
