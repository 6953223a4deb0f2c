"""Draw the two pictures: the runs' loss curves, and how far their weights are from straight's."""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import MaxNLocator

import command_line
from exact_resume.pipeline.picture import COLOURS, MARKERS, SIZE, mark_break, prepare, save

# Runs are told apart by dash and marker first, so that a print in black and white can be read.
DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (3, 1)), (0, (1, 1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--log", action="append", required=True, metavar="CSV", help="NAME_log.csv of a run; repeatable"
    )
    parser.add_argument("--steps", required=True, help="CSV of measure_divergence.py: run,step,rel_l2,update_l2")
    parser.add_argument(
        "--stop-at",
        type=int,
        action="append",
        required=True,
        metavar="K",
        help="a step of a stop, marked in both pictures; repeatable",
    )
    parser.add_argument("--losses", required=True, help="SVG to write: the loss curves")
    parser.add_argument("--divergence", required=True, help="SVG to write: the distances, on a log axis")
    args = parser.parse_args()
    prepare()
    logs = {Path(path).name.removesuffix("_log.csv"): pd.read_csv(path) for path in args.log}
    steps = pd.read_csv(args.steps)
    save(draw_losses(logs, args.stop_at), args.losses)
    save(draw_divergence(steps[steps["run"].isin(logs)], list(logs), args.stop_at), args.divergence)


def style(index, points):
    """Return the line style of the run with this index and so many points; markers of neighbours are set off against
    each other so that none hides another, and the last point, which may be the only one to be seen, has one.
    """
    look = {
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "color": COLOURS[index % len(COLOURS)],
    }
    every = max(1, points // 6)
    return {
        **look,
        "markevery": [*range(index % every, points - 1, every), points - 1],
        "markersize": 5,
        "markerfacecolor": "none",
    }


def draw_losses(logs, stops):
    """Return a figure of train_loss over step around and after the first stop, a line for each run of `logs`, by name.

    Runs that logged straight's very losses share straight's line. The axis reaches a little beyond straight's losses;
    what lies outside, as that of a run that lost its weights does, is told in the picture.
    """
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    losses = {name: dict(zip(log["step"], log["train_loss"])) for name, log in logs.items()}
    straight = losses["straight"]
    equal = [name for name, own in losses.items() if own.items() <= straight.items()]
    last = max(straight)
    begin = max(min(straight), stops[0] - (last - stops[0]) // 4)
    low, high = limits([loss for step, loss in straight.items() if step >= begin])
    axes.plot(*zip(*straight.items()), label="\n= ".join(equal), color="#bbbbbb", linewidth=5, solid_capstyle="round")
    outside = []
    for index, name in enumerate(logs):
        if name in equal:
            continue
        axes.plot(logs[name]["step"], logs[name]["train_loss"], label=name, **style(index, len(logs[name])))
        beyond = [loss for loss in losses[name].values() if not low <= loss <= high]
        if beyond:
            outside.append(
                f"outside: {name} at {len(beyond)} of {len(losses[name])} steps, {min(beyond):.2f} to {max(beyond):.2f}"
            )
    axes.set_xlim(begin - 0.5, last + 0.5)
    axes.set_ylim(low, high)
    finish(axes, axes, stops, "training loss")
    if outside:
        place = {
            "xycoords": "axes fraction",
            "xytext": (-4, 4),
            "textcoords": "offset points",
            "ha": "right",
            "va": "bottom",
        }
        axes.annotate("\n".join(outside), (1, 0), **place)
    return figure


def limits(losses):
    """Return the ends of an axis on which the finite ones of `losses` take up half, and there is room below and above
    them.
    """
    finite = [loss for loss in losses if math.isfinite(loss)] or [0.0]
    low, high = min(finite), max(finite)
    margin = (high - low) / 2 or 0.1
    return low - margin, high + margin


def draw_divergence(steps, order, stops):
    """Return a figure of rel_l2 over step on a log axis, a line for each run, styled by its place in `order`.

    Distances of 0, which a log axis has no place for, stand below it, on an axis of their own with a break between.
    """
    figure, (axes, zero) = plt.subplots(2, figsize=SIZE, layout="constrained", sharex=True, height_ratios=[9, 1])
    figure.get_layout_engine().set(hspace=0, h_pad=0.02)
    runs = dict(list(steps.groupby("run", sort=False)))
    apart = [name for name, run in runs.items() if (run["rel_l2"] > 0).any()]
    for name, run in runs.items():
        look = style(order.index(name), len(run))
        if name in apart:
            axes.plot(run["step"], run["rel_l2"].where(run["rel_l2"] > 0), label=name, **look)
        zero.plot(run["step"], run["rel_l2"].where(run["rel_l2"] == 0), **look)
    if apart:
        axes.set_yscale("log")
    else:
        axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(bottom=False, labelbottom=False, which="both")
    zero.set_ylim(-1, 1)
    zero.set_yticks([0], ["0"])
    mark_break((axes, 0, 0), (zero, 0, 1))
    identical = [name for name in runs if name not in apart]
    if identical:
        place = {
            "xycoords": ("axes fraction", "data"),
            "xytext": (0, 5),
            "textcoords": "offset points",
            "ha": "right",
            "va": "bottom",
        }
        zero.annotate(f"0 at every step: {', '.join(identical)}", (1, 0), **place)
    finish(axes, zero, stops, "distance of the weights from straight\n(relative L2, estimated within 2 %)")
    return figure


def finish(axes, lowest, stops, label):
    """Mark the stops in `axes`, and in `lowest`, which may be below it and has the steps, and put the labels and the
    legend there.
    """
    # Above the axes, where no line is.
    place = {
        "xycoords": ("data", "axes fraction"),
        "xytext": (0, 3),
        "textcoords": "offset points",
        "va": "bottom",
        "ha": "center",
    }
    for stop in stops:
        for each in dict.fromkeys([axes, lowest]):
            each.axvline(stop, color="#999999", linewidth=1, zorder=0)
        axes.annotate(f"stop at {stop}", (stop, 1.0), color="#666666", **place)
    lowest.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    lowest.set_xlabel("step")
    axes.set_ylabel(label)
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside right upper", frameon=False, handlelength=3.5)


if __name__ == "__main__":
    command_line.run(main)
