"""The real Snakefile, on a tiny config: what it builds, when it builds it again, and what it refuses."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import termios

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import forked
from conftest import ROOT, TINY_FILE, copy_project, snakemake

pytestmark = pytest.mark.pipeline

RUNS = [
    "straight",
    "repeat",
    "resumed",
    "noopt",
    "noskip",
    "nostep",
    "weightsonly",
    "halfmodel",
    "replayed",
    "without_model",
]
TINY_SETTINGS = json.dumps(yaml.safe_load(TINY_FILE.read_text()))
TRAINING = {"uninterrupted", "stopped", "variant"}
MEASUREMENTS = {"half", "count_state", "divergence", "diagnosis", "verdict", "plots", "render_report"}


def planned(project, *flags, target="report.md"):
    """The set of rules that Snakemake would run for the report, from its table of them."""
    result = snakemake(project, target, "-c1", "-n", *flags, "--quiet", "host")
    assert result.returncode == 0, result.stderr + result.stdout
    return set(re.findall(r"^(\w+) +\d+$", result.stdout + result.stderr, re.MULTILINE)) - {"total"}


def read(project, name):
    return json.loads((project / "results" / name).read_text())


def digests(folder):
    names = [
        path
        for path in folder.rglob("*")
        if path.is_file() and ".snakemake" not in path.parts and "logs" not in path.parts
    ]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


def test_every_artifact_is_there_and_nothing_half_written(built):
    present = {path.name for path in (built / "results").iterdir()}
    assert present == {
        *(f"{run}{end}" for run in RUNS for end in (".pth", "_log.csv", "_record.npz")),
        *(
            "train.npy",
            "val.npy",
            "resume.pth",
            "resume.json",
            "straight_fp16.pth",
            "fp16.json",
            "optim.json",
            "machine.json",
        ),
        *(
            "divergence.json",
            "divergence.csv",
            "divergence_steps.csv",
            "losses.svg",
            "divergence.svg",
            "verdict.json",
            "logs",
            "trace",
            "diagnosis",
        ),
    }
    assert not list(built.rglob("*.tmp"))


def test_lossless_runs_are_byte_identical_and_no_other_is(built):
    results = built / "results"
    straight = (results / "straight.pth").read_bytes()
    identical = {run for run in RUNS if (results / f"{run}.pth").read_bytes() == straight}
    assert identical == {"straight", "repeat", "resumed", "replayed"}
    told = {run for run, measured in read(built, "divergence.json")["runs"].items() if measured["identical"]}
    assert told == identical - {"straight"}


def test_logs_have_the_labs_columns_and_steps(built):
    lines = {run: (built / "results" / f"{run}_log.csv").read_text().splitlines() for run in RUNS}
    assert all(text[0] == "step,train_loss" for text in lines.values())
    assert [line.split(",")[0] for line in lines["straight"][1:]] == [str(step) for step in range(1, 9)]
    assert all(re.fullmatch(r"\d+,\d+\.\d{6}", line) for text in lines.values() for line in text[1:])
    assert lines["resumed"][1:] == lines["straight"][5:]
    assert [line.split(",")[0] for line in lines["noskip"][1:]] == ["5", "6", "7", "8"]


def test_divergence_is_what_the_weights_say(built):
    straight, noopt = (torch.load(built / "results" / f"{run}.pth", weights_only=True) for run in ("straight", "noopt"))
    told = read(built, "divergence.json")["runs"]["noopt"]
    assert told["max_abs_diff"] == max(
        (straight[name].double() - noopt[name].double()).abs().max().item() for name in straight
    )
    flat = [torch.cat([tensor.flatten().double() for tensor in weights.values()]) for weights in (straight, noopt)]
    assert told["rel_l2"] == pytest.approx(((flat[0] - flat[1]).norm() / flat[0].norm()).item(), rel=1e-12)
    assert told["sha256"] == hashlib.sha256((built / "results" / "noopt.pth").read_bytes()).hexdigest()
    row = pd.read_csv(built / "results" / "divergence.csv", dtype=str).set_index("run").loc["noopt"]
    assert row["first_differing_step"] == "6"
    assert [float(row[f"update_ratio_{number}"]) for number in range(1, 5)] == [
        update["ratio"] for update in told["updates"]
    ]
    assert told["first_differing_step"] == 6, "step 5 still has the restored weights; its update is the first to differ"


def test_rewound_run_sees_the_first_batches_again(built):
    runs = read(built, "divergence.json")["runs"]
    assert {run: measured["batches_seen_before"] for run, measured in runs.items()} == {
        run: 4 if run in ("noskip", "weightsonly") else 0 for run in runs
    }


def test_diagnosis_names_what_each_recipe_lost(built):
    told = {}
    for run in RUNS[2:]:
        result = read(built, f"diagnosis/{run}.json")
        told[run] = (result["row"], {culprit["component"]: culprit["action"] for culprit in result["culprits"]})
    assert told == {
        "resumed": (None, {}),
        "replayed": (None, {}),
        "noopt": (5, {"optimizer": "lost"}),
        "noskip": (5, {"gen_state": "lost"}),
        "nostep": (5, {"step": "lost"}),
        "weightsonly": (5, {"optimizer": "lost", "step": "lost", "gen_state": "lost"}),
        "halfmodel": (5, {"model": "rounded"}),
        "without_model": (5, {"model": "lost"}),
    }
    text = (built / "report.md").read_text()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("- `")}
    assert "5번째 배치부터 다름: `optimizer` 잃음" in rows["noopt"]
    assert "5번째 배치부터 다름: `model` float16으로 반올림됨" in rows["halfmodel"]
    assert "8번째 배치까지 같음" in rows["resumed"]


EVERYTHING = """\
model: {dropout: 0.1}
training: {stop_at: [3, 5], accumulation: 2, precision: float16, growth_interval: 1, ema: 0.9, order: permutation,
           workers: 2, augment: 0.1}
