"""Proves whether a training run that is stopped and resumed equals the uninterrupted one, bit for bit, and names the
state that was lost.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exact_resume.tracing.recorder import Trace

__all__ = ["Trace"]

# Imported when they are asked for: torch takes seconds to import, and what traces nothing needs none of it.
LATE = {"Trace": "exact_resume.tracing.recorder"}


def __getattr__(name: str):
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LATE[name]), name)
