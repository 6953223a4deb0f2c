"""What all built-in trainers train: a small GPT with dropout, on a few token sequences, and with which numbers."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import contract  # noqa: F401, makes lab importable
from exact_resume.errors import LabError
from exact_resume.lab.data import load_tokens

SEED = 7
VOCAB, HIDDEN, LAYERS, HEADS, DROPOUT = 256, 64, 2, 4, 0.1
SEQUENCES, LENGTH, BATCH, ACCUMULATION = 96, 64, 4, 2
BATCHES = SEQUENCES // BATCH  # an epoch
UPDATES = BATCHES // ACCUMULATION  # an epoch
LR = 3e-3


def seed():
    """Seed the global generators and set one thread: sums split over several round differently from machine to
    machine.
    """
    torch.set_num_threads(1)
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


class Sequences(torch.utils.data.Dataset):
    """The first sequences of a token file: item i is `input_ids` and, one token ahead, `labels`, int64 (LENGTH,)."""

    def __init__(self, path):
        tokens = load_tokens(path, VOCAB, LENGTH)
        wanted = SEQUENCES * (LENGTH + 1)
        if len(tokens) < wanted:
            raise LabError(f"{path}: found {len(tokens)} tokens, wanted at least {wanted}")
        self.sequences = torch.from_numpy(tokens[:wanted].astype(np.int64)).view(SEQUENCES, LENGTH + 1)

    def __len__(self):
        return SEQUENCES

    def __getitem__(self, index):
        return {"input_ids": self.sequences[index, :-1], "labels": self.sequences[index, 1:]}


class GPT(nn.Module):
    """A decoder with learned positions. Returns `loss`, the mean cross-entropy, and `logits`, (batch, LENGTH,
    VOCAB).
    """

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        layer = nn.TransformerEncoderLayer(
            HIDDEN, HEADS, 4 * HIDDEN, DROPOUT, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(HIDDEN), enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, input_ids, labels):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.tokens(input_ids) + self.positions.weight
        logits = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def optimizer_and_schedule(model, steps):
    """Return AdamW for `model` and a cosine schedule that reaches 0 after `steps` updates."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
