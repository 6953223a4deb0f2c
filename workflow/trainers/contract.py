"""What a trainer and the audit agree on: the command-line flags, the trace, the loss log and the final weights."""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

import command_line
from exact_resume.checkpoint import archive
from exact_resume.tracing.recorder import Trace

run = command_line.run


def make_parser(description):
    """Return an ArgumentParser with the flags that every trainer understands."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--tokens", type=Path, required=True, metavar="FILE", help="token file to train on: .npy, 1-D, integers"
    )
    parser.add_argument(
        "--steps", type=int, required=True, metavar="N", help="updates of the whole run, to which the schedule counts"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="final weights, or with --stop-at the checkpoint to write",
    )
    parser.add_argument("--stop-at", type=int, metavar="K", help="after update K write the checkpoint to --out and end")
    parser.add_argument(
        "--save-at", type=int, metavar="K", help="after update K write a checkpoint to --save-to and go on"
    )
    parser.add_argument("--save-to", type=Path, metavar="PATH", help="where --save-at writes")
    parser.add_argument("--resume", type=Path, metavar="PATH", help="checkpoint to go on from")
    parser.add_argument("--log", type=Path, metavar="FILE", help="CSV to write: step,train_loss")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="trace to write, one row a batch")
    return parser


def parse(parser):
    """Return the parsed flags, and as `end` the update at which this process ends."""
    args = parser.parse_args()
    if (args.save_at is None) != (args.save_to is None):
        parser.error("--save-at and --save-to belong together")
    args.end = args.stop_at or args.steps
    return args


def checkpoint_paths(args, step):
    """Return where checkpoints are due after update `step`: one, two when --save-at and --stop-at name it both, or
    none.
    """
    return [path for due, path in ((args.save_at, args.save_to), (args.stop_at, args.out)) if due == step]


class Record:
    """Writes the trace of `components`, a row a batch, and the loss log, a row an update of `accumulation` batches.

    Whole rows reach the files as the run goes on, so that a killed one leaves them.
    """

    def __init__(self, args, accumulation, **components):
        self.trace = Trace(args.trace, configuration={"steps": args.steps}, **components) if args.trace else None
        self.log = args.log.open("w", encoding="utf-8", newline="\n", buffering=1) if args.log else None
        if self.log:
            print("step,train_loss", file=self.log)
        self.accumulation, self.losses = accumulation, []

    def before_batch(self, number, batch):
        """Call with the batch's number, counted from 1 at the beginning of training, before its forward pass."""
        self.number = number
        if self.trace:
            self.trace.before_step(number, batch)

    def after_batch(self, loss):
        """Call with the batch's loss after its backward pass and after the update, if it brings one."""
        if self.trace:
            self.trace.after_step(loss)
        self.losses.append(float(loss))
        if self.log and self.number % self.accumulation == 0:
            print(f"{self.number // self.accumulation},{sum(self.losses) / len(self.losses)!r}", file=self.log)
            self.losses = []


def save_weights(args, model):
    """Write the final weights of `model` to --out, unless this process stopped earlier."""
    if not args.stop_at:
        archive.save(args.out, model.state_dict())
