"""What a diagnosis says follows from the traces alone, and a file that is no whole trace is refused in one line."""

import json

import jinja2
import pytest

from conftest import ROOT, failed_with_one_line
from exact_resume import diagnosis
from exact_resume.errors import LabError
from exact_resume.tracing.format import EMPTY

TITLE = "exact-resume trace,2,batch"
HEADER = (
    "row,configuration,w,w.float16,w.bfloat16,w.unordered,w.kind,counter,counter.kind,rng.torch,lr,batch,loss,w.after"
)


def digest(text):
    return f"{sum(text.encode()) * 7919:032x}"


def line(step, **changes):
    """One row of a reference in which everything changes at every step, with these cells changed and, where some are,
    the loss.
    """
    cells = {
        "configuration": digest("c"),
        "w": digest(f"w{step}"),
        "w.float16": f"~{digest(f'h{step}')}",
        "w.bfloat16": f"~{digest(f'b{step}')}",
        "w.unordered": digest(f"u{step}"),
        "w.kind": "module",
        "counter": str(step),
        "counter.kind": "",
        "rng.torch": digest("constant"),
        "lr": str(1 / step),
        "batch": digest(f"d{step}"),
        "loss": str(9.5 - step if not changes else 99),
        "w.after": digest(f"w{step + 1}"),
    }
    cells.update({name.replace("__", "."): value for name, value in changes.items()})
    return f"{step}," + ",".join(cells.values())


def trace(path, *lines):
    path.write_text("\n".join([TITLE, HEADER, *lines]) + "\n")
    return diagnosis.read(path)


@pytest.fixture
def diagnose(tmp_path):
    """A function that holds rows against the reference of steps 1 to 6."""

    def call(*lines):
        reference = trace(tmp_path / "reference.csv", *(line(step) for step in range(1, 7)))
        return diagnosis.diagnose(reference, [trace(tmp_path / "other.csv", *lines)])

    return call


@pytest.fixture
def diagnose_as(tmp_path):
    """A function that does the same after these cells are changed in all rows, the reference's too."""

    def call(everywhere, *lines):
        reference = trace(tmp_path / "reference.csv", *(line(step) for step in range(1, 7)))
        other = trace(tmp_path / "other.csv", *lines)
        for row in [*reference.rows, *other.rows]:
            row.cells.update(everywhere)
        return diagnosis.diagnose(reference, [other])

    return call


def test_same_rows_are_identical(diagnose):
    result = diagnose(line(4), line(5), line(6))
    assert (result["verdict"], result["first_row"], result["last_row"], result["notes"]) == ("identical", 4, 6, [])
    assert diagnosis.sentence(result) == "identical through batch 6"


@pytest.mark.parametrize(
    ("changes", "action", "told"),
    [
        ({"w": digest("w1")}, {"action": "lost"}, "w was lost (it is as before training)"),
        ({"w": EMPTY}, {"action": "lost"}, "w was lost (it is as before training)"),
        ({"w": digest("w2")}, {"action": "rewound", "by": 2}, "w was rewound by 2 batches"),
        ({"w": digest("w5")}, {"action": "skipped_ahead", "by": 1}, "w was skipped ahead by 1 batch"),
        (
            {"w": digest("new"), "w__float16": f"={digest('h4')}"},
            {"action": "rounded", "to": "float16"},
            "w was rounded to float16",
        ),
        (
            {"w": digest("new"), "w__bfloat16": f"={digest('b4')}"},
            {"action": "rounded", "to": "bfloat16"},
            "w was rounded to bfloat16",
        ),
        ({"w": digest("new"), "w__float16": f"~{digest('h4')}"}, {"action": "different"}, "w is different"),
        (
            {"w": digest("new"), "w__unordered": digest("u4")},
            {"action": "reordered"},
            "w holds the right tensors in wrong places",
        ),
        ({"w": digest("new")}, {"action": "different"}, "w is different"),
        (
            {"counter": "77"},
            {"action": "different", "found": "77", "wanted": "4"},
            "counter is different (found 77, wanted 4)",
        ),
    ],
)
def test_action_is_what_the_cells_show(diagnose, changes, action, told):
    """A value that differs only nearly like a rounding is called different: the diagnosis doesn't guess."""
    if "w" in changes and "w__unordered" not in changes:
        changes = {**changes, "w__unordered": digest("other")}
    result = diagnose(line(4, **changes), line(5), line(6))
    component = "counter" if "counter" in changes else "w"
    assert result["culprits"] == [{"component": component, **action}]
    assert told in diagnosis.sentence(result)


