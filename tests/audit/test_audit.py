"""The audit gives every trainer a verdict, however it behaves: real processes, most of them of
audited_trainer.py.
"""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

import forked
from conftest import ROOT, failed_with_one_line, snakemake
from exact_resume import diagnosis
from exact_resume.audit import command as command_line
from exact_resume.audit import legs
from exact_resume.audit import settings as audit_settings
from exact_resume.audit.gates import Audit
from exact_resume.audit.legs import Leg
from exact_resume.audit.own_folder import OwnFolder
from exact_resume.audit.process import LOSSES
from exact_resume.audit.result import Case, cases, culprits, give_reasons, make, summary
from exact_resume.audit.run import AuditedRun
from exact_resume.checkpoint import comparison, readers
from exact_resume.errors import LabError
from exact_resume.lab.settings import completed

TRAINER = ROOT / "tests" / "audit" / "audited_trainer.py"
SETUP = {
    "steps": 9,
    "stops": {"early": [3], "twice": [2, 6]},
    "save_at": 4,
    "timeout": 60,
    "weights": "w.safetensors",
    "shell": False,
}


def command(do="", script=TRAINER, **flags):
    """How the trainer is started that is to misbehave as `do` says."""
    return shlex.join(
        [
            sys.executable,
            # Starts faster, and needs no package.
            "-S",
            str(script),
            "--do",
            do,
            *(part for name, text in flags.items() for part in (f"--{name}", text)),
        ]
    )


@pytest.fixture
def run(tmp_path):
    """A function that audits a command and returns the result."""
    np.save(tmp_path / "tokens.npy", np.random.default_rng(1).integers(0, 256, 100).astype(np.uint8))

    def call(command, **changed):
        return Audit(tmp_path / "work", command=command, tokens=tmp_path / "tokens.npy", **{**SETUP, **changed}).run()

    yield call
    # A folder may be deeper than pytest can remove.
    subprocess.run(["rm", "-rf", str(tmp_path / "work")], check=True)


def passed(result):
    return {name: case["passed"] for name, case in cases(result).items()}


def left_behind(tmp_path):
    """The names of what stands in the folders of an audit's processes."""
    return {path.name for path in (tmp_path / "work").glob("*/*")}


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_exact_trainer_passes_every_gate_without_a_trace(run, tmp_path):
    result = run(command())
    assert result["outcome"] == "exact"
    assert passed(result) == dict.fromkeys(["repeat", "save", "early", "twice", "killed", "saved-twice"], True)
    assert all(
        case["max_abs_diff"] == case["rel_l2"] == 0 and case["diagnosis"] is None for case in cases(result).values()
    )
    assert result["checkpoint_bytes"] / result["weights_bytes"] == result["ratio"]
    assert left_behind(tmp_path) == {"output.log", "losses.csv"}, "weights and checkpoints don't stay"


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize(
    ("do", "shell", "atomic"), [("", False, True), ("save in place", False, False), ("save in place", True, False)]
)
def test_a_save_in_place_is_not_atomic(run, tmp_path, do, shell, atomic):
    result = run(command(do), shell=shell, stops={})
    assert result["outcome"] == "exact"
    assert result["atomic"] is atomic
    assert not list((tmp_path / "work").rglob("calls.txt"))


def test_link_out_of_the_work_folder_is_all_that_is_removed(run, tmp_path):
    elsewhere = tmp_path / "store"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("precious")
    assert run(command("save elsewhere", note=str(elsewhere)), stops={})["outcome"] == "exact"
    assert (elsewhere / "mine").read_text() == "precious"
    assert len(list(elsewhere.iterdir())) > 1, "the trainer's checkpoints lie there"


