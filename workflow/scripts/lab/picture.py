"""Pictures that look alike, and of which equal data give equal bytes."""

import matplotlib.pyplot as plt

from lab import atomic

MARKERS = "osD^vPX*<"
SIZE = (8, 4.2)  # inches
COLOURS = ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#7f7f7f"]


def prepare():
    """Set matplotlib up; to be called before a figure is made."""
    plt.switch_backend("svg")
    # Ids in the SVG are hashed with a salt that is random unless it is set; its date would change too.
    plt.rcParams.update({"svg.hashsalt": "exact-resume", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})


def save(figure, path):
    """Write a figure to `path` as SVG."""
    with atomic.replacing(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
