"""Which exceptions are the program's own, that its signal handler raised while something was looked at."""

import signal
import traceback


def raised_by_handler(error: BaseException) -> bool:
    """Whether `error` was raised in a signal handler that Python calls: a time limit of the program's, say. It is
    nothing that looking has brought about.
    """
    handlers = filter(callable, map(signal.getsignal, signal.valid_signals()))
    codes = {id(code) for handler in handlers if (code := _code_of(handler)) is not None}
    return any(id(frame.f_code) in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler):
    while hasattr(handler, "func"):
        # functools.partial
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", type(handler).__call__)
    return getattr(function, "__code__", None)
