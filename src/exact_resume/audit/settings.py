"""The `audit` section of the config: the trainers, and what of it a trainer may have of its own."""

import re
import shlex

from exact_resume.audit import command
from exact_resume.audit.process import CALLS, CHECKPOINT, LOG, LOSSES, SAVED, TRACE
from exact_resume.audit.result import KILLED, OTHER_DATA, SAVED_TWICE
from exact_resume.errors import LabError
from exact_resume.lab.settings import check_apart, check_ascending, load

# Cases that every audit has, beside those that the config calls stops.
RESERVED_CASES = ["repeat", "save", KILLED, SAVED_TWICE]
# What else stands in the folder of a trainer's process.
RESERVED_FILES = [CHECKPOINT, SAVED, LOSSES, TRACE, LOG, CALLS]
# What a trainer has that doesn't say otherwise, and what it takes over from the section.
DEFAULTS = {
    "packages": ["torch"],
    "expect": None,
    "weights": "weights.pth",
    "shell": False,
    "fixed_by": None,
    "advice": {},
}
SHARED = ["steps", "stops", "save_at", "timeout"]
# What a trainer has because of its command.
OF_THE_COMMAND = ["advice", "fixed_by"]
# Stands in a command for the checkout of MiniMind that the config names.
CHECKOUT = "{minimind}"


def trainers(audit, minimind):
    """Return the trainers of the section `audit` by name, each with all keys: what it doesn't say is the section's or
    the default.

    `minimind` is a checkout of MiniMind, or None: then the trainers that need one have the key `skip`, which says so,
    and else None. What config.yaml says of the trainer that it calls so itself is not said of another one, which has
    another command.
    """
    shared = {key: audit[key] for key in SHARED}
    found = {name: {**DEFAULTS, **shared, **own, "skip": None} for name, own in audit["trainers"].items()}
    ours = load()["audit"]["trainers"]
    for name in ours.keys() & found.keys():
        if found[name]["command"] != ours[name]["command"]:
            for key in OF_THE_COMMAND:
                if found[name][key] == ours[name].get(key):
                    found[name][key] = DEFAULTS[key]
    for trainer in found.values():
        if trainer["save_at"] is None:
            trainer["save_at"] = next(iter(trainer["stops"].values()))[0]
        if trainer["fixed_by"] not in audit["trainers"]:
            trainer["fixed_by"] = None
        if CHECKOUT in trainer["command"]:
            if minimind is None:
                trainer["skip"] = "it needs a checkout of MiniMind: --config minimind=PATH"
            else:
                trainer["command"] = trainer["command"].replace(CHECKOUT, shlex.quote(minimind))
    return found


def audited(audit):
    """Return the names of the trainers that audit.md and check_audit are about."""
    return audit["only"] or list(audit["trainers"])


def check(audit, minimind):
    """Raise LabError, one line, unless each trainer of the section `audit`, which fits the schema, can be audited as it
    says.

    `minimind`: see `trainers`.
    """
    names = list(audit["trainers"])
    shipped = load()["audit"]["trainers"]
    for name in audit["only"]:
        _check_known("audit.only", name, names)
    check_apart("audit.trainers", names)
    for name, trainer in trainers(audit, minimind).items():
        own = audit["trainers"][name]
        sections = {key: f"audit.trainers.{name}" if key in own else "audit" for key in SHARED}
        if not trainer["shell"]:
            try:
                command.split(trainer["command"])
            except LabError as error:
                raise LabError(f"config key audit.trainers.{name}.command: {error}") from error
        for path in command.named(trainer["command"]):
            if "{" in path or "}" in path:
                raise LabError(
                    f"config key audit.trainers.{name}.command: found {path!r}, wanted files without braces "
                    "in their names"
                )
        if trainer["weights"].casefold() in RESERVED_FILES:
            listed = ", ".join(RESERVED_FILES)
            raise LabError(
                f"config key audit.trainers.{name}.weights: found {trainer['weights']}, wanted a name other "
                f"than {listed}"
            )
        check_apart(f"{sections['stops']}.stops", trainer["stops"])
        for case, steps in trainer["stops"].items():
            if case.casefold() in RESERVED_CASES:
                raise LabError(
                    f"config key {sections['stops']}.stops: found {case}, wanted a name other than "
                    f"{', '.join(RESERVED_CASES)}"
                )
            if re.search(rf"{OTHER_DATA}\d+$", case.casefold()):
                raise LabError(
                    f"config key {sections['stops']}.stops: found {case}, wanted a name that doesn't end in "
                    f"{OTHER_DATA} and a number"
                )
            check_ascending(f"{sections['stops']}.stops.{case}", steps, f"{sections['steps']}.steps", trainer["steps"])
        check_ascending(
            f"{sections['save_at']}.save_at", [trainer["save_at"]], f"{sections['steps']}.steps", trainer["steps"]
        )
        # One of config.yaml's own may have been taken away, and then there is no cure to show.
        if own.get("fixed_by") not in (None, *shipped):
            _check_known(f"audit.trainers.{name}.fixed_by", own["fixed_by"], names)
        _check_cure(name, audit["trainers"])


def _check_cure(name, trainers):
    """Raise LabError if the trainer `name` is its own cure, or that of one that is its cure in turn."""
    cures, cure = [], trainers[name].get("fixed_by")
    while cure in trainers and cure not in cures:
        if cure == name:
            found = f"{cures[0]}, which is fixed by {name} in turn" if cures else name
            raise LabError(f"config key audit.trainers.{name}.fixed_by: found {found}, wanted another trainer")
        cures.append(cure)
        cure = trainers[cure].get("fixed_by")


def _check_known(key, name, names):
    if name not in names:
        raise LabError(f"config key {key}: found {name!r}, wanted one of {', '.join(names)}")
