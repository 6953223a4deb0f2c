"""The one error that a user can cause."""


class LabError(Exception):
    """A mistake in the user's input; its text is one line that names the key or file, what was found and what was
    wanted.
    """