def test_batch_and_rate_are_explained_by_what_gives_them(diagnose):
    result = diagnose(line(4, counter="1", lr="1.0", batch=digest("d1")))
    assert result["culprits"] == [{"component": "counter", "action": "lost"}]
    assert result["explained"] == ["lr", "batch"]
    told = (
        "differs from batch 4: counter was lost (it is as before training); because of that lr and batch "
        "differ too; it ends before"
    )
    assert diagnosis.sentence(result).startswith(told)
    assert diagnose(line(4, w=digest("w1"), batch=digest("d2")))["explained"] == []


def test_batch_that_nothing_explains_is_named_itself(diagnose):
    assert diagnose(line(4, batch=digest("d1")))["culprits"] == [{"component": "batch", "action": "rewound", "by": 3}]
    result = diagnose(line(4, w=digest("w1"), batch=digest("d2")))
    assert [culprit["component"] for culprit in result["culprits"]] == ["w", "batch"], "weights don't choose batches"
    result = diagnose(line(4, counter="1", batch=digest("d2")))
    assert [culprit["component"] for culprit in result["culprits"]] == ["counter", "batch"], (
        "they are not of the same step"
    )


def test_rate_that_was_never_used_is_explained_only_by_what_can_give_it(diagnose):
    """A component that is as at a known step would give the rate of that step, and a generator gives none."""
    result = diagnose(line(4, counter="1", lr="0.77", batch=digest("d1")))
    assert [culprit["component"] for culprit in result["culprits"]] == ["counter", "lr"]
    assert result["explained"] == ["batch"]
    result = diagnose(line(4, rng__torch=digest("r"), lr="0.77"), line(5, rng__torch=digest("s")))
    assert [culprit["component"] for culprit in result["culprits"]] == ["rng.torch", "lr"]
    assert diagnose(line(4, counter="77", lr="0.77"))["explained"] == ["lr"]


@pytest.mark.parametrize(
    ("kind", "changes", "culprits", "explained"),
    [
        ("scheduler", {"lr": "0.77"}, {"counter"}, ["lr"]),
        ("scheduler", {"batch": digest("new")}, {"batch"}, []),
        ("scheduler", {"batch": digest("d1")}, {"batch"}, []),
        ("scaler", {"lr": "1.0"}, {"counter", "lr"}, []),
        ("scaler", {"batch": digest("new")}, {"counter", "batch"}, []),
        ("loader", {"batch": digest("new")}, {"counter"}, ["batch"]),
        ("loader", {"lr": "0.77"}, {"lr"}, []),
        ("", {"batch": digest("new")}, {"counter"}, ["batch"]),
    ],
)
def test_what_a_component_can_give_goes_by_its_kind(diagnose_as, kind, changes, culprits, explained):
    """What differs and gives nothing that differs is no culprit, but latent."""
    result = diagnose_as({"counter.kind": kind}, line(4, counter="1", **changes))
    assert {culprit["component"] for culprit in result["culprits"]} == culprits
    assert result["explained"] == explained
    assert {entry["component"] for entry in result["latent"]} == {"counter"} - culprits


def test_lost_optimizer_explains_its_settings_and_the_rate_that_it_holds(diagnose_as):
    settings = {"w.kind": "optimizer", "w.settings": "constant"}
    result = diagnose_as(settings, line(4, w=digest("w1"), lr="1.0"))
    assert result["culprits"] == [{"component": "w", "action": "lost"}]
    assert result["explained"] == ["lr"]
    for state in ("w1", "new"):
        result = diagnose_as(settings, line(4, w=digest(state), lr="0.77"))
        assert [culprit["component"] for culprit in result["culprits"]] == ["w", "lr"]


