"""Holding a run's trace against the reference's: where they part, which component was lost, and what was done to it."""

import csv
from collections import Counter
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

from exact_resume.errors import LabError
from exact_resume.tracing import plain_text
from exact_resume.tracing.format import (
    AFTER,
    BATCH,
    CONFIGURATION,
    DETACHED,
    EMPTY,
    GENERATORS,
    HELPERS,
    LOSS,
    NUMBER,
    PARTS,
    PRECISIONS,
    RATE,
    TAG,
    TITLE,
    UNITS,
    VERSION,
    Rounding,
    is_digest,
    part,
)

# What a row is given by others: by the sampler and its generator, and by the schedule.
GIVEN = [BATCH, RATE]
OUTPUTS = "outputs"
# What a component of a kind, or a part of a module or optimizer, can make differ; others can give anything.
GIVES = {
    "module": {OUTPUTS},
    "optimizer": {OUTPUTS, RATE},
    "scheduler": {RATE},
    "scaler": {OUTPUTS},
    "loader": {BATCH},
    "generator": {BATCH, OUTPUTS},
}
# Actions that say what was done, not just that something is otherwise.
TELLING = ("lost", "rewound", "skipped_ahead", "rounded", "swapped", "reordered")
# A row's number has fewer digits.
LONGEST_NUMBER = 16
# A sentence tells so many entries of a component and no more.
MOST_ENTRIES = 6


@dataclass(eq=False)
class Row:
    """One row of a trace: the number of its batch or update, and its cells by column."""

    number: int
    cells: dict


@dataclass
class TraceFile:
    """A trace that was read: its path, what a row is of (batch or update), and the Rows."""

    path: str
    unit: str
    rows: list


