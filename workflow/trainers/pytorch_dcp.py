"""Train with plain PyTorch, torch.distributed.checkpoint and torchdata's StatefulDataLoader."""

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torchdata.stateful_dataloader import StatefulDataLoader

import contract
import task


class Application(Stateful):
    """All that a checkpoint holds, as torch.distributed.checkpoint wants it."""

    def __init__(self, model, optimizer, scheduler, loader, with_generator):
        self.model, self.optimizer, self.scheduler, self.loader = model, optimizer, scheduler, loader
        self.with_generator, self.rng, self.step = with_generator, None, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict(), "step": self.step}
        state["loader"] = self.loader.state_dict()
        if self.with_generator:
            state["rng"] = torch.get_rng_state()
        return state

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.loader.load_state_dict(state["loader"])
        self.step = state["step"]
        if self.with_generator:
            self.rng = state["rng"]


def main():
    parser = contract.make_parser(__doc__)
    parser.add_argument("--fixed", action="store_true", help="also save torch's generator")
    args = contract.parse(parser)

    task.seed()
    model = task.GPT()
    optimizer, scheduler = task.optimizer_and_schedule(model, args.steps)
    loader = StatefulDataLoader(task.Sequences(args.tokens), batch_size=task.BATCH, shuffle=True)
    application = Application(model, optimizer, scheduler, loader, with_generator=args.fixed)
    if args.resume:
        dcp.load({"application": application}, checkpoint_id=args.resume)
    record = contract.Record(args, task.ACCUMULATION, model=model, optimizer=optimizer, scheduler=scheduler)

    def train():
        number = application.step * task.ACCUMULATION
        model.train()
        while True:
            batches = iter(loader)
            if application.rng is not None:
                # Dropout goes on from here; beginning the epoch's rest has drawn from it.
                torch.set_rng_state(application.rng)
                application.rng = None
            for batch in batches:
                number += 1
                record.before_batch(number, batch)
                loss = model(**batch)["loss"]
                (loss / task.ACCUMULATION).backward()
                application.step, waiting = divmod(number, task.ACCUMULATION)
                if not waiting:
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                record.after_batch(loss)
                if waiting:
                    continue
                for path in contract.checkpoint_paths(args, application.step):
                    dcp.save({"application": application}, checkpoint_id=path)
                if application.step == args.end:
                    return

    train()
    contract.save_weights(args, model)


if __name__ == "__main__":
    contract.run(main)
