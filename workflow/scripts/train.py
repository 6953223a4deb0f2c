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
    parser.add_argument(
        "--omit",
        action="append",
        default=[],
        metavar="COMPONENT",
        help="leave this out of what is restored: model, optimizer, step, gen_state or what else the settings add; repeatable",
    )
    parser.add_argument("--no-optim", action="append_const", dest="omit", const="optimizer", help="the same as --omit optimizer")
    parser.add_argument("--no-skip", action="append_const", dest="omit", const="gen_state", help="the same as --omit gen_state")
    parser.add_argument(
        "--round", action="append", default=[], metavar="COMPONENT", help="round this to half precision when restoring it; repeatable"
    )
    parser.add_argument(
        "--replay", action="append", default=[], metavar="COMPONENT", help="rebuild this from the seed instead of restoring it; repeatable"
    )
    parser.add_argument("--record", metavar="FILE", help="NPZ to write: sketches of the weights before the first step and after each")
    parser.add_argument("--trace", metavar="FILE", help="CSV to write: per step digests of everything that goes into it")
    parser.add_argument(
        "--settings", metavar="JSON", default="{}", help='settings laid over config.yaml\'s, such as \'{"training": {"lr": 0.001}}\''
    )
    return parser.parse_args()


def main():
    args = arguments()
    chosen = settings.load(settings.parse_overrides(args.settings))
    training = chosen["training"]
    recipe = {"omit": args.omit, "round": args.round, "replay": args.replay}
    check_flags(args, recipe, chosen)

    tokens = data.load_tokens(args.tokens, chosen["model"]["vocab_size"], training["length"])
    run = Run(chosen, tokens)
    if args.resume:
        run.resume(checkpoint.load(args.resume), args.resume, recipe)
    until = args.stop_at or training["steps"]
    if run.step >= until:
        raise LabError(f"--stop-at: found {until}, wanted a step after {run.step}, where {args.resume} stands")

    log, record = [], Record(run) if args.record else None
    trace = run.make_trace(args.trace) if args.trace else None
    for step, loss in tqdm(run.train(until, trace), initial=run.step, total=until, unit="step", disable=None):
        log.append((step, f"{loss:.6f}"))
        if record:
            record.add()

    if record:
        record.save(args.record)
    if args.log:
        atomic.write_text(args.log, csv_text(["step", "train_loss"], log))
    checkpoint.save(args.out, state.capture(run.components) if args.stop_at else run.weights())


def check_flags(args, recipe, chosen):
    """Raise LabError for flags that contradict each other or the settings, before anything is read or trained."""
    steps = chosen["training"]["steps"]
    if args.stop_at is not None and not 1 <= args.stop_at <= steps - 1:
        raise LabError(f"--stop-at: found {args.stop_at}, wanted a step in 1...{steps - 1}")
    settings.check_recipe(recipe, settings.components(chosen), "--")
    if any(recipe.values()) and not args.resume:
        raise LabError("--omit, --round, --replay: found without --resume, wanted a resume file to restore from")


class Record:
    """What a run leaves for the measurements: sketches of the model's weights, and of their averages where it makes some, before the
    first step and after each.
    """

    def __init__(self, run):
        self.sketches = {"model": Sketch(run.model.parameters())}
        if run.average:
            self.sketches["average"] = Sketch(run.average.state_dict().values())
        self.taken = {name: [] for name in self.sketches}
        self.add()

    def add(self):
        for name, sketch in self.sketches.items():
            self.taken[name].append(sketch.take())

    def save(self, path):
        with atomic.replacing(path) as file:
            np.savez(file, **{name: np.stack(taken) for name, taken in self.taken.items()})


def csv_text(header, rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


if __name__ == "__main__":
    command_line.run(main)
