"""A trainer that speaks the audit's flags, starts fast, and misbehaves as it is told: gradient descent with momentum on
four numbers.

What it is told with --do is a list of words with commas between. It is started more than a thousand times by the
tests, so it imports no more than it takes.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

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


def save(path, state):
    if "save once" in DO:
        # What was saved first is saved each time.
        state = {**saved.setdefault("first", state), "step": state["step"]}
    if args.do == "save nothing":
        return
    if args.do == "save a link":
        os.makedirs(f"{path}.real")
        os.symlink(f"{path}.real/mine", path)
        path = f"{path}.real/mine"
    if args.do == "save elsewhere":
        real = os.path.join(args.note, os.path.relpath(path, "/").replace("/", "-"))
        os.symlink(real, path)
        path = real
    written = path if args.do == "save in place" else f"{path}.tmp"
    with open(written, "w") as file:
        json.dump(state, file)
    os.replace(written, path)


def load(path):
    with open(path) as file:
        return json.load(file)


def load_tokens(path):
    """The bytes in a .npy file of a one-dimensional array of them."""
    content = Path(path).read_bytes()
    return content[10 + int.from_bytes(content[8:10], "little") :]


def save_file(tensors, path):
    """Write lists of numbers as safetensors does."""
    header, data = {}, b""
    for name, numbers in tensors.items():
        packed = struct.pack(f"<{len(numbers)}d", *numbers)
        place = [len(data), len(data) + len(packed)]
        header[name] = {"dtype": "F64", "shape": [len(numbers)], "data_offsets": place}
        data += packed
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


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
to_be_killed = Path(args.out).parent.name.startswith("killed")
if "plant" in DO:
    exec(args.note)

weights, momentum, first, history = [0.0] * 4, [0.0] * 4, 1, []
stop_at = None if "ignore stop" in DO else args.stop_at
end = (stop_at or args.steps) + (0 if stop_at else ("end late" in DO) - ("end early" in DO))
if args.resume and "ignore resume" not in DO:
    state = load(args.resume)
    weights, first, history = state["weights"], state["step"] + 1, state["history"]
    momentum = momentum if "lose" in DO else state["momentum"]
logged_from = load(args.resume)["step"] + 1 if args.resume and "log from there" in DO else 1
tokens, losses = load_tokens(args.tokens), history if "history" in DO else []
if "row 0" in DO and (args.resume or "from 0" not in DO):
    # The loss before the first step of each process.
    losses.append(f"0,{sum(value * value for value in weights) / len(weights):.6f}")
every = 4 if "log now and then" in DO else 1
for step in range(first, end + 1):
    # What a trainer has that saves before its step and not after it.
    before = {"weights": weights, "momentum": momentum, "step": step - 1, "history": losses[:]}
    noise = os.urandom(1)[0] if args.do == "noise" else 0
    errors = [weight - token - noise for weight, token in zip(weights, tokens[4 * step : 4 * step + 4])]
    if step % every == 0 and step >= logged_from:
        losses.append(f"{step - ('from 0' in DO)},{sum(error**2 for error in errors) / 4:.6f}")
    momentum = [0.9 * old + error for old, error in zip(momentum, errors)]
    weights = [weight - 0.01 * change for weight, change in zip(weights, momentum)]
    after = {"weights": weights, "momentum": momentum, "step": step, "history": losses[:]}
    state = before if "save before" in DO else after
    if step == args.save_at and not (args.do == "hurry" and to_be_killed):
        save(args.save_to, state)
        if args.do == "touch when saving":
            weights = [weight + 1e-3 for weight in weights]
        if "save slowly" in DO:
            time.sleep(0.6)
        if to_be_killed and args.do != "save nothing":
            # Until that comes.
            time.sleep(1000)
if "no log" not in DO:
    Path(args.log).write_text("\n".join(["step,train_loss", *losses, ""]))
if args.do == "bad trace":
    Path(args.trace).write_text("nonsense\n1\n")
if args.do == "trace":
    Path(args.trace).write_text("exact-resume trace,2,batch\n")
if args.stop_at:
    save(args.out, state)
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
    save_file({"w": [float("nan")] if args.do == "nan" else weights}, args.out)