"""


def test_every_component_of_a_run_with_everything_and_two_stops_is_named(built, tmp_path):
    """The ablation target, in a chain of resumes: one variant for each component, and the diagnosis names just that
    one.
    """
    (tmp_path / "everything.yaml").write_text(EVERYTHING)
    result = snakemake(
        built, "-c2", "results/resumed.pth", "ablation", "-d", tmp_path, configfile=tmp_path / "everything.yaml"
    )
    assert result.returncode == 0, result.stderr
    assert digests(tmp_path / "results")["resumed.pth"] == digests(tmp_path / "results")["straight.pth"]
    accused = {}
    for path in (tmp_path / "results" / "diagnosis").iterdir():
        diagnosis = json.loads(path.read_text())
        assert (diagnosis["first_row"], diagnosis["last_row"], diagnosis["row"], diagnosis["notes"]) == (4, 8, 4, [])
        accused[path.stem] = [(culprit["component"], culprit["action"]) for culprit in diagnosis["culprits"]]
    assert accused == {
        "noopt": [("optimizer", "lost")],
        "noskip": [("gen_state", "lost")],
        "nostep": [("step", "lost")],
        "without_model": [("model", "lost")],
        "without_gradients": [("model.gradients", "lost")],
        "without_scaler": [("scaler", "lost")],
        "without_ema": [("ema", "lost")],
        "without_rng": [("rng.torch", "lost")],
    }


def test_counts_are_those_of_the_files(built):
    resume = torch.load(built / "results" / "resume.pth", weights_only=True)
    assert list(resume) == ["model", "optimizer", "step", "gen_state"]
    counts = read(built, "optim.json")
    parameters = sum(tensor.numel() for name, tensor in resume["model"].items() if name != "lm_head.weight")
    assert counts == {"model_numel": parameters, "optimizer_numel": 2 * parameters, "ratio": 2.0}
    half = read(built, "fp16.json")
    assert half["fp32_bytes"] == (built / "results" / "straight.pth").stat().st_size
    assert half["fp16_bytes"] == (built / "results" / "straight_fp16.pth").stat().st_size
    assert 0 < half["max_logit_diff"] < 0.01


def test_default_corpus_is_the_python_source_of_snakemake(built):
    import snakemake as package

    tokens = np.concatenate([np.load(built / "results" / name) for name in ("train.npy", "val.npy")])
    assert tokens.dtype == np.uint8
    assert tokens.ndim == 1
    text = tokens.tobytes().decode("utf-8")
    with open(package.__file__, encoding="utf-8", newline="") as file:
        assert file.read() in text
    assert len(np.load(built / "results" / "val.npy")) == round(len(tokens) / 10)


def test_pipeline_ends_with_one_line_that_names_the_digest(built):
    digest = hashlib.sha256((built / "results" / "straight.pth").read_bytes()).hexdigest()
    lines = [line for line in (built / "stdout.txt").read_text().splitlines() if digest in line]
    assert lines == [f"identical: straight.pth = repeat.pth = resumed.pth = replayed.pth (sha256 {digest})"]


def test_report_has_the_three_sections_and_the_numbers(built):
    text = (built / "report.md").read_text()
    assert re.findall(r"^## .*$", text, re.MULTILINE) == ["## 무엇을 저장하나", "## 빠뜨리면", "## 반정밀도"]
    assert str(read(built, "optim.json")["ratio"]) in text
    assert str(read(built, "fp16.json")["fp16_bytes"]) in text
    assert "판정: 합격" in text.split("##")[0]
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (built / picture).read_text().startswith("<?xml")
    assert len(re.findall(r"!\[", text)) == 2


def test_missed_expectation_is_told_and_fails_nothing(project):
    result = snakemake(project, "-c1", "check")
    assert result.returncode == 0
    assert "4 of 4 claims of exactness hold; 17 of 17 expectations met" in result.stdout
    flags = ("--config", 'verdict={"fp16_bytes_ratio": 0.1}')
    result = snakemake(project, "-c1", "check", *flags)
    assert result.returncode == 0
    assert "miss  Half precision nearly halves the weights file." in result.stdout
    assert snakemake(project, "-c1", "report.md", *flags).returncode == 0
    opening = (project / "report.md").read_text().split("##")[0]
    assert "판정: 합격" in opening
    assert "기대: 17개 가운데 16개" in opening


def test_check_fails_with_exactness(project):
    verdict = read(project, "verdict.json")
    assert verdict["passed"]
    runs = read(project, "divergence.json")
    runs["runs"]["resumed"]["identical"] = False
    (project / "results" / "divergence.json").write_text(json.dumps(runs))
    result = snakemake(project, "-c1", "check", "--rerun-triggers", "mtime")
    assert result.returncode == 1
    assert "FAIL  resumed lost nothing" in result.stdout


def test_report_is_what_a_call_without_a_target_makes(project):
    (project / "templates" / "report.ko.md.j2").write_text("x")
    assert planned(project, target="all") == {"all", "render_report"}


@pytest.mark.parametrize("target", [[], ["report.md"]])
def test_up_to_date_call_does_nothing(built, target):
    result = snakemake(built, "-c1", *target)
    assert "Nothing to be done" in result.stdout + result.stderr


def test_call_without_a_target_makes_again_whatever_is_missing(project):
    expected = digests(project / "results")
    missing = ["losses.svg", "noopt.pth", "trace/resume.csv", "halfmodel_record.npz", "val.npy"]
    for name in missing:
        (project / "results" / name).unlink()
    assert snakemake(project, "-c2").returncode == 0
    assert digests(project / "results") == expected
    assert "Nothing to be done" in snakemake(project, "-c1").stderr


def test_every_artifact_is_wanted_by_the_call_without_a_target(built):
    made = {line.split("\t")[0] for line in snakemake(built, "--summary", "-c1").stdout.splitlines()[1:]}
    assert {f"results/{name}" for name in digests(built / "results")} <= made


def test_terminal_gets_a_short_line_a_job(built):
    lines = (built / "stderr.txt").read_text().splitlines()
    jobs = [line for line in lines if line.startswith("Job ")]
    assert len(jobs) == 28, "27 and the one that wants them all"
    assert len(set(jobs)) == 28
    assert all(len(line) <= 80 for line in jobs)
    assert sum(map(len, lines)) < 150 * len(jobs)
    assert not any("python" in line or "input:" in line for line in lines)
    assert [line for line in jobs if "noopt" in line] == [
        line for line in jobs if re.search(r"Resumes as noopt|Diagnoses noopt", line)
    ]


def test_steps_are_in_a_jobs_log(built):
    assert (built / "results/logs/straight.log").read_text().splitlines() == [
        f"straight: step {step} of 8" for step in range(1, 9)
    ]
    assert (built / "results/logs/variant_noopt.log").read_text().splitlines()[-1] == "noopt: step 8 of 8"


def test_terminal_shows_a_bar_while_a_job_trains(built, tmp_path):
    """The job's standard output is the terminal's, its standard error goes to the log."""
    parent, child = os.openpty()
    termios.tcsetwinsize(child, (24, 80))
    flags = ["--tokens", built / "results/train.npy", "--out", tmp_path / "run.pth", "--settings", TINY_SETTINGS]
    command = [forked.python(), ROOT / "workflow/scripts/train.py", *flags]
    result = subprocess.run(command, stdout=child, stderr=subprocess.PIPE, text=True, check=True)
    shown = os.read(parent, 65536)
    os.close(child)
    os.close(parent)
    assert b"run: " in shown
    assert b"/8 " in shown
    assert result.stderr.splitlines()[-1] == "run: step 8 of 8"


def test_line_for_a_job_is_on_the_terminal_and_in_its_log():
    parent, child = os.openpty()
    command = [sys.executable, "-c", "from exact_resume.pipeline.watching import say; say('lab: repeat')"]
    result = subprocess.run(command, cwd=ROOT / "workflow/scripts", stdout=child, stderr=subprocess.PIPE, check=True)
    assert (os.read(parent, 100), result.stderr) == (b"lab: repeat\r\n", b"lab: repeat\n")
    os.close(child)
    os.close(parent)


def test_terminal_that_is_gone_ends_no_training(built, tmp_path):
    parent, child = os.openpty()
    os.close(parent)
    flags = ["--tokens", built / "results/train.npy", "--out", tmp_path / "run.pth", "--settings", TINY_SETTINGS]
    result = subprocess.run(
        [sys.executable, ROOT / "workflow/scripts/train.py", *flags], stdout=child, stderr=child, check=False
    )
    os.close(child)
    assert result.returncode == 0
    assert (tmp_path / "run.pth").read_bytes() == (built / "results/straight.pth").read_bytes()


def test_failed_job_shows_its_log(project):
    (project / "templates" / "report.ko.md.j2").write_text("{{ nowhere }}")
    result = snakemake(project, "-c1")
    assert result.returncode == 1
    assert "error: " in result.stderr
    assert "nowhere" in result.stderr


def test_every_target_is_explained(built):
    listed = snakemake(built, "--list").stdout.splitlines()
    assert {"all", "ablation", "check", "crash", "audit", "check_audit"} <= {line.split(" ")[0] for line in listed}
    assert all(re.fullmatch(r"\w+ \(.+\)", line) for line in listed)


def test_jobs_that_the_real_interpreter_runs_give_the_same_bytes(built, tmp_path):
    """Where no test has it started from a fork: snakemake and its jobs' python are the installed ones."""
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-s",
        built / "Snakefile",
        "-c1",
        "-d",
        tmp_path,
        "results/straight.pth",
    ]
    subprocess.run([*command, "--configfile", TINY_FILE], capture_output=True, check=True)
    expected = digests(built / "results")
    assert digests(tmp_path / "results").items() <= expected.items()
    assert (tmp_path / "results" / "straight.pth").exists()


