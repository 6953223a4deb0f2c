"""Holding a run's trace against the reference's: where they part first, which component was lost, and what was done to it."""

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import xxhash

from lab.errors import LabError

# The digest of nothing: what an optimizer that never stepped, or gradients that were never computed, have.
EMPTY = xxhash.xxh3_128_hexdigest(b"")
PRECISIONS = ["float16", "bfloat16"]
# Columns that help to tell what was done to a component and are none themselves.
HELPERS = [*PRECISIONS, "unordered", "kind"]
PARTS = ["buffers", "gradients", "mode", "settings"]
GENERATORS = ["rng.torch", "rng.cuda", "rng.numpy", "rng.python"]
# What a step is given by others: by the sampler and its generator, and by the schedule.
GIVEN = ["batch", "lr"]
# A step's number has fewer digits.
LONGEST_STEP = 16
COUNTER = "at_step"


@dataclass
class Row:
    """One step of a trace: its number and its cells by column."""

    step: int
    cells: dict


def read(path):
    """Return the rows of the trace at `path`, a list of Row. Raises LabError, one line, when it is not a whole trace."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise LabError(f"{path}: no such trace") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: not a trace: {error}") from error
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise LabError(f"{path}: not a trace: {error}") from error
    if len(lines) < 2:
        raise LabError(f"{path}: empty, wanted a trace with at least one step")
    columns = lines[0]
    for column in columns:
        if not _is_known(column, columns):
            raise LabError(f"{path}: unknown column {column!r}, wanted those that Trace writes")
    for needed in (COUNTER, "configuration", "loss"):
        if needed not in columns:
            raise LabError(f"{path}: no column {needed}, wanted a trace")
    for column in columns:
        name, _, part = column.rpartition(".")
        missing = [helper for helper in PRECISIONS if f"{name}.{helper}" not in columns]
        if part == "unordered" and missing:
            raise LabError(f"{path}: no column {name}.{missing[0]}, wanted a trace")
    if columns[0] != COUNTER:
        raise LabError(f"{path}: found {columns[0]} as its first column, wanted {COUNTER}")
    if len(set(columns)) < len(columns):
        raise LabError(f"{path}: found a column twice, wanted a trace")
    if not text.endswith("\n") or len(lines[-1]) != len(columns):
        raise LabError(f"{path}: cut in the middle of row {len(lines) - 1}, wanted whole rows")
    rows = []
    for number, line in enumerate(lines[1:], 1):
        if len(line) != len(columns) or not line[0].isdecimal() or len(line[0]) > LONGEST_STEP:
            first = [cell[:LONGEST_STEP] for cell in line[:1]]
            raise LabError(f"{path}: row {number}: found {len(line)} cells, the first {first}, wanted {len(columns)} and a step")
        cells = dict(zip(columns, line))
        rows.append(Row(int(cells.pop(COUNTER)), cells))
    return rows


def _is_known(column, columns):
    name, _, part = column.rpartition(".")
    return not name or column in GENERATORS or (name in columns and part in [*HELPERS, *PARTS, "after"])


def diagnose(reference, legs):
    """Return what the traces tell of a run, as a dict for JSON.

    `reference` and each of `legs`, the traces of the run's processes in their order, are (path, rows) as `read` returns them. Keys:
    `verdict`, which is identical, inputs or computation; `first_step` and `last_step` of the run that the reference has too; `step` where
    it parts from the reference and `as_step`, the reference's step that it is held against there; `culprits`, each with `component`,
    `action`, and `by` (steps) or `other` (a component) or `found` and `wanted` where they apply; `explained`, what of the batch, the
    learning rate and an optimizer's settings differs because a culprit does; `notes` on missing and repeated steps, each with `kind` and
    `steps`; `unused`, generators that differ but are never drawn from. Raises LabError when they are not traces of one configuration, or
    have no step in common.
    """
    path, rows = reference
    for leg_path, leg in legs:
        _check_same_setup(path, rows, leg_path, leg)
    steps = {row.step: row.cells for row in rows}
    if len(steps) < len(rows):
        raise LabError(f"{path}: a step stands in it twice, wanted a reference without repeated steps")
    other = [row for _, leg in legs for row in leg]
    common = [row for row in other if row.step in steps]
    if not common:
        wanted = f"wanted some of {rows[0].step}…{rows[-1].step}"
        raise LabError(f"{legs[0][0]}: no step in common with {path}: found {other[0].step}…{other[-1].step}, {wanted}")
    unused = [name for name in GENERATORS if name in rows[0].cells and len({row.cells[name] for row in [*rows, *other]}) > 1]
    unused = [name for name in unused if all(len({row.cells[name] for row in part}) == 1 for part in (rows, *(leg for _, leg in legs)))]
    result = {
        "verdict": "identical",
        "first_step": common[0].step,
        "last_step": common[-1].step,
        "step": None,
        "as_step": None,
        "culprits": [],
        "explained": [],
        "notes": _notes(rows, other),
        "unused": unused,
    }
    for row in common:
        wanted = steps[row.step]
        if any(row.cells[name] != wanted[name] for name in _inputs(wanted, unused)):
            as_step = _counterpart(steps, row, unused)
            culprits, explained = _culprits(steps, row, as_step, unused)
            result.update(verdict="inputs", step=row.step, as_step=as_step, culprits=culprits, explained=explained)
            break
        outputs = [name for name in wanted if name == "loss" or name.endswith(".after")]
        if any(row.cells[name] != wanted[name] for name in outputs):
            result.update(verdict="computation", step=row.step, as_step=row.step)
            break
    return result


def _check_same_setup(path, rows, other_path, other):
    own, found = rows[0].cells, other[0].cells
    if found["configuration"] != own["configuration"]:
        raise LabError(f"{other_path}: comes from another configuration than {path}, wanted traces of one configuration")
    for name in found:
        if name not in own:
            raise LabError(f"{other_path}: unknown column {name!r}, which {path} doesn't have")
    for name in own:
        if name not in found:
            raise LabError(f"{other_path}: no column {name!r}, which {path} has")


def _notes(rows, other):
    """Return what is odd about the run's steps: repeated, missing where the reference has them, or beyond the reference's; too few."""
    taken, known = Counter(row.step for row in other), [row.step for row in rows]
    first, last = min(taken), max(taken)
    found = {
        "repeated": sorted(step for step, times in taken.items() if times > 1),
        "missing": [step for step in known if first < step < last and step not in taken],
        "beyond": sorted(step for step in taken if not known[0] <= step <= known[-1]),
        "ends_early": [last] if last < known[-1] else [],
    }
    return [{"kind": kind, "steps": steps} for kind, steps in found.items() if steps]


def _inputs(cells, unused):
    """Return the columns that stand for what goes into a step."""
    left_out = ("configuration", "loss", *unused)
    return [name for name in cells if name not in left_out and name.rpartition(".")[2] not in (*HELPERS, "after")]


def _counterpart(steps, row, unused):
    """Return the reference's step that the run's row is to be held against.

    That is the step of the same number, unless all inputs are those of another step but the first, except for plain numbers, such as the
    learning rate, which may go by the step's number; or the weights are, and with them more of what changes in between than is as it should
    be: then the run counts its steps wrong.
    """
    cells, here, fresh = row.cells, steps[row.step], steps[min(steps)]
    inputs = _inputs(cells, unused)
    weights = [name for name in inputs if f"{name}.after" in cells]

    def is_counterpart(there):
        differing = [name for name in inputs if cells[name] != there[name]]
        if all(cells[name] == here[name] and not _is_digest(cells[name]) for name in differing):
            return True
        changed = [name for name in inputs if there[name] != here[name]]
        return (
            any(name in changed and there[name] != fresh[name] for name in weights)
            and not any(name in differing for name in weights)
            and sum(cells[name] == there[name] for name in changed) > sum(cells[name] == here[name] for name in changed)
        )

    for step in sorted(set(steps) - {row.step, min(steps)}, key=lambda step: (abs(step - row.step), step)):
        if is_counterpart(steps[step]):
            return step
    return row.step


def _culprits(steps, row, as_step, unused):
    """Return the inputs that differ from the reference's at `as_step` and that no other one explains, each with what was done to it, and
    the names of those that another one explains.
    """
    cells, wanted = row.cells, steps[as_step]
    differing = [name for name in _inputs(cells, unused) if cells[name] != wanted[name]]
    found = []
    if as_step != row.step:
        found.append({"component": COUNTER, **_moved(row.step, as_step)})
        # Whatever goes by the wrong number is wrong because of it.
        differing = [name for name in differing if cells[name] != steps[row.step][name]]
    explained = [name for name in differing if _is_explained(steps, cells, name, differing)]
    found += [{"component": name, **_action(steps, row, as_step, name)} for name in differing if name not in explained]
    return found, explained


def _is_explained(steps, cells, name, differing):
    """Whether `name` differs because another input does: a batch or a learning rate because of what gives it to the step, an optimizer's
    settings because the optimizer was lost.

    Either both are as at one and the same step of the reference, or it was never like this in the reference and one of the others, which
    can give it, differs too; a learning rate only if that is a scheduler, or no optimizer and was never like this either.
    """
    places = _places(steps, cells, name)
    givers = [other for other in differing if _can_give(cells, other, name)]
    if places:
        return any(places & _places(steps, cells, giver) for giver in givers)
    if name == "lr":
        givers = [giver for giver in givers if f"{giver}.settings" not in cells]
        return any(cells.get(f"{giver}.kind") == "scheduler" or not _places(steps, cells, giver) for giver in givers)
    return name == "batch" and bool(givers)


def _can_give(cells, other, name):
    """Whether the component `other` can be what decides on the batch, the learning rate or the settings `name`."""
    is_optimizer, kind = f"{other}.settings" in cells, cells.get(f"{other}.kind")
    if name.endswith(".settings"):
        return name == f"{other}.settings"
    if name == "lr" and is_optimizer:
        # It holds the rate that it was given last.
        return True
    if name not in GIVEN or other in GIVEN or _is_tensors(cells, other.partition(".")[0]):
        return False
    return kind != "scaler" and not (kind == "scheduler" and name == "batch") and not (other in GENERATORS and name == "lr")


def _is_tensors(cells, name):
    return f"{name}.unordered" in cells


def _places(steps, cells, name):
    """Return the reference's steps at which `name` is what it is in `cells`."""
    return {step for step, reference in steps.items() if reference[name] == cells[name]}


