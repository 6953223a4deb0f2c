"""Measure how far runs end up from the uninterrupted one: weights, losses, updates, batches.

Beside each weights file NAME.pth stand the run's log NAME_log.csv and its record NAME_record.npz.
"""

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import command_line
from lab import atomic, checkpoint
from lab.errors import LabError


@dataclass
class Ended:
    """A run that has ended: losses by step as logged, offsets (steps, batch), and sketches before the first step and after each."""

    name: str
    sha256: str
    weights: dict
    losses: pd.Series
    offsets: np.ndarray
    sketch: np.ndarray

    @property
    def steps(self):
        return list(self.losses.index)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--straight", required=True, help="weights of the uninterrupted run")
    parser.add_argument("--run", action="append", required=True, metavar="PTH", help="weights of a run to hold against it; repeatable")
    parser.add_argument("--first-updates", type=int, default=5, help="compare the sizes of this many updates (default: %(default)s)")
    parser.add_argument("--json", required=True, help="JSON to write: everything, per run")
    parser.add_argument("--csv", required=True, help="CSV to write: one row a run")
    parser.add_argument("--steps", required=True, help="CSV to write: run,step,rel_l2,update_l2, estimated from the sketches")
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
    rows = [{"run": name, **{key: value for key, value in result.items() if key != "updates"}} for name, result in results.items()]
    atomic.write_text(args.csv, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    atomic.write_text(args.steps, pd.concat(steps).to_csv(index=False, lineterminator="\n"))


def read(path):
    """Return the Ended run whose weights file is `path`. Raises LabError when its log or record is missing."""
    path = Path(path)
    log, record = (path.with_name(path.stem + end) for end in ("_log.csv", "_record.npz"))
    weights = checkpoint.load(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        losses = pd.read_csv(log, dtype={"train_loss": str}).set_index("step")["train_loss"]
        with np.load(record, allow_pickle=False) as arrays:
            return Ended(path.stem, digest, weights, losses, arrays["offsets"], arrays["sketch"])
    except (OSError, KeyError, ValueError) as error:
        raise LabError(f"{log} and {record.name}: can't be read: {error}") from error


def weights_gap(straight, run):
    """Return identical, both digests, the largest absolute difference of any weight, and |run - straight| / |straight| (L2, in float64)."""
    if run.weights.keys() != straight.weights.keys():
        raise LabError(f"{run.name}.pth: its tensors are not those of {straight.name}.pth")
    difference = torch.cat([(run.weights[name].double() - tensor.double()).flatten() for name, tensor in straight.weights.items()])
    reference = torch.cat([tensor.double().flatten() for tensor in straight.weights.values()])
    return {
        "identical": run.sha256 == straight.sha256,
        "sha256": run.sha256,
        "straight_sha256": straight.sha256,
        "max_abs_diff": difference.abs().max().item(),
        "rel_l2": (difference.norm() / reference.norm()).item(),
    }


def loss_gap(straight, run):
    """Return the first step whose logged loss differs (None if none does), and loss minus straight's there and at the last step."""
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
        "loss_last": float(run.losses.iloc[-1]),
    }


def seen_batches(straight, run):
    """Return how many of the run's batches had been drawn before its first step by straight, whose past a resumed run shares."""
    past = {tuple(batch) for step, batch in zip(straight.steps, straight.offsets) if step < run.steps[0]}
    return {"batches": len(run.offsets), "batches_seen_before": sum(tuple(batch) in past for batch in run.offsets)}


def step_table(straight, run):
    """Return run, step, rel_l2 (distance of the weights from straight's, relative to them) and update_l2 (size of the step's update).

    One row for the weights that the run started from (update_l2 empty) and one for each step. Sizes are norms of sketches.
    """
    begin = run.steps[0] - straight.steps[0]
    reference = straight.sketch[begin : begin + len(run.sketch)]
    distance = np.linalg.norm(run.sketch - reference, axis=1) / np.linalg.norm(reference, axis=1)
    update = np.linalg.norm(np.diff(run.sketch, axis=0), axis=1)
    return pd.DataFrame({"run": run.name, "step": [run.steps[0] - 1, *run.steps], "rel_l2": distance, "update_l2": [np.nan, *update]})


def first_updates(straight_table, table, count):
    """Return step, update_l2, straight_update_l2 and their ratio for each of the run's first `count` steps."""
    reference = straight_table.set_index("step")["update_l2"]
    updates = []
    for step, size in table.set_index("step")["update_l2"].iloc[1 : count + 1].items():
        updates.append({"step": int(step), "update_l2": size, "straight_update_l2": reference[step], "ratio": size / reference[step]})
    return updates


if __name__ == "__main__":
    command_line.run(main)
