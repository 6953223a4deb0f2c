"""Whether the processes of a run began and ended where they were told to: by what they logged, and by their traces.

Both are held against the uninterrupted run's, which show how the trainer counts and how often it logs. A log counts
steps, as `--steps` does, from 0 or from 1, or batches, of which so many make a step; a trace counts batches.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

# What is said of a process that is where it should be, and of one of which that can't be said.
RIGHT, UNSURE = "right", "unsure"


@dataclass
class Leg:
    """A process of a run: its `name`; the steps `start`, after which its checkpoint was made (0: it begins at the
    beginning), `end`, after which it was to end, and `previous`, where the process before it started; the numbers that
    it logged, and those of its trace's rows, in their order, None where these can't be read.
    """

    name: str
    start: int
    end: int
    previous: int
    logged: list | None
    rows: list | None


def faults(steps, straight, legs):
    """Return what is wrong with the `legs` of a run, and whether nothing can be said of one of them.

    `steps` are those of a whole run, `straight` the Leg of the uninterrupted one. A fault is a dict: `kind`, which is
    started_from_scratch, started_early (steps are trained again), started_late (steps are left out), did_not_stop or
    stopped_early; `process`; `source`, log or trace; `found` and `wanted`, each the first and the last number.
    """
    log = Log(steps, straight.logged, legs)
    if log.fault:
        return [{"process": straight.name, **log.fault}], False
    found, rows = [], None
    for leg in legs:
        said = [trace_says(steps, straight.rows, leg, rows), log.says(leg)]
        rows = leg.rows
        fault = next((one for one in said if isinstance(one, dict)), None)
        found.append(RIGHT if RIGHT in said else {"process": leg.name, **fault} if fault else UNSURE)
    return [one for one in found if isinstance(one, dict)], UNSURE in found


class Log:
    """How the uninterrupted run logs, whose logged numbers are `logged`; `legs` are of the run that is held against
    it.
    """

    def __init__(self, steps, logged, legs):
        self.steps, self.unit, self.fault = steps, None, None
        if not logged or min(logged) < 0:
            return
        # From 0: then the last number is less than that of the steps, or of the batches.
        first, last = min(logged), max(logged)
        self.second = min((number for number in logged if number), default=None)
        self.zero = int(first == 0 and (last < steps or (last + 1) % steps == 0))
        gaps = {after - before for before, after in pairwise(sorted(set(logged)))}
        self.dense = gaps == {1}
        last += self.zero
        stopped = [leg for leg in legs if leg.end < steps and leg.logged]
        if last == steps or (last < steps and (len(gaps) != 1 or 1 < max(gaps) >= steps - last)):
            self.unit = 1
        elif self.dense and stopped and all(max(leg.logged) + self.zero == leg.end for leg in stopped):
            # The numbers are steps, since processes that are stopped have the right ones.
            self.unit = 1
            kind = "stopped_early" if last < steps else "did_not_stop"
            self.fault = {"kind": kind, "source": "log", "found": [first, max(logged)], "wanted": self._span(0, steps)}
        elif last % steps == 0:
            self.unit = last // steps
        if self.unit:
            self.logged = self._as_steps(logged)

    def says(self, leg):
        """Return RIGHT, UNSURE or a fault of the leg, without its process."""
        if self.unit is None or not leg.logged or leg.logged == [0]:
            return UNSURE
        numbers = set(leg.logged) - ({0} if self.is_before(leg) else set())
        found, wanted = self._as_steps(numbers), {step for step in self.logged if leg.start < step <= leg.end}
        # Of numbers far apart none tells whether they count from 0.
        old = {step for step in found if step <= leg.start - (not self.dense)}
        new = found - old
        kind = None
        if max(found) > leg.end:
            kind = "did_not_stop"
        elif old:
            # A trainer may write what it logged before once more. That tells nothing.
            history = {step for step in self.logged if leg.previous < step <= leg.start}
            kind = None if history <= old else "started_early"
        elif self.dense and wanted and min(new) > min(wanted):
            kind = "started_late"
        elif self.dense and wanted and max(new) < max(wanted) and leg.end == self.steps:
            kind = "stopped_early"
        if kind:
            span = [min(leg.logged), max(leg.logged)]
            return {"kind": kind, "source": "log", "found": span, "wanted": self._span(leg.start, leg.end)}
        # A run from the beginning, or one that went on, would have logged something else.
        telling = (leg.start == 0 or min(self.logged) <= leg.start) and (
            leg.end == self.steps or max(self.logged) > leg.end
        )
        return RIGHT if found == wanted and telling else UNSURE

    def is_before(self, leg):
        """Whether the 0 that a resumed leg logs is no step, but what the loss was before its first one.

        A leg that trained from there would log what the uninterrupted run logs next.
        """
        return leg.start > 0 and self.second not in leg.logged

    def _as_steps(self, logged):
        return {ceil((number + self.zero) / self.unit) for number in logged}

    def _span(self, start, end):
        unit = self.unit or 1
        return [start * unit + 1 - self.zero, end * unit - self.zero]


def trace_says(steps, reference, leg, before):
    """Return RIGHT, UNSURE or a fault of the leg, without its process. `reference` and `before` are the numbers of the
    rows of the uninterrupted run and of the process before.
    """
    if not reference or not leg.rows:
        return UNSURE
    places = {number: place for place, number in enumerate(reference)}
    batches, rest = divmod(len(reference), steps)
    first, last = batches * leg.start, batches * leg.end - 1
    if rest:
        # Steps are of different numbers of batches.
        first = 0 if leg.start == 0 else places[before[-1]] + 1 if before and before[-1] in places else None
        last = len(reference) - 1 if leg.end == steps else None
    elif leg.rows[0] == reference[0] and len(leg.rows) == last - first + 1:
        # Each process counts from the beginning.
        return RIGHT
    if first is not None and first >= len(reference):
        return UNSURE
    begins, ends = places.get(leg.rows[0]), places.get(leg.rows[-1], len(reference))
    kind = None
    if first is not None and begins is not None and begins != first:
        kind = "started_from_scratch" if begins == 0 else "started_early" if begins < first else "started_late"
    elif last is None and ends >= len(reference) - 1:
        kind, last = "did_not_stop", len(reference) - 2
    elif last is not None and ends != last:
        kind = "did_not_stop" if ends > last else "stopped_early"
    if kind:
        wanted = [reference[first or 0], reference[len(reference) - 1 if last is None else last]]
        return {"kind": kind, "source": "trace", "found": [leg.rows[0], leg.rows[-1]], "wanted": wanted}
    return UNSURE if first is None or begins is None else RIGHT
