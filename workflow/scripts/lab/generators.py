"""The global generators."""

import torch


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
        torch.set_rng_state(state["cpu"])
        if self.device == "cuda":
            torch.cuda.set_rng_state_all(state["cuda"])
