"""A bad knob is refused in one line that names it, what was found and what was wanted."""

import copy
import json
import re
import subprocess
import sys

import pytest
import yaml

import command_line
import train
from conftest import ROOT, failed_with_one_line
from exact_resume.audit import settings as audit_settings
from exact_resume.errors import LabError
from exact_resume.lab import settings
from exact_resume.lab.components import COMPONENTS
from exact_resume.lab.run import Run

DEFAULTS = settings.completed({})


def changed(path, value):
    config = copy.deepcopy(DEFAULTS)
    section = config
    *parents, last = path.split(".")
    for name in parents:
        section = section.setdefault(name, {})
    section[last] = value
    return config


def test_the_defaults_are_accepted():
    settings.check(DEFAULTS)


def test_the_config_for_a_first_look_is_accepted_and_small():
    chosen = laid_over(**yaml.safe_load((ROOT / "examples" / "first-look.yaml").read_text()))
    assert chosen["training"]["steps"] <= 10
    assert list(chosen["variants"]) == ["resumed", "noopt", "noskip"]


def test_the_schema_knows_just_the_sections_of_the_config():
    assert set(yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())["properties"]) == set(
        DEFAULTS
    )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("training.lrr", 1, "config key training.lrr: unknown; wanted one of accumulation"),
        ("trainning", {}, "config key trainning: unknown; wanted one of "),
        ("training.lr", "1e-3x", "config key training.lr: found '1e-3x', wanted number"),
        ("training.lr", -1, "config key training.lr: found -1, wanted more than 0"),
        ("training.lr", float("nan"), "config key training.lr: found nan, wanted a finite number"),
        ("training.grad_clip", float("inf"), "config key training.grad_clip: found inf, wanted a finite number"),
        (
            "verdict.resume_bytes_ratio",
            [float("nan"), 3],
            "config key verdict.resume_bytes_ratio: found nan, wanted a finite number",
        ),
        ("training", {**DEFAULTS["training"], 2: 3}, "config key training.2: found int as a name, wanted text"),
        ("variants", {1: {"omit": ["optimizer"]}}, "config key variants.1: found int as a name, wanted text"),
        (
            "variants.-x",
            {},
            "config key variants.-x: wanted a name of letters, digits, - and _ that begins with a letter or digit",
        ),
        ("training.steps", 6.5, "config key training.steps: found 6.5, wanted integer"),
        ("training.steps", True, "config key training.steps: found True, wanted integer"),
        ("training", 3, "config key training: found 3, wanted object"),
        ("training.stop_at", 0, "config key training.stop_at: found 0, wanted a step in 1...59"),
        ("training.stop_at", 60, "config key training.stop_at: found 60, wanted a step in 1...59"),
        ("training.device", "tpu", "config key training.device: found 'tpu', wanted one of ['cpu', 'cuda']"),
        (
            "audit.trainers.lab.weights",
            "../w.pth",
            "config key audit.trainers.lab.weights: found '../w.pth', wanted a file's name, without /",
        ),
        ("language", "fr", "config key language: found 'fr', wanted one of ['ko', 'en']"),
        ("outdir", "res{x}", "config key outdir: found 'res{x}', wanted a path without braces"),
        (
            "model.hidden_size",
            100,
            "config key model.hidden_size: found 100, wanted a multiple of 2 x num_attention_heads (16)",
        ),
        ("model.num_key_value_heads", 3, "config key model.num_key_value_heads: found 3, wanted a divisor"),
        ("data.train", "t.npy", "config key data.val: found null, wanted a token file"),
        (
            "variants.mine",
            {"omit": ["optimiser"]},
            "config key variants.mine.omit: found 'optimiser', wanted one of model, optimizer",
        ),
        (
            "variants.mine",
            {"round": ["step"]},
            "config key variants.mine.round: found 'step', wanted one of model, optimizer",
        ),
        (
            "variants.mine",
            {"replay": ["model"]},
            "config key variants.mine.replay: found 'model', wanted one of gen_state",
        ),
        (
            "variants.mine",
            {"omit": ["model"], "round": ["model"]},
            "config key variants.mine.round: found 'model' a second time",
        ),
        (
            "variants.mine",
            {"drop": ["model"]},
            "config key variants.mine.drop: unknown; wanted one of omit, replay, round",
        ),
        ("variants.straight", {}, "config key variants.straight: the pipeline uses this name itself"),
        ("variants.a/b", {}, "config key variants.a/b: wanted a name of letters, digits"),
        ("variants.a\n", {}, "config key variants: found 'a\\n' as a name, wanted printable text"),
        ("audit.stops.", [3], "config key audit.stops: found '' as a name, wanted printable text"),
        (
            "variants.NoOpt",
            {},
            "config key variants: found noopt and NoOpt, wanted names that differ in more than case",
        ),
        (
            "variants.Straight",
            {},
            "config key variants: found straight and Straight, wanted names that differ in more than case",
        ),
        ("variants.Without_Model", {}, "config key variants: found Without_Model and without_model, wanted names that"),
        ("audit.only", ["lab", "ignite", "lab"], "config key audit.only: found 'lab' a second time, wanted it once"),
        (
            "audit.trainers.lab.packages",
            ["a", "a"],
            "config key audit.trainers.lab.packages: found 'a' a second time, wanted it once",
        ),
    ],
)
def test_bad_knob_is_named(path, value, message):
    with pytest.raises(LabError) as refused:
        settings.check(changed(path, value))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_missing_section_is_named():
    config = {key: value for key, value in DEFAULTS.items() if key != "model"}
    with pytest.raises(LabError, match="config key model: missing"):
        settings.check(config)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stop-at", "60"], "--stop-at: found 60, wanted a step in 1...59"),
        (["--stop-at", "0"], "--stop-at: found 0, wanted a step in 1...59"),
        (["--steps", "1"], "config key training.steps: found 1, wanted at least 2"),
        (["--save-at", "3"], "--save-at, --save-to: found one without the other"),
        (["--save-to", "s.pth"], "--save-at, --save-to: found one without the other"),
        (["--save-at", "60", "--save-to", "s.pth"], "--save-at: found 60, wanted a step in 1...59"),
        (["--stop-at", "5", "--save-at", "6", "--save-to", "s.pth"], "--save-at: found 6, wanted a step in 1...5"),
        (["--no-optim"], "found without --resume"),
        (["--save-every", "-7"], "--save-every: found -7, wanted at least 0"),
        (["--omit", "momentum"], "--omit: found 'momentum', wanted one of model, optimizer, step, gen_state"),
        (["--settings", '{"training": {"lr": "big"}}'], "config key training.lr: found 'big', wanted number"),
        (["--settings", "lr=3"], "--settings: found 'lr=3', wanted JSON"),
        (["--settings", "[3]"], "--settings: found '[3]', wanted JSON such as"),
    ],
)
def test_bad_flag_is_refused_before_anything_is_read(verb, flags, message):
    result = verb("train", "--tokens", "no-such-file.npy", "--out", "out.pth", *flags)
    assert message in failed_with_one_line(result)