def test_reference_that_was_itself_resumed_does_not_show_what_was_before_training(tmp_path):
    reference = trace(tmp_path / "reference.csv", *(line(step) for step in (3, 4, 5, 6)))
    result = diagnosis.diagnose(
        reference, [trace(tmp_path / "other.csv", line(5, w=digest("w3"), w__unordered=digest("u3")))]
    )
    assert result["culprits"] == [{"component": "w", "action": "rewound", "by": 2}]


def test_state_of_another_component_is_swapped_also_where_it_has_no_tensors(diagnose):
    result = diagnose(line(4, rng__torch=digest("w4")), line(5))
    assert result["culprits"] == [{"component": "rng.torch", "action": "swapped", "other": "w"}]


def test_run_that_counts_its_steps_wrong_and_lost_something_is_accused_of_both(diagnose):
    result = diagnose(line(5, counter="1").replace("5,", "4,", 1))
    assert (result["row"], result["as_row"]) == (4, 5)
    assert result["culprits"] == [
        {"component": "row", "action": "rewound", "by": 1},
        {"component": "counter", "action": "lost"},
    ]


def test_korean_sentence_has_all_parts_of_the_english_one(diagnose):
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "templates"), trim_blocks=True, lstrip_blocks=True
    )
    told = environment.get_template("diagnosis.ko.md.j2").module.diagnosis
    moved = (
        "4번째 배치부터 다름(기준의 5번째 배치처럼 시작함): 배치 번호 배치 1개만큼 되감김, "
        "`counter` 잃음(학습을 시작할 때의 값과 같음)"
    )
    assert told(diagnose(line(5, counter="1").replace("5,", "4,", 1))) == f"{moved}; 기준보다 먼저 끝남(4)"
    found = diagnose(line(4), line(5), line(6))
    entries = [{"key": "eps", "found": "1e-06", "wanted": "1e-08"}, {"key": "mine", "found": None, "wanted": "2"}]
    found.update(
        verdict="inputs",
        row=4,
        as_row=4,
        shows=4,
        culprits=[{"component": "w", "action": "different", "entries": entries}],
    )
    found["notes"] = [{"kind": "detached", "component": "w", "rows": [4]}]
    different = "`w` 다름(`eps` 1e-06, 기준은 1e-08; `mine` 없음, 기준은 2)"
    assert told(found) == f"4번째 배치부터 다름: {different}; `w` 등록된 모듈의 매개변수를 하나도 갖고 있지 않음(4)"
    assert told(diagnose(line(4, counter="1", loss="5.5"), line(5), line(6))) == (
        "6번째 배치까지 같음; 잠재(아직 영향 없음): `counter` 잃음(학습을 시작할 때의 값과 같음)"
    )


def test_traces_without_a_common_step_are_refused(diagnose):
    with pytest.raises(
        LabError, match=r"other\.csv: no row in common with .*reference\.csv: found 8…9, wanted some of 1…6"
    ):
        diagnose(line(8), line(9))


def test_step_of_any_number_is_diagnosed_at_once(diagnose, tmp_path):
    assert diagnose(line(4), line(6), line(10**15))["notes"] == [
        {"kind": "missing", "rows": [5]},
        {"kind": "beyond", "rows": [10**15]},
    ]
    reference = trace(tmp_path / "far.csv", line(1), line(10**15))
    notes = diagnosis.diagnose(reference, [trace(tmp_path / "near.csv", line(1), line(2))])["notes"]
    assert notes == [{"kind": "ends_early", "rows": [2]}]


def test_inputs_that_agree_with_outputs_that_do_not_accuse_the_computation(diagnose):
    result = diagnose(line(4), line(5, loss="3.25"))
    assert (result["verdict"], result["row"], result["culprits"]) == ("computation", 5, [])
    assert "the computation is not repeatable" in diagnosis.sentence(result)


def test_generator_that_nothing_draws_from_is_no_culprit(diagnose):
    result = diagnose(line(4, rng__torch=digest("r"), loss="5.5"), line(5, rng__torch=digest("r"), loss="4.5"))
    assert (result["verdict"], result["unused"], result["latent"]) == ("identical", ["rng.torch"], [])
    assert "rng.torch" not in diagnosis.sentence(result)
    assert diagnosis.sentence(result, unused=True).endswith("rng.torch differ but are never drawn from")
    result = diagnose(line(4, rng__torch=digest("r")), line(5, rng__torch=digest("s")))
    assert result["culprits"] == [{"component": "rng.torch", "action": "different"}]


