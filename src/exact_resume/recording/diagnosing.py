"""A diagnosis of what lies in files: traces, or the folders of recorded programs."""

from pathlib import Path
from typing import Any

from exact_resume import diagnosis
from exact_resume.diagnosis.placing import placed
from exact_resume.errors import LabError
from exact_resume.recording import folder as record


def diagnose_paths(
    reference: Path,
    others: list[Path],
    repeat: Path | None = None,
    unused: bool = False,
    first_update: int | None = None,
) -> dict[str, Any]:
    """Return the diagnosis of the traces or records `others`, one for each leg of a run, held against the one at
    `reference`, with its `sentence`. Raises LabError.

    `repeat` is of a second uninterrupted run, which tells whether runs repeat. `unused`: see `diagnosis.sentence`. The
    legs of recorded programs begin where the reference holds what they begin with; the first of them, if it is given,
    at `first_update`. Where several processes trained, the diagnosis is of the first that isn't identical, and
    `processes` has each one's by its name.
    """
    runs = [reference, *others, *([repeat] if repeat else [])]
    if not any(path.is_dir() for path in runs):
        traces = [diagnosis.read(path) for path in runs]
        return _told(traces[0], traces[1 : 1 + len(others)], traces[1 + len(others) :], unused)
    for path in runs:
        if not path.is_dir():
            raise LabError(f"{path}: found a file, wanted the folder of a record, as {reference} is")
        record.read(path)
    names = list(record.processes(reference))
    if not names:
        raise LabError(f"{reference}: found no process that trained, wanted a reference with at least one")
    found = {name: _of_process(name, runs, len(others), unused, first_update) for name in names}
    decisive = next((name for name in names if found[name]["verdict"] != "identical"), names[0])
    if len(names) == 1:
        return found[decisive]
    sentences = {each["sentence"] for each in found.values()}
    told = (
        f"all {len(names)} processes: {sentences.pop()}"
        if len(sentences) == 1
        else "\n".join(f"{name}: {each['sentence']}" for name, each in found.items())
    )
    return {**found[decisive], "sentence": told, "processes": found}


def _of_process(name, runs, legs, unused, first_update):
    straight, *traces = [diagnosis.read(path / f"{name}{record.TRACE}") for path in runs]
    traces = [placed(straight, trace, first_update if place == 0 else None) for place, trace in enumerate(traces)]
    return _told(straight, traces[:legs], traces[legs:], unused)


def _told(straight, legs, repeats, unused):
    repeatable = None
    for repeat in repeats:
        repeatable = diagnosis.diagnose(straight, [repeat])["verdict"] == "identical"
    found = diagnosis.diagnose(straight, legs, repeatable)
    return {**found, "sentence": diagnosis.sentence(found, unused)}
