"""Train a run from the start, or from a resume file, to the last step or to a stop."""

import argparse
import gc
import json
import signal
import sys
from itertools import chain, count
from pathlib import Path

import command_line
from exact_resume.checkpoint import archive
from exact_resume.checkpoint.progress import Progress, digest, stop_requests
from exact_resume.errors import LabError
from exact_resume.lab import data, journal, settings, state
from exact_resume.lab.components import COMPONENTS
from exact_resume.lab.journal import Journal
from exact_resume.lab.run import Run
from exact_resume.pipeline.fingerprint import fingerprint
from exact_resume.pipeline.sources import code_digest
from exact_resume.pipeline.watching import watched


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Model and training settings are config.yaml's unless --settings changes them."
    )
    parser.add_argument("--tokens", required=True, help="token file to train on (.npy, 1-D, integers)")
    parser.add_argument("--out", required=True, help="weights to write; with --stop-at the resume file")
    parser.add_argument("--log", help="CSV to write: step,train_loss")
    parser.add_argument("--steps", type=int, metavar="N", help="short for the setting training.steps")
    parser.add_argument("--stop-at", type=int, metavar="K", help="stop after step K and write a resume file")
    parser.add_argument(
        "--save-at", type=int, metavar="K", help="write a resume file to --save-to after step K and go on"
    )
    parser.add_argument("--save-to", metavar="FILE", help="the resume file of --save-at")
    parser.add_argument("--resume", metavar="FILE", help="continue from this resume file")
    parser.add_argument(
        "--omit",
        action="append",
        default=[],
        metavar="COMPONENT",
        help=(
            f"leave this out of what is restored: what of {', '.join(part.name for part in COMPONENTS)} the "
            "settings make; repeatable"
        ),
    )
    parser.add_argument(
        "--no-optim", action="append_const", dest="omit", const="optimizer", help="the same as --omit optimizer"
    )
    parser.add_argument(
        "--no-skip", action="append_const", dest="omit", const="gen_state", help="the same as --omit gen_state"
    )
    parser.add_argument(
        "--round",
        action="append",
        default=[],
        metavar="COMPONENT",
        help="round this to half precision when restoring it; repeatable",
    )
    parser.add_argument(
        "--replay",
        action="append",
        default=[],
        metavar="COMPONENT",
        help="rebuild this from the seed instead of restoring it; repeatable",
    )
    parser.add_argument(
        "--save-every",
        type=int,
        metavar="N",
        help="keep the progress in OUT.progress every N steps, to go on from when killed; 0: never",
    )
    parser.add_argument(
        "--record", metavar="FILE", help="NPZ to write: sketches of the weights before the first step and after each"
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="CSV to write: per step digests of everything that goes into it"
    )
    parser.add_argument(
        "--settings",
        metavar="JSON",
        default="{}",
        help='settings laid over config.yaml\'s, such as \'{"training": {"lr": 0.001}}\'',
    )
    return parser.parse_args()


def main():
    args = arguments()
    chosen = settings.load(settings.parse_overrides(args.settings))
    training = chosen["training"]
    if args.steps is not None:
        training["steps"] = args.steps
        settings.check_values(chosen)
    recipe = {"omit": args.omit, "round": args.round, "replay": args.replay}
    check_flags(args, recipe, chosen)

    tokens = data.load_tokens(args.tokens, chosen["model"]["vocab_size"], training["length"])
    until = args.stop_at or training["steps"]
    # Each is gone on with once: what a bad progress file was restored to in part is none to begin anew with.
    runs = chain(
        [start(args, recipe, chosen, tokens, until)], (start(args, recipe, chosen, tokens, until) for _ in count())
    )
    progress = Progress(args.out, identity(args, recipe, chosen), journal.KINDS)
    with progress.held():
        run, kept = progress.continued(lambda saved: go_on(next(runs), until, saved, progress, args)) or begin(
            next(runs), progress, args
        )
        train(run, until, kept, progress, args)
        for kind, path in records(args).items():
            kept.write(kind, path)
        kept.close()
        archive.save(args.out, state.capture(run.components) if args.stop_at else run.weights())
        progress.discard()


def start(args, recipe, chosen, tokens, until):
    """Return a Run at its first step, or where the resume file stands. Raises LabError when that doesn't fit or leaves
    no step.
    """
    run = Run(chosen, tokens)
    if args.resume:
        run.resume(archive.load(args.resume), args.resume, recipe)
    for flag, step in (("--stop-at", until), ("--save-at", args.save_at)):
        if step is not None and run.step >= step:
            raise LabError(f"{flag}: found {step}, wanted a step after {run.step}, where {args.resume} stands")
    return run


def begin(run, progress, args):
    """Return the run and a new journal of it."""
    return run, Journal(run, list(records(args)), progress.beside)


