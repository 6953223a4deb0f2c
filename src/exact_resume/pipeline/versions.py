"""Which version of a package is installed."""

from importlib.metadata import PackageNotFoundError, version


def installed(package):
    """Return the version of an installed package, None for one that isn't."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
