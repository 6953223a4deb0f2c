"""Train with Ignite's Engine and its Checkpoint handler."""

import math

import numpy as np
import torch
from ignite.engine import DeterministicEngine, Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

import contract
import task


def main():
    parser = contract.make_parser(__doc__)
    parser.add_argument("--fixed", action="store_true", help="use DeterministicEngine, and a worker for the loader")
    args = contract.parse(parser)

    task.seed()
    model = task.GPT()
    optimizer, scheduler = task.optimizer_and_schedule(model, args.steps)
    # Without workers the order is drawn only after DeterministicEngine has restored the generator, and from it.
    workers = 1 if args.fixed else 0
    loader = torch.utils.data.DataLoader(
        task.Sequences(args.tokens), batch_size=task.BATCH, shuffle=True, num_workers=workers
    )
    record = contract.Record(args, task.ACCUMULATION, model=model, optimizer=optimizer, scheduler=scheduler)

    def train_step(engine, batch):
        record.before_batch(engine.state.iteration, batch)
        model.train()
        loss = model(**batch)["loss"]
        (loss / task.ACCUMULATION).backward()
        if engine.state.iteration % task.ACCUMULATION == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        record.after_batch(loss)
        return loss.item()

    trainer = DeterministicEngine(train_step) if args.fixed else Engine(train_step)
    objects = {"trainer": trainer, "model": model, "optimizer": optimizer, "lr_scheduler": scheduler}

    @trainer.on(Events.ITERATION_COMPLETED(every=task.ACCUMULATION))
    def save_and_stop(engine):
        step = engine.state.iteration // task.ACCUMULATION
        for path in contract.checkpoint_paths(args, step):
            saver = DiskSaver(path.parent, require_empty=False)
            Checkpoint(objects, saver, filename_pattern=path.name)(engine)
        if step == args.end:
            engine.terminate()

    if args.resume:
        if args.fixed:
            # The state of numpy's generator is made of these.
            torch.serialization.add_safe_globals(
                [np._core.multiarray._reconstruct, np.ndarray, np.dtype, np.dtypes.UInt32DType]
            )
        Checkpoint.load_objects(objects, torch.load(args.resume, weights_only=True))
    trainer.run(loader, max_epochs=math.ceil(args.steps / task.UPDATES))
    contract.save_weights(args, model)


if __name__ == "__main__":
    contract.run(main)
