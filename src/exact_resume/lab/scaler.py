"""The gradients' scale in half precision."""

import math

import torch


class GradScaler(torch.amp.GradScaler):
    """torch's gradient scaler, which takes over from a state_dict only what changes in training: the scale and its
    growth count.
    """

    def load_state_dict(self, state_dict):
        """Load `state_dict`. Raises ValueError when its factors and interval are not this scaler's, or its scale or
        count can't be.
        """
        own = self.state_dict()
        if type(state_dict) is not dict or state_dict.keys() != own.keys():
            raise ValueError(f"found other entries than {', '.join(own)}")
        for name in ("growth_factor", "backoff_factor", "growth_interval"):
            if state_dict[name] != own[name] or type(state_dict[name]) is not type(own[name]):
                raise ValueError(f"{name}: found {state_dict[name]!r}, wanted {own[name]!r}")
        scale, count = state_dict["scale"], state_dict["_growth_tracker"]
        if type(scale) is not float or not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale: found {scale!r}, wanted a finite number above 0")
        if type(count) is not int or not 0 <= count < own["growth_interval"]:
            raise ValueError(
                f"_growth_tracker: found {count!r}, wanted a whole number in 0...{own['growth_interval'] - 1}"
            )
        super().load_state_dict(state_dict)
