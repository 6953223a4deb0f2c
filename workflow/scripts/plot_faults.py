"""Draw what each way to save survives: a bar for each saver and kind of fault."""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

import command_line
from exact_resume.pipeline.picture import prepare, save

SIZE = (9, 2.6)  # inches
# Parts of a bar, each with a look that a print in black and white keeps.
PARTS = {
    "a good checkpoint is loaded": {"facecolor": "#009e73"},
    "nothing can be loaded": {"facecolor": "#ffffff", "hatch": "///"},
    "damage is loaded without a word": {"facecolor": "#d55e00", "hatch": "xxx"},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counted", required=True, help="JSON of inject_faults.py")
    parser.add_argument("--out", required=True, help="SVG to write")
    args = parser.parse_args()
    prepare()
    save(draw(json.loads(Path(args.counted).read_text(encoding="utf-8"))["savers"]), args.out)


def draw(savers):
    """Return a figure with a panel for each kind of fault and a bar of shares for each saver."""
    kinds = list(next(iter(savers.values())))
    figure, panels = plt.subplots(1, len(kinds), figsize=SIZE, sharey=True, layout="constrained")
    for panel, kind in zip(panels, kinds):
        for row, cells in enumerate(savers.values()):
            left = 0.0
            for share, look in zip(shares(cells[kind]), PARTS.values()):
                panel.barh(row, share, left=left, edgecolor="#333333", linewidth=0.5, **look)
                left += share
        panel.set_title(kind.replace("_", " "), fontsize=10)
        panel.set_xlim(0, 1)
        panel.set_xticks([0, 0.5, 1], ["0", "", "1"])
        # Towards the inside, or the 1 of a panel and the 0 of the next one run into each other.
        for label, side in zip(panel.get_xticklabels(), ("left", "center", "right")):
            label.set_ha(side)
    panels[0].set_yticks(range(len(savers)), savers)
    panels[0].invert_yaxis()
    figure.supxlabel("share of the cases")
    handles = [plt.Rectangle((0, 0), 1, 1, edgecolor="#333333", **look) for look in PARTS.values()]
    figure.legend(handles, PARTS, loc="outside upper center", ncols=len(PARTS), frameon=False)
    return figure


def shares(cell):
    """Return the shares of good, lost and silently damaged cases."""
    lost = cell["tried"] - cell["good"] - cell["silent"]
    return [count / cell["tried"] for count in (cell["good"], lost, cell["silent"])]


if __name__ == "__main__":
    command_line.run(main)