@pytest.mark.parametrize(
    "flag", ["--resume", "--log", "--record", "--trace", "--save-to", "--omit", "--steps", "--settings"]
)
@pytest.mark.parametrize("empty", [lambda flag: [flag, ""], lambda flag: [f"{flag}="]])
def test_flag_of_an_unset_variable_is_refused(flag, empty, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--tokens", "train.npy", "--out", "out.pth", *empty(flag)])
    with pytest.raises(SystemExit, match=f"error: {flag}: found an empty value"):
        command_line.run(train.main)


@pytest.mark.parametrize(("name", "flags"), [("diagnose", ["a.csv", "b.csv", "--json", ""]), ("check", [""])])
def test_every_verb_refuses_an_empty_value(verb, name, flags):
    assert "found an empty value" in failed_with_one_line(verb(name, *flags))


def laid_over(**overrides):
    settings.check(chosen := settings.load(overrides))
    audit_settings.check(chosen["audit"], None)
    return chosen


def test_settings_lay_over_at_every_depth():
    chosen = laid_over(training={"lr": 0.5}, variants={"mine": {}}, audit={"trainers": {"lab": {"timeout": 5}}})
    assert chosen["training"] == {**DEFAULTS["training"], "lr": 0.5}
    assert chosen["variants"] == {**DEFAULTS["variants"], "mine": {}}
    assert chosen["audit"]["trainers"] == {
        **DEFAULTS["audit"]["trainers"],
        "lab": {**DEFAULTS["audit"]["trainers"]["lab"], "timeout": 5},
    }


@pytest.mark.parametrize("null", [None, "null"])
def test_null_takes_away_what_a_name_of_ones_own_stands_for(null):
    chosen = laid_over(variants={"noopt": null, "mine": {"omit": null, "round": ["model"]}, "never": null})
    assert chosen["variants"] == {
        **{name: recipe for name, recipe in DEFAULTS["variants"].items() if name != "noopt"},
        "mine": {"round": ["model"]},
    }
    assert "without_optimizer" in settings.all_variants(chosen)
    trainers = laid_over(audit={"trainers": {"minimind": null, "lab": {"expect": null, "stops": null}}})["audit"][
        "trainers"
    ]
    assert "minimind" not in trainers
    assert trainers["lab"].keys() == {"command", "steps", "save_at"}
    assert list(laid_over(audit={"stops": {"mid-epoch": null}})["audit"]["stops"]) == ["epoch-boundary", "two-resumes"]


@pytest.mark.parametrize("null", [None, "null"])
def test_null_stays_where_it_is_a_value(null):
    chosen = laid_over(minimind=null, data={"corpus": null}, audit={"save_at": null})
    assert (chosen["minimind"], chosen["data"]["corpus"], chosen["audit"]["save_at"]) == (None, None, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training": {"lr": None}}, "config key training.lr: found null, wanted number"),
        ({"training": None}, "config key training: found null, wanted object"),
        ({"variants": None}, "config key variants: found null, wanted object"),
        ({"language": None}, "config key language: found null, wanted one of ['ko', 'en']"),
        ({"outdir": None}, "config key outdir: found null, wanted string"),
        ({"training": {"lrr": None}}, "config key training.lrr: unknown; wanted one of accumulation"),
        ({"training": {"stop_at": [None]}}, "config key training.stop_at.0: found null, wanted integer"),
        (
            {"audit": {"trainers": {"lab": {"command": None}}}},
            "config key audit.trainers.lab.command: found null, wanted string",
        ),
        ({"audit": {"trainers": {"lab": {"stops": {}}}}}, None),
        (
            {"audit": {"trainers": {"mine": {"command": "x", "stops": {}}}}},
            "config key audit.trainers.mine.stops: found no entries, wanted ",
        ),
        (
            {"audit": {"stops": dict.fromkeys(DEFAULTS["audit"]["stops"])}},
            "config key audit.stops: found no entries, wanted at least 1 entry",
        ),
        ({"audit": {"stops": None}}, "config key audit.stops: found null, wanted object"),
        (
            {"audit": {"trainers": dict.fromkeys(DEFAULTS["audit"]["trainers"])}},
            "config key audit.trainers: found no entries, wanted at least 1 entry",
        ),
        (
            {"verdict": {"resume_bytes_ratio": []}},
            "config key verdict.resume_bytes_ratio: found no entries, wanted at least 2 entries",
        ),
        (
            {"training": {"steps": 20}},
            "config key training.stop_at: found 30, wanted a step in 1...19, since training.steps is 20",
        ),
        (
            {"audit": {"trainers": {"mine": {"command": "x", "steps": 12}}}},
            "config key audit.stops.mid-epoch: found 17, wanted a step in 1...11, since "
            "audit.trainers.mine.steps is 12",
        ),
    ],
)
def test_what_cant_be_laid_over_is_told_in_one_line(overrides, message):
    if message is None:
        laid_over(**overrides)
        return
    with pytest.raises(LabError) as refused:
        laid_over(**overrides)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_trainer_whose_cure_was_taken_away_has_none():
    audit = laid_over(audit={"trainers": {"ignite-fixed": None}})["audit"]
    assert audit_settings.trainers(audit, None)["ignite"]["fixed_by"] is None
    with pytest.raises(
        LabError, match=r"config key audit.trainers.ignite.fixed_by: found 'ignite-fxed', wanted one of"
    ):
        laid_over(audit={"trainers": {"ignite": {"fixed_by": "ignite-fxed"}}})


