"""Draw the two pictures: the runs' loss curves, and how far their weights are from straight's."""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import command_line
from lab.picture import COLOURS, MARKERS, SIZE, prepare, save

# Runs are told apart by dash and marker first, so that a print in black and white can be read.
DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (1, 1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", action="append", required=True, metavar="CSV", help="NAME_log.csv of a run; repeatable")
    parser.add_argument("--steps", required=True, help="CSV of measure_divergence.py: run,step,rel_l2,update_l2")
    parser.add_argument(
        "--stop-at", type=int, action="append", required=True, metavar="K", help="a step of a stop, marked in both pictures; repeatable"
    )
    parser.add_argument("--losses", required=True, help="SVG to write: the loss curves")
    parser.add_argument("--divergence", required=True, help="SVG to write: the distances, on a log axis")
    args = parser.parse_args()
    prepare()
    logs = {Path(path).name.removesuffix("_log.csv"): pd.read_csv(path) for path in args.log}
    styles = {name: style(index) for index, name in enumerate(logs)}
    steps = pd.read_csv(args.steps)
    save(draw_losses(logs, styles, args.stop_at), args.losses)
    save(draw_divergence(steps[steps["run"].isin(styles)], styles, args.stop_at), args.divergence)


def style(index):
    """Return the line style of the run with this index; markers of neighbours are set off against each other so that none hides another."""
    look = {"linestyle": DASHES[index % len(DASHES)], "marker": MARKERS[index % len(MARKERS)], "color": COLOURS[index % len(COLOURS)]}
    return {**look, "markevery": (index % 5, 5), "markersize": 5, "markerfacecolor": "none"}


def draw_losses(logs, styles, stops):
    """Return a figure of train_loss over step, a line for each run of `logs`, by name; equal runs lie on top of each other."""
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    for name, log in logs.items():
        axes.plot(log["step"], log["train_loss"], label=name, **styles[name])
    finish(axes, stops, "training loss")
    return figure


def draw_divergence(steps, styles, stops):
    """Return a figure of rel_l2 over step on a log axis, a line for each run.

    Runs at distance 0 throughout, which a log axis has no place for, share one line below all others.
    """
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    apart = steps[steps["rel_l2"] > 0]
    for name, run in apart.groupby("run", sort=False):
        axes.plot(run["step"], run["rel_l2"], label=name, **styles[name])
    axes.set_yscale("log")
    identical = [name for name in steps["run"].unique() if name not in set(apart["run"])]
    if identical:
        floor = apart["rel_l2"].min() / 10 if len(apart) else 1.0
        axes.plot([steps["step"].min(), steps["step"].max()], [floor, floor], color="black", linewidth=2)
        text = f"0 at every step: {', '.join(identical)}"
        axes.annotate(text, (steps["step"].max(), floor), xytext=(0, 4), textcoords="offset points", ha="right", va="bottom")
    finish(axes, stops, "distance of the weights from straight\n(relative L2, estimated within 2 %)")
    return figure


def finish(axes, stops, label):
    # Above the axes, where no line is.
    place = {"xycoords": ("data", "axes fraction"), "xytext": (0, 3), "textcoords": "offset points", "va": "bottom", "ha": "center"}
    for stop in stops:
        axes.axvline(stop, color="#999999", linewidth=1, zorder=0)
        axes.annotate(f"stop at {stop}", (stop, 1.0), color="#666666", **place)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside right upper", frameon=False, handlelength=3.5)


if __name__ == "__main__":
    command_line.run(main)
