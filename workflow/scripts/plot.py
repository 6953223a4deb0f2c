"""Draw the two pictures: the runs' loss curves, and how far their weights are from straight's."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import pandas as pd  # noqa: E402

import command_line  # noqa: E402
from lab import atomic  # noqa: E402

# Runs are told apart by dash and marker first, so that a print in black and white can be read.
DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (1, 1))]
MARKERS = "osD^vPX*"
COLOURS = ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#7f7f7f", "#e69f00"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", action="append", required=True, metavar="CSV", help="NAME_log.csv of a run; repeatable")
    parser.add_argument("--steps", required=True, help="CSV of measure_divergence.py: run,step,rel_l2,update_l2")
    parser.add_argument("--stop-at", type=int, required=True, help="the step of the stop, marked in both pictures")
    parser.add_argument("--losses", required=True, help="SVG to write: the loss curves")
    parser.add_argument("--divergence", required=True, help="SVG to write: the distances, on a log axis")
    args = parser.parse_args()
    # Ids in the SVG are hashed with a salt that is random unless it is set; its date would change too.
    plt.rcParams.update({"svg.hashsalt": "exact-resume", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})

    logs = {Path(path).name.removesuffix("_log.csv"): pd.read_csv(path) for path in args.log}
    steps = pd.read_csv(args.steps)
    save(draw_losses(logs, args.stop_at), args.losses)
    save(draw_divergence(steps[steps["run"] != "repeat"], args.stop_at), args.divergence)


def style(index):
    return {"linestyle": DASHES[index % len(DASHES)], "marker": MARKERS[index % len(MARKERS)], "color": COLOURS[index % len(COLOURS)]}


def draw_losses(logs, stop_at):
    """Return a figure of train_loss over step, a line for each run of `logs`, by name; equal runs lie on top of each other."""
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for index, (name, log) in enumerate(logs.items()):
        axes.plot(log["step"], log["train_loss"], label=name, markevery=(index % 5, 5), markersize=5, markerfacecolor="none", **style(index))
    finish(axes, stop_at, "training loss")
    return figure


def draw_divergence(steps, stop_at):
    """Return a figure of rel_l2 over step on a log axis, a line for each run; runs at distance 0 throughout lie on a line below the axis' decades."""
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    identical = []
    for index, (name, run) in enumerate(steps.groupby("run", sort=False)):
        apart = run[run["rel_l2"] > 0]
        if apart.empty:
            identical.append(name)
            continue
        axes.plot(apart["step"], apart["rel_l2"], label=name, markevery=(index % 3, 3), markersize=5, markerfacecolor="none", **style(index))
    axes.set_yscale("log")
    if identical:
        lowest = steps.loc[steps["rel_l2"] > 0, "rel_l2"].min() if len(identical) < steps["run"].nunique() else 1.0
        axes.plot([steps["step"].min(), steps["step"].max()], [lowest / 10] * 2, color="black", linewidth=2, label=f"{', '.join(identical)}: 0 at every step")
        axes.annotate("0", (steps["step"].max(), lowest / 10), xytext=(6, 0), textcoords="offset points", va="center")
    finish(axes, stop_at, "distance of the weights from straight\n(relative L2, estimated within 2 %)")
    return figure


def finish(axes, stop_at, label):
    axes.axvline(stop_at, color="#999999", linewidth=1, zorder=0)
    axes.annotate(f"stop at {stop_at}", (stop_at, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -2), textcoords="offset points", va="top", color="#666666")
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.figure.legend(loc="outside right upper", frameon=False, handlelength=3.5)


def save(figure, path):
    with atomic.replacing(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    command_line.run(main)
