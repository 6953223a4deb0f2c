"""The command line of a trainer, as the config has it."""

import os
import shlex
from itertools import pairwise

from exact_resume.errors import LabError
from exact_resume.pipeline.sources import code_digest, modules
from exact_resume.project import SCRIPTS, TRAINERS

# What stands in a command for the folders of this project's own scripts and trainers.
PLACES = {"{scripts}": SCRIPTS, "{trainers}": TRAINERS}


def split(command):
    """Return the arguments that the text `command` is made of, quotes taken off as a shell does. Raises LabError when
    it is none.
    """
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise LabError(f"found {command!r}: {error}, wanted a command line") from error
    if not arguments:
        raise LabError(f"found {command!r}, wanted a command line")
    return [_placed(argument) for argument in arguments]


def with_flags(command, flags, shell):
    """Return the list of arguments that starts `command` with `flags`, a list of text, behind it; with `shell` by way
    of the shell.
    """
    if shell:
        return ["/bin/sh", "-c", f"{_placed(command, shlex.quote)} {shlex.join(flags)}"]
    return [*split(command), *flags]


def code_digests(command):
    """Return what the Python scripts and modules (-m) that the command names mean, with all that they import from their
    own folders, from those of PYTHONPATH and from this project, as a list of digests.
    """
    roots = _roots(command)
    scripts = [path for path in named(command) if path.endswith(".py")]
    return [code_digest(path, roots) for path in [*scripts, *_modules(command, roots)]]


def data_files(command):
    """Return the other files that the command names; it depends on their bytes."""
    return [path for path in named(command) if not path.endswith(".py")]


def named(command):
    """Return the files among the command's arguments, those behind a `=` too. A program that is called by an absolute
    path belongs to the machine and is none of them; a shell's command line that can't be split names none.
    """
    program, *others = _arguments(command)
    arguments = [*([] if os.path.isabs(program) else [program]), *others]
    found = [next(filter(os.path.isfile, (argument, argument.partition("=")[2])), None) for argument in arguments]
    return list(dict.fromkeys(filter(None, found)))


def _arguments(command):
    try:
        return split(command)
    except LabError:
        return [""]


def _modules(command, roots):
    """The paths of the modules that Python is told to run with -m, and of the packages that they lie in."""
    arguments = _arguments(command)
    names = [name for flag, name in pairwise(arguments) if flag == "-m"]
    return [path for name in names for path in modules(f"{name}.__main__", [os.curdir, *roots])]


def _roots(command):
    """The folders besides a script's own in which it finds modules."""
    paths = [os.environ.get("PYTHONPATH", "")]
    paths += [
        argument.removeprefix("PYTHONPATH=") for argument in _arguments(command) if argument.startswith("PYTHONPATH=")
    ]
    folders = [folder for path in paths for folder in path.split(os.pathsep) if folder]
    return [SCRIPTS, *folders, *([os.curdir] if "-m" in _arguments(command) else [])]


def _placed(text, quoted=str):
    """Return `text` with the project's folders in their places, relative to this one and `quoted`."""
    for place, folder in PLACES.items():
        text = text.replace(place, quoted(os.path.relpath(folder)))
    return text
