"""What every verb's command line shares."""

import sys

from lab.errors import LabError


def run(main):
    """Call `main()`.

    A user's mistake, or a disk that is full, ends the process with one line on standard error and exit status 1, Ctrl-C with 130.
    """
    try:
        main()
    except LabError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
