"""A trainer that speaks the audit's flags, starts fast, and misbehaves as it is told: gradient descent with momentum on
four numbers.

What it is told with --do is a list of words with commas between.
"""

import argparse
import json
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
DO = args.do.split(", ")
saved = {}


def save(path, **arrays):
    if "save once" in DO:
        # What was saved first is saved each time.
        arrays = {**saved.setdefault("first", arrays), "step": arrays["step"]}
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


if args.note and "plant" not in DO:
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

if "crash on two" in DO and args.save_at and args.stop_at:
    sys.exit("--save-at can't stand with --stop-at")
if "plant" in DO:
    exec(args.note)

weights, momentum, first, history = np.zeros(4, np.float32), np.zeros(4, np.float32), 1, []
stop_at = None if "ignore stop" in DO else args.stop_at
end = (stop_at or args.steps) + (0 if stop_at else ("end late" in DO) - ("end early" in DO))
if args.resume and "ignore resume" not in DO:
    with np.load(args.resume) as state:
        weights, first = state["weights"], int(state["step"]) + 1
        momentum = momentum if args.do == "lose" else state["momentum"]
        history = state["history"].tolist()
logged_from = int(np.load(args.resume)["step"]) + 1 if args.resume and "log from there" in DO else 1
tokens, losses = np.load(args.tokens), history if "history" in DO else []
every = 4 if "log now and then" in DO else 1
for step in range(first, end + 1):
    # What a trainer has that saves before its step and not after it.
    before = {"weights": weights, "momentum": momentum, "step": step - 1, "history": np.array(losses)}
    target = tokens[4 * step : 4 * step + 4].astype(np.float32) + (
        np.random.default_rng().normal(size=4) if args.do == "noise" else 0
    )
    if step % every == 0 and step >= logged_from:
        losses.append(f"{step - ('from 0' in DO)},{np.square(weights - target).mean():.6f}")
    momentum = np.float32(0.9) * momentum + (weights - target).astype(np.float32)
    weights = weights - np.float32(0.01) * momentum
    state = (
        before
        if "save before" in DO
        else {"weights": weights, "momentum": momentum, "step": step, "history": np.array(losses)}
    )
    if step == args.save_at and not (args.do == "hurry" and "killed" in args.out):
        save(args.save_to, **state)
        if args.do == "touch when saving":
            weights += np.float32(1e-3)
        # Long enough to be killed.
        time.sleep(0.6)
if "no log" not in DO:
    Path(args.log).write_text("\n".join(["step,train_loss", *losses, ""]))
if args.do == "bad trace":
    Path(args.trace).write_text("nonsense\n1\n")
if args.stop_at:
    save(args.out, **state)
elif args.do == "folder":
    Path(args.out).mkdir()
    save_file({"w": weights}, f"{args.out}/model.safetensors")
elif args.do == "sharded":
    Path(args.out).mkdir()
    places = {f"w{number}": f"model-{number}.safetensors" for number in range(2)}
    for number, (name, file) in enumerate(places.items()):
        save_file({name: weights[2 * number : 2 * number + 2]}, f"{args.out}/{file}")
    Path(f"{args.out}/model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
elif args.do != "write nothing":
    save_file({"w": weights * np.float32(np.nan) if args.do == "nan" else weights}, args.out)
