"""The audit of a trainer: three gates that a program has to pass whose runs can be stopped and resumed without a trace.

- repeat: two uninterrupted runs are equal. If they aren't, nothing else can pass or fail; it is measured against that
  noise.
- save: a run that saves on its way and goes on equals one that never saves.
- resume: a run that is stopped, or killed when it has saved, and resumed in a new process equals the uninterrupted one.
  In the case saved-twice it is resumed from the second checkpoint that its process writes.

A process that is told to stop has to stop, and one that is resumed has to go on from there: else a trainer that trains
from scratch again would end with the right weights. What it logs and traces shows that (see `legs`). Where these don't,
the first processes of a run are given other data: the weights of a run that really goes on from them are then neither
those of a run on the one data nor on the other. How long a process takes is no evidence, since that is never twice the
same.
"""

import shutil
import traceback
from pathlib import Path

import numpy as np

from exact_resume.audit import legs, process
from exact_resume.audit import result as audit_result
from exact_resume.audit.command import with_flags
from exact_resume.audit.own_folder import OwnFolder
from exact_resume.audit.process import CALLS, CHECKPOINT, LOG, LONGEST, LOSSES, SAVED, TRACE
from exact_resume.audit.result import KILLED, OTHER_DATA, SAVED_TWICE, Case
from exact_resume.audit.run import AuditedRun
from exact_resume.checkpoint import comparison, readers
from exact_resume.errors import LabError
from exact_resume.faults import atomicity

# Other data than the trainer's: the same tokens from the last one to the first.
OTHER_TOKENS = "other_tokens.npy"


class Failed(Exception):
    """A run that can't be compared: a status of Case, and the line that goes with it."""


