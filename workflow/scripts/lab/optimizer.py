"""AdamW without the compiler."""

from inspect import unwrap

import torch
from torch.optim.optimizer import Optimizer

from lab.checkpoint import fault


class AdamW(torch.optim.AdamW):
    """torch's fused AdamW (Loshchilov & Hutter 2019): same arithmetic, same state_dict.

    torch wraps these methods in a decorator that imports torch._dynamo on the first call, only to tell the compiler to keep
    out. That import takes longer than `import torch`, in every run; nothing is compiled here, so the methods go unwrapped.
    """

    def __init__(self, params, **settings):
        super().__init__(params, fused=True, **settings)

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))

    def load_state_dict(self, state_dict):
        """Load `state_dict`. Raises ValueError unless its tensors are finite numbers, of single precision, of the parameters' shapes: torch
        doesn't check shapes, and widens what is not. Raises it too unless all parameters have state or, before the first update, none:
        torch would begin anew with those that have none.
        """
        for index, values in state_dict["state"].items():
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and value.dtype != torch.float32:
                    raise ValueError(f"{name} of parameter {index}: found {value.dtype}, wanted torch.float32")
        unwrap(Optimizer.load_state_dict)(self, state_dict)
        names = frozenset().union(*state_dict["state"].values())
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                missing = names - self.state[parameter].keys()
                if missing:
                    raise ValueError(f"parameter {index} has no {', '.join(sorted(missing))}, which others have")
                for name, value in self.state[parameter].items():
                    wrong = fault(value, () if name == "step" else parameter.shape, torch.float32)
                    if wrong:
                        raise ValueError(f"{name} of parameter {index}: {wrong}")
