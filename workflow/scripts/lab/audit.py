"""The audit of a trainer: three gates that a program has to pass whose runs can be stopped and resumed without a trace.

- repeat: two uninterrupted runs are equal. If they aren't, nothing else can pass or fail; it is measured against that noise.
- save: a run that saves on its way and goes on equals one that never saves.
- resume: a run that is stopped, or killed when it has saved, and resumed in a new process equals the uninterrupted one.
"""

import csv
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab import atomicity, audit_result, comparison, diagnosis, trainer_command, trainer_process, weights_file
from lab.audit_result import KILLED, Case
from lab.errors import LabError
from lab.listing import shape, size
from lab.trainer_process import CALLS, CHECKPOINT, LOG, LOSSES, TRACE


class Failed(Exception):
    """A run that can't be compared: a status of Case, and the line that goes with it."""


class Audit:
    """Audits one trainer with processes in folders below `work`, which is emptied first.

    `command` and `shell` say how it is started, `tokens` and `steps` what it trains; `stops` maps names of cases to lists of steps;
    `save_at` is the step for the gate save and the kill, `timeout` in seconds, `weights` the name of the final weights.
    """

    def __init__(self, work, *, command, shell, tokens, steps, stops, save_at, timeout, weights):
        self.work = Path(work).absolute()
        self.command, self.shell, self.timeout, self.weights = command, shell, timeout, weights
        self.stops, self.save_at = stops, save_at
        self.common = ["--tokens", str(Path(tokens).absolute()), "--steps", str(steps)]
        self.seconds, self.checkpoint_bytes, self.checkpoint_sizes, self.weights_bytes = {}, None, None, None
        self.straight = None

    def run(self):
        """Run all processes and return the result as `audit_result.make` does."""
        trainer_process.end_leftovers(self.work)
        if self.work.exists():
            shutil.rmtree(self.work)
        gates, atomic = audit_result.untried(), None
        status, error = "ok", None
        try:
            self.straight = self._uninterrupted("straight")
            self.weights_bytes = size(self.straight.folders[-1] / self.weights)
        except Failed as failed:
            status, error = failed.args
        else:
            gates["repeat"] = self._case(lambda: self._uninterrupted("repeat"))
            gates["save"] = self._case(self._saving)
            gates["resume"] = {name: self._case(lambda name=name: self._stopped(name)) for name in self.stops}
            gates["resume"][KILLED] = self._case(self._killed)
            status, error = gates["repeat"].status, gates["repeat"].error
            _hold_against_noise(gates)
            if gates["save"].status == "ok" and shutil.which("strace"):
                atomic = self._is_atomic()
        self._clean()
        return audit_result.make(status, error, gates, self.checkpoint_bytes, self.weights_bytes, atomic)

    def times(self):
        """Return the seconds of each process, of a save, and of the stops and resumes of each case, as a dict for JSON."""
        once = [self.seconds[name] for name in ("straight", "repeat") if name in self.seconds]
        legs = {name: [seconds for leg, seconds in self.seconds.items() if leg.rpartition("-")[0] == name] for name in self.stops}
        return {
            "processes": self.seconds,
            "save": self.seconds["save"] - sum(once) / len(once) if "save" in self.seconds else None,
            "resume": {name: sum(seconds) - sum(once) / len(once) for name, seconds in legs.items() if seconds},
        }

    def _uninterrupted(self, name):
        return self._left([self._process(name, self.weights)])

    def _saving(self):
        folder = self._process("save", self.weights, *self._save_flags("save"))
        checkpoint = folder / CHECKPOINT
        if not checkpoint.exists():
            raise Failed("no_checkpoint", f"there was nothing at --save-to after step {self.save_at}")
        self.checkpoint_bytes = size(checkpoint)
        self.checkpoint_sizes = shape(checkpoint)
        return self._left([folder])

    def _stopped(self, name):
        folders, resume = [], []
        for number, stop in enumerate(self.stops[name], 1):
            folders.append(self._process(f"{name}-{number}", CHECKPOINT, *resume, "--stop-at", str(stop)))
            checkpoint = folders[-1] / CHECKPOINT
            if not checkpoint.exists():
                raise Failed("no_checkpoint", f"there was nothing at --out after --stop-at {stop}")
            resume = ["--resume", str(checkpoint)]
        folders.append(self._process(f"{name}-{len(folders) + 1}", self.weights, *resume))
        return self._left(folders)

    def _killed(self):
        checkpoint = self.work / f"{KILLED}-1" / CHECKPOINT
        self._process(f"{KILLED}-1", self.weights, *self._save_flags(f"{KILLED}-1"), kill_when=(checkpoint, self.checkpoint_sizes))
        folder = self._process(f"{KILLED}-2", self.weights, "--resume", str(checkpoint))
        return self._left([folder])

    def _is_atomic(self):
        """Return whether the trainer's save is atomic, None when it doesn't end under strace as it does else."""
        try:
            folder = self._process("atomic", CHECKPOINT, "--stop-at", str(self.save_at), followed=True)
        except Failed:
            return None
        finally:
            # Strace makes it slower than the others.
            del self.seconds["atomic"]
        checkpoint = folder / CHECKPOINT
        found = atomicity.is_atomic(folder / CALLS, checkpoint) if checkpoint.exists() else None
        (folder / CALLS).unlink()
        return found

    def _save_flags(self, name):
        return ["--save-at", str(self.save_at), "--save-to", str(self.work / name / CHECKPOINT)]

    def _process(self, name, out, *flags, kill_when=None, followed=False):
        """Run a process in a folder of its own and return that. Raises Failed unless it ended, or was killed, as it should.

        With `followed` strace writes its system calls to a file in the folder.
        """
        folder = self.work / name
        folder.mkdir(parents=True)
        files = {"--out": out, "--log": LOSSES, "--trace": TRACE}
        own = [*self.common, *(part for flag, file in files.items() for part in (flag, str(folder / file))), *flags]
        command = trainer_command.with_flags(self.command, own, self.shell)
        if followed:
            command = atomicity.followed(["/bin/sh", "-c", command] if self.shell else command, folder / CALLS)
        ended = trainer_process.run(command, folder, self.timeout, kill_when)
        self.seconds[name] = ended.seconds
        if kill_when and ended.status == "ok":
            raise Failed("not_tried", "the process ended before it could be killed")
        if ended.status != ("killed" if kill_when else "ok"):
            raise Failed(ended.status, self._shown(ended.error))
        return folder

    def _left(self, folders):
        """Return what the run left whose processes had these folders. Raises Failed when there are no weights to compare."""
        path = folders[-1] / self.weights
        if not path.exists():
            raise Failed("no_weights", "it ended without an error, and there was nothing at --out")
        try:
            return Left(folders, weights_file.read(path))
        except weights_file.NotFinite as error:
            raise Failed("not_finite", self._shown(error)) from error
        except LabError as error:
            raise Failed("bad_weights", self._shown(error)) from error

    def _case(self, run):
        """Return the Case of what `run()` leaves, held against straight."""
        try:
            left = run()
            try:
                comparison.check_same_tensors(self.straight.weights, left.weights, "straight", "weights")
            except LabError as error:
                raise Failed("bad_weights", str(error)) from error
        except Failed as failed:
            status, error = failed.args
            return Case(status, error, passed=None if status == "not_tried" else False)
        finally:
            self._clean()
        case = Case(**comparison.distance(self.straight.weights, left.weights))
        case.first_differing_step = self._noting(case, self._first_difference, left)
        case.passed = comparison.same_bits(self.straight.weights, left.weights) and case.first_differing_step is None
        case.diagnosis = self._noting(case, self._diagnosis, left)
        if case.first_differing_step is None and case.diagnosis and not case.passed:
            case.first_differing_step = case.diagnosis["row"]
        return case

    def _clean(self):
        """Remove weights and checkpoints, and what trainers put beside them under longer names: they are large, and no longer needed."""
        for path in sorted(self.work.glob("*/*")):
            if path.name not in (LOG, LOSSES, TRACE) and path.name.startswith((self.weights, CHECKPOINT)):
                _remove(path)

    def _noting(self, case, read, left):
        """Return what `read(left)` returns, or None and a note why it can't be read."""
        try:
            return read(left)
        except (LabError, OSError) as error:
            case.notes.append(self._shown(error))
            return None

    def _first_difference(self, left):
        return comparison.first_difference(self.straight.losses(), left.losses())

    def _diagnosis(self, left):
        """Return what the traces tell; None if the trainer writes none."""
        reference, *legs = (folder / TRACE for folder in [*self.straight.folders, *left.folders])
        if not reference.exists():
            return None
        found = diagnosis.diagnose(diagnosis.read(reference), [diagnosis.read(path) for path in legs])
        return {**found, "sentence": diagnosis.sentence(found)}

    def _shown(self, line):
        """Return a line with the paths in it as they are below the work folder, so that it is the same wherever that lies."""
        return None if line is None else str(line).replace(f"{self.work}/", "")


@dataclass
class Left:
    """What a run left: the folders of its processes and the weights."""

    folders: list
    weights: dict

    def losses(self):
        """Return the losses, as text, by step, as far as they were written. Raises LabError when they can't be read."""
        return {step: loss for folder in self.folders for step, loss in _read_losses(folder / LOSSES).items()}


def _read_losses(path):
    if not path.exists():
        return {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return {int(row["step"]): row["train_loss"] for row in csv.DictReader(file)}
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise LabError(f"{path}: wanted a CSV with the columns step,train_loss") from error


def _hold_against_noise(gates):
    """Where repeat found a difference, no other gate can be passed or failed; give the distances as multiples of that one."""
    noise = gates["repeat"]
    if noise.passed or noise.status != "ok":
        return
    for case in [gates["save"], *gates["resume"].values()]:
        if case.status == "ok":
            case.passed = None
            case.noise_ratio = case.rel_l2 / noise.rel_l2 if noise.rel_l2 else None


def _remove(path):
    """Remove a file or a folder; of a link what it leads to, if that lies beside it or below, and else the link alone."""
    target, beside = path.resolve(), path.parent.resolve()
    if path.is_symlink():
        path.unlink()
        if not target.is_relative_to(beside):
            return
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
