"""Gradients that wait for an update."""

from exact_resume.checkpoint.archive import fault


class Gradients:
    """The gradients that a module's parameters have gathered in an accumulation window that is not finished.

    Its state is the gradients by the parameters' names: of all of them, or of none where no gradients wait.
    """

    def __init__(self, module):
        self.parameters = dict(module.named_parameters())

    @property
    def waiting(self):
        """Whether gradients wait."""
        return any(parameter.grad is not None for parameter in self.parameters.values())

    def state_dict(self):
        return {name: parameter.grad for name, parameter in self.parameters.items() if parameter.grad is not None}

    def load_state_dict(self, state):
        """Put `state` in place of the gradients. Raises ValueError when it has gradients of other names, shapes or
        dtypes, or of some parameters only.
        """
        if type(state) is not dict:
            raise ValueError(f"found {type(state).__name__}, wanted gradients by the parameters' names")
        for name, gradient in state.items():
            if name not in self.parameters:
                raise ValueError(f"gradient of {name}: unknown, wanted this model's parameters")
            # It may have overflowed, which the scaler finds at the update.
            wrong = fault(gradient, self.parameters[name].shape, self.parameters[name].dtype, finite=False)
            if wrong:
                raise ValueError(f"gradient of {name}: {wrong}")
        missing = [name for name in self.parameters if name not in state]
        if state and missing:
            raise ValueError(f"gradient of {missing[0]}: missing, wanted it, since others are there")
        for name, parameter in self.parameters.items():
            parameter.grad = state[name].to(parameter.device, copy=True) if state else None
