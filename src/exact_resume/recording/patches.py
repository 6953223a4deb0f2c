"""Torch's own functions, called as before and looked at: what has no global hook, or one that the program would notice.

Torch's compiler takes other ways, and warns, where there are global hooks on modules. It finds the functions here in
place of torch's when it is imported, takes them for these, and compiles none of them.
"""

import functools
import threading

import torch


def before_outermost_calls(look):
    """Call `look(module, args, kwargs)` before each call of a module that isn't made inside another module's."""
    original, inside = torch.nn.Module.__call__, threading.local()

    @functools.wraps(original)
    def __call__(self, *args, **kwargs):
        if torch.compiler.is_compiling() or getattr(inside, "a_call", False):
            return original(self, *args, **kwargs)
        inside.a_call = True
        try:
            look(self, args, kwargs)
            return original(self, *args, **kwargs)
        finally:
            inside.a_call = False

    _left_alone(__call__)
    torch.nn.Module.__call__ = __call__


def before_backward(look):
    """Call `look(tensors)` before each backward pass, with what it starts from."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors, *args, **kwargs):
        if not torch.compiler.is_compiling():
            look(tensors)
        return original(tensors, *args, **kwargs)

    _left_alone(backward)
    torch.autograd.backward = backward


def after_creations(kind, look):
    """Call `look(thing)` after each creation of an instance of the class `kind`."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            look(self)

    kind.__init__ = __init__


def _left_alone(function):
    """Have torch's compiler look at what `function` calls, and not at itself."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        # Before torch 2.6.
        frames.skip_code(function.__code__)
    else:
        skipped = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, skipped)
