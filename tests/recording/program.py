"""A training program as anybody might write it, which knows nothing of being recorded.

`python program.py --out DIR --updates N [--save-every K] [--resume] [--lose PART...]`, or on several processes by
torchrun.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


class Preempted(Exception):
    """What the signal handler raises."""


def preempted(number, frame):
    raise Preempted


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--lose", nargs="*", default=[])
    parser.add_argument("--on-term", choices=["save", "ignore"])
    parser.add_argument("--fail-at", type=int)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1 + int(os.environ.get("RANK", "0")))
    flags.out.mkdir(parents=True, exist_ok=True)
    if flags.on_term:
        signal.signal(signal.SIGTERM, preempted if flags.on_term == "save" else signal.SIG_IGN)

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, flags.updates)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    trained = model
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        trained = nn.parallel.DistributedDataParallel(model)
    latest = flags.out / f"latest{os.environ.get('RANK', '')}.pt"
    first = 1
    if flags.resume and latest.exists():
        saved = torch.load(latest, weights_only=True)
        first = saved["update"] + 1
        for name, part in parts.items():
            if name not in flags.lose:
                part.load_state_dict(saved[name])
        if "rng" not in flags.lose:
            torch.set_rng_state(saved["rng"])

    def save(update):
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "rng": torch.get_rng_state(), "update": update}, f"{latest}.new")
        os.replace(f"{latest}.new", latest)

    update = first - 1
    try:
        for update in range(first, flags.updates + 1):
            x = torch.randn(6, 4)
            optimizer.zero_grad()
            loss = F.mse_loss(trained(x), x[:, :2])
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"update {update} loss {loss.item():.9f}", flush=True)
            if update % flags.save_every == 0:
                save(update)
            if update == flags.fail_at:
                raise ValueError("as it was told to")
    except Preempted:
        save(update - 1)
        print(f"preempted in update {update}", flush=True)
        sys.exit(7)
    torch.save(model.state_dict(), flags.out / f"final{os.environ.get('RANK', '')}.pt")


if __name__ == "__main__":
    main()
