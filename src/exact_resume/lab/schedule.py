"""The learning rate."""

import math


class CosineSchedule:
    """MiniMind's cosine, lr * (0.1 + 0.45 * (1 + cos(pi * step / total))): from lr at step 0 down to a tenth of it at
    `total`.

    Its state is the number of steps taken (int).
    """

    def __init__(self, lr, total):
        self.lr, self.total, self.step = lr, total, 0

    def advance(self):
        """Count one step and return its learning rate."""
        self.step += 1
        return self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * self.step / self.total)))

    def state_dict(self):
        return self.step

    def load_state_dict(self, state):
        """Count from `state` on. Raises ValueError when it is no count of steps."""
        if type(state) is not int or not 0 <= state <= self.total:
            raise ValueError(f"found {state!r}, wanted a count of steps in 0...{self.total}")
        self.step = state