def _action(steps, row, as_step, name):
    """Return what was done to the component `name`, as far as the traces show."""
    cells, wanted = row.cells, steps[as_step]
    value = cells[name]
    if name.endswith(".mode"):
        return {"action": "different", "found": value, "wanted": wanted[name]}
    # A reference that was itself resumed doesn't show what was before training.
    fresh = (EMPTY, steps[min(steps)][name]) if min(steps) <= 1 else (EMPTY,)
    if name not in GIVEN and value in fresh:
        return {"action": "lost"}
    places = _places(steps, cells, name)
    if places:
        return _moved(min(places, key=lambda step: (abs(step - as_step), step)), as_step)
    if _is_tensors(cells, name):
        for precision in PRECISIONS:
            if cells[f"{name}.{precision}"] == "=" + wanted[f"{name}.{precision}"][1:]:
                return {"action": "rounded", "to": precision}
    for other in _inputs(wanted, GIVEN):
        if other != name and _is_digest(value) and wanted[other] == value:
            return {"action": "swapped", "other": other}
    if _is_tensors(cells, name) and cells[f"{name}.unordered"] == wanted[f"{name}.unordered"]:
        return {"action": "reordered"}
    if not _is_digest(value) and not _is_digest(wanted[name]):
        return {"action": "different", "found": value, "wanted": wanted[name]}
    return {"action": "different"}


