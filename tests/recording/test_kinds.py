"""Programs of many kinds train the same bits when they are recorded, and each gets the rows that it should."""

import itertools
import sys

import kinds
import pytest
from recordings import facts, recorder, rows, run

from conftest import ROOT
from exact_resume.recording import folder as record

COMMAND = [sys.executable, "-W", "error::UserWarning", str(ROOT / "tests" / "recording" / "kinds.py")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What all kinds print alone and recorded, and the rows of each by its name."""
    folder = tmp_path_factory.mktemp("kinds")
    plain, watched = run(COMMAND, folder), recorder(folder)("record", *COMMAND)
    assert (plain.returncode, watched.returncode) == (0, 0), plain.stderr + watched.stderr
    processes = record.processes(folder / "record")
    assert len(processes) == len(kinds.KINDS)
    assert facts(folder / "record")["problems"] == []
    found = {kind: rows(folder / "record", process) for kind, process in zip(kinds.KINDS, processes, strict=True)}
    return plain, watched, found


@pytest.fixture
def of(runs):
    return lambda kind: runs[2][kind]


def moved(found, column):
    """In which rows, from the second on, the column shows something else than in the one before."""
    return [one.get(column) != other.get(column) for one, other in itertools.pairwise(found)]


def test_all_kinds_train_the_same_bits_and_print_the_same(runs):
    plain, watched, _ = runs
    assert watched.stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == len(kinds.KINDS)
    assert watched.stderr.splitlines()[:-1] == plain.stderr.splitlines()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_step_is_a_row_with_what_it_began_and_ended_with(kind, of):
    found = of(kind)
    assert len(found) == kinds.UPDATES
    optimizers = [name.removesuffix(".kind") for name, value in found[-1].items() if value == "optimizer"]
    assert optimizers
    for row in found:
        assert row["rng.torch"] and row["lr"]
        # The second of two steps has no backward pass of its own.
        assert row["loss"] or kind == "two_steps"
    for name in optimizers:
        # Weights that no module was seen to have are the optimizer's own.
        assert all(row[f"{name}.after"] or row[f"{name}.parameters.after"] for row in found if row.get(name))


@pytest.mark.parametrize("kind", [kind for kind in kinds.KINDS if kind != "compiled_steps"])
def test_each_has_its_module_with_gradients_and_batches(kind, of):
    found = of(kind)
    modules = [name.removesuffix(".kind") for name, value in found[-1].items() if value == "module"]
    assert modules
    assert any(all(moved(found, f"{name}.after")) or kind in ("gan", "two_steps") for name in modules)
    assert all(any(row.get(f"{name}.gradients.after") for name in modules) for row in found)
    assert any(moved(found, "batch"))


def test_average_loader_and_sampler_are_found(of):
    found = of("loaders")
    assert {name for name in found[-1] if name.endswith(".kind")} >= {
        "AveragedModel.kind",
        "DataLoader.kind",
        "SGD.kind",
        "Sequential.kind",
    }
    # The sampler's own generator moved when the loader began.
    assert found[0]["DataLoader"]
    assert all(moved(found[1:], "AveragedModel"))


def test_evaluation_is_no_part_of_an_update(of):
    """The batches of the loop that evaluates in between are those that are trained on."""
    assert len({row["batch"] for row in of("loaders")}) == kinds.UPDATES


def test_both_players_of_a_game_are_found(of):
    last = of("gan")[-1]
    assert {last[f"{name}.kind"] for name in ("Sequential", "Linear")} == {"module"}
    assert {last[f"{name}.kind"] for name in ("Adam", "Adam_2")} == {"optimizer"}


def test_closures_losses_are_all_of_the_step(of):
    assert all(row["loss"].startswith("[") or len(row["loss"]) == 32 for row in of("closures"))


def test_batches_of_an_accumulated_update_are_one_cell(of):
    found = of("accumulation")
    assert len({row["batch"] for row in found}) == kinds.UPDATES
    assert {row["GradScaler.kind"] for row in found} == {"scaler"}


def test_optimizers_of_one_backward_pass_have_a_row_each(of):
    found = of("two_steps")
    assert [row["batch"] == found[0]["batch"] for row in found[:2]] == [True, False]
    assert found[0]["Outer.kind"] == found[1]["AdamW.kind"] == "optimizer"
