"""Pictures show what they are to show: no curve stretches an axis, nothing hides another, and 0 is no value of a log
axis.
"""

import re
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import plot
import plot_audit
import plot_faults
from exact_resume.pipeline import picture


@pytest.fixture(autouse=True)
def _prepared():
    picture.prepare()
    yield
    plt.close("all")


def log(losses, first=1):
    return pd.DataFrame({"step": range(first, first + len(losses)), "train_loss": losses})


STRAIGHT = [5.5, 4.0, 3.1, 3.0, 2.9, 3.0, 2.8, 2.9, 2.7, 2.8]


def losses_of(**runs):
    logs = {"straight": log(STRAIGHT), **{name: log(losses, first=7) for name, losses in runs.items()}}
    return plot.draw_losses(logs, [6])


def texts(axes):
    return " ".join(text.get_text() for text in axes.texts)


@pytest.mark.parametrize("loss", [9.0, 1e6, float("nan")])
def test_a_run_that_lost_its_weights_stretches_no_axis(loss):
    calm = losses_of(noopt=[2.9, 3.0, 2.8, 2.9]).axes[0]
    wild = losses_of(noopt=[2.9, 3.0, 2.8, 2.9], without_model=[loss, loss, 3.0, 2.9]).axes[0]
    assert wild.get_ylim() == calm.get_ylim()
    assert "outside" not in texts(calm)
    assert "outside: without_model at 2 of 4 steps" in texts(wild)


def test_runs_with_straights_losses_share_its_line():
    axes = losses_of(resumed=STRAIGHT[6:], noopt=[2.9, 3.0, 2.8, 2.9], replayed=STRAIGHT[6:]).axes[0]
    assert axes.get_legend_handles_labels()[1] == ["straight\n= resumed\n= replayed", "noopt"]


def test_straight_whose_loss_is_no_number_is_drawn():
    plot.draw_losses({"straight": log([float("nan")] * 4)}, [2])


def steps_of(**runs):
    return pd.concat(
        [pd.DataFrame({"run": name, "step": range(6, 6 + len(sizes)), "rel_l2": sizes}) for name, sizes in runs.items()]
    )


def test_zero_stands_on_an_axis_of_its_own_below_a_break():
    steps = steps_of(resumed=[0, 0, 0], late=[0, 0, 0.01], early=[0.1, 0.1, 0.2])
    above, below = plot.draw_divergence(steps, list(steps["run"].unique()), [6]).axes
    assert (above.get_yscale(), below.get_yscale()) == ("log", "linear")
    assert [label.get_text() for label in below.get_yticklabels()] == ["0"]
    assert "0 at every step: resumed" in texts(below)
    assert above.get_legend_handles_labels()[1] == ["late", "early"]
    late, _ = above.get_lines()[:2]
    assert np.nanmin(late.get_ydata()) > 0
    # A single point has no line: without its marker it wouldn't be seen.
    assert {2} == set(late.get_markevery()) & {index for index, value in enumerate(late.get_ydata()) if value > 0}


def test_distances_that_are_all_zero_are_drawn():
    above, below = plot.draw_divergence(steps_of(resumed=[0, 0]), ["resumed"], [6]).axes
    assert list(above.get_yticks()) == []
    assert "0 at every step: resumed" in texts(below)


def case(distance):
    return {"rel_l2": distance}


@pytest.mark.parametrize("distance", [0, 0.01])
def test_no_marker_of_an_audit_lies_over_another(distance, tmp_path):
    names = ["repeat", "save", "mid-epoch", "epoch-boundary", "inside-window", "two-resumes", "killed"]
    figure = plot_audit.draw({f"trainer{row}": {name: case(distance) for name in names} for row in range(3)})
    picture.save(figure, tmp_path / "audit.svg")
    points = [
        axes.transData.transform(point)
        for axes in figure.axes
        for line in axes.get_lines()
        if line.get_label() in names or line.get_marker() in list(picture.MARKERS)
        for point in line.get_xydata()
    ]
    assert len(points) == 3 * len(names)
    closest = min(np.linalg.norm(one - other) for index, one in enumerate(points) for other in points[:index])
    assert closest >= 3


def test_audit_in_which_nothing_could_be_compared_is_drawn():
    plot_audit.draw({"crashes": {"repeat": case(None)}})


def test_labels_of_neighbouring_panels_stay_apart(tmp_path):
    kinds = ["kill", "error", "power_loss", "bit_flip", "truncation"]
    figure = plot_faults.draw({"naive": {kind: {"tried": 4, "good": 2, "silent": 1} for kind in kinds}})
    picture.save(figure, tmp_path / "crash.svg")
    boxes = [label.get_window_extent() for axes in figure.axes for label in axes.get_xticklabels() if label.get_text()]
    assert len(boxes) == 10
    assert all(left.x1 + 2 < right.x0 for left, right in pairwise(boxes))


def test_picture_has_a_light_panel_and_the_same_bytes_each_time(tmp_path):
    for name in ("one", "two"):
        picture.save(losses_of(noopt=[2.9, 3.0, 2.8, 2.9]), tmp_path / name)
    text = (tmp_path / "one").read_text()
    assert text == (tmp_path / "two").read_text()
    assert re.search(r'id="patch_1">\s*<path [^>]*style="fill: #ffffff"', text)
    assert "<text" not in text
