"""Draw how far each trainer's runs end from its uninterrupted one: relative L2 of the weights, on a log axis."""

import argparse
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt

import command_line
from lab import audit_result
from lab.picture import COLOURS, MARKERS, SIZE, prepare, save

# Inches: what a row takes, all that is beside the rows, and what the legend takes.
ROW, MARGIN, LEGEND = 0.35, 1.0, 2.2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", metavar="JSON", help="result of audit_trainer.py")
    parser.add_argument("--out", required=True, help="SVG to write")
    args = parser.parse_args()
    prepare()
    results = [json.loads(Path(path).read_text(encoding="utf-8")) for path in args.results]
    save(draw({result["name"]: audit_result.cases(result) for result in results}), args.out)


def draw(trainers):
    """Return a figure with a row for each trainer and a marker in it for each of its cases, by name, that could be compared.

    Cases at distance 0, which a log axis has no place for, stand left of a line, at its own tick "0".
    """
    figure, axes = plt.subplots(figsize=(SIZE[0], max(LEGEND, MARGIN + ROW * len(trainers))), layout="constrained")
    names = list(dict.fromkeys(name for cases in trainers.values() for name in cases))
    distances = [case["rel_l2"] for cases in trainers.values() for case in cases.values() if case["rel_l2"]]
    zero = min(distances, default=1.0) / 30
    for index, name in enumerate(names):
        # Cases of one trainer lie a little below each other, since equal distances would hide each other.
        shift = 0.6 * ((index + 0.5) / len(names) - 0.5)
        found = [(row + shift, cases[name]["rel_l2"]) for row, cases in enumerate(trainers.values()) if name in cases]
        found = [(row, distance or zero) for row, distance in found if distance is not None]
        look = {"linestyle": "none", "marker": MARKERS[index % len(MARKERS)], "color": COLOURS[index % len(COLOURS)], "markersize": 5}
        axes.plot([distance for _, distance in found], [row for row, _ in found], label=name, markerfacecolor="none", **look)
    axes.set_xscale("log")
    axes.set_xlim(zero / 3, max(distances, default=1.0) * 3)
    axes.axvline(zero * 5, color="#999999", linewidth=1, zorder=0)
    ticks = [tick for tick in axes.get_xticks() if distances and zero * 5 < tick <= axes.get_xlim()[1]]
    axes.set_xticks([zero, *ticks], ["0", *(f"$10^{{{round(math.log10(tick))}}}$" for tick in ticks)])
    axes.minorticks_off()
    axes.set_yticks(range(len(trainers)), list(trainers))
    axes.set_ylim(len(trainers) - 0.5, -0.5)
    axes.set_xlabel("distance of the weights from the uninterrupted run (relative L2)")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


if __name__ == "__main__":
    command_line.run(main)
