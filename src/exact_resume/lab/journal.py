"""What a run leaves beside its weights: losses, sketches of the weights, and the trace."""

import numpy as np

from exact_resume.checkpoint import atomic
from exact_resume.errors import LabError
from exact_resume.lab.sketch import WIDTH, Sketch
from exact_resume.tracing.appended_file import CHUNK, AppendedFile

KINDS = ("losses", "sketches", "trace")


class Journal:
    """Keeps of a run the `kinds` that are asked for, each in a file of its own that only ever grows; `path` gives a
    kind's path.

    - `losses`: CSV of step and loss;
    - `sketches`: of the model's weights, and of their averages where the run makes some, before the first step and
      after each; float64;
    - `trace`: the run's Trace.

    With `resume`, what `state_dict` returned when the run was where it is now, `steps` after its first one, the files
    are gone on with. Raises ValueError when they don't hold what that says.
    """

    def __init__(self, run, kinds, path, resume=None, steps=0):
        if resume is not None and (type(resume) is not dict or resume.keys() != set(kinds)):
            raise ValueError(f"found other records than {', '.join(kinds) or 'none'}")
        states = resume or dict.fromkeys(kinds)
        self.trace = run.make_trace(path("trace"), states["trace"]) if "trace" in kinds else None
        self.files = {kind: AppendedFile(path(kind), states[kind]) for kind in kinds if kind != "trace"}
        if self.trace:
            self.files["trace"] = self.trace.file
        self.sketches = {"model": Sketch(run.model.parameters())} if "sketches" in kinds else {}
        if self.sketches and run.average:
            self.sketches["average"] = Sketch(run.average.state_dict().values())
        if resume is not None:
            self._check_rows(run.step, steps)
            return
        if "losses" in kinds:
            self.files["losses"].append(b"step,train_loss\n")
        self._sketch()

    def add(self, step, loss):
        """Keep `loss`, that of step number `step`, and how the weights are after it. The trace is kept by the run
        itself.

        Raises OSError when one of them can't be written any more.
        """
        if self.trace and self.trace.error:
            raise self.trace.error
        if "losses" in self.files:
            self.files["losses"].append(f"{step},{loss:.6f}\n".encode())
        self._sketch()

    def state_dict(self):
        """Return what it takes to go on with the files as they are now, all of which is on the disk then."""
        return {kind: file.state_dict() for kind, file in self.files.items()}

    def write(self, kind, path):
        """Write all that was kept of `kind` to `path`: the sketches as NPZ, one array (steps + 1, WIDTH) for the model
        and one for the averages, anything else as it is. Raises LabError when the file that it was kept in was changed
        by somebody else.
        """
        try:
            with atomic.replacing(path) as file:
                if kind == "sketches":
                    np.savez(file, **self._sketched())
                else:
                    file.writelines(self.files[kind].contents())
        except ValueError as error:
            raise LabError(str(error)) from error

    def close(self):
        for file in self.files.values():
            file.close()

    def _sketch(self):
        for sketch in self.sketches.values():
            self.files["sketches"].append(sketch.take().numpy().tobytes())

    def _sketched(self):
        file = self.files["sketches"]
        for _ in file.contents():
            # To its end, where it is said whether it is what was written.
            continue
        sketches = np.memmap(
            file.file, np.float64, "r", shape=(file.size // self._sketch_bytes, len(self.sketches), WIDTH)
        )
        return {name: sketches[:, index] for index, name in enumerate(self.sketches)}

    @property
    def _sketch_bytes(self):
        return len(self.sketches) * WIDTH * np.dtype(np.float64).itemsize

    def _check_rows(self, step, steps):
        """Raise ValueError unless the files end with the rows of step number `step`, the last one of `steps`."""
        for kind, file in self.files.items():
            size, begin = (steps + 1) * self._sketch_bytes, f"{step},".encode()
            if not (file.size == size if kind == "sketches" else _last_line(file).startswith(begin)):
                raise ValueError(f"{file.path}: found other rows than those up to step {step}")


def _last_line(file):
    tail = b""
    for chunk in file.contents():
        tail = (tail + chunk)[-CHUNK:]
    return tail.rstrip(b"\n").rpartition(b"\n")[2]
