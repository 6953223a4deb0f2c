"""Token files and the batches drawn from them.

Each source of batches has `draw()`, which returns (inputs, targets), both int64 (batch, length) and the targets one
token ahead, and advances by one batch; `state_dict()` and `load_state_dict()` for the place that it is at, which raises
ValueError or RuntimeError for one that can't be; `drawn`, the number of batches drawn, None where the place doesn't
tell; and `replay(batches)`, which brings a fresh one to the place after that many batches without such a state.
"""

import math

import numpy as np
import torch

from exact_resume.errors import LabError
from exact_resume.lab.generators import load_state


def load_tokens(path, vocab_size, length):
    """Return the token file `path` (.npy, 1-D, any integer dtype), memory-mapped.

    Raises LabError when it is missing, is not such an array, has `length` tokens or fewer, or a token outside
    0...vocab_size-1.
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
        raise LabError(f"{path}: found {len(tokens)} tokens, wanted at least {length + 1}")
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise LabError(
            f"{path}: found token {wrong}, wanted tokens in 0...{vocab_size - 1} (model.vocab_size is {vocab_size})"
        )
    return tokens


def make_batches(tokens, vocab_size, training):
    """Return the source of batches that config.yaml's `training` section asks for. Raises LabError when the tokens
    don't fill a batch.
    """
    if training["order"] == "crops":
        return RandomCrops(tokens, training["batch_size"], training["length"], training["seed"])
    samples = Samples(tokens, training["length"], vocab_size, training["augment"], training["seed"])
    if len(samples) < training["batch_size"]:
        raise LabError(
            f"config key training.batch_size: found {training['batch_size']}, wanted at most {len(samples)}, "
            f"the sequences of length {training['length']} in {len(tokens)} tokens"
        )
    order = {"permutation": PermutationOrder, "skip": SkipOrder}[training["order"]]
    return Epochs(samples, order(len(samples), training["batch_size"], training["seed"]), training["workers"])


class RandomCrops:
    """Batches of crops at random places of a token array: each call of `draw` advances the generator by one batch.

    Its state is the generator's (`Tensor`, uint8), so that restoring it restores the next batch to draw.
    """

    drawn = None

    def __init__(self, tokens, batch_size, length, seed):
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self):
        offsets = torch.randint(len(self.tokens) - self.length, (self.batch_size,), generator=self.generator)
        crops = np.stack([self.tokens[start : start + self.length + 1] for start in offsets.tolist()])
        crops = torch.from_numpy(crops.astype(np.int64))
        return crops[:, :-1], crops[:, 1:].contiguous()

    def replay(self, batches):
        """Draw and discard `batches` batches from the seed on."""
        self.generator.manual_seed(self.seed)
        for _ in range(batches):
            self.draw()

    def state_dict(self):
        return self.generator.get_state()

    def load_state_dict(self, state):
        load_state(self.generator, state)


class Samples:
    """The token array cut into sequences that share no input: item (epoch, index) is (inputs, targets), int64
    (length,).

    A share `augment` of the inputs is replaced by random tokens. They come from a generator seeded by (seed, epoch,
    index), because the generators of DataLoader's workers are in no checkpoint: this way a sample is the same whichever
    worker makes it, and when.
    """

    def __init__(self, tokens, length, vocab_size, augment, seed):
        self.tokens, self.length, self.vocab_size, self.augment, self.seed = tokens, length, vocab_size, augment, seed

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, place):
        epoch, index = place
        start = index * self.length
        crop = self.tokens[start : start + self.length + 1].astype(np.int64)
        inputs, targets = crop[:-1].copy(), crop[1:]
        if self.augment:
            generator = np.random.default_rng((self.seed, epoch, index))
            chosen = generator.random(self.length) < self.augment
            inputs[chosen] = generator.integers(self.vocab_size, size=int(chosen.sum()))
        return torch.from_numpy(inputs), torch.from_numpy(targets)


class PermutationOrder:
    """Epochs in random order from one generator that goes on from epoch to epoch; a last incomplete batch is dropped.

    Its state is the epoch, the batches of it that were taken, and the generator as it was *before* it drew the epoch's
    permutation, so that restoring draws the same permutation and leaves the generator where it was.
    """

    def __init__(self, samples, batch_size, seed):
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.batches = samples // batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self.epoch, self.taken = 0, 0
        self._permute()

    def _permute(self):
        self.before = self.generator.get_state()
        self.permutation = torch.randperm(self.samples, generator=self.generator).tolist()

    def ahead(self):
        """Yield the places (epoch, index) of each batch of this epoch that is not taken yet."""
        for batch in range(self.taken, self.batches):
            chosen = self.permutation[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield [(self.epoch, index) for index in chosen]

    def take(self):
        """Count one batch as taken and return whether a new epoch begins."""
        self.taken += 1
        if self.taken < self.batches:
            return False
        self.epoch, self.taken = self.epoch + 1, 0
        self._permute()
        return True

    def replay(self, batches):
        self.generator.manual_seed(self.seed)
        self.epoch, self.taken = 0, 0
        self._permute()
        for _ in range(batches):
            self.take()

    def state_dict(self):
        return {"epoch": self.epoch, "taken": self.taken, "generator": self.before}

    def load_state_dict(self, state):
        self._check(state)
        load_state(self.generator, state["generator"])
        self._permute()
        self.epoch, self.taken = state["epoch"], state["taken"]

    def _check(self, state):
        """Raise ValueError unless `state` has the entries of this order's, and numbers that its place can be at."""
        own = self.state_dict()
        if type(state) is not dict or state.keys() != own.keys():
            raise ValueError(f"found other entries than {', '.join(own)}")
        for name, end in (("epoch", math.inf), ("taken", self.batches)):
            if type(state[name]) is not int or not 0 <= state[name] < end:
                raise ValueError(f"{name}: found {state[name]!r}, wanted a whole number of at least 0 and below {end}")


class SkipOrder(PermutationOrder):
    """Epochs in an order seeded by the epoch's number, of which a resumed run skips the first batches, as MiniMind's
    SkipBatchSampler does.

    Its state is the epoch and the batches of it that were taken; both follow from the number of steps, so that it needs
    no generator.
    """

    def _permute(self):
        self.generator.manual_seed(self.seed + self.epoch)
        self.permutation = torch.randperm(self.samples, generator=self.generator).tolist()

    def state_dict(self):
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state):
        self._check(state)
        self.epoch, self.taken = state["epoch"], state["taken"]
        self._permute()


class Epochs:
    """Batches of `samples` in the order `order`, made in this process or, with `workers` above 0, ahead of time in that
    many others.

    Its state is the order's. It counts the batches that were drawn, not those that the workers have made ahead.
    """

    def __init__(self, samples, order, workers):
        self.samples, self.order, self.workers = samples, order, workers
        self.made = None

    @property
    def drawn(self):
        return self.order.epoch * self.order.batches + self.order.taken

    def _make(self):
        # Given a generator of its own, the loader doesn't draw its workers' seed from the global one, which a run
        # without a stop would do once an epoch and a resumed one once more.
        loader = torch.utils.data.DataLoader(
            self.samples, batch_sampler=list(self.order.ahead()), num_workers=self.workers, generator=torch.Generator()
        )
        return iter(loader)

    def draw(self):
        if self.made is None:
            self.made = self._make()
        inputs, targets = next(self.made)
        if self.order.take():
            self.made = None
        return inputs, targets

    def replay(self, batches):
        self.order.replay(batches)
        self.made = None

    def state_dict(self):
        return self.order.state_dict()

    def load_state_dict(self, state):
        self.order.load_state_dict(state)
        self.made = None
