"""A bad knob is refused in one line that names it, what was found and what was wanted."""

import copy
import re
import subprocess
import sys

import pytest
import yaml

import command_line
import train
from conftest import ROOT, failed_with_one_line
from lab import settings
from lab.components import COMPONENTS
from lab.errors import LabError
from lab.run import Run

DEFAULTS = yaml.safe_load((ROOT / "config.yaml").read_text())


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


def test_the_schema_knows_just_the_sections_of_the_config():
    assert set(yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())["properties"]) == set(DEFAULTS)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("training.lrr", 1, "config key training.lrr: unknown; wanted one of accumulation"),
        ("trainning", {}, "config key trainning: unknown; wanted one of "),
        ("training.lr", "1e-3x", "config key training.lr: found '1e-3x', wanted number"),
        ("training.lr", -1, "config key training.lr: found -1, wanted more than 0"),
        ("training.lr", float("nan"), "config key training.lr: found nan, wanted a finite number"),
        ("training.grad_clip", float("inf"), "config key training.grad_clip: found inf, wanted a finite number"),
        ("verdict.resume_bytes_ratio", [float("nan"), 3], "config key verdict.resume_bytes_ratio: found nan, wanted a finite number"),
        ("training", {**DEFAULTS["training"], 2: 3}, "config key training.2: found int as a name, wanted text"),
        ("variants", {1: {"omit": ["optimizer"]}}, "config key variants.1: found int as a name, wanted text"),
        ("variants.-x", {}, "config key variants.-x: wanted a name of letters, digits, - and _ that begins with a letter or digit"),
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
        ("model.hidden_size", 100, "config key model.hidden_size: found 100, wanted a multiple of 2 x num_attention_heads (16)"),
        ("model.num_key_value_heads", 3, "config key model.num_key_value_heads: found 3, wanted a divisor"),
        ("data.train", "t.npy", "config key data.val: found null, wanted a token file"),
        ("variants.mine", {"omit": ["optimiser"]}, "config key variants.mine.omit: found 'optimiser', wanted one of model, optimizer"),
        ("variants.mine", {"round": ["step"]}, "config key variants.mine.round: found 'step', wanted one of model, optimizer"),
        ("variants.mine", {"replay": ["model"]}, "config key variants.mine.replay: found 'model', wanted one of gen_state"),
        ("variants.mine", {"omit": ["model"], "round": ["model"]}, "config key variants.mine.round: found 'model' a second time"),
        ("variants.mine", {"drop": ["model"]}, "config key variants.mine.drop: unknown; wanted one of omit, replay, round"),
        ("variants.straight", {}, "config key variants.straight: the pipeline uses this name itself"),
        ("variants.a/b", {}, "config key variants.a/b: wanted a name of letters, digits"),
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
        (["--stop-at", "5", "--save-at", "5", "--save-to", "s.pth"], "--save-at: found 5, wanted a step in 1...4"),
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


@pytest.mark.parametrize("flag", ["--resume", "--log", "--record", "--trace", "--save-to", "--omit", "--steps", "--settings"])
@pytest.mark.parametrize("empty", [lambda flag: [flag, ""], lambda flag: [f"{flag}="]])
def test_flag_of_an_unset_variable_is_refused(flag, empty, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--tokens", "train.npy", "--out", "out.pth", *empty(flag)])
    with pytest.raises(SystemExit, match=f"error: {flag}: found an empty value"):
        command_line.run(train.main)


@pytest.mark.parametrize(("name", "flags"), [("diagnose", ["a.csv", "b.csv", "--json", ""]), ("check", [""])])
def test_every_verb_refuses_an_empty_value(verb, name, flags):
    assert "found an empty value" in failed_with_one_line(verb(name, *flags))


def test_settings_lay_over_single_keys_but_variants_whole():
    chosen = settings.load({"training": {"lr": 0.5}, "variants": {"mine": {}}})
    assert chosen["training"] == {**DEFAULTS["training"], "lr": 0.5}
    assert chosen["variants"] == {"mine": {}}


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
        ({"stop_at": []}, "config key training.stop_at: found []"),
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
    assert list(settings.components(rich)) == ["model", "optimizer", "step", "gen_state", "gradients", "scaler", "ema", "rng"]
    with pytest.raises(LabError, match=r"variants.mine.omit: found 'ema', wanted one of model, optimizer, step, gen_state"):
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
    code = "import sys; from lab import settings; sys.exit('torch' in sys.modules)"
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
    assert settings.with_numbers(with_training(stop_at=["20", "40"]), settings.schema())["training"]["stop_at"] == [20, 40]
