"""What an audit finds, as data and in words."""

from dataclasses import asdict, dataclass, field

# The case of the resume gate in which the process is killed, and so no name for a stop.
KILLED = "killed"


@dataclass
class Case:
    """What became of a run, and of holding it against straight.

    `status`: ok; crashed, timed_out; no_checkpoint, no_weights; bad_weights, not_finite; not_tried. `error`: a line that says more.
    `passed`: None when that can't be said. `noise_ratio`: rel_l2 as a multiple of repeat's, where repeat didn't pass. `notes`: lines about
    files that can't be read and aren't needed.
    """

    status: str = "ok"
    error: str | None = None
    passed: bool | None = None
    first_differing_step: int | None = None
    max_abs_diff: float | None = None
    rel_l2: float | None = None
    noise_ratio: float | None = None
    diagnosis: dict | None = None
    notes: list = field(default_factory=list)


def untried():
    """Return the gates before any of them is tried: Cases for repeat and save, a dict of Cases for resume."""
    return {"repeat": Case("not_tried"), "save": Case("not_tried"), "resume": {}}


def make(status, error, gates, checkpoint_bytes=None, weights_bytes=None, atomic=None):
    """Return the result as a dict for JSON.

    `status` and `error` are of the uninterrupted runs, or skipped and why. `gates`: see `untried`. `atomic`: whether no kill can leave a
    part of a checkpoint under its name; None when that can't be said. Keys besides these: `outcome`, which is exact, inexact,
    not_repeatable, failed or skipped; `verdict`, a sentence; `ratio` of the sizes. The gate resume has `passed` and `cases`.
    """
    resume = gates["resume"]
    passed = {"repeat": gates["repeat"].passed, "save": gates["save"].passed}
    passed["resume"] = _all([case.passed for case in resume.values() if case.status != "not_tried"])
    result = {
        "status": status,
        "error": error,
        "outcome": _outcome(status, passed),
        "verdict": None,
        "gates": {
            "repeat": asdict(gates["repeat"]),
            "save": asdict(gates["save"]),
            "resume": {"passed": passed["resume"], "cases": {name: asdict(case) for name, case in resume.items()}},
        },
        "checkpoint_bytes": checkpoint_bytes,
        "weights_bytes": weights_bytes,
        "ratio": checkpoint_bytes / weights_bytes if checkpoint_bytes and weights_bytes else None,
        "atomic": atomic,
    }
    result["verdict"] = sentence(result)
    return result


def cases(result):
    """Return the cases of a result by name: repeat, save and those of resume."""
    gates = result["gates"]
    return {"repeat": gates["repeat"], "save": gates["save"], **gates["resume"]["cases"]}


def culprits(result):
    """Return the components that a trainer which isn't exact lost or changed, as its traces tell, each once and sorted."""
    found = [case["diagnosis"]["culprits"] for case in cases(result).values() if case["passed"] is False and case["diagnosis"]]
    return sorted({culprit["component"] for listed in found for culprit in listed})


def sentence(result):
    """Return the verdict as plain English text of one line."""
    outcome = result["outcome"]
    if outcome == "skipped":
        return f"skipped: {result['error']}"
    if outcome == "failed":
        return f"no verdict: {_failure(result)}"
    if outcome == "not_repeatable":
        repeat = result["gates"]["repeat"]
        noise = repeat["rel_l2"]
        if not noise:
            return f"not repeatable: the logged losses of two uninterrupted runs differ from step {repeat['first_differing_step']} on"
        return f"not repeatable: two uninterrupted runs end {noise:.2g} apart (relative L2), and the other gates are measured against that"
    if outcome == "exact":
        return "exact: stopped or not, it ends with the same bits"
    failed = {name: case for name, case in cases(result).items() if case["passed"] is False}
    if not failed:
        return "no verdict: no resume could be tried"
    parts = [f"not exact: {', '.join(failed)} failed"]
    worst = max((case["max_abs_diff"] for case in failed.values() if case["max_abs_diff"] is not None), default=None)
    if worst is not None:
        parts.append(f"weights up to {worst:.2g} away")
    if culprits(result):
        parts.append(f"lost or changed: {', '.join(culprits(result))}")
    return "; ".join([*parts, *dict.fromkeys(_failure(case) for case in failed.values() if case["status"] != "ok")])


def _failure(case):
    return ": ".join(filter(None, [case["status"].replace("_", " "), case["error"]]))


def _outcome(status, passed):
    if status != "ok":
        return "skipped" if status == "skipped" else "failed"
    if not passed["repeat"]:
        return "not_repeatable"
    return "exact" if passed["save"] and passed["resume"] else "inexact"


def _all(passed):
    """Return whether all passed; None when there are none, or one of which that can't be said and no failure."""
    if False in passed:
        return False
    return None if not passed or None in passed else True
