"""Train with Lightning's Trainer, save_checkpoint and ckpt_path."""

import lightning
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

import contract
import task


class Module(lightning.LightningModule):
    """The GPT and how it is trained."""

    def __init__(self, steps):
        super().__init__()
        self.model, self.steps = task.GPT(), steps

    def training_step(self, batch, index):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        optimizer, scheduler = task.optimizer_and_schedule(self.model, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Flags(lightning.Callback):
    """Does what the flags say: the record, the checkpoints, and the end."""

    def __init__(self, args):
        self.args = args

    def on_train_start(self, trainer, module):
        parts = {"optimizer": trainer.optimizers[0], "scheduler": trainer.lr_scheduler_configs[0].scheduler}
        self.record = contract.Record(self.args, task.ACCUMULATION, model=module.model, **parts)
        self.number = trainer.global_step * task.ACCUMULATION

    def on_train_batch_start(self, trainer, module, batch, index):
        self.number += 1
        self.record.before_batch(self.number, batch)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        # What it is given is the loss's share of the update.
        self.record.after_batch(outputs["loss"] * task.ACCUMULATION)
        step, waiting = divmod(self.number, task.ACCUMULATION)
        if not waiting:
            # Lightning does it only after the next forward pass, and the trace would take them for gradients that wait
            # for an update.
            trainer.optimizers[0].zero_grad()
            for path in contract.checkpoint_paths(self.args, step):
                trainer.save_checkpoint(path)
            trainer.should_stop = step == self.args.end


class DropoutGenerator(lightning.Callback):
    """Keeps torch's global generator, from which dropout draws, in the checkpoint."""

    def state_dict(self):
        return {"rng": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["rng"])


def main():
    parser = contract.make_parser(__doc__)
    parser.add_argument("--stateful", action="store_true", help="use torchdata's StatefulDataLoader")
    parser.add_argument(
        "--fixed",
        action="store_true",
        help="like --stateful, but save torch's generator too, and let the loader draw from others",
    )
    args = contract.parse(parser)

    task.seed()
    module = Module(args.steps)
    data = task.Sequences(args.tokens)
    if args.fixed:
        # The sampler's generator is its own and in the loader's state; the loader's, for its workers' seeds, isn't
        # dropout's either.
        loader = StatefulDataLoader(
            data, batch_size=task.BATCH, sampler=RandomSampler(data), generator=torch.Generator()
        )
    else:
        loader_class = StatefulDataLoader if args.stateful else torch.utils.data.DataLoader
        loader = loader_class(data, batch_size=task.BATCH, shuffle=True)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accumulate_grad_batches=task.ACCUMULATION,
        callbacks=[DropoutGenerator(), Flags(args)] if args.fixed else [Flags(args)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, ckpt_path=args.resume)
    contract.save_weights(args, module.model)


if __name__ == "__main__":
    contract.run(main)