class Audit:
    """Audits one trainer with processes in folders below `work`, which is emptied first.

    `command` and `shell` say how it is started, `tokens` and `steps` what it trains; `stops` maps names of cases to
    lists of steps; `save_at` is the step for the gate save and the kill, `timeout` in seconds, `weights` the name of
    the final weights. `tell` is called with a line about each gate and case when it begins.
    """

    def __init__(
        self, work, *, command, shell, tokens, steps, stops, save_at, timeout, weights, tell=lambda line: None
    ):
        self.place = OwnFolder(work)
        self.command, self.shell, self.timeout, self.weights, self.tell = command, shell, timeout, weights, tell
        self.tokens, self.steps, self.stops, self.save_at = Path(tokens).absolute(), steps, stops, save_at
        self.seconds, self.checkpoint_bytes, self.checkpoint_sizes, self.weights_bytes = {}, None, None, None
        self.straight, self.other, self.repeatable = None, None, None

    def run(self):
        """Run all processes and return the result as `audit_result.make` does."""
        self.place.make()
        gates, atomic = audit_result.untried(), None
        status, error = "ok", None
        try:
            self.tell("straight, the uninterrupted run")
            self.straight = self._trying(self._uninterrupted, "straight")
            self.weights_bytes = self.place.size(f"straight/{self.weights}")
        except Failed as failed:
            status, error = failed.args
        else:
            gates["repeat"] = self._case("repeat", lambda: self._uninterrupted("repeat"))
            self.repeatable = gates["repeat"].passed
            gates["save"] = self._case("save", self._saving)
            runs = dict.fromkeys(self.stops, self._stopped) | {KILLED: self._killed, SAVED_TWICE: self._saved_twice}
            gates["resume"] = {
                name: self._case(name, lambda name=name, run=run: run(name), run) for name, run in runs.items()
            }
            status, error = gates["repeat"].status, gates["repeat"].error
            _hold_against_noise(gates)
            if gates["save"].status == "ok" and shutil.which("strace"):
                self.tell("system calls of a save")
                atomic = self._is_atomic()
        self._clean()
        return audit_result.make(status, error, gates, self.checkpoint_bytes, self.weights_bytes, atomic)

    def times(self):
        """Return the seconds of each process, of a save, and of the stops and resumes of each case, as a dict for
        JSON.
        """
        once = [self.seconds[name] for name in ("straight", "repeat") if name in self.seconds]
        legs = {
            name: [seconds for leg, seconds in self.seconds.items() if leg.rpartition("-")[0] == name]
            for name in self.stops
        }
        return {
            "processes": self.seconds,
            "save": self.seconds["save"] - sum(once) / len(once) if "save" in self.seconds else None,
            "resume": {name: sum(seconds) - sum(once) / len(once) for name, seconds in legs.items() if seconds},
        }

    def _uninterrupted(self, name, **data):
        self._process(name, self.weights, **data)
        return self._left([(name, 0, self.steps)])

    def _saving(self):
        self._process("save", self.weights, *self._save_flags("save", self.save_at, CHECKPOINT))
        checkpoint = f"save/{CHECKPOINT}"
        if not self.place.holds(checkpoint):
            raise Failed("no_checkpoint", f"there was nothing at --save-to after step {self.save_at}")
        self.checkpoint_bytes = self.place.size(checkpoint)
        self.checkpoint_sizes = self.place.listing(checkpoint)
        return self._left([("save", 0, self.steps)])

    def _stopped(self, name, label=None, switch=0):
        """Stop and resume as the case `name` says, in folders named after `label`; the first `switch` processes get
        other data.
        """
        label = label or name
        spans, resume, start = [], [], 0
        for number, stop in enumerate([*self.stops[name], self.steps], 1):
            process = f"{label}-{number}"
            out, flags = (self.weights, []) if stop == self.steps else (CHECKPOINT, ["--stop-at", str(stop)])
            self._process(process, out, *resume, *flags, other_data=number <= switch)
            if flags:
                resume = self._resume_flags(process, stop)
            spans.append((process, start, stop))
            start = stop
        return self._left(spans)

    def _killed(self, name, label=None, switch=0):
        first, second = (f"{label or name}-{number}" for number in (1, 2))
        checkpoint = f"{first}/{CHECKPOINT}"
        kill_when = (lambda: self.place.listing(checkpoint), self.checkpoint_sizes)
        flags = self._save_flags(first, self.save_at, CHECKPOINT)
        self._process(first, self.weights, *flags, kill_when=kill_when, other_data=bool(switch))
        self._process(second, self.weights, "--resume", str(self.place.path / checkpoint))
        return self._left([(second, self.save_at, self.steps)])

    def _saved_twice(self, name, label=None, switch=0):
        """Resume from the second checkpoint that a process writes: at save_at and its stop, which is later where there
        is a later one.
        """
        first, second = (f"{label or name}-{number}" for number in (1, 2))
        save_at, stop_at = max(1, self.save_at // 2), self.save_at
        flags = [*self._save_flags(first, save_at, SAVED), "--stop-at", str(stop_at)]
        try:
            self._process(first, CHECKPOINT, *flags, other_data=bool(switch))
        except Failed as failed:
            status, error = failed.args
            raise Failed(
                status, f"with --save-at {save_at} and --stop-at {stop_at} together: {error or 'no message'}"
            ) from failed
        if not self.place.holds(f"{first}/{SAVED}"):
            raise Failed(
                "no_checkpoint",
                f"there was nothing at --save-to after step {save_at} of a run with --stop-at {stop_at}",
            )
        self._process(second, self.weights, *self._resume_flags(first, stop_at))
        return self._left([(first, 0, stop_at), (second, stop_at, self.steps)])

    def _is_atomic(self):
        """Return whether the trainer's save is atomic, None when it doesn't end under strace as it does else."""
        try:
            self._process("atomic", CHECKPOINT, "--stop-at", str(self.save_at), followed=True)
            calls = self.place.text(f"atomic/{CALLS}")
            checkpoint = f"atomic/{CHECKPOINT}"
            found = atomicity.is_atomic(calls, self.place.path / checkpoint) if self.place.holds(checkpoint) else None
            self.place.remove(f"atomic/{CALLS}")
            return found
        except (Failed, LabError, OSError, ValueError):
            return None
        finally:
            # Strace makes it slower than the others.
            self.seconds.pop("atomic", None)

    def _save_flags(self, name, step, file):
        return ["--save-at", str(step), "--save-to", str(self.place.path / name / file)]

    def _resume_flags(self, name, stop):
        """Return the flags to go on from the checkpoint of the process `name`. Raises Failed when there is none."""
        if not self.place.holds(f"{name}/{CHECKPOINT}"):
            raise Failed("no_checkpoint", f"there was nothing at --out after --stop-at {stop}")
        return ["--resume", str(self.place.path / name / CHECKPOINT)]

    def _process(self, name, out, *flags, kill_when=None, followed=False, other_data=False):
        """Run a process in a folder of its own. Raises Failed unless it ended, or was killed, as it should.

        With `followed` strace writes its system calls to a file in the folder.
        """
        folder = self.place.folder(name)
        tokens = self._other_tokens() if other_data else self.tokens
        files = {"--out": out, "--log": LOSSES, "--trace": TRACE}
        own = ["--tokens", str(tokens), "--steps", str(self.steps)]
        own += [part for flag, file in files.items() for part in (flag, str(folder / file))]
        command = with_flags(self.command, [*own, *flags], self.shell)
        if followed:
            command = atomicity.followed(command, folder / CALLS)
        ended = process.run(command, self.place, name, self.timeout, kill_when)
        self.seconds[name] = ended.seconds
        if kill_when and ended.status == "ok":
            raise Failed("not_tried", "the process ended before it could be killed")
        if ended.status != ("killed" if kill_when else "ok"):
            raise Failed(ended.status, self._shown(ended.error))

    def _left(self, spans):
        """Return the AuditedRun of processes with these spans. Raises Failed when there are no weights to compare."""
        name = f"{spans[-1][0]}/{self.weights}"
        if not self.place.holds(name):
            raise Failed("no_weights", "it ended without an error, and there was nothing at --out")
        try:
            self.place.real(name)
            return AuditedRun(self.place, spans, readers.read(self.place.path / name, self.place.real))
        except readers.NotFinite as error:
            raise Failed("not_finite", self._shown(error)) from error
        except LabError as error:
            raise Failed("bad_weights", self._shown(error)) from error

    def _case(self, name, run, resumed=None):
        """Return the Case of what `run()` leaves, held against straight. `resumed` is what runs it where that can have
        other data.
        """
        self.tell(name)
        try:
            return self._trying(lambda: self._compared(name, run(), resumed))
        except Failed as failed:
            status, error = failed.args
            return Case(status, error, passed=None if status == "not_tried" else False)
        finally:
            self._clean()

    def _trying(self, run, *arguments):
        """Return what `run(*arguments)` returns. Raises Failed whatever it is that a trainer did."""
        try:
            return run(*arguments)
        except Failed:
            raise
        except LabError as error:
            raise Failed("meddled", self._shown(error)) from error
        except Exception as error:
            # What libraries make of files that nobody foresaw. An audit ends with a result all the same.
            raise Failed("unreadable", self._shown(_unforeseen(error))) from error

    def _compared(self, name, left, resumed):
        """Return the Case of an AuditedRun. Raises Failed when it can't be held against straight."""
        try:
            comparison.check_same_tensors(self.straight.weights, left.weights, "straight", "weights")
        except LabError as error:
            raise Failed("bad_weights", self._shown(error)) from error
        case = Case(**comparison.distance(self.straight.weights, left.weights))
        same_bits = comparison.same_bits(self.straight.weights, left.weights)
        case.first_differing_logged_step = self._first_difference(case, left)
        case.diagnosis = self._diagnosis(case, left, same_bits)
        faults, unsure = legs.faults(self.steps, *self.straight.legs(), left.legs())
        case.passed = same_bits and case.first_differing_logged_step is None and not faults
        # A log is the trainer's own word, so one case is tried on other data whatever it says.
        if case.passed and resumed and (unsure or name == next(iter([*self.stops, KILLED]))):
            faults = self._faults_on_other_data(case, name, resumed)
            case.passed = not faults
        audit_result.give_reasons(case, faults, same_bits)
        return case

    def _first_difference(self, case, left):
        """Return the first step with another loss than straight's, or None; also, with a note, when they can't be held
        against each other.

        A step that straight passes without logging it has none: a trainer may log every so many steps of each process.
        """
        try:
            wanted, found = self.straight.losses(), left.losses()
        except (LabError, OSError) as error:
            return self._without_losses(case, self._shown(error))
        if not wanted and not found:
            return None
        if not wanted or not found:
            silent = self.straight if not wanted else left
            return self._without_losses(case, f"nothing logged by {', '.join(name for name, _, _ in silent.spans)}")
        unknown = [step for step in found if step not in wanted and min(wanted) < step < max(wanted)]
        if unknown:
            listed = ", ".join(map(str, unknown[:6])) + (", …" if len(unknown) > 6 else "")
            told = f"it logs steps that straight doesn't log: {listed}"
            if len(unknown) == len(found):
                return self._without_losses(case, told)
            case.notes.append(told)
        return comparison.first_difference(wanted, {step: loss for step, loss in found.items() if step not in unknown})

    def _without_losses(self, case, why):
        case.losses_not_compared = why
        case.notes.append(f"logged losses not compared: {why}")

    def _faults_on_other_data(self, case, name, resumed):
        """Return the faults that show when the first processes of a run get other data than the last ones.

        A run that ends as straight all the same began from scratch; one that ends as a run on the other data alone did
        not stop.
        """
        found = []
        try:
            for switch in range(1, 1 + len(self.stops.get(name, [self.save_at]))):
                label = f"{name}{OTHER_DATA}{switch}"
                self.tell(label)
                weights = self._trying(resumed, name, label, switch).weights
                if self._differ(weights, self.straight.weights):
                    kinds = [] if self._differ(weights, self._other_weights()) else ["did_not_stop"]
                elif self._differ(self.straight.weights, self._other_weights()):
                    kinds = ["started_from_scratch"]
                else:
                    raise Failed("not_tried", "it ends with the same weights")
                found += [{"kind": kind, "process": name, "source": "other data"} for kind in kinds]
        except Failed as failed:
            error = failed.args[1]
            case.notes.append(
                f"neither its log nor its trace shows where its processes begin and end, and with other data: {error}"
            )
        return found

    def _other_weights(self):
        """Return the weights that an uninterrupted run on the other data ends with. Raises Failed when it doesn't."""
        if self.other is None:
            self.other = self._trying(lambda: self._uninterrupted("other-data", other_data=True))
        return self.other.weights

    def _other_tokens(self):
        """Return the path of the other data, which are written when they are needed first."""
        if not self.place.holds(OTHER_TOKENS):
            with self.place.create(OTHER_TOKENS) as file:
                np.save(file, np.load(self.tokens, allow_pickle=False)[::-1])
        return self.place.path / OTHER_TOKENS

    def _differ(self, weights, other):
        return weights.keys() != other.keys() or not comparison.same_bits(weights, other)

    def _clean(self):
        """Remove weights and checkpoints, and what trainers put beside them under longer names: they are large, and no
        longer needed.
        """
        try:
            self.place.clean(kept=(LOG, LOSSES, TRACE), prefixes=(self.weights, CHECKPOINT, SAVED))
        except (LabError, OSError, RecursionError) as error:
            self.tell(f"not all that the trainer left can be removed: {self._shown(error)}")

    def _diagnosis(self, case, left, same_bits):
        """Return what the traces of an AuditedRun tell, None, with a note, when they can't be read: no verdict needs
        them.
        """
        try:
            return left.diagnosis(self.straight, self.repeatable, same_bits)
        except (LabError, OSError) as error:
            case.notes.append(self._shown(error))
        except Exception as error:
            # A trace may hold what nobody foresaw; if it doesn't, this is a fault of ours, and where it is has to be
            # seen.
            case.notes.append(self._shown(f"the traces can't be held against each other: {_unforeseen(error)}"))
        return None

    def _shown(self, text):
        """Return a text as one line that can be printed, with the paths in it as they are below the work folder."""
        if text is None:
            return None
        shown = self.place.shown(str(text)).encode("utf-8", "backslashreplace").decode()
        return " ".join(shown.split())[:LONGEST]


def _unforeseen(error):
    """Return an error of no kind that is expected as text: its type, and where in this project it came up."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}: {error}"


def _hold_against_noise(gates):
    """Where repeat found a difference, no other gate can be passed or failed; give the distances as multiples of that
    one.
    """
    noise = gates["repeat"]
    if noise.passed or noise.status != "ok":
        return
    for case in [gates["save"], *gates["resume"].values()]:
        if case.status == "ok":
            case.passed, case.reasons = None, []
            case.noise_ratio = case.rel_l2 / noise.rel_l2 if noise.rel_l2 else None