def test_without_strace_nothing_is_said_of_the_save(run, monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = run(command(), stops={})
    assert (result["outcome"], result["atomic"]) == ("exact", None)


def test_checkpoint_may_be_a_link_to_where_the_trainer_put_it(run, tmp_path):
    assert run(command("save a link"), **FEW)["outcome"] == "exact"
    assert left_behind(tmp_path) == {"output.log", "losses.csv"}


def test_lost_momentum_fails_just_the_resume_gate(run):
    result = run(command("lose"))
    assert result["outcome"] == "inexact"
    assert passed(result) == {
        "repeat": True,
        "save": True,
        "early": False,
        "twice": False,
        "killed": False,
        "saved-twice": False,
    }
    assert not result["gates"]["resume"]["passed"]
    early = cases(result)["early"]
    assert early["first_differing_logged_step"] == 5, (
        "step 4 still has the restored weights; its update is the first to differ"
    )
    assert early["max_abs_diff"] > 0 and early["rel_l2"] > 0
    told = (
        r"not exact: early, twice, killed, saved-twice failed; weights up to \d[\d.]* away; "
        "the logged losses differ from step 5 on; "
    )
    assert re.fullmatch(told + "no trace says why", result["verdict"])


def test_saving_that_changes_the_weights_fails_the_save_gate(run):
    result = run(command("touch when saving"), stops={})
    assert passed(result) == {"repeat": True, "save": False, "killed": True, "saved-twice": False}
    assert cases(result)["save"]["first_differing_logged_step"] == 5
    assert result["outcome"] == "inexact"


def test_trainer_that_is_not_repeatable_neither_passes_nor_fails_but_is_held_against_its_noise(run):
    result = run(command("noise"))
    assert result["outcome"] == "not_repeatable"
    assert passed(result) == {
        "repeat": False,
        "save": None,
        "early": None,
        "twice": None,
        "killed": None,
        "saved-twice": None,
    }
    noise = cases(result)["repeat"]["rel_l2"]
    assert all(
        case["noise_ratio"] == case["rel_l2"] / noise for name, case in cases(result).items() if name != "repeat"
    )
    assert result["verdict"].startswith("not repeatable: two uninterrupted runs end")


@pytest.mark.parametrize(
    ("do", "status", "error"),
    [
        ("crash", "crashed", "exit status 1: out of luck: no GPU"),
        ("write nothing", "no_weights", "it ended without an error, and there was nothing at --out"),
        ("nan", "not_finite", "straight/w.safetensors: tensor w holds values that are not finite"),
    ],
)
def test_trainer_without_weights_is_a_result_that_says_why(run, do, status, error):
    result = run(command(do))
    assert (result["outcome"], result["status"], result["error"]) == ("failed", status, error)
    assert passed(result) == {"repeat": None, "save": None}


def test_program_that_isnt_there_is_a_result(run):
    result = run("no-such-program --x")
    assert (result["status"], result["error"]) == (
        "crashed",
        "no-such-program: can't be started: No such file or directory",
    )


def test_signal_without_a_name_is_a_result_too(run):
    assert run(command("signal 40"))["error"] == "ended by signal 40"


def test_hanging_trainer_is_ended_with_its_children(run, tmp_path):
    started = time.monotonic()
    result = run(command("hang"), timeout=2)
    assert result["status"] == "timed_out"
    assert time.monotonic() - started < 20
    assert not alive(int((tmp_path / "work" / "straight" / "child").read_text()))


def test_one_cause_is_told_once_in_the_verdict(run):
    result = run(command("save nothing"), stops={"early": [3], "twice": [2, 6]})
    assert result["verdict"] == (
        "not exact: save, early, twice, saved-twice failed; no checkpoint: there was nothing at --save-to after step 4"
    )


def test_parts_of_a_component_that_is_named_are_not_named_besides():
    def case(*names):
        return Case(passed=False, diagnosis={"culprits": [{"component": name, "action": "lost"} for name in names]})

    resume = {"early": case("swa", "model.gradients"), "late": case("swa.buffers", "optimizer.settings")}
    result = make("ok", None, {"repeat": Case(passed=True), "save": Case(passed=True), "resume": resume})
    assert culprits(result) == ["model.gradients", "optimizer.settings", "swa"]


def test_crash_on_resume_is_a_failed_case_with_its_last_line(run, tmp_path):
    result = run(command("crash on resume"))
    assert passed(result) == {
        "repeat": True,
        "save": True,
        "early": False,
        "twice": False,
        "killed": False,
        "saved-twice": False,
    }
    assert (cases(result)["early"]["status"], cases(result)["early"]["error"]) == (
        "crashed",
        "exit status 1: KeyError: 'optimizer'",
    )
    assert not list((tmp_path / "work").rglob("checkpoint")), "large files don't stay"
    assert (
        result["verdict"]
        == "not exact: early, twice, killed, saved-twice failed; crashed: exit status 1: KeyError: 'optimizer'"
    )


def test_broken_trace_is_a_note_and_no_failure(run):
    result = run(command("bad trace"), stops={})
    assert result["outcome"] == "exact"
    assert cases(result)["repeat"]["notes"] == [
        "straight/trace.csv: found 'nonsense' as its first line, wanted 'exact-resume trace' with version and unit"
    ]


def test_process_that_ends_before_the_kill_is_not_tried_and_not_failed(run):
    result = run(command("hurry"), **FEW)
    assert cases(result)["killed"]["status"] == "not_tried"
    assert passed(result)["killed"] is None
    assert result["outcome"] == "exact"


# The lab's own trainer, but that it loses the optimizer's state.
LOSES_THE_OPTIMIZER = """\
import sys

sys.path.insert(0, {scripts!r})
import train

if "--resume" in sys.argv:
    sys.argv += ["--omit", "optimizer"]
sys.argv += ["--settings", {settings!r}]
train.main()
"""


def test_trace_names_the_optimizer_as_what_is_lost(run, tmp_path, tiny):
    script = tmp_path / "loses.py"
    settings = json.dumps({"model": tiny["model"], "training": {"length": 16, "batch_size": 2}})
    script.write_text(LOSES_THE_OPTIMIZER.format(scripts=str(ROOT / "workflow" / "scripts"), settings=settings))
    result = run(shlex.join([forked.python(), str(script)]), stops={"early": [3]}, weights="weights.pth")
    told = passed(result)
    assert (told["repeat"], told["save"], told["early"]) == (True, True, False)
    assert culprits(result) == ["optimizer"]
    assert result["verdict"].endswith("; lost or changed: optimizer")
    early = cases(result)["early"]
    assert early["diagnosis"]["sentence"] == "differs from batch 4: optimizer was lost (it is as before training)"
    assert early["first_differing_logged_step"] == 5


# Where a process has to begin and to end.

FEW = {"stops": {"early": [3]}}
IGNORES_RESUME = "started from scratch: it ends the same whatever data its checkpoint was trained on"
IGNORES_STOP = "did not stop: the run ends the same whatever data it is resumed with"


@pytest.mark.parametrize(
    ("do", "stops", "failed", "reason"),
    [
        ("ignore resume", {"early": [3]}, {"early", "killed", "saved-twice"}, f"early {IGNORES_RESUME}"),
        ("ignore resume, no log", {"twice": [2, 6]}, {"twice", "killed", "saved-twice"}, f"twice {IGNORES_RESUME}"),
        ("ignore resume, log from there", {"early": [3]}, {"early"}, f"early {IGNORES_RESUME}"),
        (
            "ignore stop",
            {"early": [3]},
            {"early", "saved-twice"},
            "early-1 did not stop: its log has steps 1…9, wanted 1…3",
        ),
        ("ignore stop, no log", {"early": [3]}, {"early", "saved-twice"}, f"early {IGNORES_STOP}"),
        (
            "save before",
            {"early": [3]},
            {"early", "killed", "saved-twice"},
            "early-2 started at another step than the one after its checkpoint's: its log has steps 3…9, wanted 4…9",
        ),
        (
            "end early",
            {"early": [3]},
            {"early", "saved-twice"},
            "straight stopped early: its log has steps 1…8, wanted 1…9",
        ),
        (
            "end late",
            {"early": [3]},
            {"early", "saved-twice"},
            "straight did not stop: its log has steps 1…10, wanted 1…9",
        ),
    ],
)
def test_a_process_begins_after_its_checkpoint_and_ends_at_its_stop(run, do, stops, failed, reason):
    """Although the same bits come out."""
    result = run(command(do), stops=stops)
    assert {name for name, case in cases(result).items() if case["passed"] is False} == failed
    assert result["outcome"] == "inexact"
    assert reason in result["verdict"]
    assert all(case["max_abs_diff"] == 0 for case in cases(result).values())


@pytest.mark.parametrize(
    "do",
    [
        "no log",
        "history",
        "from 0",
        "log now and then",
        "from 0, log now and then",
        "history, from 0",
        "row 0",
        "from 0, row 0",
    ],
)
def test_a_correct_trainer_may_log_as_it_likes(run, do):
    result = run(command(do), stops={"twice": [2, 6]})
    assert result["outcome"] == "exact", result["verdict"]
    assert not any(case["reasons"] or case["notes"] for case in cases(result).values())


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffstep,train_loss\n1,0.5\n2,0.25\n",
        "step, train_loss\n1, 0.5\n2, 0.25\n",
        "step,train_loss\n1.0,0.5\nstep,train_loss\n2.0,0.25\n",
    ],
)
def test_log_that_is_written_otherwise_is_read(tmp_path, text):
    place = OwnFolder(tmp_path / "work")
    place.make()
    (tmp_path / "work" / "straight").mkdir()
    (tmp_path / "work" / "straight" / LOSSES).write_text(text)
    assert AuditedRun(place, [("straight", 0, 2)], {}).losses() == {1: "0.5", 2: "0.25"}


def test_a_trainer_that_data_make_no_difference_to_gets_a_note(run, tmp_path):
    """Nothing could show then that it doesn't go on from its checkpoint."""
    np.save(tmp_path / "tokens.npy", np.zeros(100, np.uint8))
    result = run(command("no log"), stops={})
    assert result["outcome"] == "exact"
    notes = cases(result)["killed"]["notes"]
    assert notes == [
        "neither its log nor its trace shows where its processes begin and end, and with other data: it "
        "ends with the same weights"
    ]


def leg(start, end, logged=None, rows=None, previous=0, name="leg"):
    return Leg(name, start, end, previous, logged, rows)


def span(first, last, step=1):
    return list(range(first, last + 1, step))


