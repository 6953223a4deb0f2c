"""An average of the weights."""

import torch

from exact_resume.checkpoint.archive import fault


class ExponentialMovingAverage:
    """Exponential moving average of a module's parameters: after each update average = decay * average + (1 - decay) *
    parameter.

    It begins as the parameters are when it is made. Its state is the averages by the parameters' names.
    """

    def __init__(self, module, decay):
        self.parameters = dict(module.named_parameters())
        self.decay = decay
        self.averages = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self):
        for name, average in self.averages.items():
            average.lerp_(self.parameters[name], 1 - self.decay)

    def state_dict(self):
        return self.averages

    def load_state_dict(self, state):
        """Copy `state` into the averages. Raises ValueError when it has other names, shapes or dtypes, or values that
        are not finite.
        """
        if type(state) is not dict or state.keys() != self.averages.keys():
            raise ValueError("found averages of other parameters than this model's")
        for name, average in self.averages.items():
            wrong = fault(state[name], average.shape, average.dtype)
            if wrong:
                raise ValueError(f"average of {name}: {wrong}")
        for name, average in self.averages.items():
            average.copy_(state[name])
