"""A trainer that speaks the audit's flags, starts fast, and misbehaves as it is told: gradient descent with momentum on four numbers."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

parser = argparse.ArgumentParser()
for flag in ("tokens", "out", "save-to", "resume", "log", "trace"):
    parser.add_argument(f"--{flag}")
for flag in ("steps", "stop-at", "save-at"):
    parser.add_argument(f"--{flag}", type=int)
parser.add_argument("--do", default="", help="how to misbehave")
parser.add_argument("--note", help="text to print")
args = parser.parse_args()


def save(path, **arrays):
    if args.do == "save a link":
        os.makedirs(f"{path}.real")
        os.symlink(f"{path}.real/mine", path)
        path = f"{path}.real/mine"
    if args.do == "save elsewhere":
        real = os.path.join(args.note, os.path.relpath(path, "/").replace("/", "-"))
        os.symlink(real, path)
        path = real
    written = path if args.do == "save in place" else f"{path}.tmp"
    with open(written, "wb") as file:
        np.savez(file, **arrays)
    os.replace(written, path)


if args.note:
    print(args.note)
if args.do.startswith("signal"):
    os.kill(os.getpid(), int(args.do.split()[1]))
if args.do == "crash":
    sys.exit("out of luck: no GPU")
if args.do == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    Path(args.out).with_name("child").write_text(str(child.pid))
    time.sleep(1000)
if args.do == "crash on resume" and args.resume:
    raise KeyError("optimizer")

weights, momentum, first = np.zeros(4, np.float32), np.zeros(4, np.float32), 1
if args.resume:
    with np.load(args.resume) as state:
        weights, first = state["weights"], int(state["step"]) + 1
        momentum = momentum if args.do == "lose" else state["momentum"]
tokens, losses = np.load(args.tokens), ["step,train_loss"]
for step in range(first, (args.stop_at or args.steps) + 1):
    target = tokens[4 * step : 4 * step + 4].astype(np.float32) + (np.random.default_rng().normal(size=4) if args.do == "noise" else 0)
    losses.append(f"{step},{np.square(weights - target).mean():.6f}")
    momentum = np.float32(0.9) * momentum + (weights - target).astype(np.float32)
    weights = weights - np.float32(0.01) * momentum
    if step == args.save_at and not (args.do == "hurry" and "killed" in args.out):
        save(args.save_to, weights=weights, momentum=momentum, step=step)
        if args.do == "touch when saving":
            weights += np.float32(1e-3)
        # Long enough to be killed.
        time.sleep(0.6)
Path(args.log).write_text("\n".join([*losses, ""]))
if args.do == "bad trace":
    Path(args.trace).write_text("nonsense\n1\n")
if args.stop_at:
    save(args.out, weights=weights, momentum=momentum, step=args.stop_at)
elif args.do == "folder":
    Path(args.out).mkdir()
    save_file({"w": weights}, f"{args.out}/model.safetensors")
elif args.do != "write nothing":
    save_file({"w": weights * np.float32(np.nan) if args.do == "nan" else weights}, args.out)
