"""Train MiniMind with its own trainer/train_pretrain.py, from a checkout of it, and its own resume file."""

import contextlib
import json
import math
import os
import shutil
import sys
from pathlib import Path

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import contract
import task
from exact_resume.errors import LabError

# As the script, which runs in trainer/, calls what it saves; the number is the hidden size.
RESUME_FILE = f"../checkpoints/pretrain_{task.HIDDEN}_resume.pth"


class Stop(BaseException):
    """Ends the script."""


class Watch:
    """Sees the script's batches through torch's hooks, and does what our flags say once a batch is over: when the next
    one begins.

    `program` holds the script's global names.
    """

    def __init__(self, program, args):
        self.program, self.args, self.record = program, args, None
        register_module_forward_pre_hook(self.before_forward)
        register_module_forward_hook(self.after_forward)

    def before_forward(self, module, inputs):
        if module is not self.program.get("model"):
            return
        if self.record:
            self.end_batch()
        else:
            self.record = contract.Record(
                self.args, task.ACCUMULATION, model=module, optimizer=self.program["optimizer"]
            )
            self.number = self.program["start_epoch"] * task.BATCHES + self.program["start_step"]
        self.number += 1
        self.record.before_batch(self.number, inputs[0])
        step, waiting = divmod(self.number, task.ACCUMULATION)
        paths = [] if waiting else contract.checkpoint_paths(self.args, step)
        if paths:
            # The script saves more often than it is asked to. A link shows this one from its first moment on.
            Path(RESUME_FILE).unlink(missing_ok=True)
        for path in paths:
            path.symlink_to(Path(RESUME_FILE).resolve())

    def after_forward(self, module, inputs, output):
        if module is self.program.get("model"):
            self.loss = output.loss.item()

    def end_batch(self):
        """Take down the batch before, and end where it is the last one."""
        self.record.after_batch(self.loss)
        if self.args.stop_at and self.number == (self.args.save_at or 0) * task.ACCUMULATION:
            # What the script saves next goes to the same file.
            copy = self.args.save_to.with_name(f"{self.args.save_to.name}.copy")
            shutil.copy(self.args.save_to, copy)
            copy.replace(self.args.save_to)
        if self.number == (self.args.stop_at or 0) * task.ACCUMULATION:
            raise Stop


def main():
    parser = contract.make_parser(__doc__)
    parser.add_argument(
        "--checkout", type=Path, required=True, metavar="PATH", help="checkout of MiniMind; it is only read"
    )
    parser.add_argument(
        "--fixed", action="store_true", help="keep the weights in full precision: without .half() in lm_checkpoint"
    )
    args = contract.parse(parser)
    if not (args.checkout / "trainer" / "train_pretrain.py").is_file():
        raise LabError(f"{args.checkout}: found no trainer/train_pretrain.py, wanted a checkout of MiniMind")
    if args.steps % task.UPDATES:
        raise LabError(
            f"--steps {args.steps}: wanted a multiple of {task.UPDATES}, because MiniMind trains whole epochs"
        )
    # The script runs in another folder.
    for name, value in vars(args).items():
        if isinstance(value, Path):
            setattr(args, name, value.resolve())

    task.seed()
    folder = args.out.with_name(f"{args.out.name}.minimind")
    make_folder(folder, args)
    os.chdir(folder / "trainer")
    # Where the cache of its datasets goes.
    os.environ["HF_HOME"] = str(folder)
    with contextlib.suppress(Stop):
        run_script(args)


def make_folder(folder, args):
    """Lay out `folder` as MiniMind's own, with the sequences as its data and the checkpoint to resume from as its
    own.
    """
    shutil.copytree(args.checkout / "trainer", folder / "trainer")
    for name in ("model", "dataset"):
        (folder / name).symlink_to(args.checkout / name)
    (folder / "checkpoints").mkdir()
    texts = [bytes(item["input_ids"].tolist()).decode("latin-1") for item in task.Sequences(args.tokens)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    if args.resume:
        (folder / "trainer" / RESUME_FILE).symlink_to(args.resume)
    if args.fixed:
        utilities = folder / "trainer" / "trainer_utils.py"
        utilities.write_text(utilities.read_text(encoding="utf-8").replace(".half()", ""), encoding="utf-8")


def run_script(args):
    """Run the script as `python train_pretrain.py FLAGS` does, and write the weights that it ends with."""
    saved = [step for step in (args.stop_at, args.save_at) if step] or [args.steps]
    flags = {
        "epochs": args.steps // task.UPDATES,
        "batch_size": task.BATCH,
        "accumulation_steps": task.ACCUMULATION,
        "learning_rate": task.LR,
        "save_interval": math.gcd(*((step * task.ACCUMULATION - 1) % task.BATCHES + 1 for step in saved)),
        "hidden_size": task.HIDDEN,
        "num_hidden_layers": task.LAYERS,
        "max_seq_len": task.LENGTH,
        "num_workers": 0,
        "device": "cpu",
        "data_path": "../texts.jsonl",
        "from_resume": int(args.resume is not None),
    }
    sys.argv = ["train_pretrain.py", *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]
    program = {"__name__": "__main__", "__file__": os.path.abspath("train_pretrain.py")}
    watch = Watch(program, args)
    exec(compile(Path("train_pretrain.py").read_text(encoding="utf-8"), "train_pretrain.py", "exec"), program)
    watch.end_batch()
    contract.save_weights(args, program["model"])


if __name__ == "__main__":
    contract.run(main)
