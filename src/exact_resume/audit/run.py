"""What the processes of an audited run leave: weights, losses as they logged them, and traces."""

from dataclasses import dataclass

from exact_resume import diagnosis
from exact_resume.audit import losses_file
from exact_resume.audit.legs import Leg
from exact_resume.audit.own_folder import OwnFolder
from exact_resume.audit.process import LOSSES, TRACE
from exact_resume.errors import LabError


@dataclass
class AuditedRun:
    """A run whose processes wrote to folders of `place`; `spans` has for each its name, the step that it started after,
    and the one that it was to end after. `weights` are what the last one ended with.
    """

    place: OwnFolder
    spans: list
    weights: dict

    def losses(self):
        """Return the losses, as text, by step, as far as they were logged. Raises LabError when they can't be read.

        A resumed process may log as step 0 what the loss is before its first step, which nothing is to be held against.
        """
        return {step: loss for name, start, _ in self.spans for step, loss in self._logged(name) if step or not start}

    def legs(self):
        """Return the Leg of each process; what can't be read is None there."""
        starts = [0, *(start for _, start, _ in self.spans)]
        legs = []
        for (name, start, end), previous in zip(self.spans, starts):
            legs.append(Leg(name, start, end, previous, _readable(self._numbers, name), _readable(self._rows, name)))
        return legs

    def diagnosis(self, reference, repeatable, same_weights):
        """Return what the traces tell, held against those of the AuditedRun `reference`; None if that has none. Raises
        LabError.

        `repeatable`, `same_weights`: see `diagnosis.diagnose`.
        """
        (wanted,) = reference.spans
        if not self.place.holds(f"{wanted[0]}/{TRACE}"):
            return None
        straight, *legs = [self._trace(name) for name, _, _ in [wanted, *self.spans]]
        found = diagnosis.diagnose(straight, legs, repeatable, same_weights)
        return {**found, "sentence": diagnosis.sentence(found)}

    def _logged(self, name):
        """Return the (step, loss) pairs of a process in their order, [] if it logs none. Raises LabError when they
        can't be read.
        """
        path = f"{name}/{LOSSES}"
        return losses_file.read(self.place.text(path)) if self.place.holds(path) else []

    def _numbers(self, name):
        return [step for step, _ in self._logged(name)]

    def _trace(self, name):
        return diagnosis.read(self.place.text(f"{name}/{TRACE}"))

    def _rows(self, name):
        return [row.number for row in self._trace(name).rows]


def _readable(read, name):
    try:
        return read(name)
    except (LabError, OSError):
        return None