@pytest.mark.parametrize(
    ("steps", "notes", "told"),
    [
        ((3, 4), [{"kind": "ends_early", "rows": [4]}], "it ends before the reference, after batch 4"),
        ((3, 5, 6), [{"kind": "missing", "rows": [4]}], "batch 4 missing"),
        (
            (5, 6, 7, 8),
            [{"kind": "beyond", "rows": [7, 8]}],
            "identical through batch 6; batches 7, 8 not in the reference",
        ),
        ((4, 5, 5, 6), [{"kind": "repeated", "rows": [5]}], "batch 5 trained more than once"),
    ],
)
def test_traces_of_other_steps_are_said_as_that(diagnose, steps, notes, told):
    result = diagnose(*map(line, steps))
    assert (result["verdict"], result["notes"]) == ("identical", notes)
    assert told in diagnosis.sentence(result)


GOOD = "\n".join([TITLE, HEADER, line(1), line(2)]) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty, wanted a trace"),
        (GOOD[:-40], "cut in the middle of line 4"),
        (GOOD[:-1], "cut in the middle of line 4"),
        (GOOD.replace("w.unordered", "w.colour"), "unknown column 'w.colour'"),
        (GOOD.replace("loss", "profit"), "no column loss"),
        (GOOD.replace("\nrow", "\nwhen"), "line 2: found no header, wanted one that begins with row"),
        (GOOD.replace("\n1,", "\none,"), "line 3: found 14 cells, the first ['one']"),
        (GOOD.replace(",lr,", ",batch,"), "found a column twice"),
        (GOOD.replace("\n1,", "\n" + "1" * 6000 + ","), "line 3: found 14 cells, the first ['1111111111111111']"),
        (
            "step,train_loss\n1,2.0\n",
            "found 'step,train_loss' as its first line, wanted 'exact-resume trace' with version and unit",
        ),
        (GOOD.replace("trace,2", "trace,1"), "found a trace of format 1, wanted format 2"),
    ],
)
def test_file_that_is_no_whole_trace_is_refused_in_one_line(verb, tmp_path, text, message):
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "bad.csv").write_text(text)
    for files in (("good.csv", "bad.csv"), ("bad.csv", "good.csv")):
        result = verb("diagnose", *files, "--json", "out.json")
        assert failed_with_one_line(result).startswith(f"error: bad.csv: {message}")
        assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace(digest("c"), digest("e")), "bad.csv: comes from another configuration than good.csv"),
        (
            GOOD.replace("batch\n", "update\n"),
            "bad.csv: found a row for each update, wanted one for each batch, as in good.csv",
        ),
        (None, "bad.csv: no such trace"),
    ],
)
def test_trace_of_another_configuration_is_refused_in_one_line(verb, tmp_path, text, message):
    (tmp_path / "good.csv").write_text(GOOD)
    if text is not None:
        (tmp_path / "bad.csv").write_text(text)
    assert failed_with_one_line(verb("diagnose", "good.csv", "bad.csv")).startswith(f"error: {message}")


def test_command_prints_the_sentence_and_writes_it(verb, tmp_path):
    (tmp_path / "a.csv").write_text(GOOD)
    result = verb("diagnose", "a.csv", "a.csv", "--json", "out.json")
    assert result.stdout == "identical through batch 2\n"
    assert json.loads((tmp_path / "out.json").read_text())["sentence"] == "identical through batch 2"


def test_run_that_counts_from_one_again_lost_its_place_and_not_its_weights(diagnose):
    """The weights are those of row 4; what is as before training is lost, though it stands where it belongs in row
    1.
    """
    changes = {"w": digest("w4"), "w__float16": f"~{digest('h4')}", "w__bfloat16": f"~{digest('b4')}"}
    result = diagnose(line(1, **changes, w__unordered=digest("u4"), w__after=digest("other")))
    assert (result["row"], result["as_row"]) == (1, 4)
    assert [(culprit["component"], culprit["action"]) for culprit in result["culprits"]] == [
        ("row", "rewound"),
        ("counter", "lost"),
    ]
