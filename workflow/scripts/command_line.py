"""What every verb's command line shares, and where verbs find the package: in this checkout, whatever is installed."""

import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from exact_resume.errors import LabError


def run(main):
    """Call `main()`, unless a flag was given an empty value.

    A user's mistake, or a disk that is full, ends the process with one line on standard error and exit status 1, Ctrl-C
    with 130.
    """
    try:
        check_empty(sys.argv)
        main()
    except LabError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def check_empty(arguments):
    """Raise LabError naming the flag when one of the command's `arguments` is empty, as an unset variable of a job
    script leaves it.
    """
    for before, argument in pairwise(arguments):
        flag, equals, value = argument.partition("=")
        if not argument or (flag.startswith("--") and equals and not value):
            raise LabError(
                f"{flag or before}: found an empty value (an unset variable?), wanted one; leave the flag out for none"
            )