def _moved(step, as_step):
    """Return the action that makes the place `step` of what should stand at `as_step`."""
    return {"action": "rewound" if step < as_step else "skipped_ahead", "by": abs(step - as_step)}


def _is_digest(value):
    return len(value) == 32 and set(value) <= set("0123456789abcdef")


def sentence(result):
    """Return the diagnosis as plain English text of one line."""
    if result["verdict"] == "identical":
        parts = [f"identical through step {result['last_step']}"]
    elif result["verdict"] == "computation":
        parts = [
            f"all that goes into step {result['step']} is the same and what comes out is not: the computation is not repeatable "
            "(threads, kernel, hardware), or something goes into it that is not traced"
        ]
    else:
        told = ", ".join(_told(culprit) for culprit in result["culprits"])
        at = f"step {result['step']}"
        if result["as_step"] != result["step"]:
            at += f", which begins as the reference's step {result['as_step']}"
        parts = [f"differs from {at}: {told}"]
        if result["explained"]:
            parts.append(f"because of that {' and '.join(result['explained'])} differ{'s' if len(result['explained']) == 1 else ''} too")
    for note in result["notes"]:
        listed = ", ".join(map(str, note["steps"][:6])) + (", …" if len(note["steps"]) > 6 else "")
        plural = "s" if len(note["steps"]) > 1 else ""
        parts.append(
            {
                "repeated": f"step{plural} {listed} trained more than once",
                "missing": f"step{plural} {listed} missing",
                "beyond": f"step{plural} {listed} not in the reference",
                "ends_early": f"it ends before the reference, after step {listed}",
            }[note["kind"]]
        )
    if result["unused"]:
        parts.append(f"{', '.join(result['unused'])} differ but are never drawn from")
    return "; ".join(parts)


def _told(culprit):
    name = "the step count" if culprit["component"] == COUNTER else culprit["component"]
    by = culprit.get("by")
    steps = f"{by} step{'s' if by != 1 else ''}"
    if culprit["action"] == "different" and "found" in culprit:
        return f"{name} is different (found {culprit['found']}, wanted {culprit['wanted']})"
    return {
        "lost": f"{name} was lost (it is as before training)",
        "rewound": f"{name} was rewound by {steps}",
        "skipped_ahead": f"{name} was skipped ahead by {steps}",
        "rounded": f"{name} was rounded to {culprit.get('to')} (the resume file holds half precision)",
        "swapped": f"{name} holds the values of {culprit.get('other')}",
        "reordered": f"{name} holds the right tensors in wrong places",
        "different": f"{name} is different",
    }[culprit["action"]]
