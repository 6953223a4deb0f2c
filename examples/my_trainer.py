"""A trainer that the audit can run: plain PyTorch, and exact. Delete a line of `load` and see what the audit says."""

import argparse
import os
from pathlib import Path

import numpy as np
import torch

from exact_resume import Trace

parser = argparse.ArgumentParser(description=__doc__)
for flag in ("--tokens", "--out", "--save-to", "--resume", "--log", "--trace"):
    parser.add_argument(flag, default=os.devnull if flag in ("--log", "--trace") else None)
for flag in ("--steps", "--stop-at", "--save-at"):
    parser.add_argument(flag, type=int)
args = parser.parse_args()

torch.manual_seed(7)
torch.set_num_threads(1)
tokens = torch.from_numpy(np.load(args.tokens).astype(np.int64))
model = torch.nn.Sequential(
    torch.nn.Embedding(256, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 256)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)


def save(path, step):
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save({**parts, "rng": torch.get_rng_state(), "step": step}, path + ".tmp")
    os.replace(path + ".tmp", path)


def load(path):
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    torch.set_rng_state(checkpoint["rng"])  # the batches and dropout are drawn from it
    return checkpoint["step"]


done, log = load(args.resume) if args.resume else 0, "step,train_loss\n"
trace = Trace(args.trace, model=model, optimizer=optimizer, scheduler=scheduler)
for step in range(done + 1, (args.stop_at or args.steps) + 1):
    batch = tokens[torch.randint(len(tokens) - 64, (8, 1)) + torch.arange(65)]
    trace.before_step(step, batch)
    loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    trace.after_step(loss)
    log += f"{step},{loss.item()!r}\n"
    if step == args.save_at:
        save(args.save_to, step)
save(args.out, step) if args.stop_at else torch.save(model.state_dict(), args.out)
Path(args.log).write_text(log)
