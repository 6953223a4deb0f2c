"""Gradients that wait for an update."""


class Gradients:
    """The gradients that a module's parameters have gathered in an accumulation window that is not finished.

    Its state is the gradients by the parameters' names, those that are None left out.
    """

    def __init__(self, module):
        self.parameters = dict(module.named_parameters())

    def state_dict(self):
        return {name: parameter.grad for name, parameter in self.parameters.items() if parameter.grad is not None}

    def load_state_dict(self, state):
        """Put `state` in place of the gradients. Raises ValueError when it has gradients of other names or shapes."""
        for name, gradient in state.items():
            if name not in self.parameters or gradient.shape != self.parameters[name].shape:
                raise ValueError(f"gradient of {name}, shape {list(gradient.shape)}: this model has no such parameter")
        for name, parameter in self.parameters.items():
            parameter.grad = state[name].to(parameter.device, parameter.dtype, copy=True) if name in state else None
