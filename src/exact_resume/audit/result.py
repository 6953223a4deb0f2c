"""What an audit finds, as data and in words."""

from dataclasses import asdict, dataclass, field

from exact_resume import diagnosis

# The cases of the resume gate that every audit has, and so no names for stops: the process is killed when it has saved,
# and it saves twice.
KILLED, SAVED_TWICE = "killed", "saved-twice"
# What the processes of a case that are given other data are called: this and a number behind its name.
OTHER_DATA = "-other-data-"


@dataclass
class Case:
    """What became of a run, and of holding it against straight.

    `status`: ok; crashed, timed_out; no_checkpoint, no_weights; bad_weights, not_finite; unreadable, meddled;
    not_tried. `error`: a line that says more. `passed`: None when that can't be said. `reasons`: why it failed, each a
    dict with `kind`, numbers and a `sentence`; see `give_reasons`. `first_differing_logged_step`: in the trainer's own
    steps, as it logs them; a diagnosis counts for itself. `noise_ratio`: rel_l2 as a multiple of repeat's, where repeat
    didn't pass. `losses_not_compared`: why not, a line; None if they were, or none were logged. `notes`: lines about
    files that can't be read and aren't needed, and what couldn't be looked at.
    """

    status: str = "ok"
    error: str | None = None
    passed: bool | None = None
    reasons: list = field(default_factory=list)
    first_differing_logged_step: int | None = None
    losses_not_compared: str | None = None
    max_abs_diff: float | None = None
    rel_l2: float | None = None
    noise_ratio: float | None = None
    diagnosis: dict | None = None
    notes: list = field(default_factory=list)


# What a leg's fault is called in a sentence, and what its numbers are.
FAULTS = {
    "started_from_scratch": "started from scratch",
    "started_early": "started at another step than the one after its checkpoint's",
    "started_late": "started at another step than the one after its checkpoint's",
    "did_not_stop": "did not stop",
    "stopped_early": "stopped early",
}
NUMBERS = {"log": "its log has steps", "trace": "its trace has batches"}


def give_reasons(case, faults, same_bits):
    """Give a Case whose run could be compared the reasons why it fails, if it does.

    `faults` are of its legs: see `legs.faults`; or of the source `other data` (see `Audit`), without numbers. Other
    kinds: weights_differ; bits_differ, where no difference shows; losses_differ, with `step`; unexplained, when no
    trace names a culprit.
    """
    reasons = [{**fault, "sentence": _fault_sentence(fault)} for fault in faults]
    if not same_bits and case.max_abs_diff:
        sentence = f"the weights differ by up to {case.max_abs_diff:.2g} (relative L2 {case.rel_l2:.2g})"
        reasons.append({"kind": "weights_differ", "sentence": sentence})
    elif not same_bits:
        reasons.append(
            {
                "kind": "bits_differ",
                "sentence": "the weights differ just in bits that no number shows, such as 0 and -0",
            }
        )
    step = case.first_differing_logged_step
    if step is not None:
        beginning = "the weights are equal, and " if same_bits else ""
        reasons.append(
            {
                "kind": "losses_differ",
                "step": step,
                "sentence": f"{beginning}the logged losses differ from step {step} on",
            }
        )
    if reasons and not faults and not (case.diagnosis and case.diagnosis["culprits"]):
        told = (
            f"its trace says no more than this: {case.diagnosis['sentence']}" if case.diagnosis else "no trace says why"
        )
        reasons.append({"kind": "unexplained", "sentence": told})
    case.reasons = reasons


def _fault_sentence(fault):
    told = f"{fault['process']} {FAULTS[fault['kind']]}"
    if fault["source"] == "other data":
        # The kinds that these are of.
        why = {
            "started_from_scratch": "it ends the same whatever data its checkpoint was trained on",
            "did_not_stop": "the run ends the same whatever data it is resumed with",
        }
        return f"{told}: {why[fault['kind']]}"
    found, wanted = (f"{first}…{last}" for first, last in (fault["found"], fault["wanted"]))
    return f"{told}: {NUMBERS[fault['source']]} {found}, wanted {wanted}"


def untried():
    """Return the gates before any of them is tried: Cases for repeat and save, a dict of Cases for resume."""
    return {"repeat": Case("not_tried"), "save": Case("not_tried"), "resume": {}}