def test_two_cores_and_another_job_order_give_the_same_bytes(built, tmp_path):
    other = copy_project(tmp_path)
    variants = [f"results/{run}.pth" for run in reversed(RUNS)]
    assert snakemake(other, "-c2", *variants).returncode == 0
    assert snakemake(other, "-c2", "report.md").returncode == 0
    expected = digests(built / "results")
    assert digests(other / "results") == expected
    assert (other / "report.md").read_bytes() == (built / "report.md").read_bytes()


# What becomes stale when the file means something else.
DEPENDENT = {
    "templates/report.ko.md.j2": {"render_report"},
    "workflow/scripts/render_report.py": {"render_report"},
    "workflow/scripts/export_half.py": {"half", "verdict", "render_report"},
    "workflow/scripts/plot.py": {"plots", "render_report"},
    "workflow/scripts/diagnose.py": {"diagnosis", "render_report"},
    "workflow/scripts/judge.py": {"verdict", "render_report"},
    "src/exact_resume/checkpoint/archive.py": TRAINING | MEASUREMENTS,
    "src/exact_resume/lab/model.py": TRAINING | MEASUREMENTS,
    "workflow/scripts/encode_corpus.py": {"encode_corpus", "machine"} | TRAINING | MEASUREMENTS,
}


@pytest.mark.parametrize("changed", DEPENDENT)
def test_edited_file_makes_just_what_depends_on_it_stale(project, changed):
    with open(project / changed, "a") as file:
        file.write("\nMORE = 1\n")
    assert planned(project) == DEPENDENT[changed]


