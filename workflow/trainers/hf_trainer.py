"""Train with transformers' Trainer, its checkpoint folders and resume_from_checkpoint."""

from pathlib import Path

from transformers import Trainer, TrainerCallback, TrainingArguments

import contract
import task


class RecordedTrainer(Trainer):
    """A Trainer that records its batches."""

    def training_step(self, model, inputs, *args):
        self.batches += 1
        self.record.before_batch(self.batches, inputs)
        # What training_step returns is the loss's share of the update.
        share = super().training_step(model, inputs, *args)
        self.loss = share * task.ACCUMULATION
        return share


class Flags(TrainerCallback):
    """Does what the flags say: the record, the checkpoints and where they go, and the end."""

    def __init__(self, flags, trainer):
        self.flags, self.trainer = flags, trainer

    def on_train_begin(self, args, state, control, model, optimizer, lr_scheduler, **_):
        parts = {"model": model, "optimizer": optimizer, "scheduler": lr_scheduler}
        self.trainer.record = contract.Record(self.flags, task.ACCUMULATION, **parts)
        self.trainer.batches = state.global_step * task.ACCUMULATION

    def on_substep_end(self, args, state, control, **_):
        self.trainer.record.after_batch(self.trainer.loss)

    def on_step_end(self, args, state, control, **_):
        self.trainer.record.after_batch(self.trainer.loss)
        control.should_training_stop = state.global_step == self.flags.end
        for path in contract.checkpoint_paths(self.flags, state.global_step):
            control.should_save = True
            # Trainer names its folders itself. A link shows them where they are looked for from their first moment on.
            path.symlink_to(Path(args.output_dir, f"checkpoint-{state.global_step}").absolute())


def main():
    flags = contract.parse(contract.make_parser(__doc__))
    task.seed()
    arguments = TrainingArguments(
        output_dir=str(flags.out.with_name(f"{flags.out.name}.trainer")),
        max_steps=flags.steps,
        per_device_train_batch_size=task.BATCH,
        gradient_accumulation_steps=task.ACCUMULATION,
        learning_rate=task.LR,
        lr_scheduler_type="cosine",
        seed=task.SEED,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = RecordedTrainer(task.GPT(), arguments, train_dataset=task.Sequences(flags.tokens))
    trainer.add_callback(Flags(flags, trainer))
    trainer.train(resume_from_checkpoint=str(flags.resume) if flags.resume else None)
    contract.save_weights(flags, trainer.model)


if __name__ == "__main__":
    contract.run(main)
