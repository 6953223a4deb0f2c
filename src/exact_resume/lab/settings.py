"""The settings of a run: config.yaml, checked against the schema and against themselves."""

import json
import math
from functools import cache

import jsonschema
import yaml

from exact_resume.errors import LabError
from exact_resume.lab.components import existing
from exact_resume.project import CONFIG_FILE, SCHEMA_FILE, TRAINERS_FILE

RECIPE_VERBS = ["omit", "round", "replay"]
# File names that the pipeline itself gives out.
RESERVED_NAMES = ["straight", "repeat", "resume", "straight_fp16"]


def load(overrides=None):
    """Return config.yaml's settings with `overrides`, a dict of sections, laid over them by the rule at config.yaml's
    head.

    Raises LabError naming the key, what was found and what was wanted.
    """
    settings = completed(overrides or {})
    check_values(settings)
    return settings


def completed(overrides):
    """Return config.yaml's settings with `overrides` laid over them as `load` does, unchecked."""
    wanted = schema()
    settings = {}
    for layer in (*_defaults(), overrides):
        settings = _laid_over(settings, with_numbers(layer, wanted), wanted)
    return settings


def as_overrides(sections):
    """Return whole sections of settings, by name, as what must be laid over config.yaml's to get just them: null for
    each key that was taken away.
    """
    defaults = completed({})
    return {name: _with_nulls(defaults.get(name), section) for name, section in sections.items()}


@cache
def _defaults():
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CONFIG_FILE, TRAINERS_FILE)]


def _laid_over(below, above, wanted):
    """Return the mapping `above`, of which the schema is `wanted`, laid over `below`; if it is no mapping, `above`
    itself.
    """
    if not isinstance(above, dict):
        return above
    replaces = not isinstance(below, dict) or (
        wanted.get("replaced_whole") and any(value is not None for value in above.values())
    )
    result = {} if replaces else dict(below)
    for key, value in above.items():
        if value is None and _can_go(key, wanted):
            result.pop(key, None)
        else:
            result[key] = _laid_over(result.get(key), value, _wanted_of(key, wanted))
    return result


def _can_go(key, wanted):
    """Whether null takes `key` away in a mapping with the schema `wanted`; elsewhere it is a value, or refused."""
    named = wanted.get("properties", {})
    if key in named:
        return key not in wanted.get("required", []) and "null" not in named[key].get("type", [])
    return bool(wanted.get("additionalProperties"))


def _wanted_of(key, wanted):
    """Return the schema of `key` in a mapping with the schema `wanted`; that of a key that is not allowed is empty."""
    return wanted.get("properties", {}).get(key) or wanted.get("additionalProperties") or {}


def _with_nulls(below, above):
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {
        **{key: None for key in below if key not in above},
        **{key: _with_nulls(below.get(key), value) for key, value in above.items()},
    }


def components(settings):
    """Return what a run with these settings remembers, in the order of the resume file: names, each with the verbs
    besides `omit` that a variant's recipe may use on it.
    """
    return {component.name: list(component.verbs) for component in existing(settings)}


def stops(training):
    """Return the steps after which a run is stopped and resumed, as a list, whether stop_at is one or several."""
    return training["stop_at"] if isinstance(training["stop_at"], list) else [training["stop_at"]]


def deciding(training):
    """Return what of the `training` section decides a run's bits: all but where it stops and how often it keeps its
    progress.
    """
    return {key: value for key, value in training.items() if key not in ("stop_at", "save_every")}


def all_variants(settings):
    """Return the recipes of all variants by name: those of the config, and for each component that none of them leaves
    out alone one that does, called without_COMPONENT.
    """
    variants = dict(settings["variants"])
    alone = [recipe["omit"] for recipe in variants.values() if set(recipe) == {"omit"}]
    for component in components(settings):
        if [component] not in alone:
            variants[f"without_{component}"] = {"omit": [component]}
    return variants


