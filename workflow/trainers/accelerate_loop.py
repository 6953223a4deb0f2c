"""Train with Accelerate: save_state, load_state, and skip_first_batches or its stateful dataloader."""

from itertools import count

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

import contract
import task


class Progress:
    """The number of updates, in the checkpoint."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def main():
    parser = contract.make_parser(__doc__)
    parser.add_argument(
        "--stateful", action="store_true", help="use the stateful dataloader instead of skip_first_batches"
    )
    parser.add_argument(
        "--fixed",
        action="store_true",
        help="let an epoch's order follow from its number, and no loader draw from the dropout's generator",
    )
    args = contract.parse(parser)

    task.seed()
    accelerator = Accelerator(
        gradient_accumulation_steps=task.ACCUMULATION,
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader=args.stateful, use_seedable_sampler=args.fixed
        ),
        cpu=True,
    )
    model = task.GPT()
    optimizer, scheduler = task.optimizer_and_schedule(model, args.steps)
    own = torch.Generator() if args.fixed else None
    loader = torch.utils.data.DataLoader(
        task.Sequences(args.tokens), batch_size=task.BATCH, shuffle=True, generator=own
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if args.resume:
        accelerator.load_state(args.resume)
    record = contract.Record(args, task.ACCUMULATION, model=model, optimizer=optimizer.optimizer, scheduler=scheduler)

    def train():
        number = progress.step * task.ACCUMULATION
        first_epoch, skip = divmod(number, task.BATCHES)
        model.train()
        for epoch in count(first_epoch):
            loader.set_epoch(epoch)
            batches = loader
            if epoch == first_epoch and skip and not args.stateful:
                batches = accelerator.skip_first_batches(loader, skip)
            for batch in batches:
                number += 1
                record.before_batch(number, batch)
                with accelerator.accumulate(model):
                    loss = model(**batch)["loss"]
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                record.after_batch(loss)
                if number % task.ACCUMULATION:
                    continue
                progress.step = number // task.ACCUMULATION
                for path in contract.checkpoint_paths(args, progress.step):
                    accelerator.save_state(path)
                if progress.step == args.end:
                    return

    train()
    contract.save_weights(args, accelerator.unwrap_model(model))


if __name__ == "__main__":
    contract.run(main)
