"""What a run may remember: the one list of its components. Cheap: no torch is imported."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Component:
    """One thing that a run remembers: an attribute of Run with state_dict() and load_state_dict()."""

    name: str  # in the resume file and in recipes
    attribute: str  # of exact_resume.lab.run.Run
    exists: Callable[[dict], bool] = lambda settings: True  # whether a run with these settings has it
    verbs: tuple[str, ...] = ()  # what a recipe may do to it beside `omit`
    traced: bool = True  # False where a trace sees it by itself


# In the order of the resume file.
COMPONENTS = (
    Component("model", "model", verbs=("round",)),
    Component("optimizer", "optimizer", verbs=("round",)),
    Component("step", "position"),
    Component("gen_state", "batches", verbs=("replay",)),
    Component(
        "gradients",
        "gradients",
        lambda settings: settings["training"]["accumulation"] > 1,
        verbs=("round",),
        traced=False,
    ),
    Component("scaler", "scaler", lambda settings: settings["training"]["precision"] == "float16"),
    Component("ema", "average", lambda settings: settings["training"]["ema"] > 0, verbs=("round",)),
    Component("rng", "generators", lambda settings: settings["model"]["dropout"] > 0, traced=False),
)


def existing(settings):
    """Return the components that a run with these settings has, in the order of the resume file."""
    return [component for component in COMPONENTS if component.exists(settings)]
