"""What a save survives: every system call, every error, every power loss; and the rules by which that is counted."""

import contextlib
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

import forked
from conftest import ROOT, failed_with_one_line
from exact_resume.checkpoint import archive
from exact_resume.errors import LabError
from exact_resume.faults import injection, power_loss, system_calls
from exact_resume.faults.savers import SAVERS, Saver, torch_load
from exact_resume.faults.system_calls import Call

FEW = {"seed": 7, "bit_flips": 40, "truncations": 20}
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """A fork has no other threads than the one that called it."""
    torch.set_num_threads(1)


@pytest.fixture(params=list(SAVERS))
def counted(request):
    return request.param, injection.count(SAVERS[request.param], **FEW)


@needs_strace
def test_what_each_saver_survives(counted):
    name, cells = counted
    whole = [kind for kind, cell in cells.items() if cell["good"] == cell["tried"]]
    silent = [kind for kind, cell in cells.items() if cell["silent"]]
    assert cells["bit_flip"]["tried"] == FEW["bit_flips"]
    assert cells["truncation"]["tried"] > FEW["truncations"] + 20
    assert {"naive": [], "minimind": ["kill", "error"], "ours": list(cells)}[name] == whole
    assert {"naive": ["power_loss", "bit_flip"], "minimind": ["power_loss", "bit_flip"], "ours": []}[name] == silent
    assert all((cell["example"] is None) == (cell["good"] == cell["tried"]) for cell in cells.values())


@pytest.fixture
def bench(tmp_path):
    def make(saver):
        return injection.Bench(saver, tmp_path)

    return make


@needs_strace
@pytest.mark.parametrize("name", list(SAVERS))
def test_a_save_is_killed_before_each_of_its_calls(bench, name):
    bench = bench(SAVERS[name])
    paths = bench.paths()
    bench.begin()
    calls, status = system_calls.record(bench.save, paths)
    assert status == 0
    assert {"write", "close"} <= {call.name for call in calls}
    assert bench.loaded() == "new"
    assert injection.kills(bench, paths, calls).tried == len(calls)