@pytest.mark.parametrize(
    "nothing", [{"stops": {}}, {"trainers": {"lab": {"stops": {}}}}, {"stops": {"never": None}}, {"trainers": {}}]
)
def test_empty_mapping_laid_over_changes_nothing(nothing):
    assert laid_over(audit=nothing) == DEFAULTS


def test_stops_of_ones_own_stand_alone():
    audit = laid_over(audit={"steps": 12, "stops": {"mine": [5]}})["audit"]
    assert audit["stops"] == {"mine": [5]}
    trainers = audit_settings.trainers(audit, None)
    assert (trainers["accelerate"]["stops"], trainers["accelerate"]["save_at"]) == ({"mine": [5]}, 5)
    assert trainers["lab"]["stops"] == DEFAULTS["audit"]["trainers"]["lab"]["stops"]
    own = laid_over(audit={"trainers": {"lab": {"steps": 8, "stops": {"mine": [3], "gone": None}, "save_at": None}}})[
        "audit"
    ]
    lab = audit_settings.trainers(own, None)["lab"]
    assert (lab["stops"], lab["save_at"]) == ({"mine": [3]}, 3)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"variants": {"noopt": None, "mine": {"round": ["model"]}}},
        {"audit": {"stops": {"mine": [5]}, "trainers": {"lab": None}}},
    ],
)
def test_sections_reach_a_script_as_they_are(overrides):
    chosen = laid_over(**overrides)
    assert laid_over(**json.loads(json.dumps(settings.as_overrides(chosen)))) == chosen


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("training.lr", "1e-3", 0.001),
        ("training.steps", "8", 8),
        ("data.corpus", "null", None),
        ("outdir", "8", "8"),
        ("training.lr", "nan?", "nan?"),
    ],
)
def test_numbers_that_arrive_as_text_are_read(path, text, value):
    section, key = path.split(".") if "." in path else (None, path)
    read = settings.with_numbers(changed(path, text), settings.schema())
    assert (read[section] if section else read)[key] == value


