"""What can happen to a checkpoint: a saver is put through each kind of fault, case by case, and what its users then
load is counted.
"""

import contextlib
import io
import os
import random
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from itertools import count as count_from
from pathlib import Path

import torch

from exact_resume.checkpoint import archive
from exact_resume.errors import LabError
from exact_resume.faults import power_loss, system_calls
from exact_resume.tracing.digests import digest

ERRORS = ["ENOSPC", "EIO", "EDQUOT", "EACCES"]
FAILING = power_loss.KNOWN - power_loss.HARMLESS | {"close"}
NAME = "checkpoint.pth"
TENSORS, NUMBERS = 4, 3000


@dataclass
class Cell:
    """How many cases were tried, in how many of them a good checkpoint was loaded, in how many there was silent damage;
    and an example: the first case of silent damage, or if there was none, the first without a good checkpoint, as a
    dict, with what was `loaded`.

    Good is one that is whole, the old one or the new one. Silent damage is a load that gives something else without a
    word, or a save that ends without one and yet didn't save.
    """

    tried: int = 0
    good: int = 0
    silent: int = 0
    example: dict | None = None

    def add(self, case, loaded, claimed=False):
        """Count a case in which users load `loaded`: "old", "new", "other" or "refused"; `claimed`: the save said that
        it is done.
        """
        good, silent = loaded in ("old", "new"), loaded == "other" or (claimed and loaded != "new")
        if (silent and not self.silent) or (not good and self.example is None):
            self.example = {**case, "loaded": loaded}
        self.tried += 1
        self.good += good
        self.silent += silent


class Bench:
    """A folder with the checkpoint of one saver, in which each case begins with the old checkpoint alone."""

    def __init__(self, saver, folder):
        self.saver, self.folder = saver, Path(folder)
        self.path = self.folder / NAME
        self.old, self.new = value_of(1), value_of(2)
        self.known = {"old": shape_of(self.old), "new": shape_of(self.new)}

    def begin(self):
        """Let the folder hold the old checkpoint, saved twice, since a saver may keep the one before."""
        self.put({})
        self.saver.save(self.path, self.old)
        self.saver.save(self.path, self.old)

    def put(self, files):
        """Let the folder hold just `files`, a dict from name to content."""
        for path in self.folder.iterdir():
            path.unlink()
        for name, content in files.items():
            (self.folder / name).write_bytes(content)

    def files(self):
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}

    def paths(self):
        """Return what a save makes system calls on: the folder and whatever stands in it before or after."""
        self.begin()
        self.save()
        names = [*self.files(), f"{NAME}.tmp"]
        return [self.folder, *(self.folder / name for name in names)]

    def save(self):
        self.saver.save(self.path, self.new)

    def loaded(self):
        """Return what the saver's users load now: "old", "new", "other", or "refused" when loading raises."""
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                value = self.saver.load(self.path)
        except Exception:
            return "refused"
        seen = shape_of(value)
        return next((name for name, wanted in self.known.items() if seen == wanted), "other")


def value_of(step):
    """Return a small checkpoint, of as many blocks that it can be torn in many places."""
    return {
        "model": {f"weight{index}": torch.arange(NUMBERS) + 0.5 * step + index for index in range(TENSORS)},
        "step": step,
    }


def shape_of(value):
    """Return what tells two checkpoints apart: keys, types and bits."""
    if isinstance(value, dict):
        return [(repr(key), shape_of(item)) for key, item in value.items()]
    return type(value).__name__, digest(value)


def count(saver, seed, bit_flips, truncations):
    """Put `saver` through every kind of fault and return the cells as dicts by kind. Raises LabError without strace."""
    system_calls.need_strace()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        bench = Bench(saver, os.path.realpath(folder))
        paths = bench.paths()
        bench.begin()
        before = bench.files()
        calls, status = system_calls.record(bench.save, paths)
        if status:
            raise LabError(f"the save ended with status {status} under strace, wanted 0")
        after = bench.files()
        cells = {
            "kill": kills(bench, paths, calls),
            "error": errors(bench, paths, calls),
            "power_loss": power_losses(bench, calls, before, after),
            "bit_flip": bit_flips_of(bench, after, random.Random(seed), bit_flips),
            "truncation": truncations_of(bench, after, random.Random(seed), truncations),
        }
    return {kind: asdict(cell) for kind, cell in cells.items()}


def kills(bench, paths, calls):
    """Kill the save before each of its system calls, until none is left."""
    cell = Cell()
    for name in sorted({call.name for call in calls}):
        for number in count_from(1):
            bench.begin()
            if not system_calls.kill_at(bench.save, paths, name, number):
                break
            cell.add({"call": name, "number": number}, bench.loaded())
    return cell


def errors(bench, paths, calls):
    """Let each call that opens, changes, syncs, renames or closes fail with each error, until none is left."""
    cell = Cell()
    for name in sorted({call.name for call in calls} & FAILING):
        for error in ERRORS:
            for number in count_from(1):
                bench.begin()
                fired, status = system_calls.fail_at(bench.save, paths, name, number, error)
                if not fired:
                    break
                cell.add({"error": error, "call": name, "number": number}, bench.loaded(), claimed=status == 0)
    return cell


def power_losses(bench, calls, before, after):
    """Let the power fail after each call; what may be on the disk then is tried once, however many ways lead there."""
    cell = Cell()
    tried = set()
    for done, state in power_loss.states(calls, before, after):
        found = tuple(sorted(state.items()))
        if found not in tried:
            tried.add(found)
            bench.put(state)
            sizes = {name: len(content) for name, content in found}
            cell.add({"after": calls[done - 1].name if done else None, "sizes": sizes}, bench.loaded())
    return cell


def bit_flips_of(bench, files, generator, number):
    """Flip one bit of the new checkpoint, `number` times at random."""
    cell = Cell()
    content = files[NAME]
    for bit in sorted(generator.sample(range(8 * len(content)), number)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        bench.put({**files, NAME: bytes(flipped)})
        cell.add({"bit": bit}, bench.loaded())
    return cell


def truncations_of(bench, files, generator, number):
    """Cut the new checkpoint at every record's boundaries and at `number` random places."""
    cell = Cell()
    content = files[NAME]
    for size in sorted({*boundaries(content), *generator.sample(range(len(content)), number)}):
        bench.put({**files, NAME: content[:size]})
        cell.add({"bytes": size}, bench.loaded())
    return cell


def boundaries(content):
    """Return the offsets in an archive at which a record begins, its data begin, its data end, and where the central
    directory begins.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        found = {opened.start_dir}
        for record in opened.infolist():
            begin = archive.data_offset(content, record)
            found |= {record.header_offset, begin, begin + record.file_size}
    return sorted(found)
