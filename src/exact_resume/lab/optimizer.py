"""AdamW without the compiler."""

import math
from inspect import unwrap

import torch
from torch.optim.optimizer import Optimizer

from exact_resume.checkpoint.archive import check_apart, fault, show

SQUARES = "exp_avg_sq"
MOMENTS = ("exp_avg", SQUARES)


class AdamW(torch.optim.AdamW):
    """torch's fused AdamW (Loshchilov & Hutter 2019): same arithmetic, same state_dict.

    torch wraps these methods in a decorator that imports torch._dynamo on the first call, only to tell the compiler to
    keep out. That import takes longer than `import torch`, in every run; nothing is compiled here, so the methods go
    unwrapped.
    """

    def __init__(self, params, **settings):
        super().__init__(params, fused=True, **settings)

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))

    @property
    def updates(self):
        """The number of updates that its state remembers."""
        return int(next((values["step"] for values in self.state.values() if values), 0))

    def load_state_dict(self, state_dict):
        """Load `state_dict`. Raises ValueError, before anything is changed, unless its settings are this optimizer's,
        all but the learning rate, which is set anew for each step; and unless all parameters have moments, finite and
        of their shapes, and the same count of updates, or, before the first one, none has any. torch would take over
        other settings, widen other dtypes, and begin anew with what is missing.
        """
        if type(state_dict) is not dict or state_dict.keys() != {"state", "param_groups"}:
            raise ValueError("found other entries than state and param_groups")
        self._check_settings(state_dict["param_groups"])
        self._check_moments(state_dict["state"])
        unwrap(Optimizer.load_state_dict)(self, state_dict)

    def _check_settings(self, groups):
        own = self.state_dict()["param_groups"]
        if type(groups) is not list or len(groups) != len(own):
            raise ValueError(f"param_groups: found {show(groups)}, wanted a list of {len(own)}")
        for index, (found, wanted) in enumerate(zip(groups, own)):
            if type(found) is not dict or found.keys() != wanted.keys():
                raise ValueError(f"group {index}: found other settings than {', '.join(wanted)}")
            for key in wanted:
                # Texts also tell 1 from 1.0 and from True.
                if key != "lr" and repr(found[key]) != repr(wanted[key]):
                    raise ValueError(
                        f"{key} of group {index}: found {show(found[key])}, wanted {show(wanted[key])}, this run's"
                    )
            if type(found["lr"]) is not float or not 0 <= found["lr"] < math.inf:
                raise ValueError(
                    f"lr of group {index}: found {show(found['lr'])}, wanted a finite number of at least 0"
                )

    def _check_moments(self, state):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        if type(state) is not dict or (state and state.keys() != set(range(len(parameters)))):
            raise ValueError(
                f"state: found {show(state)}, wanted moments of each of the {len(parameters)} parameters, or of none"
            )
        tensors = {}
        for index, values in state.items():
            if type(values) is not dict or values.keys() != {"step", *MOMENTS}:
                raise ValueError(f"parameter {index}: found {show(values)}, wanted step, {', '.join(MOMENTS)}")
            for name, value in values.items():
                wrong = fault(value, () if name == "step" else parameters[index].shape, torch.float32)
                if wrong:
                    raise ValueError(f"{name} of parameter {index}: {wrong}")
                if name == SQUARES and bool((value < 0).any()):
                    raise ValueError(f"{name} of parameter {index}: found negative values, wanted averages of squares")
                tensors[f"{name} of parameter {index}"] = value
        check_apart(tensors)
        counts = {float(values["step"]) for values in state.values()}
        if len(counts) > 1 or not all(count >= 1 and count.is_integer() for count in counts):
            raise ValueError(
                f"step: found {show(sorted(counts))}, wanted one count of updates, the same for all parameters"
            )
