"""Numbers and text as the cells of a trace show them, nested as they may be, and where two of them differ. Needs no
torch.

A cell shows a dict as {key: value, key: value}, a list as [value, value], and anything else as Python's repr does.
"""

import re

SCALAR = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,{}[\]]+""")
CLOSING = {"{": "}", "[": "]"}


def differing(found, wanted):
    """Return where two texts that hold dicts or lists differ: pairs of values as text by the keys on the way to them,
    with dots between.

    Of a key that only one has the other value is None. {} where a text is just a value, or can't be read.
    """
    try:
        found, wanted = _values(found), _values(wanted)
    except (ValueError, RecursionError):
        return {}
    keys = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
    return {key: (found.get(key), wanted.get(key)) for key in keys if key}


def items(text):
    """Return what the text of a dict holds, as texts by its keys; {} where it is something else, or can't be read."""
    if not text.startswith("{"):
        return {}
    try:
        keys = {key: value for key, value in _values(text).items() if key}
    except (ValueError, RecursionError):
        return {}
    grouped = {}
    for key, value in keys.items():
        grouped.setdefault(key.partition(".")[0], []).append(value)
    return {key: " ".join(values) for key, values in grouped.items()}


def _values(text):
    """Return the values in `text` by their keys, the whole under "" where it is just a value. Raises ValueError if it
    can't be read.
    """
    values = {}
    end = _read(text, 0, (), values)
    if end != len(text):
        raise ValueError(text)
    return values


def _read(text, at, keys, values):
    """Put what begins at `at` into `values` and return where it ends."""
    closing = CLOSING.get(text[at : at + 1])
    if closing is None or text[at + 1 : at + 2] == closing:
        scalar = SCALAR.match(text, at) if closing is None else None
        if closing is None and not scalar:
            raise ValueError(text)
        end = scalar.end() if scalar else at + 2
        values[".".join(keys)] = text[at:end]
        return end
    number = 0
    while text[at] != closing:
        at += 1 if number == 0 else 2
        key = str(number)
        if closing == "}":
            key, colon, _ = text[at:].partition(": ")
            at += len(key + colon)
        at = _read(text, at, (*keys, key), values)
        if text[at : at + 2] != ", " and text[at : at + 1] != closing:
            raise ValueError(text)
        number += 1
    return at + 1
