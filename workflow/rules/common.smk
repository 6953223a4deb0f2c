# What all rules share: the checked config, where files go, and what a script is made of.

import json
import os
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path

# Not workflow.basedir, which is another one when another workflow uses this one as a module.
PROJECT = Path(str(workflow.current_basedir)).parents[1]
SCRIPTS = os.path.relpath(PROJECT / "workflow" / "scripts")
TEMPLATES = os.path.relpath(PROJECT / "templates")
sys.path.insert(0, str(PROJECT / "src"))

from exact_resume.audit import settings as audit_settings
from exact_resume.audit.command import code_digests, data_files
from exact_resume.audit.result import summary
from exact_resume.errors import LabError
from exact_resume.lab.corpus import corpus_files
from exact_resume.lab.settings import (
    RECIPE_VERBS,
    all_variants,
    as_overrides,
    check,
    completed,
    components,
    deciding,
    stops,
)
from exact_resume.pipeline import gpu
from exact_resume.pipeline.fingerprint import fingerprint
from exact_resume.pipeline.locks import in_one_line, lift_stale_lock
from exact_resume.pipeline.sources import code_digest
from exact_resume.pipeline.versions import installed

# Jobs run with the Python that runs Snakemake, whether or not its environment is activated.
os.environ.update(PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))

STARTED = time.time()

# A job's own Snakemake, maybe on another machine, leaves the lock to the one that started it.
if workflow.is_main_process:
    lift_stale_lock(".snakemake")
    logger.addFilter(in_one_line)

try:
    # What --configfile, --config or a module's config say; config.yaml is no configfile to Snakemake, whose merging
    # knows no null.
    config.update(completed(config))
    check(config)
    audit_settings.check(config["audit"], config["minimind"])
    for key in ("train", "val"):
        path = config["data"][key]
        if path is not None and not os.path.isfile(path):
            raise LabError(f"config key data.{key}: found {path}, wanted an existing token file")
    if config["minimind"] is not None and not Path(config["minimind"], "trainer", "train_pretrain.py").is_file():
        raise LabError(
            f"config key minimind: found {config['minimind']}, without trainer/train_pretrain.py; "
            "wanted a checkout of MiniMind"
        )
    # With a cluster's executor, for which --jobs is given, this machine needs no GPU.
    if config["training"]["device"] == "cuda" and workflow.is_main_process and workflow.resource_settings.nodes is None:
        gpu.check()
    if os.path.exists(config["outdir"]) and not os.path.isdir(config["outdir"]):
        raise LabError(f"config key outdir: found {config['outdir']}, which is a file, wanted a folder")
    CORPUS = [] if config["data"]["train"] else [str(path) for path in corpus_files(config["data"]["corpus"])]
    for path in CORPUS:
        if "{" in path or "}" in path:
            raise LabError(f"config key data.corpus: found the file {path}, wanted files without braces in their names")
except LabError as error:
    sys.exit(f"error: {error}")

# "" or "results/": file names are appended to it as they are.
OUT = "" if os.path.normpath(config["outdir"]) == "." else f"{os.path.normpath(config['outdir'])}/"
TRAIN = config["data"]["train"] or f"{OUT}train.npy"
VAL = config["data"]["val"] or f"{OUT}val.npy"
VARIANTS = list(all_variants(config))
STOPS = stops(config["training"])
# Another torch, CPU or GPU may round differently, so what was trained there is stale here.
MACHINE = fingerprint(config["training"]["device"])
# A resource and no param: how often the progress is kept changes no bit of an output, so it makes none stale.
SAVE_EVERY = config["training"]["save_every"]
TRAINERS = audit_settings.trainers(config["audit"], config["minimind"])
AUDITED = audit_settings.audited(config["audit"])
# With several stops the runs write one leg at a time, and what these leave is joined.
LAST_LEG = OUT if len(STOPS) == 1 else f"{OUT}legs/"


def verb(name):
    """The params for the script of this name: its path, and what its code means, so that another meaning makes its
    outputs stale.
    """
    path = f"{SCRIPTS}/{name}.py"
    return {"script": path, "code": code_digest(path)}


def machine(wildcards):
    """What of the machine decides the bits of a training job."""
    return elsewhere() or MACHINE


def trainers_machine(wildcards):
    """The same for an audited trainer, which may use any GPU; its packages' versions count apart."""
    found = fingerprint("cuda")
    return elsewhere() or {name: found[name] for name in found if name != "torch"}


def elsewhere():
    """Whether a cluster's executor runs the jobs, as text: on machines that this one, which decides what is stale,
    doesn't know.
    """
    # In a dry run nothing else is left of that executor.
    pretended = (workflow.dryrun or workflow.touch) and workflow.execution_settings.use_threads
    return "another machine" if workflow.non_local_exec or pretended else ""


def templates(name):
    """The template of a document in the configured language, and the one that it takes the words for diagnoses from."""
    return [f"{TEMPLATES}/{part}.{config['language']}.md.j2" for part in (name, "diagnosis")]


def section(*names):
    """These sections of the config as JSON, for a script's --settings."""
    sections = as_overrides({name: config[name] for name in names})
    # How often the progress is kept decides on nothing.
    return json.dumps(
        {
            name: {key: value for key, value in section.items() if key != "save_every"}
            for name, section in sections.items()
        }
    )


def training_settings():
    """What a training run depends on, as JSON. Where it stops is a flag of the stopped run alone."""
    return json.dumps({"model": config["model"], "training": deciding(config["training"])})


def recipe(wildcards):
    """The flags for what a variant leaves out, rounds or replays."""
    treated = all_variants(config)[wildcards.variant]
    return [flag for verb in RECIPE_VERBS for component in treated.get(verb, []) for flag in (f"--{verb}", component)]


def leave_one_out():
    """The variants that leave out just one component, one for each that the configured run remembers."""
    alone = [{"omit": [component]} for component in components(config)]
    return [name for name, treated in all_variants(config).items() if treated in alone]


def resume_file(variant, stop):
    """The resume file that a variant leaves at the stop with this index; up to the first one all runs are the same."""
    return f"{OUT}legs/{variant}_{STOPS[stop]}.pth" if stop else f"{OUT}resume.pth"


def legs(pattern):
    """The files that the legs after the first stop leave, in their order: those that end at a stop, and the last
    one.
    """
    return [f"{OUT}legs/{pattern}".replace("{stop}", ending) for ending in [*(f"_{stop}" for stop in STOPS[1:]), ""]]


def stop_flags(trainer):
    """The flags for the cases in which a trainer is stopped and resumed."""
    return [f"--stop={case}={','.join(map(str, steps))}" for case, steps in trainer["stops"].items()]


def print_closing_line():
    """Say, when this call of Snakemake made the report or the audit's document, what came out."""
    if os.path.exists("report.md") and os.path.getmtime("report.md") >= STARTED:
        print(json.loads(Path(f"{OUT}verdict.json").read_text(encoding="utf-8"))["line"])
    if os.path.exists("audit.md") and os.path.getmtime("audit.md") >= STARTED:
        print(summary([json.loads(Path(f"{OUT}audit/{name}.json").read_text(encoding="utf-8")) for name in AUDITED]))
