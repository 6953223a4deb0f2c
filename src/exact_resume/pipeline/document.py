"""Markdown documents made of templates and facts."""

import os
from pathlib import Path

import jinja2

from exact_resume.errors import LabError


def link(path, document):
    """Return the way from the folder of `document` to `path`, as Markdown links it."""
    return Path(os.path.relpath(path, Path(document).parent)).as_posix().replace(" ", "%20")


def render(template, facts):
    """Return the text that the jinja2 file `template` makes of `facts`. Raises LabError when it is not valid or names a
    missing fact.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["short"] = lambda number: "0" if number == 0 else f"{number:.2g}"
    # Text of others' as Markdown's code, which knows no escapes.
    environment.filters["code"] = lambda text: f"`{text.replace('`', chr(39))}`"
    try:
        return environment.get_template(template.name).render(facts)
    except jinja2.TemplateError as error:
        raise LabError(f"{template}: {error}") from error
