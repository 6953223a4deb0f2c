"""Pictures that look alike, of which equal data give equal bytes, and that are readable on light and dark pages."""

import matplotlib.pyplot as plt

from exact_resume.checkpoint import atomic

MARKERS = "osD^vPX*<"
SIZE = (8, 4.2)  # inches
COLOURS = ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#7f7f7f"]


def prepare():
    """Set matplotlib up; to be called before a figure is made."""
    plt.switch_backend("svg")
    plt.rcParams.update(
        {
            # Ids in the SVG are hashed with a salt that is random unless it is set; its date would change too.
            "svg.hashsalt": "exact-resume",
            # Letters are drawn as outlines, so that a picture looks the same whatever fonts its reader has.
            "svg.fonttype": "path",
            # A panel of its own below it all, whatever colour the page has.
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )


def mark_break(*ends):
    """Mark that the axis is broken between the ends of two axes, each (axes, x, y) with its place as shares of the
    axes' size.
    """
    for axes, x, y in ends:
        axes.plot(
            x, y, marker=[(-1, -0.6), (1, 0.6)], markersize=9, color="black", clip_on=False, transform=axes.transAxes
        )


def save(figure, path):
    """Write a figure to `path` as SVG."""
    with atomic.replacing(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
