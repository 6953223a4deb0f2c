"""Ways to save a checkpoint that people use, each with the way in which its users load it."""

import os
from pathlib import Path
from typing import NamedTuple

import torch

from exact_resume.checkpoint import archive


class Saver(NamedTuple):
    """`save(path, value)` replaces the checkpoint at `path`; `load(path)` returns what its users get, or raises."""

    save: callable
    load: callable


def torch_load(path):
    return torch.load(path, map_location="cpu", weights_only=True)


def save_to_temporary_and_rename(path, value):
    """As MiniMind's lm_checkpoint does."""
    temporary = f"{path}.tmp"
    torch.save(value, temporary)
    os.replace(temporary, path)


def save_rolling(path, value):
    """As this project's training jobs keep their progress."""
    archive.save(Path(path), value, keep_previous=True)


SAVERS = {
    "naive": Saver(lambda path, value: torch.save(value, path), torch_load),
    "minimind": Saver(save_to_temporary_and_rename, torch_load),
    "ours": Saver(save_rolling, archive.load_newest),
}