def read(path):
    """Return the TraceFile at `path`. Raises LabError, one line, when it is not a whole trace of this format."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise LabError(f"{path}: no such trace") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: not a trace: {error}") from error
    if not text:
        raise LabError(f"{path}: empty, wanted a trace")
    try:
        title, *lines = csv.reader(text.splitlines())
    except csv.Error as error:
        raise LabError(f"{path}: not a trace: {error}") from error
    if title[:1] != [TITLE] or len(title) != 3 or title[2] not in UNITS:
        raise LabError(
            f"{path}: found {','.join(title)[:80]!r} as its first line, wanted {TITLE!r} with version and unit"
        )
    if title[1] != VERSION:
        raise LabError(f"{path}: found a trace of format {title[1][:LONGEST_NUMBER]}, wanted format {VERSION}")
    columns, rows = None, []
    for number, line in enumerate(lines, 2):
        if line[:1] == [NUMBER]:
            columns = line
            _check_columns(path, columns)
        elif columns is None:
            raise LabError(f"{path}: line {number}: found no header, wanted one that begins with {NUMBER}")
        elif number == len(lines) + 1 and (len(line) != len(columns) or not text.endswith("\n")):
            raise LabError(f"{path}: cut in the middle of line {number}, wanted whole rows")
        elif len(line) != len(columns) or not line[0].isdecimal() or len(line[0]) > LONGEST_NUMBER:
            first = [cell[:LONGEST_NUMBER] for cell in line[:1]]
            raise LabError(
                f"{path}: line {number}: found {len(line)} cells, the first {first}, wanted {len(columns)} and a number"
            )
        else:
            cells = dict(zip(columns, line))
            rows.append(Row(int(cells.pop(NUMBER)), cells))
    return TraceFile(str(path), title[2], rows)


def _check_columns(path, columns):
    for column in columns:
        name, _, last = column.rpartition(".")
        if name and column not in GENERATORS and not (_is_known(name, columns) and last in (*HELPERS, *PARTS, AFTER)):
            raise LabError(f"{path}: unknown column {column!r}, wanted those that Trace writes")
    for needed in (CONFIGURATION, LOSS):
        if needed not in columns:
            raise LabError(f"{path}: no column {needed}, wanted a trace")
    if len(set(columns)) < len(columns):
        raise LabError(f"{path}: found a column twice, wanted a trace")


def _is_known(name, columns):
    return name in columns or name in GENERATORS or (part(name) in PARTS and name.rpartition(".")[0] in columns)


def diagnose(reference, legs, repeatable=None, same_weights=None):
    """Return what the traces tell of a run, as a dict for JSON.

    `reference` and each of `legs`, the traces of the run's processes in their order, are TraceFiles. `repeatable` is
    whether two uninterrupted runs are known to be equal, `same_weights` whether the run and the reference end with the
    same weights; None when that isn't known. Keys:

    - `verdict`: identical; inputs (`culprits` say which); computation or untraced (the inputs are the same, the outputs
      aren't); kept (only the final weights differ); or trained_nothing;
    - `unit` of a row; `first_row` and `last_row` of the run that the reference has too; `row` where it parts from the
      reference, `as_row`, the reference's row that it is held against there, and `shows`, the first row in which
      something comes of it;
    - `culprits`, each with `component`, `action`, and `by` (rows) or `other` (a component), `to` (a precision), `found`
      and `wanted`, `entries` (those that differ, each with its `key`, `found` and `wanted`, None where it isn't there),
      `tensors` (how many differ of how many) where they apply, and `parts` of the component that the same was done to;
    - `explained`: what of the batch, the learning rate and an optimizer's settings differs because a culprit does;
    - `latent`: what differs and has shown no effect, like culprits, with the row `since` when;
    - `outputs` that differ where the inputs don't; `notes` on missing and repeated rows, each with `kind` and `rows`,
      and on an optimizer that has nothing to do with the modules, its `component`; `unused`, generators that differ but
      are never drawn from; `not_looked_at`, components with types that have no digest.

    Raises LabError when they are not traces of one configuration, or have no row in common.
    """
    if not reference.rows:
        raise LabError(f"{reference.path}: found no rows, wanted a reference with at least one")
    for leg in legs:
        _check_same_setup(reference, leg)
    steps = {row.number: row.cells for row in reference.rows}
    if len(steps) < len(reference.rows):
        raise LabError(f"{reference.path}: a row stands in it twice, wanted a reference without repeated rows")
    other = [row for leg in legs for row in leg.rows]
    common = [row for row in other if row.number in steps]
    if other and not common:
        wanted = f"wanted some of {reference.rows[0].number}…{reference.rows[-1].number}"
        found = f"found {other[0].number}…{other[-1].number}"
        raise LabError(f"{legs[0].path}: no row in common with {reference.path}: {found}, {wanted}")
    result = {
        "verdict": "identical",
        "unit": reference.unit,
        "first_row": common[0].number if common else None,
        "last_row": common[-1].number if common else None,
        **dict.fromkeys(("row", "as_row", "shows")),
        **{key: [] for key in ("culprits", "explained", "latent", "outputs")},
        "notes": _notes(reference.rows, other) + _detached(reference.rows, other),
        "unused": _unused(reference.rows, legs),
        "not_looked_at": _not_looked_at(reference.rows, other),
    }
    whole = bool(common) and not {note["kind"] for note in result["notes"]} & {"ends_early", "missing", "beyond"}
    if not whole and not all(leg.rows for leg in legs):
        result["verdict"] = "trained_nothing"
    elif whole and same_weights is False:
        result["verdict"] = "kept"
    result.update(_Comparison(steps, common, result["unused"], repeatable, same_weights).result())
    return {**result, **{key: _with_parts(result[key]) for key in ("culprits", "latent")}}


def _with_parts(entries):
    """Return `entries`, culprits or what is latent, without parts of a component that the same was done to as to the
    component itself; its entry names them as `parts`.
    """
    found = {entry["component"]: entry for entry in entries}
    for name, entry in list(found.items()):
        owner = name.rpartition(".")[0]
        if part(name) in PARTS and owner in found and _way(found[owner]) == _way(entry):
            own = found[owner] = {**found[owner], "parts": [*found[owner].get("parts", []), part(name)]}
            counts = [one.pop("tensors", None) for one in (own, found.pop(name))]
            if all(counts):
                own["tensors"] = [sum(count) for count in zip(*counts)]
    return list(found.values())


def _way(entry):
    """Return what was done to a component or to a part of it, in the same words for both."""
    way = {key: value for key, value in entry.items() if key not in ("component", "parts", "tensors")}
    if entry["action"] == "swapped" and part(entry["component"]) in PARTS:
        way["other"] = entry["other"].removesuffix(f".{part(entry['component'])}")
    return way


def _check_same_setup(reference, other):
    if other.unit != reference.unit:
        raise LabError(
            f"{other.path}: found a row for each {other.unit}, wanted one for each {reference.unit}, as in "
            f"{reference.path}"
        )
    if other.rows and other.rows[0].cells[CONFIGURATION] != reference.rows[0].cells[CONFIGURATION]:
        raise LabError(
            f"{other.path}: comes from another configuration than {reference.path}, wanted traces of one configuration"
        )


def _notes(rows, other):
    """Return what is odd about the run's rows: repeated, missing where the reference has them, or beyond the
    reference's; too few.
    """
    if not other:
        return []
    taken, known = Counter(row.number for row in other), [row.number for row in rows]
    first, last = min(taken), max(taken)
    found = {
        "repeated": sorted(number for number, times in taken.items() if times > 1),
        "missing": [number for number in known if first < number < last and number not in taken],
        "beyond": sorted(number for number in taken if not known[0] <= number <= known[-1]),
        "ends_early": [last] if last < known[-1] else [],
    }
    return [{"kind": kind, "rows": numbers} for kind, numbers in found.items() if numbers]


def _detached(rows, other):
    """Return a note on each optimizer that has nothing to do with the registered modules, with the first row that shows
    it.
    """
    first = {}
    for row in [*rows, *other]:
        for column, value in row.cells.items():
            if value == DETACHED == part(column):
                first.setdefault(column.removesuffix(f".{DETACHED}"), row.number)
    return [{"kind": DETACHED, "component": name, "rows": [number]} for name, number in first.items()]


def _unused(rows, legs):
    """Return the generators that differ and are never drawn from: each process has the same state in all of its
    rows.
    """
    parts = [part for part in (rows, *(leg.rows for leg in legs)) if part]
    states = {name: [{row.cells.get(name) for row in part} for part in parts] for name in GENERATORS}
    return [
        name for name, found in states.items() if all(len(each) == 1 for each in found) and len(set.union(*found)) > 1
    ]


def _not_looked_at(rows, other):
    """Return the components, or what else has a column, in which something has no digest, each with its types."""
    found = {}
    for row in [*rows, *other]:
        for column, types in row.cells.items():
            if part(column) == "unseen" and types:
                found.setdefault(column.removesuffix(".unseen"), []).extend(types.split(" "))
    return [{"component": name, "types": sorted(set(types))} for name, types in found.items()]


def _once_for_a_row(look):
    """Make a method of _Comparison look at each row once, and keep what it found."""

    def kept(self, row):
        found = self.kept.setdefault(look.__name__, {})
        if row not in found:
            found[row] = look(self, row)
        return found[row]

    return wraps(look)(kept)


class _Comparison:
    """The rows that a run has in common with the reference, of which `steps` are the cells by number."""

    def __init__(self, steps, common, unused, repeatable, same_weights):
        self.steps, self.common, self.unused = steps, common, unused
        self.repeatable, self.same_weights = repeatable, same_weights
        self.kept = {}

    def result(self):
        """Return what the comparison adds to a diagnosis."""
        first = next((row for row in self.common if self.differing(row)), None)
        as_row = first and self.counterpart(first)
        if first and as_row != first.number:
            return self.miscounted(first, as_row)
        shows = next(
            (place for place, row in enumerate(self.common) if self.given(row) or self.caused_outputs(row)), None
        )
        if shows is None and self.same_weights is not True:
            # Nothing comes of it but that it is, and stays, another state.
            shows = next((place for place, row in enumerate(self.common) if self.outputs(row)), None)
        return {"latent": self.latent(len(self.common) - 1)} if shows is None else self.parted(shows)

    def wanted(self, row):
        return self.steps[row.number]

    @_once_for_a_row
    def differing(self, row):
        """Return the columns that stand for what goes into a row and are not as in the reference."""
        cells, wanted = row.cells, self.wanted(row)
        names = [name for name in _inputs({**wanted, **cells}, self.unused) if not _is_of_absent(name, cells, wanted)]
        return [name for name in names if cells.get(name) != wanted.get(name)]

    @_once_for_a_row
    def given(self, row):
        """Return which of the batch and the learning rate are not as in the reference."""
        cells, wanted = row.cells, self.wanted(row)
        found = {name for name in GIVEN if cells.get(name) != wanted.get(name)}
        return found | {RATE} if f"{RATE}.{AFTER}" in self.outputs(row) else found

    @_once_for_a_row
    def outputs(self, row):
        """Return the outputs that are not as in the reference."""
        cells, wanted = row.cells, self.wanted(row)
        return [name for name in wanted if _is_output(name) and name in cells and cells[name] != wanted[name]]

    @_once_for_a_row
    def caused_outputs(self, row):
        """Return the outputs that differ and are not just what differed before in the same place."""
        differing = self.differing(row)
        return [name for name in self.outputs(row) if name.removesuffix(f".{AFTER}") not in differing]

    def parted(self, place):
        """Return what the row at `place`, the first one with an effect, tells."""
        row = self.common[place]
        differing = self.differing(row)
        found = {"row": row.number, "as_row": row.number, "shows": row.number}
        if not differing:
            # A loss is there before a rate is used.
            changed = [
                name.removesuffix(f".{AFTER}")
                for name in self.outputs(row)
                if _is_setting(name.removesuffix(f".{AFTER}"))
            ]
            if changed and LOSS not in self.outputs(row):
                culprits = [{"component": name, **self.changed_inside(row, f"{name}.{AFTER}")} for name in changed]
                return {**found, "verdict": "inputs", "culprits": culprits, "latent": self.latent(place)}
            return {**found, **self.unexplained(row), "latent": self.latent(place)}
        since = {name: self.since(place, name) for name in differing}
        actions = {name: self.action(self.common[start], name) for name, start in since.items()}
        blamed = self.blamed(place, since, actions)
        explained = [name for name in differing if self.is_explained(row.cells, self.wanted(row), name, differing)]
        named = [name for name in differing if name not in explained and (name in blamed or name in GIVEN)]
        if not named:
            # What can't give this is all that there is: then it does, or what does is not traced.
            telling = [
                name for name in differing if actions[name]["action"] in TELLING or _is_generator(row.cells, name)
            ]
            named = [name for name in telling or differing if name not in explained] or differing
        begin = min(since[name] for name in named)
        found.update(row=self.common[begin].number, as_row=self.common[begin].number)
        culprits = self.agreeing([{"component": name, **actions[name]} for name in named], self.common[begin])
        latent = [name for name in differing if name not in named and name not in explained]
        return {
            **found,
            "verdict": "inputs",
            "culprits": culprits,
            "explained": explained,
            "latent": self.latent(place, but=latent),
        }

    def changed_inside(self, row, name):
        """Return what the column `name` of a rate or a setting after the step tells of it."""
        wanted = self.wanted(row)
        plain = not is_digest(row.cells[name]) and not is_digest(wanted[name])
        return {"action": "changed_inside", **(_what_differs(row.cells, wanted, name) if plain else {})}

    def unexplained(self, row):
        return {"verdict": "untraced" if self.repeatable else "computation", "outputs": self.outputs(row)}

    def blamed(self, place, since, actions):
        """Return the inputs of the row at `place` that something which differs there, or later, can come from.

        `since` are the places from which on they differ, `actions` what was done to them, by name.
        """
        row, cells = self.common[place], self.common[place].cells
        candidates = [name for name in since if name not in GIVEN]
        caused = any(
            self.shows(later, effect) for later in range(place, len(self.common)) for effect in (*GIVEN, OUTPUTS)
        )
        # What differs after the step as it differed before it, and so may end in what is kept.
        own = {name for name in candidates if f"{name}.{AFTER}" in self.outputs(row)}
        blamed = set() if caused else set(own)
        for effect in (BATCH, RATE, OUTPUTS):
            shows = next((later for later in range(place, len(self.common)) if self.shows(later, effect)), None)
            givers = [name for name in candidates if shows is not None and effect in _gives(cells, name)]
            weak = [name for name in givers if self.is_constant(name)]
            strong = [
                name for name in givers if (name in own or actions[name]["action"] in TELLING) and name not in weak
            ]
            for name in givers:
                newer = [other for other in givers if since[name] < shows == since[other] and other not in weak]
                if _is_generator(cells, name):
                    cleared = newer and self.was_drawn_from(name, since[name], shows)
                elif name in weak:
                    cleared = len(weak) < len(givers)
                else:
                    cleared = name not in strong and (strong or newer)
                if not cleared:
                    blamed.add(name)
        return blamed

    def is_constant(self, name):
        """Whether an attribute has one value in all of the reference and another one in all of the run: a setting, if
        it means anything.
        """
        values = [{cells.get(name) for cells in self.steps.values()}, {row.cells.get(name) for row in self.common}]
        return part(name) == "attributes" and all(len(found) == 1 for found in values)

    def shows(self, place, effect):
        row = self.common[place]
        return bool(self.caused_outputs(row)) if effect == OUTPUTS else effect in self.given(row)

    def was_drawn_from(self, name, begin, end):
        """Whether a generator moved before the row at `end`, in which something shows, so that its numbers were of no
        effect.
        """
        return len({row.cells.get(name) for row in self.common[begin : end + 1]}) > 1 and begin < end

    def since(self, place, name):
        """Return the place of the first row of those up to `place` in all of which `name` differs."""
        while place and name in self.differing(self.common[place - 1]):
            place -= 1
        return place

    def latent(self, place, but=None):
        """Return what differs up to the row at `place` without an effect; of the inputs of that row itself those in
        `but` alone.
        """
        first = {}
        for number, row in enumerate(self.common[: place + 1]):
            for name in self.differing(row):
                # Gradients that wait and of which nothing comes are cleared before they are used.
                if name not in GIVEN and part(name) != "gradients":
                    first.setdefault(name, number)
        left_out = set(self.differing(self.common[place])) - set(but) if but is not None else set()
        rows = {name: self.common[number] for name, number in first.items() if name not in left_out}
        return [{"component": name, **self.action(row, name), "since": row.number} for name, row in rows.items()]

    def miscounted(self, row, as_row):
        """Return what a row tells that begins as another row of the reference does."""
        cells, wanted = row.cells, self.steps[as_row]
        differing = [name for name in _inputs(wanted, self.unused) if cells.get(name) != wanted[name]]
        # Whatever goes by the wrong number is wrong because of it; in the first row it is as before training.
        if row.number != min(self.steps):
            differing = [name for name in differing if cells.get(name) != self.wanted(row).get(name)]
        explained = [name for name in differing if self.is_explained(cells, wanted, name, differing)]
        culprits = [
            {"component": name, **self.action(row, name, as_row)} for name in differing if name not in explained
        ]
        culprits.insert(0, {"component": NUMBER, **_moved(row.number, as_row)})
        return {
            "verdict": "inputs",
            "row": row.number,
            "as_row": as_row,
            "shows": row.number,
            "culprits": culprits,
            "explained": explained,
        }

    def counterpart(self, row):
        """Return the reference's row that the run's row is to be held against.

        That is the one of the same number, unless all inputs are those of another one but the first, except for plain
        numbers, such as the learning rate, which may go by the row's number; or the weights are, and with them more of
        what changes in between than is as it should be: then the run counts wrong.
        """
        cells, here, fresh = row.cells, self.wanted(row), self.steps[min(self.steps)]
        inputs = _inputs(here, self.unused)
        weights = [name for name in inputs if f"{name}.{AFTER}" in cells]

        def is_counterpart(there):
            differing = [name for name in inputs if cells.get(name) != there.get(name)]
            changed = [name for name in inputs if there.get(name) != here[name]]
            # That nothing waits is the same in many rows.
            if all(there.get(name) in (EMPTY, "", None) for name in changed):
                return False
            if all(cells.get(name) == here[name] and not is_digest(here[name]) for name in differing):
                return True
            return (
                any(name in changed and there.get(name) != fresh.get(name) for name in weights)
                and not any(name in differing for name in weights)
                and sum(cells.get(name) == there.get(name) for name in changed)
                # What is as before training may as well be lost, also in a row that is counted as the first one.
                > sum(cells.get(name) == here[name] != fresh.get(name) for name in changed)
            )

        others = sorted(
            set(self.steps) - {row.number, min(self.steps)}, key=lambda number: (abs(number - row.number), number)
        )
        return next((number for number in others if is_counterpart(self.steps[number])), row.number)

    def is_explained(self, cells, wanted, name, differing):
        """Whether `name` differs because another input does: a batch or a learning rate because of what gives it to the
        step, an optimizer's settings because the optimizer was lost.

        Either both are as in one and the same row of the reference, or what gives it was never like this in the
        reference; or it was never like this itself: a learning rate only if it comes from a scheduler, or from no
        optimizer and nothing that was like this before. `wanted` are the cells that `cells` are held against. Of
        several optimizers each one's rate has to be explained.
        """
        givers = [other for other in differing if self.can_give(cells, other, name)]
        if name == RATE:
            return all(self.is_rate_explained(cells, givers, *rate) for rate in self.rates(cells, wanted))
        places, known = self.places(cells, name), [self.places(cells, giver) for giver in givers]
        if places:
            return any(places & there for there in known) or (name == BATCH and not all(known))
        return name == BATCH and bool(givers)

    def is_rate_explained(self, cells, givers, optimizer, places):
        """Whether one of `givers` explains the rate of `optimizer` (None: the only one), which is what it is in the
        rows `places`.
        """
        givers = {giver: (cells.get(f"{giver}.kind"), self.places(cells, giver)) for giver in givers}
        if places:
            own = [
                (kind, there)
                for giver, (kind, there) in givers.items()
                if kind != "optimizer" or optimizer in (None, giver)
            ]
            return any(places & there or (kind == "scheduler" and not there) for kind, there in own)
        return any(kind == "scheduler" or not there for kind, there in givers.values() if kind != "optimizer")

    def rates(self, cells, wanted):
        """Return for each optimizer whose rate differs its name and the reference's rows in which its rate is this one;
        of a rate that is nobody's in particular, or of the only optimizer, None in the name's place.
        """
        optimizers = [
            column.removesuffix(".kind")
            for column, kind in cells.items()
            if part(column) == "kind" and kind == "optimizer"
        ]
        found, right = plain_text.items(cells.get(RATE, "")), plain_text.items(wanted.get(RATE, ""))
        if len(optimizers) < 2 or set(found) != set(optimizers) or set(right) != set(optimizers):
            return [(None, self.places(cells, RATE))]
        names = [name for name in optimizers if found[name] != right[name]]
        texts = {number: plain_text.items(row.get(RATE, "")) for number, row in self.steps.items()}
        return [(name, {number for number, rates in texts.items() if rates.get(name) == found[name]}) for name in names]

    def can_give(self, cells, other, name):
        """Whether the input `other` can be what decides on the batch, the learning rate or the settings `name`."""
        if part(name) in ("settings", "attributes"):
            owner = name.rpartition(".")[0]
            return (
                cells.get(f"{owner}.kind") == "optimizer"
                and (other == owner or RATE in _gives(cells, other))
                and part(other) == ""
            )
        return name in GIVEN and other not in GIVEN and name in _gives(cells, other) and not self.is_average(other)

    def is_average(self, name):
        """Whether a component begins as the weights do: an average of them, from which no batch is drawn."""
        fresh = self.steps[min(self.steps)]
        modules = [
            column.removesuffix(".kind")
            for column, kind in fresh.items()
            if part(column) == "kind" and kind == "module"
        ]
        return bool(fresh.get(name)) and any(fresh.get(name) == fresh[module] for module in modules if module != name)

    def places(self, cells, name):
        """Return the reference's rows in which `name` is what it is in `cells`."""
        value = cells.get(name)
        return {number for number, reference in self.steps.items() if name in reference and reference[name] == value}

    def action(self, row, name, as_row=None):
        """Return what was done to the input `name`, as far as the traces show."""
        as_row = row.number if as_row is None else as_row
        cells, wanted = row.cells, self.steps[as_row]
        value, right = cells.get(name), wanted.get(name)
        if value is None or right is None:
            return {"action": "absent" if value is None else "new"}
        if part(name) in ("mode", "trainable"):
            # Without the digest of which ones.
            found, wanted = (" ".join(word for word in one.split(" ") if not is_digest(word)) for one in (value, right))
            return {"action": "different", "found": found, "wanted": wanted}
        # A reference that was itself resumed doesn't show what was before training.
        fresh = (EMPTY, self.steps[min(self.steps)].get(name)) if min(self.steps) <= 1 else (EMPTY,)
        if name not in GIVEN and value in fresh:
            return {"action": "lost"}
        places = self.places(cells, name)
        if places:
            return _moved(min(places, key=lambda number: (abs(number - as_row), number)), as_row)
        for precision in PRECISIONS:
            rounded, full = (Rounding.read(one.get(f"{name}.{precision}", "")) for one in (cells, wanted))
            if rounded.digest and rounded.makes(full):
                return {"action": "rounded", "to": precision}
        for other in _inputs(wanted, GIVEN):
            if other != name and is_digest(value) and wanted[other] == value:
                return {"action": "swapped", "other": other}
        if cells.get(f"{name}.unordered") and cells[f"{name}.unordered"] == wanted.get(f"{name}.unordered"):
            return {"action": "reordered"}
        return {"action": "different", **_what_differs(cells, wanted, name)}

    def agreeing(self, culprits, row):
        """Return `culprits` with moves that go together: of what repeats in the reference the nearest place may be a
        wrong one.

        Where no move is common to all, those that are of one place alone stay as they are, and the others are just
        different.
        """
        moved = [culprit for culprit in culprits if culprit["action"] in ("rewound", "skipped_ahead")]
        places = {culprit["component"]: self.places(row.cells, culprit["component"]) for culprit in moved}
        certain = [found for found in places.values() if len(found) == 1]
        common = set.intersection(*places.values()) if places else set()
        for culprit in moved:
            found = common or places[culprit["component"]]
            if len(found) > 1 and not common and len(moved) > 1:
                found = next((single for single in certain if single <= found), set())
            del culprit["action"], culprit["by"]
            if found:
                culprit.update(_moved(min(found, key=lambda number: (abs(number - row.number), number)), row.number))
            else:
                culprit.update(action="different", **_what_differs(row.cells, self.wanted(row), culprit["component"]))
        return culprits


def _inputs(cells, left_out):
    """Return the columns that stand for what goes into a row."""
    return [
        name for name in cells if name not in (CONFIGURATION, LOSS, *left_out) and part(name) not in (*HELPERS, AFTER)
    ]


def _is_output(name):
    return name == LOSS or part(name) == AFTER


def _is_setting(name):
    return name == RATE or part(name) == "settings"


def _is_of_absent(name, cells, wanted):
    """Whether `name` is a part of a component that one of the two runs hasn't, which is told of the component alone."""
    component = name.rpartition(".")[0]
    return bool(component) and name not in GENERATORS and (component in cells) != (component in wanted)


def _gives(cells, name):
    """Return what the input `name` can make differ."""
    if name in GIVEN:
        return {OUTPUTS}
    if name in GENERATORS:
        return GIVES["generator"]
    if part(name) in PARTS:
        return {OUTPUTS}
    return GIVES.get(cells.get(f"{name}.kind"), {BATCH, RATE, OUTPUTS})


def _is_generator(cells, name):
    return name in GENERATORS or cells.get(f"{name}.kind") == "generator"


def _what_differs(cells, wanted, name):
    """Return what can be said of a component that is otherwise: where it is plain, the keys that differ, or it itself,
    as found and as wanted; else the dtypes where these differ, and how many of its tensors and values do.
    """
    told = {}
    if not is_digest(cells[name]) and not is_digest(wanted[name]):
        entries = plain_text.differing(cells[name], wanted[name])
        if entries:
            return {
                "entries": [{"key": key, "found": found, "wanted": right} for key, (found, right) in entries.items()]
            }
        return {"found": cells[name], "wanted": wanted[name]}
    dtypes = [one.get(f"{name}.dtypes", "") for one in (cells, wanted)]
    if dtypes[0] != dtypes[1]:
        told.update(found=dtypes[0] or "no tensors", wanted=dtypes[1] or "no tensors")
    tags = [one.get(f"{name}.each", "") for one in (cells, wanted)]
    if cells.get(f"{name}.kind") != "generator" and tags[0] and len(tags[0]) == len(tags[1]):
        places = range(0, len(tags[0]), TAG)
        told["tensors"] = [
            sum(tags[0][place : place + TAG] != tags[1][place : place + TAG] for place in places),
            len(places),
        ]
    return told


def _moved(number, as_row):
    """Return the action that makes the row `number` of what should stand at `as_row`."""
    return {"action": "rewound" if number < as_row else "skipped_ahead", "by": abs(number - as_row)}


def sentence(result, unused=False):
    """Return the diagnosis as plain English text of one line; with `unused` also the generators that differ and are
    never drawn from.
    """
    parts = [_verdict(result)]
    if result["explained"]:
        parts.append(
            f"because of that {' and '.join(result['explained'])} "
            f"differ{'s' if len(result['explained']) == 1 else ''} too"
        )
    telling = [entry for entry in result["latent"] if entry["action"] in TELLING]
    others = [entry["component"] for entry in result["latent"] if entry not in telling]
    if telling:
        parts.append(f"latent, without an effect so far: {', '.join(told(entry, result['unit']) for entry in telling)}")
    if others:
        parts.append(f"{', '.join(others)} differ{'s' if len(others) == 1 else ''} without an effect")
    for note in result["notes"]:
        listed = ", ".join(map(str, note["rows"][:6])) + (", …" if len(note["rows"]) > 6 else "")
        unit = _units(result["unit"], len(note["rows"]))
        parts.append(
            {
                "repeated": f"{unit} {listed} trained more than once",
                "missing": f"{unit} {listed} missing",
                "beyond": f"{unit} {listed} not in the reference",
                "ends_early": f"it ends before the reference, after {unit} {listed}",
                DETACHED: (
                    f"{note.get('component')} holds none of the registered modules' parameters, as {unit} "
                    f"{listed} shows"
                ),
            }[note["kind"]]
        )
    if result["not_looked_at"] and result["verdict"] in ("computation", "untraced", "kept"):
        parts.append(f"not looked at: {', '.join(_unseen(entry) for entry in result['not_looked_at'])}")
    if unused and result["unused"]:
        parts.append(f"{', '.join(result['unused'])} differ but are never drawn from")
    return "; ".join(parts)


def _verdict(result):
    verdict, unit = result["verdict"], result["unit"]
    if verdict == "identical":
        return f"identical through {unit} {result['last_row']}"
    if verdict == "trained_nothing":
        return f"the resumed process trained no {unit}"
    if verdict == "kept":
        return "training went on exactly; what was kept (best weights, average) differs"
    if verdict in ("computation", "untraced"):
        same = (
            f"all that goes into {unit} {result['row']} is the same and what comes out "
            f"({', '.join(result['outputs'])}) is not"
        )
        if verdict == "untraced":
            return (
                f"{same}, though two uninterrupted runs are equal: state that is in no checkpoint and not "
                "traced goes into it"
            )
        return (
            f"{same}: the computation is not repeatable (threads, kernel, hardware), or something goes into it "
            "that is not traced"
        )
    at = f"{unit} {result['row']}"
    if result["as_row"] != result["row"]:
        at += f", which begins as the reference's {unit} {result['as_row']}"
    if result["shows"] != result["row"]:
        at += f", which shows from {unit} {result['shows']} on"
    return f"differs from {at}: {', '.join(told(culprit, unit) for culprit in result['culprits'])}"


def told(culprit, unit):
    """Return in English what was done to a component, as one of a diagnosis' `culprits` or `latent` has it, where rows
    are of `unit`.
    """
    name = f"the {unit} count" if culprit["component"] == NUMBER else culprit["component"]
    moved = f"by {culprit.get('by')} {_units(unit, culprit.get('by'))}"
    if culprit["action"] == "different":
        return f"{name} is different{_details(culprit)}"
    return {
        "lost": f"{name} was lost (it is as before training)",
        "absent": f"{name} was lost (this run has none)",
        "new": f"{name} is new (the reference has none)",
        "rewound": f"{name} was rewound {moved}",
        "skipped_ahead": f"{name} was skipped ahead {moved}",
        "rounded": f"{name} was rounded to {culprit.get('to')}",
        "swapped": f"{name} holds the values of {culprit.get('other')}",
        "reordered": f"{name} holds the right tensors in wrong places",
        "changed_inside": f"{name} changed inside the step{_details(culprit)}",
    }[culprit["action"]]


def _details(culprit):
    details = []
    if "found" in culprit:
        details.append(f"found {culprit['found']}, wanted {culprit['wanted']}")
    entries = culprit.get("entries", [])
    details += [
        f"{one['key']}: found {one['found'] or 'nothing'}, wanted {one['wanted'] or 'nothing'}"
        for one in entries[:MOST_ENTRIES]
    ]
    if len(entries) > MOST_ENTRIES:
        details.append("…")
    if "tensors" in culprit:
        details.append("{} of {} tensors and values".format(*culprit["tensors"]))
    return f" ({'; '.join(details)})" if details else ""


def _unseen(entry):
    return f"{entry['component']} ({', '.join(entry['types'])})"


def _units(unit, count):
    return unit if count == 1 else f"{unit}es" if unit.endswith("ch") else f"{unit}s"
