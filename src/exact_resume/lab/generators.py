"""Generators of random numbers, and their states."""

import torch

from exact_resume.checkpoint.archive import fault


class GlobalGenerators:
    """torch's global generators, which dropout draws from: the CPU's, and every CUDA device's where training uses CUDA.

    Its state is theirs (`Tensor`, uint8), by `cpu` and `cuda`.
    """

    def __init__(self, device):
        self.device = device

    def state_dict(self):
        cuda = torch.cuda.get_rng_state_all() if self.device == "cuda" else []
        return {"cpu": torch.get_rng_state(), "cuda": cuda}

    def load_state_dict(self, state):
        """Put the generators to `state`. Raises ValueError when it isn't one of theirs, of as many devices as there
        are.
        """
        if type(state) is not dict or state.keys() != {"cpu", "cuda"} or type(state["cuda"]) is not list:
            raise ValueError("found other entries than cpu, a generator's state, and cuda, a list of them")
        own = self.state_dict()["cuda"]
        if len(state["cuda"]) != len(own):
            raise ValueError(f"found the states of {len(state['cuda'])} CUDA devices, wanted those of {len(own)}")
        for found, wanted in zip(state["cuda"], own):
            check_state(found, wanted)
        load_state(torch.default_generator, state["cpu"])
        if self.device == "cuda":
            torch.cuda.set_rng_state_all(state["cuda"])


def load_state(generator, state):
    """Put the CPU generator to `state` (`Tensor`, uint8). Raises ValueError or RuntimeError when that isn't a state of
    its kind.
    """
    check_state(state, generator.get_state())
    generator.set_state(state)


def check_state(state, own):
    """Raise ValueError unless `state` is a tensor such as `own`, the state of a generator of the same kind."""
    wrong = fault(state, own.shape, own.dtype)
    if wrong:
        raise ValueError(f"generator state: {wrong}")
