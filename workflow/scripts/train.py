"""Train a run from the start, or from a resume file, to the last step or to a stop."""

import argparse
import csv
import io

import numpy as np
from tqdm import tqdm

import command_line
from lab import atomic, checkpoint, data, settings, state
from lab.errors import LabError
from lab.run import Run
from lab.sketch import Sketch


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Model and training settings are config.yaml's unless --settings changes them."
    )
    parser.add_argument("--tokens", required=True, help="token file to train on (.npy, 1-D, integers)")
    parser.add_argument("--out", required=True, help="weights to write; with --stop-at the resume file")
    parser.add_argument("--log", help="CSV to write: step,train_loss")
    parser.add_argument("--stop-at", type=int, metavar="K", help="stop after step K and write a resume file")
    parser.add_argument("--resume", metavar="FILE", help="continue from this resume file")
    names = ", ".join(settings.COMPONENTS)
    parser.add_argument(
        "--omit", action="append", default=[], metavar="COMPONENT", help=f"leave this out of what is restored: {names}; repeatable"
    )
    parser.add_argument("--no-optim", action="append_const", dest="omit", const="optimizer", help="the same as --omit optimizer")
    parser.add_argument("--no-skip", action="append_const", dest="omit", const="gen_state", help="the same as --omit gen_state")
    parser.add_argument(
        "--round", action="append", default=[], metavar="COMPONENT", help="round this to half precision when restoring it; repeatable"
    )
    parser.add_argument(
        "--replay", action="append", default=[], metavar="COMPONENT", help="rebuild this from the seed instead of restoring it; repeatable"
    )
    parser.add_argument("--record", metavar="FILE", help="NPZ to write: per step the batch's offsets and a sketch of the weights")
    parser.add_argument(
        "--settings", metavar="JSON", default="{}", help='settings laid over config.yaml\'s, such as \'{"training": {"lr": 0.001}}\''
    )
    return parser.parse_args()


def main():
    args = arguments()
    chosen = settings.load(settings.parse_overrides(args.settings))
    training = chosen["training"]
    recipe = {"omit": args.omit, "round": args.round, "replay": args.replay}
    check_flags(args, recipe, training["steps"])

    tokens = data.load_tokens(args.tokens, chosen["model"]["vocab_size"], training["length"])
    run = Run(chosen, tokens)
    if args.resume:
        run.resume(checkpoint.load(args.resume), args.resume, recipe)
    until = args.stop_at or training["steps"]
    if run.step >= until:
        raise LabError(f"--stop-at: found {until}, wanted a step after {run.step}, where {args.resume} stands")

    log, record = [], Record(run) if args.record else None
    for step, loss, offsets in tqdm(run.train(until), initial=run.step, total=until, unit="step", disable=None):
        log.append((step, f"{loss:.6f}"))
        if record:
            record.add(step, offsets)

    if record:
        record.save(args.record)
    if args.log:
        atomic.write_text(args.log, csv_text(["step", "train_loss"], log))
    checkpoint.save(args.out, state.capture(run.components) if args.stop_at else run.model.state_dict())


def check_flags(args, recipe, steps):
    """Raise LabError for flags that contradict each other or the settings, before anything is read or trained."""
    if args.stop_at is not None and not 1 <= args.stop_at <= steps - 1:
        raise LabError(f"--stop-at: found {args.stop_at}, wanted a step in 1...{steps - 1}")
    settings.check_recipe(recipe, "--")
    if any(recipe.values()) and not args.resume:
        raise LabError("--omit, --round, --replay: found without --resume, wanted a resume file to restore from")


class Record:
    """What a run leaves for the measurements: steps, batch offsets, and sketches of the weights before the first step and after each."""

    def __init__(self, run):
        self.sketch = Sketch(run.model.parameters())
        self.steps, self.offsets, self.sketches = [], [], [self.sketch.take()]

    def add(self, step, offsets):
        self.steps.append(step)
        self.offsets.append(offsets)
        self.sketches.append(self.sketch.take())

    def save(self, path):
        with atomic.replacing(path) as file:
            np.savez(file, step=np.array(self.steps), offsets=np.stack(self.offsets), sketch=np.stack(self.sketches))


def csv_text(header, rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


if __name__ == "__main__":
    command_line.run(main)