def go_on(run, until, saved, progress, args):
    """Return the run where it was when `saved` was, and its journal. Raises LabError when something doesn't fit."""
    if type(saved) is not dict or saved.keys() != {"run", "journal"}:
        raise LabError(f"{progress.path}: found no run and journal, wanted those that were saved")
    first = run.step
    run.load_snapshot(saved["run"], until, progress.path)
    try:
        kept = Journal(run, list(records(args)), progress.beside, saved["journal"], run.step - first)
    except ValueError as error:
        raise LabError(f"{progress.path}: {error}") from error
    print(f"{progress.path}: continued after step {run.step}", file=sys.stderr)
    return run, kept


def records(args):
    """Return the paths of what is to be left beside the weights, by the kinds of a Journal."""
    asked = {"losses": args.log, "sketches": args.record, "trace": args.trace}
    return {kind: path for kind, path in asked.items() if path is not None}


def train(run, until, kept, progress, args):
    """Train up to step `until`, keeping the journal `kept`, and the progress every so many steps and when the process
    is told to end; save where `args` say so.
    """
    save_every = run.training["save_every"] if args.save_every is None else args.save_every
    # What the imports made stays; else the garbage collector looks through all of it every few steps, which costs some
    # 2 % of them.
    gc.freeze()
    with stop_requests() as received:
        for step, loss in watched(run.train(until, kept.trace), Path(args.out).stem, "step", until, run.step):
            kept.add(step, loss)
            # Before the progress, which a killed run would go on from without saving again.
            if step == args.save_at:
                archive.save(args.save_to, state.capture(run.components))
            if received or (save_every and step % save_every == 0 and step < until):
                progress.save({"run": run.snapshot(), "journal": kept.state_dict()})
            if received:
                print(
                    f"ended by {signal.Signals(received[0]).name} after step {step}; {progress.path} holds "
                    "the progress",
                    file=sys.stderr,
                )
                sys.exit(128 + received[0])


def identity(args, recipe, chosen):
    """Return what the files that this run leaves depend on, as digests by name."""
    training = settings.deciding(chosen["training"])
    used = {
        "model": chosen["model"],
        "training": training,
        "recipe": recipe,
        "stop_at": args.stop_at,
        "kinds": list(records(args)),
    }
    # No bit of the run depends on where it saves, but a run that goes on after that step wouldn't save any more.
    used["save"] = [args.save_at, args.save_to]
    return {
        "configuration": digest(json.dumps(used, sort_keys=True)),
        "data": digest(Path(args.tokens)),
        "code": code_digest(__file__),
        "torch or CPU": digest(json.dumps(fingerprint(training["device"]), sort_keys=True)),
        "resume file": digest(Path(args.resume)) if args.resume else "",
    }


def check_flags(args, recipe, chosen):
    """Raise LabError for flags that contradict each other or the settings, before anything is read or trained."""
    steps = chosen["training"]["steps"]
    if args.stop_at is not None and not 1 <= args.stop_at <= steps - 1:
        raise LabError(f"--stop-at: found {args.stop_at}, wanted a step in 1...{steps - 1}")
    if (args.save_at is None) != (args.save_to is None):
        raise LabError("--save-at, --save-to: found one without the other, wanted a step and a file to write after it")
    last = args.stop_at or steps - 1
    if args.save_at is not None and not 1 <= args.save_at <= last:
        raise LabError(f"--save-at: found {args.save_at}, wanted a step in 1...{last}")
    if args.save_every is not None and args.save_every < 0:
        raise LabError(f"--save-every: found {args.save_every}, wanted at least 0")
    check_paths(args)
    settings.check_recipe(recipe, settings.components(chosen), "--")
    if any(recipe.values()) and not args.resume:
        raise LabError("--omit, --round, --replay: found without --resume, wanted a resume file to restore from")


def check_paths(args):
    """Raise LabError unless each file that is written is a file, and another one than those that are read or written
    beside it.
    """
    used = {path.resolve(): "part of --out's progress" for path in Progress(args.out, {}, journal.KINDS).paths()}
    read = {"--tokens": args.tokens, "--resume": args.resume}
    written = {
        "--out": args.out,
        "--log": args.log,
        "--save-to": args.save_to,
        "--record": args.record,
        "--trace": args.trace,
    }
    for flag, name in {**read, **written}.items():
        if name is None:
            continue
        path = Path(name).resolve()
        if path in used:
            raise LabError(f"{flag}: found {path}, which is {used[path]} too, wanted a file of its own")
        if flag in read and path.exists() and not path.is_file():
            raise LabError(f"{flag}: found {path}, which is no file, wanted one to read")
        if flag in written and path.is_dir():
            raise LabError(f"{flag}: found {path}, which is a folder, wanted a file to write")
        used[path] = flag


if __name__ == "__main__":
    command_line.run(main)
