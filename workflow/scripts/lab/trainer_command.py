"""The command line of a trainer, as the config has it."""

import os
import shlex
from pathlib import Path

from lab.errors import LabError
from lab.sources import sources

# Stands in a command for the folder of this project's own scripts.
PLACE = "{scripts}"


def split(command):
    """Return the arguments that the text `command` is made of, quotes taken off as a shell does. Raises LabError when it is none."""
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise LabError(f"found {command!r}: {error}, wanted a command line") from error
    if not arguments:
        raise LabError(f"found {command!r}, wanted a command line")
    return [argument.replace(PLACE, _scripts()) for argument in arguments]


def with_flags(command, flags, shell):
    """Return the list of arguments that starts `command` with `flags`, a list of text, behind it; with `shell` by way of the shell."""
    if shell:
        return ["/bin/sh", "-c", f"{command.replace(PLACE, shlex.quote(_scripts()))} {shlex.join(flags)}"]
    return [*split(command), *flags]


def files(command):
    """Return the paths of the files that the command names, and of the modules that those of them which are Python scripts import from
    their own folder.
    """
    return list(dict.fromkeys(source for path in named(command) for source in _sources(path)))


def named(command):
    """Return the files among the command's arguments. A program that is called by an absolute path belongs to the machine and is none of
    them; a shell's command line that can't be split names none.
    """
    try:
        program, *others = split(command)
    except LabError:
        return []
    return [argument for argument in [*([] if os.path.isabs(program) else [program]), *others] if os.path.isfile(argument)]


def _sources(path):
    if not path.endswith(".py"):
        return [path]
    try:
        return [str(source) for source in sources(path)]
    except (SyntaxError, ValueError):
        # A script that is broken is found out when it is run.
        return [path]


def _scripts():
    return os.path.relpath(Path(__file__).resolve().parents[1])