def parse_overrides(text):
    """Return the dict of sections that `text`, JSON, holds. Raises LabError when it holds anything else."""
    try:
        overrides = json.loads(text)
    except json.JSONDecodeError as error:
        raise LabError(f"--settings: found {text!r}, wanted JSON: {error}") from error
    if not isinstance(overrides, dict):
        raise LabError(f'--settings: found {text!r}, wanted JSON such as {{"training": {{"lr": 0.001}}}}')
    return overrides


@cache
def schema():
    """Return the schema of config.yaml as a dict."""
    return yaml.safe_load(SCHEMA_FILE.read_text(encoding="utf-8"))


def with_numbers(value, wanted):
    """Return `value` with each text that the schema `wanted` has as a number or as true or false read as one, and
    "null" as None.

    Snakemake hands on the numbers in --config training='{lr: 0.001}' as text, and YAML takes 1e-3 for text. Text that
    is no number stays as it is, for the check to refuse.
    """
    if isinstance(value, dict):
        return {key: with_numbers(item, _wanted_of(key, wanted)) for key, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item, wanted.get("items", {})) for item in value]
    if value == "null":
        return None
    types = wanted.get("type", [])
    if isinstance(value, str) and {"integer", "number"} & set(types if isinstance(types, list) else [types]):
        for read in (int, float):
            try:
                return read(value)
            except ValueError:
                continue
    if types == "boolean" and value in ("true", "false"):
        return value == "true"
    return value


def check_values(settings):
    """Raise LabError, one line, unless `settings` fits the schema and describes a model that can be built."""
    _check_plain(settings)
    errors = sorted(
        jsonschema.Draft202012Validator(schema()).iter_errors(settings), key=lambda error: list(map(str, error.path))
    )
    if errors:
        raise LabError(_one_line(errors[0]))
    _check_model(settings["model"])
    _check_training(settings["training"])


def check(settings):
    """Raise LabError, one line, unless the whole pipeline can run with `settings`."""
    check_values(settings)
    _check_data(settings["data"])
    _check_stops(settings["training"])
    check_apart("variants", [*RESERVED_NAMES, *all_variants(settings)])
    for name, recipe in settings["variants"].items():
        _check_variant(name, recipe, settings)


def lost(recipe, settings):
    """Return the components that a variant with this recipe doesn't get back as they were; with none it must end like
    straight.
    """
    omitted_or_rounded = [*recipe.get("omit", []), *recipe.get("round", [])]
    return [
        component
        for component in omitted_or_rounded
        if component != "gradients" or stops_inside_a_window(settings["training"])
    ]


def stops_inside_a_window(training):
    """Whether a stop lies inside an accumulation window, so that there are gradients to lose."""
    return any(stop % training["accumulation"] for stop in stops(training))


