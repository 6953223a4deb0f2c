"""Gradients that wait for an update."""

from lab.checkpoint import fault


class Gradients:
    """The gradients that a module's parameters have gathered in an accumulation window that is not finished.

    Its state is the gradients by the parameters' names, those that are None left out.
    """

    def __init__(self, module):
        self.parameters = dict(module.named_parameters())

    def state_dict(self):
        return {name: parameter.grad for name, parameter in self.parameters.items() if parameter.grad is not None}

    def load_state_dict(self, state):
        """Put `state` in place of the gradients. Raises ValueError when it has gradients of other names, shapes or dtypes."""
        for name, gradient in state.items():
            if name not in self.parameters:
                raise ValueError(f"gradient of {name}: unknown, wanted this model's parameters")
            # It may have overflowed, which the scaler finds at the update.
            wrong = fault(gradient, self.parameters[name].shape, self.parameters[name].dtype, finite=False)
            if wrong:
                raise ValueError(f"gradient of {name}: {wrong}")
        for name, parameter in self.parameters.items():
            parameter.grad = state[name].to(parameter.device, parameter.dtype, copy=True) if name in state else None
