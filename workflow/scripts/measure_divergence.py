"""Measure how far runs end up from the uninterrupted one: weights, losses, updates, batches.

Beside each weights file NAME.pth stand the run's log NAME_log.csv, its record NAME_record.npz and its trace
trace/NAME.csv.
"""

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import command_line
from exact_resume import diagnosis
from exact_resume.checkpoint import archive, atomic, comparison
from exact_resume.errors import LabError


@dataclass
class Ended:
    """A run that has ended: losses by step as logged, digests of the batches, and sketches before the first step and
    after each, of the model's weights and of those that it ended with.
    """

    name: str
    sha256: str
    weights: dict
    losses: pd.Series
    batches: list
    model: np.ndarray
    ended_with: np.ndarray

    @property
    def steps(self):
        return list(self.losses.index)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--straight", required=True, help="weights of the uninterrupted run")
    parser.add_argument(
        "--run", action="append", required=True, metavar="PTH", help="weights of a run to hold against it; repeatable"
    )
    parser.add_argument(
        "--first-updates", type=int, default=5, help="compare the sizes of this many updates (default: %(default)s)"
    )
    parser.add_argument("--json", required=True, help="JSON to write: everything, per run")
    parser.add_argument("--csv", required=True, help="CSV to write: one row a run")
    parser.add_argument(
        "--steps", required=True, help="CSV to write: run,step,rel_l2,update_l2, estimated from the sketches"
    )
    args = parser.parse_args()

    straight = read(args.straight)
    results, steps = {}, []
    for path in args.run:
        run = read(path)
        curve = step_table(straight, run)
        steps.append(curve)
        results[run.name] = {**weights_gap(straight, run), **loss_gap(straight, run), **seen_batches(straight, run)}
        results[run.name]["updates"] = first_updates(step_table(straight, straight), curve, args.first_updates)

    atomic.write_text(args.json, json.dumps({"straight_sha256": straight.sha256, "runs": results}, indent=2) + "\n")
    table = pd.DataFrame([table_row(name, result) for name, result in results.items()]).astype(
        {"first_differing_step": "Int64"}
    )
    atomic.write_text(args.csv, table.to_csv(index=False, lineterminator="\n"))
    atomic.write_text(args.steps, pd.concat(steps).to_csv(index=False, lineterminator="\n"))


def table_row(name, result):
    """Return a run's `result` as one flat row, the ratio of its n-th update to straight's as update_ratio_n."""
    ratios = {f"update_ratio_{number}": update["ratio"] for number, update in enumerate(result["updates"], 1)}
    return {"run": name, **{key: value for key, value in result.items() if key != "updates"}, **ratios}


def read(path):
    """Return the Ended run whose weights file is `path`. Raises LabError when a file that should stand beside it is
    missing.
    """
    path = Path(path)
    log, record = (path.with_name(path.stem + end) for end in ("_log.csv", "_record.npz"))
    batches = [row.cells["batch"] for row in diagnosis.read(path.parent / "trace" / f"{path.stem}.csv").rows]
    weights = archive.load(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        losses = pd.read_csv(log, dtype={"train_loss": str}).set_index("step")["train_loss"]
        with np.load(record, allow_pickle=False) as arrays:
            ended_with = arrays["average"] if "average" in arrays else arrays["model"]
            return Ended(path.stem, digest, weights, losses, batches, arrays["model"], ended_with)
    except (OSError, KeyError, ValueError) as error:
        raise LabError(f"{log} and {record.name}: can't be read: {error}") from error


def weights_gap(straight, run):
    """Return identical, both digests, and how far apart the weights are: see `comparison.distance`."""
    comparison.check_same_tensors(straight.weights, run.weights, f"{straight.name}.pth", f"{run.name}.pth")
    return {
        "identical": run.sha256 == straight.sha256,
        "sha256": run.sha256,
        "straight_sha256": straight.sha256,
        **comparison.distance(straight.weights, run.weights),
    }


def loss_gap(straight, run):
    """Return the first step whose logged loss differs (None if none does), loss minus straight's there and at the last
    step, and the largest such difference of any step, without its sign.
    """
    reference = straight.losses.reindex(run.losses.index)
    different = run.losses.index[run.losses != reference]
    first = int(different[0]) if len(different) else None
    gap = run.losses.astype(float) - reference.astype(float)
    return {
        "steps": len(run.losses),
        "equal_loss_rows": len(run.losses) - len(different),
        "first_differing_step": first,
        "loss_gap_first": 0.0 if first is None else round(float(gap[first]), 6),
        "loss_gap_last": round(float(gap.iloc[-1]), 6),
        "loss_gap_largest": round(float(np.abs(gap.to_numpy()).max()), 6),
        "loss_last": float(run.losses.iloc[-1]),
    }


def seen_batches(straight, run):
    """Return how many batches the run drew; how many of them straight, whose past a resumed run shares, had drawn
    before the run's first step; and whether the run drew straight's batches, each at its step.
    """
    drawn = dict(zip(straight.steps, straight.batches))
    past = {batch for step, batch in drawn.items() if step < run.steps[0]}
    return {
        "batches": len(run.batches),
        "batches_seen_before": sum(batch in past for batch in run.batches),
        "same_batches": run.batches == [drawn.get(step) for step in run.steps],
    }


def step_table(straight, run):
    """Return run, step, rel_l2 (distance from straight of the weights that it is for, relative to them) and update_l2
    (size of the step's update of the model).

    One row for the weights that the run started from (update_l2 empty) and one for each step. Sizes are norms of
    sketches.
    """
    begin = run.steps[0] - straight.steps[0]
    reference = straight.ended_with[begin : begin + len(run.ended_with)]
    distance = np.linalg.norm(run.ended_with - reference, axis=1) / np.linalg.norm(reference, axis=1)
    update = np.linalg.norm(np.diff(run.model, axis=0), axis=1)
    return pd.DataFrame(
        {"run": run.name, "step": [run.steps[0] - 1, *run.steps], "rel_l2": distance, "update_l2": [np.nan, *update]}
    )


def first_updates(straight_table, table, count):
    """Return step, update_l2, straight_update_l2 and their ratio for the run's first `count` steps at which straight
    makes an update.
    """
    reference = straight_table.set_index("step")["update_l2"]
    own = table.set_index("step")["update_l2"].iloc[1:]
    updates = []
    for step, size in own[reference[own.index] > 0].iloc[:count].items():
        updates.append(
            {
                "step": int(step),
                "update_l2": size,
                "straight_update_l2": reference[step],
                "ratio": size / reference[step],
            }
        )
    return updates


if __name__ == "__main__":
    command_line.run(main)