def with_training(**training):
    return {**DEFAULTS, "training": {**DEFAULTS["training"], **training}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop_at": [20, 20]}, "config key training.stop_at: found 20, wanted a step in 21...59"),
        ({"stop_at": [40, 20]}, "config key training.stop_at: found 20, wanted a step in 41...59"),
        ({"stop_at": [20, 60]}, "config key training.stop_at: found 60, wanted a step in 21...59"),
        ({"stop_at": []}, "config key training.stop_at: found no entries, wanted at least 1 entry"),
        ({"workers": 2}, "config key training.workers: found 2, wanted 0, since training.order is crops"),
        ({"augment": 0.5}, "config key training.augment: found 0.5, wanted 0, since training.order is crops"),
        ({"ema": 1.0}, "config key training.ema: found 1.0, wanted less than 1"),
        ({"precision": "int8"}, "config key training.precision: found 'int8', wanted one of"),
    ],
)
def test_state_that_cant_be_is_refused(change, message):
    with pytest.raises(LabError) as refused:
        settings.check(with_training(**change))
    assert str(refused.value).startswith(message)


def test_a_component_exists_only_where_the_run_has_it():
    assert list(settings.components(DEFAULTS)) == ["model", "optimizer", "step", "gen_state"]
    rich = with_training(accumulation=2, precision="float16", ema=0.9)
    rich["model"] = {**rich["model"], "dropout": 0.1}
    assert list(settings.components(rich)) == [
        "model",
        "optimizer",
        "step",
        "gen_state",
        "gradients",
        "scaler",
        "ema",
        "rng",
    ]
    with pytest.raises(
        LabError, match=r"variants.mine.omit: found 'ema', wanted one of model, optimizer, step, gen_state"
    ):
        settings.check({**DEFAULTS, "variants": {"mine": {"omit": ["ema"]}}})
    settings.check({**rich, "variants": {"mine": {"omit": ["ema"]}}})


def test_everything_that_a_run_remembers_is_in_the_one_list(tokens):
    """What has a state that can be loaded is a component, or, as the schedule, restored by one."""
    rich = with_training(accumulation=2, precision="float16", ema=0.9, order="permutation", length=16)
    rich["model"] = {**rich["model"], "dropout": 0.1}
    run = Run(rich, tokens)
    stateful = {name for name, value in vars(run).items() if hasattr(value, "load_state_dict")}
    assert stateful == {component.attribute for component in COMPONENTS} | {"schedule"}
    assert list(run.components) == [component.name for component in COMPONENTS]


def test_recipes_have_the_verbs_that_the_schema_has():
    variant = settings.schema()["properties"]["variants"]["additionalProperties"]
    assert list(variant["properties"]) == settings.RECIPE_VERBS
    assert {verb for component in COMPONENTS for verb in component.verbs} | {"omit"} == set(settings.RECIPE_VERBS)


def test_report_explains_every_component():
    for language in ("ko", "en"):
        text = (ROOT / "templates" / f"report.{language}.md.j2").read_text()
        table = text[text.index("set component_text") :].partition("} %}")[0]
        assert re.findall(r'^  "(\w+)":', table, re.MULTILINE) == [component.name for component in COMPONENTS]


def test_the_list_of_components_needs_no_torch():
    """Snakemake reads it at each call."""
    code = "import sys; from exact_resume.lab import settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "workflow" / "scripts", check=False).returncode == 0


def test_every_component_is_left_out_alone_by_one_variant():
    assert list(settings.all_variants(DEFAULTS)) == [*DEFAULTS["variants"], "without_model"]
    variants = settings.all_variants({**with_training(ema=0.5), "variants": {"mine": {"omit": ["ema"]}}})
    assert sorted(tuple(recipe["omit"]) for recipe in variants.values()) == [
        ("ema",),
        ("gen_state",),
        ("model",),
        ("optimizer",),
        ("step",),
    ]
    with pytest.raises(LabError, match="without_ is for the variants that leave out just that component"):
        settings.check({**DEFAULTS, "variants": {"without_step": {"omit": ["model"]}}})


def test_gradients_are_lost_only_by_a_stop_inside_a_window():
    recipe = {"omit": ["gradients"]}
    assert settings.lost(recipe, with_training(accumulation=4, stop_at=30)) == ["gradients"]
    assert settings.lost(recipe, with_training(accumulation=3, stop_at=30)) == []
    assert settings.lost(recipe, with_training(accumulation=3, stop_at=[30, 40])) == ["gradients"]


def test_list_of_numbers_that_arrives_as_text_is_read():
    assert settings.with_numbers(with_training(stop_at=["20", "40"]), settings.schema())["training"]["stop_at"] == [
        20,
        40,
    ]