def make(status, error, gates, checkpoint_bytes=None, weights_bytes=None, atomic=None):
    """Return the result as a dict for JSON.

    `status` and `error` are of the uninterrupted runs, or skipped and why. `gates`: see `untried`. `atomic`: whether no
    kill can leave a part of a checkpoint under its name; None when that can't be said. Keys besides these: `outcome`,
    which is exact, inexact, not_repeatable, failed or skipped; `verdict`, a sentence; `ratio` of the sizes. The gate
    resume has `passed` and `cases`.
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
    """Return the components that a trainer which isn't exact lost or changed, as its traces tell, each once and sorted;
    parts of one that is among them itself are not told besides.
    """
    found = [
        case["diagnosis"]["culprits"]
        for case in cases(result).values()
        if case["passed"] is False and case["diagnosis"]
    ]
    names = {culprit["component"] for listed in found for culprit in listed}
    return sorted(name for name in names if name.rpartition(".")[0] not in names)


def latent(result):
    """Return what of an exact trainer's state was lost or changed without an effect in these runs, each as a sentence,
    once.
    """
    diagnoses = [case["diagnosis"] for case in cases(result).values() if case["diagnosis"]]
    told = [
        diagnosis.told(entry, found["unit"])
        for found in diagnoses
        for entry in found["latent"]
        if entry["action"] in diagnosis.TELLING
    ]
    return list(dict.fromkeys(told))


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
        if repeat["status"] != "ok":
            return f"not repeatable: the second of two uninterrupted runs: {_failure(repeat)}"
        if not noise:
            return f"not repeatable: of two uninterrupted runs {'; '.join(_reasons([repeat]))}"
        return (
            f"not repeatable: two uninterrupted runs end {noise:.2g} apart (relative L2), and the other gates "
            "are measured against that"
        )
    if outcome == "exact":
        told = "; ".join(latent(result))
        told = f"exact here; latent: {told}" if told else "exact: stopped or not, it ends with the same bits"
        return "; ".join([told, *_losses_not_compared(result)])
    failed = {name: case for name, case in cases(result).items() if case["passed"] is False}
    if not failed:
        return "no verdict: no resume could be tried"
    parts = [f"not exact: {', '.join(failed)} failed"]
    worst = max((case["max_abs_diff"] or 0.0 for case in failed.values()), default=0.0)
    if worst:
        parts.append(f"weights up to {worst:.2g} away")
    if culprits(result):
        parts.append(f"lost or changed: {', '.join(culprits(result))}")
    parts += _reasons(
        case for case in failed.values() if not case["diagnosis"] or not case["diagnosis"]["culprits"] or _faults(case)
    )
    return "; ".join([*parts, *_failures(failed.values()), *_losses_not_compared(result)])


def summary(results):
    """Return what came out of the audits with these results, a line of plain English text."""
    if len(results) == 1:
        return f"Audit of {results[0]['name']}: {results[0]['verdict']}"
    names = {}
    for result in results:
        names.setdefault(result["outcome"].replace("_", " "), []).append(result["name"])
    exact = len(names.pop("exact", []))
    others = [f"{outcome}: {', '.join(names[outcome])}" for outcome in sorted(names)]
    return "; ".join([f"Audit: {exact} of {len(results)} trainers are exact", *others])


def _reasons(cases):
    """Return the sentences of the cases' reasons, of each kind the first one; how far the weights are away is told with
    all cases.
    """
    told = {}
    for case in cases:
        for reason in case["reasons"]:
            if reason["kind"] != "weights_differ":
                told.setdefault(reason["kind"], reason["sentence"])
    return list(told.values())


def _failures(cases):
    """Return what befell the cases that couldn't be compared: of each status the first one's."""
    told = {}
    for case in cases:
        if case["status"] != "ok":
            told.setdefault(case["status"], _failure(case))
    return list(told.values())


def _losses_not_compared(result):
    """Return why losses were not compared, as a list: the first case's reason, if there is one."""
    told = [case["losses_not_compared"] for case in cases(result).values() if case["losses_not_compared"]]
    return [f"logged losses not compared: {told[0]}"] if told else []


def _faults(case):
    return [reason for reason in case["reasons"] if reason["kind"] in FAULTS]


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