def _check_plain(value, key=""):
    """Raise LabError unless all names in `value` are text and all numbers finite, which a schema can't tell."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise LabError(f"config key {key}{name}: found {type(name).__name__} as a name, wanted text")
            if not name or not name.isprintable():
                raise LabError(f"config key {key.removesuffix('.')}: found {name!r} as a name, wanted printable text")
            _check_plain(item, f"{key}{name}.")
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, key)
    elif isinstance(value, float) and not math.isfinite(value):
        raise LabError(f"config key {key.removesuffix('.')}: found {value}, wanted a finite number")


def _one_line(error):
    key = ".".join(map(str, error.absolute_path))
    found = (
        "null" if error.instance is None else repr(error.instance) if error.instance not in ([], {}) else "no entries"
    )
    if error.validator == "additionalProperties":
        known = sorted(error.schema["properties"])
        unknown = sorted(set(error.instance) - set(known))
        return f"config key {'.'.join(filter(None, [key, unknown[0]]))}: unknown; wanted one of {', '.join(known)}"
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"config key {'.'.join(filter(None, [key, missing]))}: missing"
    if "propertyNames" in error.absolute_schema_path:
        return f"config key {key}.{error.instance}: wanted {error.schema['description']}"
    if error.validator == "pattern":
        return f"config key {key}: found {found}, wanted {error.schema['description']}"
    if error.validator == "uniqueItems":
        twice = next(item for place, item in enumerate(error.instance) if item in error.instance[:place])
        return f"config key {key}: found {twice!r} a second time, wanted it once"
    if error.validator == "type":
        wanted = error.validator_value
        wanted = " or ".join(wanted) if isinstance(wanted, list) else wanted
        return f"config key {key}: found {found}, wanted {wanted}"
    limits = {
        "minimum": "at least",
        "maximum": "at most",
        "exclusiveMinimum": "more than",
        "exclusiveMaximum": "less than",
        "minItems": "at least",
        "maxItems": "at most",
        "minProperties": "at least",
        "enum": "one of",
    }
    if error.validator in limits:
        wanted = f"{limits[error.validator]} {error.validator_value}"
        if error.validator.endswith(("Items", "Properties")):
            wanted += " entry" if error.validator_value == 1 else " entries"
        return f"config key {key}: found {found}, wanted {wanted}"
    return f"config key {key}: found {found}: {error.message}"


def _check_data(data):
    if (data["train"] is None) != (data["val"] is None):
        missing = "train" if data["train"] is None else "val"
        raise LabError(
            f"config key data.{missing}: found null, wanted a token file, since the other one of data.train "
            "and data.val is given"
        )
    if data["train"] is not None and data["corpus"] is not None:
        raise LabError(
            "config key data.corpus: found together with data.train and data.val, wanted either text or token files"
        )


def _check_model(model):
    hidden, heads, kv_heads = model["hidden_size"], model["num_attention_heads"], model["num_key_value_heads"]
    if hidden % (2 * heads):
        raise LabError(
            f"config key model.hidden_size: found {hidden}, wanted a multiple of 2 x num_attention_heads ({2 * heads})"
        )
    if heads % kv_heads:
        raise LabError(
            f"config key model.num_key_value_heads: found {kv_heads}, wanted a divisor of num_attention_heads ({heads})"
        )


def _check_training(training):
    if training["order"] == "crops":
        for key in ("workers", "augment"):
            if training[key]:
                raise LabError(
                    f"config key training.{key}: found {training[key]}, wanted 0, since training.order is crops"
                )


def _check_stops(training):
    check_ascending("training.stop_at", stops(training), "training.steps", training["steps"])


def check_ascending(key, found, steps_key, steps):
    """Raise LabError naming the config's `key` unless `found`, the steps of stops, ascend and lie before the last one
    of `steps`, which the config's `steps_key` says.
    """
    last = 0
    for stop in found:
        if not last < stop <= steps - 1:
            raise LabError(
                f"config key {key}: found {stop}, wanted a step in {last + 1}...{steps - 1}, since "
                f"{steps_key} is {steps}"
            )
        last = stop


def check_apart(key, names):
    """Raise LabError naming the config's `key` unless `names` stay apart where files' names are without regard to
    case.
    """
    known = {}
    for name in names:
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise LabError(f"config key {key}: found {other} and {name}, wanted names that differ in more than case")


def check_recipe(recipe, known, prefix):
    """Raise LabError unless `recipe`, a dict of omit, round and replay, treats each component once and only as that
    component allows.

    `known` is what `components` returns. `prefix` goes before the verb in the message: `--` for a flag, the key's path
    for a config file.
    """
    treated = {}
    for verb in RECIPE_VERBS:
        for component in recipe.get(verb, []):
            allowed = [name for name, verbs in known.items() if verb == "omit" or verb in verbs]
            if component not in allowed:
                raise LabError(f"{prefix}{verb}: found {component!r}, wanted one of {', '.join(allowed)}")
            if component in treated:
                raise LabError(
                    f"{prefix}{verb}: found {component!r} a second time, after {treated[component]}; wanted it once"
                )
            treated[component] = verb


def _check_variant(name, recipe, settings):
    if name in RESERVED_NAMES:
        raise LabError(
            f"config key variants.{name}: the pipeline uses this name itself; wanted a name other than "
            f"{', '.join(RESERVED_NAMES)}"
        )
    if name.startswith("without_") and recipe != {"omit": [name.removeprefix("without_")]}:
        raise LabError(f"config key variants.{name}: without_ is for the variants that leave out just that component")
    check_recipe(recipe, components(settings), f"config key variants.{name}.")
