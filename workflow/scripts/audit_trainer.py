"""Audit a trainer: does it end with the same bits when it is repeated, when it saves, and when it is stopped and
resumed?

Whatever the trainer does, crash or hang included, is a result. README says which flags it is called with.
"""

import argparse
import json
import signal
import sys

import command_line
from exact_resume.audit import gates
from exact_resume.audit import result as audit_result
from exact_resume.audit.command import split
from exact_resume.checkpoint import atomic
from exact_resume.errors import LabError
from exact_resume.pipeline import watching
from exact_resume.pipeline.versions import installed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="what the trainer is called in the result")
    parser.add_argument(
        "--command", required=True, help="how it is started; {scripts} stands for the folder of this script"
    )
    parser.add_argument("--shell", action="store_true", help="give the command to the shell instead of splitting it")
    parser.add_argument("--skip", metavar="WHY", help="start nothing; write a result that says why")
    parser.add_argument("--tokens", required=True, help="token file to train on")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="steps of a run")
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="NAME=K[,K2]",
        help="stop after step K and resume, then after K2; repeatable",
    )
    parser.add_argument(
        "--save-at", type=int, required=True, metavar="K", help="save after step K and go on, or be killed"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, metavar="SECONDS", help="for each process (default: %(default)s)"
    )
    parser.add_argument(
        "--weights",
        default="weights.pth",
        metavar="NAME",
        help="what the final weights are called (default: %(default)s)",
    )
    parser.add_argument(
        "--package", action="append", default=[], metavar="NAME", help="package whose version is noted; repeatable"
    )
    parser.add_argument("--work", required=True, metavar="DIR", help="folder for the processes; emptied first")
    parser.add_argument("--out", required=True, metavar="JSON", help="result to write")
    parser.add_argument("--times", required=True, metavar="JSON", help="seconds to write; no other file holds any")
    args = parser.parse_args()
    if not args.shell:
        check_command(args.command)
    # An audit that is told to end ends its trainer first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    versions = {name: installed(name) for name in args.package}
    setup = {"steps": args.steps, "stops": dict(map(stop, args.stop)), "save_at": args.save_at}
    missing = [name for name, found in versions.items() if found is None]
    skip = args.skip or (f"not installed: {', '.join(missing)}" if missing else None)
    if skip:
        result, times = audit_result.make("skipped", skip, audit_result.untried()), {}
    else:
        started = {
            "command": args.command,
            "shell": args.shell,
            "tokens": args.tokens,
            "timeout": args.timeout,
            "weights": args.weights,
        }
        running = gates.Audit(args.work, **started, **setup, tell=lambda line: watching.say(f"{args.name}: {line}"))
        result, times = running.run(), running.times()
    result = {"name": args.name, "command": args.command, "versions": versions, **setup, **result}
    atomic.write_text(args.times, json.dumps(times, indent=2) + "\n")
    atomic.write_text(args.out, json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def check_command(command):
    """Raise LabError when `command` can't be split into arguments."""
    try:
        split(command)
    except LabError as error:
        raise LabError(f"--command: {error}") from error


def stop(text):
    """Return the name and the steps in NAME=K[,K2]. Raises LabError when it is something else."""
    name, _, steps = text.partition("=")
    try:
        return name, [int(step) for step in steps.split(",")]
    except ValueError as error:
        raise LabError(f"--stop: found {text!r}, wanted NAME=K or NAME=K,K2") from error


if __name__ == "__main__":
    command_line.run(main)
