"""Draw how far each trainer's runs end from its uninterrupted one: relative L2 of the weights, on a log axis."""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

import command_line
from exact_resume.audit import result as audit_result
from exact_resume.pipeline.picture import COLOURS, MARKERS, SIZE, mark_break, prepare, save

# Inches: what a row takes, all that is beside the rows, and what the legend takes.
ROW, MARGIN, LEGEND = 0.45, 1.0, 2.2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", metavar="JSON", help="result of audit_trainer.py")
    parser.add_argument("--out", required=True, help="SVG to write")
    args = parser.parse_args()
    prepare()
    results = [json.loads(Path(path).read_text(encoding="utf-8")) for path in args.results]
    save(draw({result["name"]: audit_result.cases(result) for result in results}), args.out)


def draw(trainers):
    """Return a figure with a row for each trainer and a marker in it for each of its cases, by name, that could be
    compared.

    Cases at distance 0, which a log axis has no place for, stand left of it, in a column for each, with a break
    between.
    """
    size = (SIZE[0], max(LEGEND, MARGIN + ROW * len(trainers)))
    figure, (zero, axes) = plt.subplots(1, 2, figsize=size, layout="constrained", sharey=True, width_ratios=[1, 3])
    figure.get_layout_engine().set(wspace=0, w_pad=0.02)
    names = list(dict.fromkeys(name for cases in trainers.values() for name in cases))
    for index, name in enumerate(names):
        look = {
            "linestyle": "none",
            "marker": MARKERS[index % len(MARKERS)],
            "color": COLOURS[index % len(COLOURS)],
            "markersize": 5,
        }
        found = [(row, cases[name]["rel_l2"]) for row, cases in enumerate(trainers.values()) if name in cases]
        equal = [row for row, distance in found if distance == 0]
        zero.plot([index] * len(equal), equal, label=name, markerfacecolor="none", **look)
        # Cases of one trainer lie a little below each other, since equal distances would hide each other.
        shift = 0.8 * ((index + 0.5) / len(names) - 0.5)
        apart = [(distance, row + shift) for row, distance in found if distance]
        axes.plot([distance for distance, _ in apart], [row for _, row in apart], markerfacecolor="none", **look)
    zero.set_xlim(-1, len(names))
    zero.set_xticks([(len(names) - 1) / 2], ["0"])
    if any(case["rel_l2"] for cases in trainers.values() for case in cases.values()):
        axes.set_xscale("log")
    else:
        axes.set_xticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False, labelleft=False)
    mark_break((zero, 1, 0), (axes, 0, 0))
    for row in range(len(trainers) - 1):
        for each in (zero, axes):
            each.axhline(row + 0.5, color="#dddddd", linewidth=0.5, zorder=0)
    zero.set_yticks(range(len(trainers)), list(trainers))
    zero.set_ylim(len(trainers) - 0.5, -0.5)
    axes.set_xlabel("distance of the weights from the uninterrupted run (relative L2)")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


if __name__ == "__main__":
    command_line.run(main)
