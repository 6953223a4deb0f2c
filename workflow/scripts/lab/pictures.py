"""What all pictures share: the same data give the same bytes."""

import matplotlib.pyplot as plt

from lab import atomic


def begin():
    """Set matplotlib up to draw SVG files without a display."""
    plt.switch_backend("svg")
    # Ids in the SVG are hashed with a salt that is random unless it is set.
    plt.rcParams.update({"svg.hashsalt": "exact-resume", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})


def save(figure, path):
    """Write `figure` to the SVG file `path`, without the date."""
    with atomic.replacing(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