@pytest.mark.parametrize(
    ("straight", "run", "kinds"),
    [
        # The trace counts batches, two to an update; the log counts updates.
        (leg(0, 30, span(1, 30), span(1, 60)), [leg(17, 30, span(18, 30), span(35, 60))], []),
        (leg(0, 30, span(1, 30), span(1, 60)), [leg(17, 30, span(1, 30), span(1, 60))], ["started_from_scratch"]),
        (leg(0, 30, span(1, 30), span(1, 60)), [leg(17, 30, span(1, 30), span(35, 60))], []),
        (leg(0, 30, [], span(1, 60)), [leg(0, 17, [], span(1, 60)), leg(17, 30, [], None)], ["did_not_stop"]),
        (leg(0, 30, [], span(1, 60)), [leg(17, 30, [], span(33, 60))], ["started_early"]),
        (leg(0, 30, [], span(1, 60)), [leg(17, 30, [], span(37, 60))], ["started_late"]),
        (leg(0, 30, [], span(1, 60)), [leg(17, 30, [], span(35, 58))], ["stopped_early"]),
        (leg(0, 30, [], span(1, 60)), [leg(17, 30, [], span(1, 26))], []),
        # Steps of different numbers of batches.
        (leg(0, 30, [], span(1, 59)), [leg(0, 17, [], span(1, 33)), leg(17, 30, [], span(34, 59))], []),
        (leg(0, 30, [], span(1, 59)), [leg(0, 17, [], span(1, 59))], ["did_not_stop"]),
        (
            leg(0, 30, [], span(1, 59)),
            [leg(0, 17, [], span(1, 33)), leg(17, 30, [], span(1, 59))],
            ["started_from_scratch"],
        ),
        # A log of batches, and one of every tenth step, whose last one is the only one in some legs.
        (leg(0, 30, span(1, 60)), [leg(0, 17, span(1, 34)), leg(17, 30, span(35, 60))], []),
        (leg(0, 30, span(10, 30, 10)), [leg(0, 17, [10]), leg(17, 30, [20, 30])], []),
        (leg(0, 30, span(10, 30, 10)), [leg(0, 17, [10, 20, 30])], ["did_not_stop"]),
        # A loss from before the first step, in each process, beside the log of batches, of every tenth step, of one
        # that counts from 0.
        (leg(0, 30, span(0, 30)), [leg(0, 17, span(0, 17)), leg(17, 30, [0, *span(18, 30)])], []),
        (leg(0, 30, span(1, 30)), [leg(17, 30, [0, *span(18, 30)])], []),
        (leg(0, 30, span(0, 60)), [leg(17, 30, [0, *span(35, 60)])], []),
        (leg(0, 30, span(0, 30, 10)), [leg(17, 30, [0, 20, 30])], []),
        (leg(0, 30, span(0, 29)), [leg(17, 30, [0, *span(17, 29)])], []),
        (leg(0, 30, span(0, 30)), [leg(17, 30, [0, *span(17, 30)])], ["started_early"]),
        (leg(0, 30, span(0, 30)), [leg(17, 30, [0, *span(19, 30)])], ["started_late"]),
        (leg(0, 30, span(0, 30)), [leg(0, 17, span(0, 18))], ["did_not_stop"]),
        # Of several resumes the third one repeats a step, with what was logged before it and without.
        (leg(0, 30, span(1, 30)), [leg(19, 30, span(19, 30), previous=7)], ["started_early"]),
        (leg(0, 30, span(1, 30)), [leg(19, 30, [*span(1, 7), *span(19, 30)], previous=7)], ["started_early"]),
    ],
)
def test_legs_are_held_against_what_the_uninterrupted_run_logs_and_traces(straight, run, kinds):
    found, _ = legs.faults(30, straight, run)
    assert [fault["kind"] for fault in found] == kinds


@pytest.mark.parametrize(
    ("straight", "run"),
    [
        (leg(0, 30, None), [leg(17, 30, None)]),
        (leg(0, 30, []), [leg(17, 30, [])]),
        (leg(0, 30, [30]), [leg(17, 30, [30])]),
        # The log of every tenth step of each process, numbers that are epochs, and ones that grow.
        (leg(0, 30, span(10, 30, 10)), [leg(17, 30, [27])]),
        (leg(0, 30, [1, 2, 3]), [leg(0, 17, [1]), leg(17, 30, [2, 3])]),
        (leg(0, 30, [1, 2, 4, 8, 16]), [leg(17, 30, [18])]),
        (leg(0, 30, [-1, 0, 1]), [leg(17, 30, [-1])]),
        (leg(0, 30, span(1, 30)), [leg(17, 30, span(1, 30))]),
        (leg(0, 30, span(0, 30)), [leg(17, 30, span(0, 30))]),
        (leg(0, 30, span(0, 30)), [leg(17, 30, [0])]),
    ],
)
def test_legs_that_nothing_shows_are_neither_right_nor_wrong(straight, run):
    assert legs.faults(30, straight, run) == ([], True)


# A saver that is right only once.


def test_a_second_save_that_writes_the_first_ones_tensors_is_found(run):
    result = run(command("save once"), **FEW)
    assert {name for name, case in cases(result).items() if not case["passed"]} == {"saved-twice"}
    assert cases(result)["saved-twice"]["max_abs_diff"] > 0


def test_a_trainer_that_cant_save_and_stop_gets_a_result_that_says_so(run):
    result = run(command("crash on two"), **FEW)
    told = "with --save-at 2 and --stop-at 4 together: exit status 1: --save-at can't stand with --stop-at"
    assert (cases(result)["saved-twice"]["status"], cases(result)["saved-twice"]["error"]) == ("crashed", told)
    assert result["verdict"] == f"not exact: saved-twice failed; crashed: {told}"


# Nothing outside the audit's folder is touched.

# What trainers put where they shouldn't; `outside` is somebody else's folder, `here` that of the process.
PLANTED = {
    "beside": "os.symlink(outside, here / 'checkpoint.latest')",
    "up": "os.symlink('..', here / 'checkpoint.up'); os.symlink('.', here / 'checkpoint.here')",
    "down": (
        "os.mkdir(here / 'saved.d'); os.symlink('saved.d/x', here / 'checkpoint.x'); os.symlink(outside, here "
        "/ 'saved.d/x')"
    ),
    "dangling": "os.symlink(outside / 'nothing', here / 'checkpoint.gone')",
    "loop": "os.symlink('checkpoint.b', here / 'checkpoint.a'); os.symlink('checkpoint.a', here / 'checkpoint.b')",
    "hard link": "os.link(outside / 'mine', here / 'checkpoint.hard')",
    "next folder": (
        "here.name == 'straight' and [os.symlink(outside, here.parent / name) for name in ('repeat', 'save')]"
    ),
    "next log": (
        "here.name == 'straight' and os.symlink(outside / 'mine', os.mkdir('work/save') or 'work/save/output.log')"
    ),
    "log": "os.unlink(here / 'output.log'); os.symlink(outside / 'mine', here / 'output.log')",
    "pipes": "os.mkfifo(here / 'checkpoint.pipe'); os.mkfifo(here / 'trace.csv')",
    "read-only": (
        "os.mkdir(here / 'checkpoint.ro'); (here / 'checkpoint.ro/file').touch(); os.chmod(here / 'checkpoint.ro', 0)"
    ),
}


@pytest.fixture
def outside(tmp_path):
    """A folder of somebody else's, with what must stay in it."""
    folder = tmp_path / "outside"
    (folder / "checkpoint").mkdir(parents=True)
    for name in ("mine", "checkpoint/mine", "w.safetensors", "output.log"):
        (folder / name).write_text("precious")
    return folder