def without_folder_sync(path, value):
    with open(f"{path}.tmp", "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def ended_saves(bench):
    """Return what users may load after the power failed when the save had ended."""
    paths = bench.paths()
    bench.begin()
    before = bench.files()
    calls, _ = system_calls.record(bench.save, paths)
    found = set()
    for done, state in list(power_loss.states(calls, before, bench.files())):
        if done == len(calls):
            bench.put(state)
            found.add(bench.loaded())
    return found


@needs_strace
def test_what_was_saved_is_there_after_a_power_loss_only_when_the_folder_was_synced(bench):
    assert ended_saves(bench(SAVERS["ours"])) == {"new"}
    assert ended_saves(bench(Saver(without_folder_sync, torch_load))) == {"old", "new"}
    assert ended_saves(bench(SAVERS["minimind"])) == {"old", "new", "refused", "other"}


@needs_strace
def test_save_that_hides_an_error_counts_as_silent_damage(bench):
    def hide_errors(path, value):
        with contextlib.suppress(LabError):
            archive.save(path, value)

    bench = bench(Saver(hide_errors, archive.load))
    paths = bench.paths()
    bench.begin()
    calls, _ = system_calls.record(bench.save, paths)
    cell = injection.errors(bench, paths, calls)
    assert cell.good == cell.tried
    assert cell.silent > 0
    assert cell.example["error"] in injection.ERRORS


def call(name, arguments="", result=0, path=None, texts=()):
    return Call(name, arguments, result, [path] if path else [], list(texts))


OLD, NEW = b"o" * 5000, b"n" * 9000


def states_of(calls, after):
    return [state for _, state in power_loss.states(calls, {"a": OLD}, after)]


def test_rules_for_a_file_that_is_rewritten_in_place():
    calls = [
        call("openat", "AT_FDCWD, O_WRONLY|O_CREAT|O_TRUNC", 3, texts=["/f/a"]),
        call("write", result=9000, path="/f/a"),
    ]
    wanted = {OLD, b"", NEW}
    for block in (0, 4096, 8192):
        wanted |= {NEW[:block], NEW[:block].ljust(9000, b"\0")}
        wanted.add((NEW[:block] + bytes(4096) + NEW[block + 4096 :])[:9000])
    assert {state["a"] for state in states_of(calls, {"a": NEW})} == wanted
    assert {state["a"] for state in states_of([*calls, call("fsync", path="/f/a")], {"a": NEW})} == wanted
    last = [
        state["a"]
        for done, state in power_loss.states([*calls, call("fsync", path="/f/a")], {"a": OLD}, {"a": NEW})
        if done == 3
    ]
    assert last == [NEW]


def test_rules_for_names():
    """A file that was synced takes another one's place; with the folder unsynced each change may or may not have come
    to pass.
    """
    calls = [
        call("openat", "AT_FDCWD, O_RDWR|O_CREAT", 3, texts=["/f/b"]),
        call("write", result=10, path="/f/b"),
        call("fsync", path="/f/b"),
        call("rename", texts=["/f/b", "/f/a"]),
    ]
    new = NEW[:10]
    ended = [state for done, state in power_loss.states(calls, {"a": OLD}, {"a": new}) if done == 4]
    assert sorted(map(repr, ended)) == sorted(map(repr, [{"a": OLD}, {"a": OLD, "b": new}, {"a": new}, {"a": new}]))
    synced = [*calls, call("openat", "O_RDONLY", 4, texts=["/f"]), call("fsync", path="/f")]
    assert [state for done, state in power_loss.states(synced, {"a": OLD}, {"a": new}) if done == 6] == [{"a": new}]
    failed = [*calls[:3], call("rename", result=-1, texts=["/f/b", "/f/a"])]
    assert {state["a"] for state in states_of(failed, {"a": OLD, "b": new})} == {OLD}


def test_rename_may_come_before_the_data():
    calls = [
        call("openat", "O_CREAT", 3, texts=["/f/b"]),
        call("write", result=9000, path="/f/b"),
        call("rename", texts=["/f/b", "/f/a"]),
    ]
    assert {"a": b""} in states_of(calls, {"a": NEW})
    assert {"a": NEW[:4096]} in states_of(calls, {"a": NEW})


@pytest.mark.parametrize(
    ("calls", "after", "message"),
    [
        (
            [call("pwrite64", result=3, path="/f/a")],
            {"a": OLD},
            "system call pwrite64.*unknown to the rules of power loss",
        ),
        ([call("ftruncate", "3</f/a>, 7", path="/f/a")], {"a": OLD[:7]}, "wanted 0, the size that the rules"),
        ([], {"a": NEW}, "found other sizes after the save than its recorded calls lead to"),
    ],
)
def test_calls_that_the_rules_dont_cover_are_refused(calls, after, message):
    with pytest.raises(LabError, match=message):
        states_of(calls, after)


def test_strace_lines_are_read():
    lines = [
        '12 openat(AT_FDCWD</home/a>, "/f/\\303\\251 \\"b\\".pth", O_WRONLY|O_CREAT, 0666) = '
        '3</f/\\303\\251 \\"b\\".pth>',
        '12 write(3</f/b>, ""..., 10 <unfinished ...>',
        "13 fsync(4</f/c>) = -1 ENOSPC (No space left on device) (INJECTED)",
        "12 <... write resumed>) = 10",
        "12 close(3</f/b>) = ?",
        "12 +++ killed by SIGKILL +++",
    ]
    opened, synced, written = system_calls.parse(lines)
    assert (opened.name, opened.result, opened.texts) == ("openat", 3, ['/f/é "b".pth'])
    assert opened.descriptors[-1] == '/f/é "b".pth'
    assert (synced.name, synced.result, synced.descriptors) == ("fsync", -1, ["/f/c"])
    assert (written.name, written.result, written.descriptors) == ("write", 10, ["/f/b"])


def test_without_strace_one_line_says_how_to_get_it(tmp_path):
    command = [sys.executable, str(ROOT / "workflow" / "scripts" / "inject_faults.py"), "--out", "crash.json"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={"PATH": str(tmp_path)}, check=False
    )
    assert failed_with_one_line(result).startswith(
        "error: strace: not found, wanted it to make system calls fail: apt-get install strace"
    )
    assert not list(tmp_path.iterdir())


@needs_strace
@pytest.mark.pipeline
def test_crash_target_writes_the_table_and_the_same_again(tmp_path):
    command = [sys.executable, "-m", "snakemake", "-s", ROOT / "Snakefile", "-c1", "-d", tmp_path, "crash"]
    command += ["--config", "crash={bit_flips: 5, truncations: 3}", "language=en"]
    subprocess.run(command, check=True, capture_output=True)
    table = (tmp_path / "crash.md").read_text(encoding="utf-8")
    counted = (tmp_path / "results" / "crash.json").read_bytes()
    assert re.search(r"\| `ours` \|( (\d+) / \2 \|){5}\n", table)
    assert "protects from: kill, error; it does not protect from: power loss, bit flip, truncation" in table
    assert (tmp_path / "results" / "crash.svg").stat().st_size > 1000
    (tmp_path / "results" / "crash.json").unlink()
    subprocess.run([forked.python(), *command[1:]], check=True, capture_output=True)
    assert (tmp_path / "results" / "crash.json").read_bytes() == counted
