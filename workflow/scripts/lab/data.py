"""Token files and the batches drawn from them."""

import numpy as np
import torch

from lab.errors import LabError


def load_tokens(path, vocab_size, length):
    """Return the token file `path` (.npy, 1-D, any integer dtype), memory-mapped.

    Raises LabError when it is missing, is not such an array, has `length` tokens or fewer, or a token outside 0...vocab_size-1.
    """
    try:
        tokens = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise LabError(f"{path}: no such token file") from error
    except (OSError, ValueError, EOFError) as error:
        raise LabError(f"{path}: not a .npy token file: {' '.join(str(error).split())}") from error
    if tokens.ndim != 1:
        raise LabError(f"{path}: found an array of {tokens.ndim} dimensions, wanted 1")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise LabError(f"{path}: found values of type {tokens.dtype}, wanted integers")
    if len(tokens) <= length:
        raise LabError(f"{path}: found {len(tokens)} tokens, wanted more than the sequence length {length}")
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise LabError(f"{path}: found token {wrong}, wanted tokens in 0...{vocab_size - 1} (model.vocab_size is {vocab_size})")
    return tokens


class RandomCrops:
    """Batches of crops at random places of a token array: each call of `draw` advances the generator by one batch.

    Its state is the generator's (`Tensor`, uint8), so that restoring it restores the next batch to draw.
    """

    def __init__(self, tokens, batch_size, length, seed):
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self):
        """Return (offsets, inputs, targets): int64 of shapes (batch,), (batch, length), (batch, length); targets are one token ahead."""
        offsets = torch.randint(len(self.tokens) - self.length, (self.batch_size,), generator=self.generator)
        crops = np.stack([self.tokens[start : start + self.length + 1] for start in offsets.tolist()])
        crops = torch.from_numpy(crops.astype(np.int64))
        return offsets, crops[:, :-1], crops[:, 1:].contiguous()

    def replay(self, batches):
        """Go to the place after `batches` batches by drawing and discarding them from the seed on."""
        self.generator.manual_seed(self.seed)
        for _ in range(batches):
            self.draw()

    def state_dict(self):
        return self.generator.get_state()

    def load_state_dict(self, state):
        self.generator.set_state(state)