def untouched(outside, but=None):
    names = ["mine", "checkpoint/mine", "w.safetensors", "output.log"]
    return all((outside / name).read_text() == "precious" for name in names if name != but)


def planting(outside, code):
    return command("plant", note=f"outside, here = Path({str(outside)!r}), Path(args.out).parent; {code}")


@pytest.mark.parametrize("planted", PLANTED)
def test_nothing_outside_is_touched_whatever_links_a_trainer_plants(run, tmp_path, outside, planted, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(planting(outside, PLANTED[planted]), stops={})
    assert untouched(outside) and len(list(outside.rglob("*"))) == 5
    assert result["outcome"] == "exact", result["verdict"]
    kept = {"output.log", "losses.csv", "trace.csv"}
    assert left_behind(tmp_path) <= kept, "what lies in the folders goes away"


@pytest.mark.parametrize("at", ["straight", "saved-twice-1"])
def test_trainer_that_puts_a_link_in_place_of_the_audits_folders_gets_a_result(run, outside, at):
    # What lies there the trainer itself may overwrite.
    moved = "(os.rename({0}, str({0}) + '.moved'), os.symlink(outside, {0})) if here.name == {1!r} else None"
    assert run(planting(outside, moved.format("here", at)), stops={})["outcome"] in ("failed", "inexact")
    assert untouched(outside, but="w.safetensors")
    result = run(planting(outside, f"({moved.format('here.parent', at)}) and os._exit(0)"), stops={})
    assert result["outcome"] in ("failed", "inexact")
    assert "meddled" in result["verdict"]
    assert untouched(outside, but="w.safetensors")


def test_folder_of_somebody_elses_is_not_emptied(run, tmp_path, outside):
    (tmp_path / "work").symlink_to(outside)
    with pytest.raises(LabError, match="work: found a link or a file, wanted a folder"):
        run(command())
    (tmp_path / "work").unlink()
    outside.rename(tmp_path / "work")
    with pytest.raises(LabError, match="work: found files of somebody else's"):
        run(command())
    assert untouched(tmp_path / "work")


# All that a trainer starts ends with it.

DAEMON = (
    "import os, time; os.setsid(); os.fork() and os._exit(0); open({0!r}, 'w').write(str(os.getpid())); "
    "time.sleep(1000)"
)
# Each child is there before its parent ends.
HYDRA = (
    "import os\nwhile True:\n    os.fork() and os._exit(0)\n"
    "    open({0!r} + 'n', 'w').write(str(os.getpid()))\n    os.replace({0!r} + 'n', {0!r})"
)
STARTED = {
    "session": (
        "import os, time; os.setsid(); open({0!r}, 'w').write(str(os.getpid())); time.sleep(1000)",
        "time.sleep(1000)",
    ),
    "daemon": (DAEMON, "time.sleep(1000)"),
    "hydra": (HYDRA, "time.sleep(1000)"),
    "daemon of one that ends": (DAEMON, "sys.exit('enough')"),
}


@pytest.mark.parametrize("name", STARTED)
def test_no_process_outlives_its_trainer(run, tmp_path, name):
    """Neither when it takes too long nor when it ends by itself; and no other child of the audit's caller is ended."""
    code, then = STARTED[name]
    file = tmp_path / "pid"
    started = f"subprocess.Popen([sys.executable, '-c', {code.format(str(file))!r}], env={{'PATH': ''}})"
    waiting = f"any(iter(lambda: os.path.exists({str(file)!r}) and open({str(file)!r}).read(), None))"
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        result = run(command("plant", note=f"{started}; {waiting}; {then}"), timeout=6)
        assert result["status"] == ("crashed" if "ends" in name else "timed_out")
        assert not alive(int(file.read_text()))
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()


def test_killed_trainer_writes_no_more(run, tmp_path):
    """Its worker, in a session of its own, would damage the checkpoint that is resumed from."""
    worker = "import sys, time; time.sleep(1.5); open(sys.argv[1], 'w').write('torn')"
    code = (
        f"args.save_at and subprocess.Popen([sys.executable, '-c', {worker!r}, args.save_to], start_new_session=True)"
    )
    # Which lies there until the worker would have written to it.
    code += "; 'killed-1' in (args.resume or '') and time.sleep(3)"
    result = run(command("plant", note=code), stops={})
    assert cases(result)["killed"]["passed"], result["verdict"]


def test_trainer_that_kills_its_parent_is_ended_and_gets_a_result(run, tmp_path):
    code = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); os.kill(os.getppid(), 9); time.sleep(1000)"
    assert run(command("plant", note=code))["error"] == "ended by SIGKILL"
    while alive(int((tmp_path / "pid").read_text())):
        time.sleep(0.02)


# Every case has a result, whatever a trainer does.

OUT = "os.open(args.out, os.O_CREAT | os.O_WRONLY)"
ODD_WEIGHTS = {
    "a sparse file as large as a disk": f"os.truncate({OUT}, 2**40); os._exit(0)",
    "a pipe": "os.mkfifo(args.out); os._exit(0)",
    "a link to a device": "os.symlink('/dev/zero', args.out); os._exit(0)",
    "a link to itself": "os.symlink(args.out, args.out); os._exit(0)",
    "a deep folder": (
        "[(os.mkdir('d'), os.chdir('d')) for _ in [os.mkdir(args.out), os.chdir(args.out)] * 600]; os._exit(0)"
    ),
    "output that is no text": "os.write(1, bytes(range(128, 256)) * 999); sys.exit(3)",
    "its own stop": "os.kill(os.getpid(), 19)",
    "names that are no text": "save_file({'a\\nb': [float('nan')]}, args.out); os._exit(0)",
}
NO_LOG = "exact: stopped or not, it ends with the same bits; logged losses not compared: "
ODD_LOGS = {
    "a pipe as log": ("os.mkfifo(args.log)", "straight/losses.csv: found something else than a file"),
    "a device as log": ("os.symlink('/dev/zero', args.log)", "straight/losses.csv: found a link that leads out"),
    "a binary log": (
        "open(args.log, 'wb').write(bytes(range(256)) * 99)",
        "straight/losses.csv: no text, wanted a CSV with the columns step",
    ),
    "a log of words": (
        "open(args.log, 'w').write('step,train_loss\\none,0.5\\n')",
        "straight/losses.csv: line 2: found step 'one' and train_loss '0.5', wanted a whole number and a number",
    ),
    "a log without a loss": (
        "open(args.log, 'w').write('step,train_loss\\n1\\n')",
        "straight/losses.csv: line 2: found step '1' and train_loss ''",
    ),
    "a log of tensors": (
        "open(args.log, 'w').write('step,train_loss\\n1,tensor(0.5)\\n')",
        "straight/losses.csv: line 2: found step '1' and train_loss 'tensor(0.5)'",
    ),
    "other columns": (
        "open(args.log, 'w').write('epoch,loss\\n1,0.5\\n')",
        "straight/losses.csv: no column step: found 'epoch,loss', wanted the columns step,train_loss",
    ),
    "an empty log": (
        "open(args.log, 'w')",
        "straight/losses.csv: empty, wanted a CSV with the columns step,train_loss",
    ),
    "a sparse log": (
        "os.truncate(os.open(args.log, os.O_CREAT | os.O_WRONLY), 2**40)",
        "straight/losses.csv: found 1099511627776 bytes",
    ),
    "a resumed log that is empty": ("args.resume and open(args.log, 'w')", "killed-2/losses.csv: empty, wanted a CSV"),
    "a log of straight alone": (
        "'straight' in args.log and open(args.log, 'w').write('step,train_loss\\n9,1\\n')",
        "nothing logged by repeat",
    ),
    "a log of the resumed alone": (
        "args.resume and open(args.log, 'w').write('step,train_loss\\n9,1\\n')",
        "nothing logged by straight",
    ),
}
ODD = [
    *(pytest.param("plant", code, "failed", "no verdict: ", id=name) for name, code in ODD_WEIGHTS.items()),
    *(pytest.param("plant, no log", code, "exact", NO_LOG + told, id=name) for name, (code, told) in ODD_LOGS.items()),
]


