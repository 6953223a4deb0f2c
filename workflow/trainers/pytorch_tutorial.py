"""Train with plain PyTorch and the general checkpoint of its tutorial: model, optimizer, epoch and loss."""

from itertools import count

import torch
from torch.utils.data import DataLoader

import contract
import task


def main():
    parser = contract.make_parser(__doc__)
    parser.add_argument(
        "--fixed",
        action="store_true",
        help="also save what the tutorial leaves out: schedule, position, order, generator",
    )
    args = contract.parse(parser)

    task.seed()
    model = task.GPT()
    optimizer, scheduler = task.optimizer_and_schedule(model, args.steps)
    order = torch.Generator() if args.fixed else None
    loader = DataLoader(task.Sequences(args.tokens), batch_size=task.BATCH, shuffle=True, generator=order)
    record = contract.Record(args, task.ACCUMULATION, model=model, optimizer=optimizer, scheduler=scheduler)

    first_epoch, skip = 0, 0
    if args.resume:
        checkpoint = torch.load(args.resume, weights_only=True)
        model.load_state_dict(checkpoint["model_state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        first_epoch = checkpoint["epoch"]
        if args.fixed:
            scheduler.load_state_dict(checkpoint["scheduler_state_dict"])
            skip = checkpoint["batches"]
            torch.set_rng_state(checkpoint["rng_state"])

    def save(path, step, loss):
        checkpoint = {
            "epoch": step // task.UPDATES,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "loss": loss,
        }
        if args.fixed:
            checkpoint["scheduler_state_dict"] = scheduler.state_dict()
            checkpoint["batches"] = step % task.UPDATES * task.ACCUMULATION
            # Dropout draws from it.
            checkpoint["rng_state"] = torch.get_rng_state()
        torch.save(checkpoint, path)

    def train():
        model.train()
        for epoch in count(first_epoch):
            if args.fixed:
                # An epoch's order follows from its number, so that skipping the batches that were trained finds the
                # place again.
                order.manual_seed(task.SEED + epoch)
            for number, batch in enumerate(loader, epoch * task.BATCHES + 1):
                if number <= first_epoch * task.BATCHES + skip:
                    continue
                record.before_batch(number, batch)
                loss = model(**batch)["loss"]
                (loss / task.ACCUMULATION).backward()
                step, waiting = divmod(number, task.ACCUMULATION)
                if not waiting:
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                record.after_batch(loss)
                if waiting:
                    continue
                for path in contract.checkpoint_paths(args, step):
                    save(path, step, loss)
                if step == args.end:
                    return

    train()
    contract.save_weights(args, model)


if __name__ == "__main__":
    contract.run(main)