def test_touched_files_and_words_about_code_make_nothing_stale(project):
    for path in map(project.joinpath, DEPENDENT):
        path.touch()
    assert planned(project) == set()
    for path in map(project.joinpath, DEPENDENT):
        if path.suffix == ".py":
            text = path.read_text()
            assert '"""' in text
            path.write_text(text.replace('"""', '"""Another docstring. ', 1) + "\n\n# A comment.\n")
    assert planned(project) == set()


AUDIT = """\
audit:
  only: [mine, lightning]
  trainers:
    mine: {command: "python trainer/mine.py --config=trainer/mine.yaml", packages: []}
    lightning: {packages: []}
"""


def test_edited_code_makes_just_the_trainers_stale_that_reach_it(project, tmp_path):
    """Trainers that end at once, so that their audits take no time."""
    folder = project / "trainer"
    folder.mkdir()
    (folder / "mine.py").write_text("from beside import x\nraise SystemExit\nfrom exact_resume import Trace\n")
    (folder / "beside.py").write_text("x = 1\n")
    (folder / "mine.yaml").write_text("x: 1\n")
    lightning = project / "workflow/trainers/lightning_module.py"
    lightning.write_text(f"raise SystemExit\n{lightning.read_text()}")
    (tmp_path / "audit.yaml").write_text(AUDIT)
    names = ["mine", "lightning"]
    assert (
        snakemake(
            project, "-c2", *(f"results/audit/{name}.json" for name in names), configfile=tmp_path / "audit.yaml"
        ).returncode
        == 0
    )

    def stale():
        result = snakemake(
            project, "-c1", "-n", *(f"results/audit/{name}.json" for name in names), configfile=tmp_path / "audit.yaml"
        )
        return {name for name in names if f"Audits {name}." in result.stdout + result.stderr}

    edits = {
        "src/exact_resume/tracing/recorder.py": {"mine", "lightning"},
        "workflow/trainers/task.py": {"lightning"},
        "src/exact_resume/lab/model.py": set(),
        "trainer/beside.py": {"mine"},
        "trainer/mine.yaml": {"mine"},
    }
    for changed in edits:
        with open(project / changed, "a") as file:
            file.write("\n# A comment.\n" * changed.endswith(".py"))
    assert stale() == set()
    for changed, wanted in edits.items():
        original = (project / changed).read_text()
        (project / changed).write_text(original + "\nmore: 1\n")
        assert stale() == wanted, changed
        (project / changed).write_text(original)