@pytest.mark.parametrize(("do", "code", "outcome", "told"), ODD)
def test_whatever_a_trainer_leaves_its_audit_ends_with_a_result_that_says_it(run, do, code, outcome, told):
    result = run(command(do, note=code), timeout=4 if outcome == "failed" else 60, stops={})
    assert result["outcome"] == outcome
    assert result["verdict"].startswith(told) and "\n" not in result["verdict"]
    json.dumps(result, ensure_ascii=False, allow_nan=False).encode()


def test_a_fault_of_ours_is_not_taken_for_a_file_that_cant_be_read(run, monkeypatch):
    """It is told with its type and place, or ends the audit."""
    monkeypatch.setattr(diagnosis, "diagnose", lambda *_: {}["verdict"])
    result = run(command("trace"), stops={})
    assert re.search(
        r"^the traces can't be held against each other: KeyError in test_audit.py, line \d+: 'verdict'$",
        cases(result)["repeat"]["notes"][0],
    )
    monkeypatch.setattr(comparison, "first_difference", lambda *_: {}["loss"])
    assert "unreadable: KeyError in test_audit.py, line" in run(command(), stops={})["verdict"]


# Tensors.


def tensors():
    weight = torch.tensor([1.0, -2.0])
    return {
        "parameter": torch.nn.Parameter(weight),
        "needs gradients": weight.clone().requires_grad_(),
        "buffer": torch.nn.Buffer(weight),
        "no dimension": torch.tensor(2.0),
        "no element": torch.zeros(0, 3),
        "bool": torch.tensor([True, False]),
        "int64": torch.tensor([2**62, 2**62 + 1]),
        "uint16": torch.tensor([7], dtype=torch.uint16),
        "complex": torch.tensor([1 + 2j]),
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "transposed": torch.arange(6.0).view(2, 3).T,
        "bfloat16": weight.bfloat16(),
        "float8": weight.to(torch.float8_e4m3fn),
        "float8 exponents": torch.tensor([1.0]).to(torch.float8_e8m0fnu),
        "float4": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "bits": torch.zeros(2, dtype=torch.uint8).view(torch.bits8),
    }


def test_tensors_of_every_kind_are_read_and_held_against_each_other(tmp_path):
    torch.save(tensors(), tmp_path / "a.pth")
    one, other = readers.read(tmp_path / "a.pth"), readers.read(tmp_path / "a.pth")
    assert all(type(tensor) is torch.Tensor and not tensor.requires_grad for tensor in one.values())
    comparison.check_same_tensors(one, other, "a", "b")
    assert comparison.same_bits(one, other)
    assert comparison.distance(one, other) == {"max_abs_diff": 0, "rel_l2": 0}


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (torch.tensor([1 + 2j]), torch.tensor([1 - 2j]), 4),
        (torch.tensor([True]), torch.tensor([False]), 1),
        (torch.tensor([0.0]), torch.tensor([-0.0]), 0),
        (torch.tensor([2**62]), torch.tensor([2**62 + 1]), 0),
        (
            torch.tensor([1.7e308], dtype=torch.float64),
            torch.tensor([-1.7e308], dtype=torch.float64),
            np.finfo(np.float64).max,
        ),
        (torch.zeros(1, dtype=torch.uint8).view(torch.bits8), torch.ones(1, dtype=torch.uint8).view(torch.bits8), 0),
    ],
)
def test_what_differs_in_any_bit_is_not_the_same(one, other, difference):
    one, other = {"w": one}, {"w": other}
    assert not comparison.same_bits(one, other)
    found = comparison.distance(one, other)
    assert found["max_abs_diff"] == difference
    assert np.isfinite(found["rel_l2"])
    case = Case(**found)
    give_reasons(case, [], same_bits=False)
    assert [reason["kind"] for reason in case.reasons] == [
        "weights_differ" if difference else "bits_differ",
        "unexplained",
    ]


def test_a_view_of_fewer_values_is_refused(tmp_path):
    torch.save({"w": torch.ones(1).expand(2**40)}, tmp_path / "a.pth")
    with pytest.raises(LabError, match="made of fewer values, wanted a dense tensor"):
        readers.read(tmp_path / "a.pth")


# Advice.


def test_advice_belongs_to_the_entry_and_not_to_its_name():
    section = completed({})["audit"]
    ours = audit_settings.trainers(section, None)["ignite"]
    assert set(ours["advice"]) == {"en", "ko"} and ours["fixed_by"] == "ignite-fixed"
    section["trainers"]["ignite"] = {**section["trainers"]["ignite"], "command": "python mine.py"}
    theirs = audit_settings.trainers(section, None)["ignite"]
    assert (theirs["advice"], theirs["fixed_by"]) == ({}, None)
    section["trainers"]["ignite"]["advice"] = {"en": "save more"}
    assert audit_settings.trainers(section, None)["ignite"]["advice"] == {"en": "save more"}


# The last line of a call.


def test_summary_names_the_trainers_that_are_not_exact():
    outcomes = {"a": "exact", "b": "failed", "c": "inexact"}
    exact, failed, worse = ({"name": name, "outcome": outcome, "verdict": "says"} for name, outcome in outcomes.items())
    assert summary([exact]) == "Audit of a: says"
    assert summary([exact, failed, worse]) == "Audit: 1 of 3 trainers are exact; failed: b; inexact: c"


# How the final weights may lie there.


