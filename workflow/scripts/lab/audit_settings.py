"""The `audit` section of the config: the trainers, and what of it a trainer may have of its own."""

from lab import trainer_command
from lab.errors import LabError
from lab.settings import check_ascending

# Cases that every audit has, beside those that the config calls stops.
RESERVED_CASES = ["repeat", "save", "killed"]
# What a trainer has that doesn't say otherwise, and what it takes over from the section.
DEFAULTS = {"packages": ["torch"], "expect": None, "weights": "weights.pth", "shell": False, "fixed_by": None}
SHARED = ["steps", "stops", "save_at", "timeout"]


def trainers(audit):
    """Return the trainers of the section `audit` by name, each with all keys: what it doesn't say is the section's or the default."""
    shared = {key: audit[key] for key in SHARED}
    return {name: {**DEFAULTS, **shared, **own} for name, own in audit["trainers"].items()}


def audited(audit):
    """Return the names of the trainers that audit.md and check_audit are about."""
    return audit["only"] or list(audit["trainers"])


def check(audit):
    """Raise LabError, one line, unless each trainer of the section `audit`, which fits the schema, can be audited as it says."""
    names = list(audit["trainers"])
    for name in audit["only"]:
        _check_known("audit.only", name, names)
    for name, trainer in trainers(audit).items():
        own = audit["trainers"][name]
        sections = {key: f"audit.trainers.{name}" if key in own else "audit" for key in SHARED}
        if not trainer["shell"]:
            try:
                trainer_command.split(trainer["command"])
            except LabError as error:
                raise LabError(f"config key audit.trainers.{name}.command: {error}") from error
        for path in trainer_command.named(trainer["command"]):
            if "{" in path or "}" in path:
                raise LabError(f"config key audit.trainers.{name}.command: found {path!r}, wanted files without braces in their names")
        for case, steps in trainer["stops"].items():
            if case in RESERVED_CASES:
                raise LabError(f"config key {sections['stops']}.stops: found {case}, wanted a name other than {', '.join(RESERVED_CASES)}")
            check_ascending(f"{sections['stops']}.stops.{case}", steps, trainer["steps"])
        check_ascending(f"{sections['save_at']}.save_at", [trainer["save_at"]], trainer["steps"])
        if trainer["fixed_by"] is not None:
            _check_known(f"audit.trainers.{name}.fixed_by", trainer["fixed_by"], names)


def _check_known(key, name, names):
    if name not in names:
        raise LabError(f"config key {key}: found {name!r}, wanted one of {', '.join(names)}")