@pytest.mark.parametrize(
    ("flags", "rules"),
    [
        (["training={lr: 0.001}"], {"machine"} | TRAINING | MEASUREMENTS),
        (["training={stop_at: 5}"], {"stopped", "variant"} | MEASUREMENTS - {"half"}),
        (["language=en"], {"render_report"}),
        (["training={save_every: 3}"], set()),
        (["verdict={logit_diff: 0.5}"], {"verdict", "render_report"}),
        (
            ["variants={mine: {omit: [step, optimizer]}}"],
            {"variant", "divergence", "diagnosis", "verdict", "plots", "render_report"},
        ),
        (["data={validation: 0.2}"], {"encode_corpus", "machine"} | TRAINING | MEASUREMENTS),
    ],
)
def test_changed_knob_makes_just_what_depends_on_it_stale(built, flags, rules):
    assert planned(built, "--config", *flags) == rules


MODULE = """\
module exact_resume:
    snakefile: "Snakefile"
    config: {"variants": {"noopt": None}, "audit": {"steps": 12, "stops": {"mine": [5]}}}

use rule * from exact_resume as exact_resume_*
"""


@pytest.mark.parametrize("way", ["file", "values", "module"])
def test_null_takes_a_variant_away_however_the_config_arrives(built, tmp_path, way):
    (tmp_path / "mine.yaml").write_text("variants: {noopt: null}\naudit: {steps: 12, stops: {mine: [5]}}\n")
    (tmp_path / "module.smk").write_text(MODULE.replace("Snakefile", str(built / "Snakefile")))
    flags = {
        "file": ["--configfile", tmp_path / "mine.yaml"],
        "values": ["--config", "variants={noopt: null}", "audit={steps: 12, stops: {mine: [5]}}"],
        "module": ["-s", tmp_path / "module.smk"],
    }
    command = [
        forked.python(),
        "-m",
        "snakemake",
        "-s",
        built / "Snakefile",
        "-d",
        tmp_path,
        "--summary",
        "report.md",
        *flags[way],
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert set(re.findall(r"results/(\w+)\.pth", result.stdout)) == {
        *RUNS,
        "resume",
        "straight_fp16",
        "without_optimizer",
    } - {"noopt"}


def test_report_without_a_variant_that_was_taken_away(project):
    assert (
        snakemake(
            project, "-c2", "report.md", "--config", "variants={noopt: null, nostep: null, halfmodel: null}"
        ).returncode
        == 0
    )
    claimed = {claim["run"] for claim in read(project, "verdict.json")["claims"]} - {None}
    assert claimed == {
        "repeat",
        "resumed",
        "noskip",
        "weightsonly",
        "replayed",
        "without_model",
        "without_optimizer",
        "without_step",
    }
    assert "noopt" not in (project / "report.md").read_text()


@pytest.mark.parametrize("fact", ['"torch": version("torch")', '"cpu": cpu_model()', '"simd": simd_extensions()'])
def test_another_machine_makes_the_trained_artifacts_stale(project, fact):
    path = project / "src/exact_resume/pipeline/fingerprint.py"
    text = path.read_text()
    assert fact in text
    path.write_text(text.replace(fact, f'{fact.split(":")[0]}: "another"'))
    assert planned(project) == {"machine"} | TRAINING | MEASUREMENTS


@pytest.mark.parametrize("name", ["ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA"])
def test_variable_that_chooses_kernels_makes_the_trained_artifacts_stale(built, monkeypatch, name):
    monkeypatch.setenv(name, "AVX2")
    assert planned(built) == {"machine"} | TRAINING | MEASUREMENTS


def test_variable_of_thread_counts_makes_nothing_stale(built, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    assert planned(built) == set()


ELSEWHERE = """\
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

common_settings = CommonSettings(non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False)


class Executor(RemoteExecutor):
    def run_job(self, job):
        import subprocess

        from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

        info = SubmittedJobInfo(job)
        self.report_job_submission(info)
        environment = {**os.environ, "MKL_CBWR": "COMPATIBLE"}
        ended = subprocess.run(self.format_job_exec(job), shell=True, env=environment, capture_output=True)
        done = ended.returncode == 0
        (self.report_job_success if done else self.report_job_error)(info)

    async def check_active_jobs(self, active_jobs):
        for info in active_jobs:
            yield info

    def cancel_jobs(self, active_jobs):
        pass
"""


def test_machine_that_submits_to_a_cluster_makes_nothing_stale(project, tmp_path, monkeypatch):
    """An executor of the test's own, whose jobs run on what counts as another machine."""
    package = tmp_path / "plugins" / "snakemake_executor_plugin_elsewhere"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"import os\n{ELSEWHERE}")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    cluster = ["--executor", "elsewhere", "--jobs", "2", "--latency-wait", "1"]
    assert "uninterrupted" in planned(project, *cluster), "trained here, not there"
    result = snakemake(project, "results/straight.pth", *cluster)
    assert result.returncode == 0, result.stderr
    assert planned(project, *cluster, target="results/straight.pth") == set()
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert planned(project, *cluster, target="results/straight.pth") == set()
    assert "uninterrupted" in planned(project, target="results/straight.pth")


def test_own_variant_runs_with_one_line_of_config(project):
    flags = ("--config", "variants={mine: {round: [optimizer]}}")
    assert snakemake(project, "-c2", "report.md", *flags).returncode == 0
    assert not read(project, "divergence.json")["runs"]["mine"]["identical"]
    assert "| `mine` | `optimizer` 반정밀도로 반올림 | 아니요 |" in (project / "report.md").read_text()


def test_english_report_has_english_headings(project):
    assert snakemake(project, "-c1", "report.md", "--config", "language=en").returncode == 0
    text = (project / "report.md").read_text()
    assert re.findall(r"^## .*$", text, re.MULTILINE) == [
        "## What is saved",
        "## What leaving it out costs",
        "## Half precision",
    ]
    assert "**Verdict: passed.**" in text
    assert not re.search("[가-힣]", text)


def test_flat_layout_with_own_tokens_matches_the_labs_own(built, tmp_path):
    """outdir=. puts everything beside the report, in a folder with a blank in its name, and tokenizes nothing."""
    folder = tmp_path / "my lab"
    folder.mkdir()
    for name in ("train.npy", "val.npy"):
        shutil.copy(built / "results" / name, folder)
    flags = ("report.md", "-c2", "-d", folder, "--config", "outdir=.", "data={train: train.npy, val: val.npy}")
    result = snakemake(ROOT, *flags, workdir=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "encode_corpus" not in result.stdout + result.stderr
    assert {"straight.pth", "straight_log.csv", "resume.pth", "report.md", "fp16.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert (folder / "straight.pth").read_bytes() == (built / "results" / "straight.pth").read_bytes()
    assert "](losses.svg)" in (folder / "report.md").read_text()


def test_own_text_folder_is_encoded_in_the_order_of_names(project, tmp_path):
    corpus = tmp_path / "texts"
    (corpus / "b").mkdir(parents=True)
    (corpus / "b" / "two.txt").write_text("둘" * 100, encoding="utf-8")
    (corpus / "a.txt").write_text("하나" * 100, encoding="utf-8")
    (corpus / ".hidden").write_text("no")
    assert snakemake(project, "-c1", "results/train.npy", "--config", f"data={{corpus: '{corpus}'}}").returncode == 0
    tokens = np.concatenate([np.load(project / "results" / name) for name in ("train.npy", "val.npy")])
    assert tokens.tobytes().decode("utf-8") == "하나" * 100 + "둘" * 100
    (corpus / "a.txt").write_text("셋", encoding="utf-8")
    assert "encode_corpus" in planned(project, "--config", f"data={{corpus: '{corpus}'}}")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("training={lrr: 1}", "error: config key training.lrr: unknown"),
        ("training={steps: many}", "error: config key training.steps: found 'many', wanted integer"),
        ("training={stop_at: 8}", "error: config key training.stop_at: found 8, wanted a step in 1...7"),
        ("variants={mine: {omit: [momentum]}}", "error: config key variants.mine.omit: found 'momentum'"),
        ("data={corpus: nowhere.txt}", "error: nowhere.txt: no such file or folder"),
        ("data={train: a.npy, val: b.npy}", "error: config key data.train: found a.npy, wanted an existing token file"),
        ("training={lr: nan}", "error: config key training.lr: found nan, wanted a finite number"),
        (
            "minimind=/nowhere",
            "error: config key minimind: found /nowhere, without trainer/train_pretrain.py",
        ),
        ("outdir=config.yaml", "error: config key outdir: found config.yaml, which is a file, wanted a folder"),
    ],
)
def test_bad_config_is_refused_before_any_job(project, config, message):
    before = digests(project)
    result = snakemake(project, "-c1", "report.md", "--config", config)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(message)
    assert "Traceback" not in result.stderr
    assert "rule " not in result.stderr
    assert digests(project) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_device_that_is_not_there_is_refused_before_any_job_unless_jobs_run_elsewhere(built):
    cuda = ("--config", "training={device: cuda}")
    result = snakemake(built, "-n", *cuda)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: config key training.device: found cuda, but ")
    assert "uninterrupted" in planned(built, "--jobs", "2", *cuda)


def test_corpus_with_braces_in_a_name_is_refused(project, tmp_path):
    (tmp_path / "{x}.txt").write_text("text")
    result = snakemake(project, "-n", "--config", f"data={{corpus: '{tmp_path}'}}")
    assert result.returncode == 1
    assert "wanted files without braces in their names" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the corpus is empty"),
        (b"ab", "found 2 bytes, wanted enough for training"),
        (b"\xff\xfe", "found a byte that is not UTF-8 at 0"),
    ],
)
def test_unusable_corpus_stops_the_pipeline_with_its_reason(project, tmp_path, text, message):
    (tmp_path / "corpus.txt").write_bytes(text)
    result = snakemake(project, "-c1", "results/train.npy", "--config", f"data={{corpus: '{tmp_path / 'corpus.txt'}'}}")
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (project / "results" / "train.npy").exists()