def test_weights_are_read_in_every_usual_form(tmp_path):
    weights = {"w": torch.arange(3.0), "n": torch.tensor(2)}
    torch.save(weights, tmp_path / "a.pth")
    torch.save(weights, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    save_file(weights, tmp_path / "c.safetensors")
    (tmp_path / "d").mkdir()
    save_file(weights, tmp_path / "d" / "model.safetensors")
    (tmp_path / "d" / "config.json").write_text("{}")
    for name in ("a.pth", "b.pt", "c.safetensors", "d"):
        read = readers.read(tmp_path / name)
        assert read.keys() == weights.keys()
        assert all(torch.equal(read[key], weights[key]) for key in weights)


def unreadable(folder):
    """Write files of which none holds the weights; return what is said of each."""
    torch.save({"model": {"w": torch.ones(2)}}, folder / "nested.pth")
    torch.save([torch.ones(2)], folder / "list.pth")
    torch.save({}, folder / "empty.pth")
    torch.save({"w": torch.ones(2).to_sparse()}, folder / "sparse.pth")
    torch.save({"w": torch.full((2,), torch.nan).to(torch.float8_e4m3fn)}, folder / "float8.pth")
    torch.save(torch.nn.Linear(1, 1), folder / "module.pth")
    (folder / "text.pth").write_text("hello")
    (folder / "text.safetensors").write_text("hello")
    (folder / "weights.bin").write_text("hello")
    (folder / "two").mkdir()
    for name in ("one.pt", "two.pth"):
        torch.save({"w": torch.ones(2)}, folder / "two" / name)
    return {
        "nested.pth": "found dict under 'model', wanted nothing but the model's tensors by name",
        "list.pth": "found list, wanted the model's tensors by name",
        "empty.pth": "found no tensors, wanted the model's",
        "sparse.pth": "tensor w: found torch.sparse_coo, torch.float32, on cpu, wanted a dense tensor",
        "float8.pth": "tensor w holds values that are not finite",
        "module.pth": "not a checkpoint that is safe to read",
        "text.pth": "not a torch file that is safe to read",
        "text.safetensors": "not a safetensors file",
        "weights.bin": "not a torch file that is safe to read",
        "two": "found one.pt, two.pth, wanted a folder with just one",
        "nothing.pth": "no such file or folder, wanted a checkpoint",
    }


def test_anything_else_is_refused_in_one_line(tmp_path):
    for name, message in unreadable(tmp_path).items():
        with pytest.raises(LabError) as refused:
            readers.read(tmp_path / name)
        assert str(refused.value).startswith(f"{tmp_path / name}: {message}")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("form", ["folder", "sharded"])
def test_folder_of_weights_is_audited(form, run):
    assert run(command(form), stops={"early": [3]}, weights="model")["outcome"] == "exact"


# Commands.


def test_no_shell_sees_a_command_unless_it_is_told_to(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "mein Trainer 훈련.py"
    script.write_text(TRAINER.read_text())
    note = """$(touch x) `touch x` ; touch x & "a" 'b' \\"""
    assert run(command(script=script, note=note), stops={})["outcome"] == "exact"
    assert (tmp_path / "work" / "straight" / "output.log").read_text().strip() == note
    assert not (tmp_path / "x").exists()


def test_shell_runs_a_command_when_it_is_told_to(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(f'touch x; {command()} --note "$(echo told)"', stops={}, shell=True)["outcome"] == "exact"
    assert (tmp_path / "work" / "straight" / "output.log").read_text() == "told\n"
    assert (tmp_path / "x").exists()


# The verbs.


def audit_flags(tmp_path, do, *more):
    np.save(tmp_path / "tokens.npy", np.arange(100).astype(np.uint8))
    run = ["--steps", "9", "--stop", "early=3", "--save-at", "4", "--weights", "w.safetensors"]
    files = ["--tokens", "tokens.npy", "--work", "work", "--out", "mine.json", "--times", "times.json"]
    return ["--name", "mine", f"--command={command(do)}", *run, *files, *more]


def test_result_has_versions_and_no_clock_and_times_lie_apart(verb, tmp_path):
    results = []
    for _ in range(2):
        assert verb("audit_trainer", *audit_flags(tmp_path, "lose, save slowly", "--package", "numpy")).returncode == 0
        results.append((tmp_path / "mine.json").read_bytes())
    assert results[0] == results[1]
    assert json.loads(results[0])["versions"] == {"numpy": np.__version__}
    times = json.loads((tmp_path / "times.json").read_text())
    assert times["save"] > 0.5, "the trainer sleeps when it saves"
    assert set(times["resume"]) == {"early"}


def test_package_that_is_not_installed_skips_the_trainer(verb, tmp_path):
    assert verb("audit_trainer", *audit_flags(tmp_path, "", "--package", "no-such-package")).returncode == 0
    result = json.loads((tmp_path / "mine.json").read_text())
    assert (result["outcome"], result["error"]) == ("skipped", "not installed: no-such-package")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stop", "early"], "--stop: found 'early', wanted NAME=K or NAME=K,K2"),
        (["--command=python 'x"], '--command: found "python \'x": No closing quotation, wanted a command line'),
        (["--command= "], "--command: found ' ', wanted a command line"),
    ],
)
def test_misuse_is_one_line(verb, tmp_path, flags, message):
    assert message in failed_with_one_line(verb("audit_trainer", *audit_flags(tmp_path, "", *flags)))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_ended_audit_leaves_no_process_behind(verb, tmp_path, number, status):
    """Not one that is killed either. The next one finds its folder as it was left."""
    script = str(ROOT / "workflow" / "scripts" / "audit_trainer.py")
    process = subprocess.Popen([sys.executable, script, *audit_flags(tmp_path, "hang")], cwd=tmp_path)
    child = tmp_path / "work" / "straight" / "child"
    while not (child.exists() and child.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    pid = int(child.read_text())
    assert alive(pid)
    process.send_signal(number)
    assert process.wait() == status
    # Who ends a killed audit's trainer does so after it.
    while alive(pid):
        assert number == signal.SIGKILL
        time.sleep(0.02)
    (tmp_path / "work" / "early-1").mkdir()
    assert verb("audit_trainer", *audit_flags(tmp_path, "")).returncode == 0
    assert json.loads((tmp_path / "mine.json").read_text())["outcome"] == "exact"


@pytest.mark.parametrize(("exact", "status"), [([], 0), (["good"], 0), (["good", "bad"], 1)])
def test_check_fails_for_just_the_trainers_that_should_be_exact(verb, tmp_path, exact, status):
    for name, outcome in (("good", "exact"), ("bad", "inexact"), ("broken", "failed")):
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"name": name, "outcome": outcome, "verdict": f"says {name}"})
        )
    result = verb(
        "check_audit", "good.json", "bad.json", "broken.json", *(part for name in exact for part in ("--exact", name))
    )
    assert result.returncode == status
    assert all(f"{name}: says {name}" in result.stdout for name in ("good", "bad", "broken"))
    assert ("FAIL  bad: says bad" in result.stdout) == ("bad" in exact)


ACTIONS = [
    {"action": "lost"},
    {"action": "rewound", "by": 2},
    {"action": "skipped_ahead", "by": 1},
    {"action": "rounded", "to": "float16"},
    {"action": "swapped", "other": "ema"},
    {"action": "reordered"},
    {"action": "different"},
    {"action": "different", "found": "eval", "wanted": "train"},
]


@pytest.mark.parametrize("language", ["ko", "en"])
def test_document_tells_every_diagnosis_and_ranks_what_is_lost(verb, tmp_path, language):
    """Also of a name that would end Markdown's code."""
    for number, action in enumerate(ACTIONS):
        found = {
            "verdict": "inputs",
            "unit": "batch",
            "row": 4,
            "as_row": 4,
            "shows": 4,
            "last_row": 9,
            "latent": [],
            "not_looked_at": [],
        }
        found.update(
            culprits=[{"component": "optimizer", **action}],
            explained=["lr"],
            notes=[{"kind": "repeated", "rows": [5, 6]}],
        )
        found.update(outputs=[], unused=[])
        case = Case(
            passed=False,
            max_abs_diff=0.5,
            rel_l2=0.1,
            diagnosis={**found, "sentence": diagnosis.sentence(found)},
            notes=["a `b`"],
        )
        give_reasons(case, [], same_bits=False)
        gates = {
            "repeat": Case(passed=True),
            "save": Case(passed=True),
            "resume": {"early": case, "killed": Case("not_tried")},
        }
        result = {"name": f"t{number}", "versions": {"torch": None}, "stops": {"early": [3]}, "atomic": False}
        (tmp_path / f"{number}.json").write_text(json.dumps({**result, **make("ok", None, gates, 4, 2)}))
    results = [f"{number}.json" for number in range(len(ACTIONS))]
    template = ROOT / "templates" / f"audit.{language}.md.j2"
    told = verb(
        "render_audit",
        *results,
        "--template",
        template,
        "--picture",
        "a b.svg",
        "--fixed-by",
        "t0=t1",
        "--out",
        "audit.md",
    )
    assert told.returncode == 0, told.stderr
    text = (tmp_path / "audit.md").read_text()
    assert f"| `optimizer` | {len(ACTIONS)} |" in text
    assert "- early: `a 'b'`" in text
    assert "](a%20b.svg)" in text
    told = re.findall(r"^- early: .*optimizer.*", text, re.MULTILINE)
    assert len(set(told)) == len(ACTIONS), told


# The config.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"only": ["mime"]}, "config key audit.only: found 'mime', wanted one of mine"),
        ({"command": "python 'x"}, 'config key audit.trainers.mine.command: found "python \'x": No closing quotation'),
        (
            {"weights": "checkpoint"},
            "config key audit.trainers.mine.weights: found checkpoint, wanted a name other than checkpoint, saved",
        ),
        ({"command": " "}, "config key audit.trainers.mine.command: found ' ', wanted a command line"),
        (
            {"stops": {"killed": [3]}},
            "config key audit.trainers.mine.stops: found killed, wanted a name other than repeat, save, killed",
        ),
        ({"stops": {"early": [6, 3]}}, "config key audit.trainers.mine.stops.early: found 3, wanted a step in 7...29"),
        ({"steps": 17}, "config key audit.stops.mid-epoch: found 17, wanted a step in 1...16"),
        ({"save_at": 30}, "config key audit.trainers.mine.save_at: found 30, wanted a step in 1...29"),
        ({"fixed_by": "yours"}, "config key audit.trainers.mine.fixed_by: found 'yours', wanted one of mine"),
        ({"fixed_by": "mine"}, "config key audit.trainers.mine.fixed_by: found mine, wanted another trainer"),
        (
            {"weights": "Checkpoint"},
            "config key audit.trainers.mine.weights: found Checkpoint, wanted a name other than checkpoint",
        ),
        (
            {"stops": {"a": [3], "a-other-data-1": [5]}},
            "config key audit.trainers.mine.stops: found a-other-data-1, wanted a name that doesn't end in "
            "-other-data- and a number",
        ),
        (
            {"stops": {"killed-Other-Data-2": [5]}},
            "config key audit.trainers.mine.stops: found killed-Other-Data-2, wanted a name that",
        ),
        (
            {"stops": {"A": [3], "a": [5]}},
            "config key audit.trainers.mine.stops: found A and a, wanted names that differ in more than case",
        ),
        (
            {"stops": {"Killed": [3]}},
            "config key audit.trainers.mine.stops: found Killed, wanted a name other than repeat, save, killed",
        ),
    ],
)
def test_trainer_that_cant_be_audited_so_is_refused_in_one_line(change, message):
    section = completed({})["audit"]
    only = change.pop("only", [])
    section.update(only=only, trainers={"mine": {"command": "python mine.py", **change}})
    with pytest.raises(LabError) as refused:
        audit_settings.check(section, None)
    assert str(refused.value).startswith(message)


def test_trainers_that_cure_each_other_or_are_called_almost_the_same_are_refused():
    section = completed({})["audit"]
    cures = {
        name: {"command": "x", "fixed_by": cure}
        for name, cure in {"one": "two", "two": "three", "three": "two"}.items()
    }
    with pytest.raises(
        LabError,
        match=r"^config key audit.trainers.two.fixed_by: found three, which is fixed by two in turn, wanted another",
    ):
        audit_settings.check({**section, "trainers": cures}, None)
    with pytest.raises(
        LabError, match=r"^config key audit.trainers: found one and One, wanted names that differ in more than case"
    ):
        audit_settings.check({**section, "trainers": {"one": {"command": "x"}, "One": {"command": "x"}}}, None)


def test_trainer_that_needs_a_checkout_is_skipped_without_one():
    section = completed({})["audit"]
    without = audit_settings.trainers(section, None)
    assert {name for name, trainer in without.items() if trainer["skip"]} == {"minimind", "minimind-fixed"}
    assert without["minimind"]["skip"] == "it needs a checkout of MiniMind: --config minimind=PATH"
    given = audit_settings.trainers(section, "my checkouts/$(touch x)")
    assert not any(trainer["skip"] for trainer in given.values())
    assert command_line.split(given["minimind"]["command"])[-1] == "my checkouts/$(touch x)"


def test_skipped_trainer_starts_nothing(verb, tmp_path):
    assert verb("audit_trainer", *audit_flags(tmp_path, "crash", "--skip", "no checkout")).returncode == 0
    result = json.loads((tmp_path / "mine.json").read_text())
    assert (result["outcome"], result["error"], result["verdict"]) == ("skipped", "no checkout", "skipped: no checkout")
    assert not (tmp_path / "work").exists()


def test_every_trainer_that_is_not_exact_has_a_fixed_one_that_has_to_be():
    trainers = completed({})["audit"]["trainers"]
    for name, trainer in trainers.items():
        assert trainer.get("expect") == "exact" or trainers[trainer["fixed_by"]]["expect"] == "exact", name


def test_snakemake_cant_watch_a_file_with_braces_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a{b}.py").write_text("")
    section = completed({})["audit"]
    with pytest.raises(LabError, match=r"mine.command: found 'a\{b\}.py', wanted files without braces"):
        audit_settings.check({**section, "trainers": {"mine": {"command": "python a{b}.py"}}}, None)


# The pipeline.


@pytest.fixture(scope="module")
def project(made_once, tmp_path_factory):
    """A copy of the project in which three trainers have been audited; its config is audit.yaml."""
    target = tmp_path_factory.mktemp("audited") / "project"
    return shutil.copytree(made_once("audited", audit_three), target, copy_function=shutil.copy2)


def audit_three(project):
    for name in ("train", "val"):
        np.save(project / f"{name}.npy", np.random.default_rng(1).integers(0, 256, 100).astype(np.uint8))
    folder = project / "my trainers"
    folder.mkdir()
    trainers = {}
    for name, do in (("good", ""), ("loses", "lose"), ("crashes", "crash")):
        (folder / f"{name}.py").write_text(TRAINER.read_text())
        trainers[name] = {
            "command": f"python 'my trainers/{name}.py' --do '{do}'",
            "packages": ["numpy"],
            "weights": "w.safetensors",
        }
    trainers["good"]["expect"] = "exact"
    section = {
        "only": list(trainers),
        "steps": 9,
        "stops": {"mid-epoch": [3], "epoch-boundary": [4], "two-resumes": [2, 6]},
        "save_at": 4,
    }
    config = {"data": {"train": "train.npy", "val": "val.npy"}, "audit": {**section, "trainers": trainers}}
    (project / "audit.yaml").write_text(yaml.safe_dump(config))
    result = snakemake(project, "-c2", "audit.md", configfile=project / "audit.yaml")
    assert result.returncode == 0, result.stderr