def test_snakemakes_own_report_holds_pictures_and_captions(built, tmp_path):
    result = snakemake(built, "--report", tmp_path / "report.html")
    assert result.returncode == 0, result.stderr
    html = (tmp_path / "report.html").read_text()
    for wanted in (
        "losses.svg",
        "divergence.svg",
        "verdict.json",
        "Pictures",
        "on a log axis, estimated from sketches",
    ):
        assert wanted in html
    assert "equal the uninterrupted run, bit for bit?" in html, "on the first page"
    assert json.dumps("## 빠뜨리면")[1:-1] in html, "and with it the report"


def test_two_configs_work_in_two_folders_at_a_time(built, tmp_path):
    for name, language in (("one", "ko"), ("two", "en")):
        shutil.copytree(built, tmp_path / name, copy_function=shutil.copy2)
        (tmp_path / f"{name}.yaml").write_text(f"language: {language}\nverdict: {{logit_diff: 0.5}}\n")
    command = [forked.python(), "-m", "snakemake", "-s", built / "Snakefile", "-c1"]
    configs = {
        name: ["-d", tmp_path / name, "--configfile", TINY_FILE, tmp_path / f"{name}.yaml"] for name in ("one", "two")
    }
    started = [
        subprocess.Popen([*command, *configs[name]], stderr=subprocess.PIPE, text=True) for name in ("one", "two")
    ]
    said = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert "판정: 합격" in (tmp_path / "one" / "report.md").read_text()
    assert "Verdict: passed" in (tmp_path / "two" / "report.md").read_text()


def test_every_script_explains_itself():
    for script in sorted((ROOT / "workflow" / "scripts").glob("*.py")):
        if script.name == "command_line.py":
            continue
        result = subprocess.run([forked.python(), str(script), "--help"], capture_output=True, text=True, check=False)
        assert result.returncode == 0, script
        assert "usage:" in result.stdout
        assert len(result.stdout.splitlines()) > 5