def planned(project, *flags, target="audit.md"):
    """The jobs that Snakemake would run: rules, and for the audits the trainers."""
    result = snakemake(project, target, "-c1", "-n", *flags, "--quiet", "host", configfile=project / "audit.yaml")
    assert result.returncode == 0, result.stderr + result.stdout
    text = result.stdout + result.stderr
    rules = set(re.findall(r"^(\w+) +\d+$", text, re.MULTILINE)) - {"total", "audit", "audit_trainer"}
    return rules | set(re.findall(r"^Job \d+: Audits (\w+)", text, re.MULTILINE))


@pytest.mark.pipeline
def test_document_has_a_row_for_every_trainer_in_both_languages(project, tmp_path):
    text = (project / "audit.md").read_text()
    rows = {line.split("`")[1]: line for line in text.split("## ")[0].splitlines() if line.startswith("| `")}
    assert set(rows) == {"good", "loses", "crashes"}
    assert rows["good"].count("| 같음 ") == 7
    assert (rows["loses"].count("| 같음 "), rows["loses"].count("| **다름** ")) == (2, 5)
    assert "- `crashes`: 오류로 끝남: `exit status 1: out of luck: no GPU`" in text
    picture = re.search(r"!\[.*?\]\((.*?)\)", text).group(1)
    assert (project / picture).read_text().startswith("<?xml")
    result = snakemake(project, "-c1", "audit.md", "--config", "language=en", configfile=project / "audit.yaml")
    assert result.returncode == 0, result.stderr
    english = (project / "audit.md").read_text()
    assert "1 of 3 trainers passed all three gates" in english
    assert "- `crashes`: crashed: `exit status 1: out of luck: no GPU`" in english
    snakemake(project, "-c1", "audit.md", configfile=project / "audit.yaml")
    assert (project / "audit.md").read_text() == text


@pytest.mark.pipeline
def test_only_what_depends_on_a_change_is_audited_again(project):
    assert planned(project) == set()
    changed = {"plot_audit", "render_audit"}
    assert planned(project, "--config", "audit={trainers: {good: {packages: [numpy, torch]}}}") == {"good", *changed}
    assert planned(project, "--config", "audit={trainers: {loses: {stops: {early: [5]}}}}") == {"loses", *changed}
    assert planned(project, "--config", "audit={steps: 8}") == {"good", "loses", "crashes", *changed}
    assert planned(project, "--config", "audit={timeout: 5, trainers: {loses: {expect: exact}}}") == set()
    assert planned(project, "--config", "language=en") == {"render_audit"}
    script = project / "my trainers" / "loses.py"
    text = script.read_text()
    script.write_text(text + "# No other meaning.\n")
    assert planned(project) == set()
    script.write_text(text + "MORE = 1\n")
    assert planned(project) == {"loses", *changed}
    script.write_text(text)
    assert not planned(project, target="report.md") & {"audit_tokens", "good", "loses", "crashes", *changed}


@pytest.mark.pipeline
def test_another_version_of_a_package_redoes_its_trainers(project):
    versions = project / "workflow" / "rules" / "common.smk"
    text = versions.read_text()
    versions.write_text(text + '\n\ndef installed(package):\n    return "0" if package == "numpy" else "1"\n')
    assert {"good", "loses", "crashes"} < planned(project)
    versions.write_text(text)


@pytest.mark.pipeline
def test_check_audit_is_an_exit_status(project):
    result = snakemake(project, "-c1", "check_audit", configfile=project / "audit.yaml")
    assert result.returncode == 0, result.stderr
    assert "pass  good: exact" in result.stdout
    assert "      crashes: no verdict: crashed: exit status 1: out of luck: no GPU" in result.stdout
    flags = ("--config", "audit={trainers: {loses: {expect: exact}}}")
    result = snakemake(project, "-c1", "check_audit", *flags, configfile=project / "audit.yaml")
    assert result.returncode == 1
    assert "FAIL  loses: not exact: epoch-boundary" in result.stdout


@pytest.mark.pipeline
def test_odd_names_are_names_and_nothing_else(project):
    """Of a folder, a trainer, a case and a file."""
    trainer = {
        "command": command("hurry"),
        "weights": "a 'b' $(touch x).safetensors",
        "expect": "exact",
        "stops": {"-n": [3]},
    }
    config = yaml.safe_load((project / "audit.yaml").read_text())
    config["audit"].update(only=["-v"], trainers={"-v": {**trainer, "fixed_by": "-w"}, "-w": trainer})
    (project / "odd.yaml").write_text(yaml.safe_dump({**config, "outdir": "결과 $(touch x) 'o'"}))
    result = snakemake(project, "-c1", "audit.md", "check_audit", configfile=project / "odd.yaml")
    assert result.returncode == 0, result.stderr
    assert "pass  -v: exact" in result.stdout
    assert not (project / "x").exists()


MODULE = """\
configfile: "config.yaml"

module exact_resume:
    snakefile: {snakefile!r}
    config: config["exact_resume"]

use rule * from exact_resume as exact_resume_*

rule all:
    default_target: True
    input: "results/audit/mine.json"
"""


@pytest.mark.pipeline
def test_another_workflow_uses_the_audit_as_a_module(project, tmp_path):
    (tmp_path / "Snakefile").write_text(MODULE.format(snakefile=str(project / "Snakefile")))
    trainer = {"command": command(), "expect": "exact", "weights": "w.safetensors"}
    audit = {"only": ["mine"], "steps": 20, "trainers": {"mine": trainer}}
    config = {"exact_resume": {"data": {"train": "train.npy", "val": "val.npy"}, "audit": audit}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    for name in ("train", "val"):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(1).integers(0, 256, 200).astype(np.uint8))
    call = [sys.executable, "-m", "snakemake", "-c1"]
    result = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "results" / "audit" / "mine.json").read_text())["outcome"] == "exact"
    result = subprocess.run(
        [*call, "exact_resume_check_audit"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "pass  mine: exact" in result.stdout


@pytest.mark.pipeline
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("audit={trainers: {mine: {}}}", "error: config key audit.trainers.mine.command: missing"),
        (
            "audit={trainers: {'a b': {command: x}}}",
            "error: config key audit.trainers.a b: wanted a name of letters, digits",
        ),
        (
            "audit={trainers: {mine: {command: x, expects: exact}}}",
            "error: config key audit.trainers.mine.expects: unknown; wanted one of",
        ),
        (
            "audit={trainers: {mine: {command: x, shell: maybe}}}",
            "error: config key audit.trainers.mine.shell: found 'maybe'",
        ),
        ("audit={save_at: 0}", "error: config key audit.save_at: found 0, wanted at least 1"),
    ],
)
def test_bad_trainer_in_the_config_is_refused_before_any_job(project, config, message):
    result = snakemake(project, "-c1", "audit.md", "--config", config, configfile=project / "audit.yaml")
    assert result.returncode == 1
    assert next(line for line in result.stderr.splitlines() if line.startswith("error: ")).startswith(message)
    assert "Traceback" not in result.stderr
