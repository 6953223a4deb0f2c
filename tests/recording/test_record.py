"""A program that is recorded does what it does alone, and what is said of it is so."""

import os
import pty
import signal
import sys
import venv
from pathlib import Path

import pytest
import torch
from recordings import COMMAND, ENVIRONMENT, PROGRAM, facts, recorder, rows, run

from conftest import ROOT
from exact_resume.recording import folder as record

PRINTED = """
import random, sys
import numpy as np
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
STEP = "optimizer.zero_grad(); model(torch.randn(3, 2)).mean().backward(); optimizer.step()\n"


@pytest.fixture
def recorded(tmp_path):
    return recorder(tmp_path)


def test_program_writes_and_prints_the_same_and_gets_a_row_for_each_update(recorded, tmp_path):
    plain = run([*PROGRAM, "--out", "plain"], tmp_path)
    result = recorded("record", *PROGRAM, "--out", "watched")
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout) == (0, plain.stdout)
    assert result.stderr == "recorded in record: 6 updates of process1\n"
    for name in ("latest.pt", "final.pt"):
        assert (tmp_path / "watched" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    losses = [line.split()[-1] for line in plain.stdout.splitlines()]
    found = rows(tmp_path / "record")
    assert [f"{float(row['loss']):.9f}" for row in found] == losses
    assert len(found) == 6
    assert len({row["lr"] for row in found}) == len({row["batch"] for row in found}) == 6
    assert {row[f"{name}.kind"] for row in found for name in ("Sequential", "AdamW", "LinearLR")} == {
        "module",
        "optimizer",
        "scheduler",
    }
    # What an update leaves is what the next one begins with.
    for name in ("Sequential", "AdamW"):
        assert [row[f"{name}.after"] for row in found[:-1]] == [row[name] for row in found[1:]]
    assert (tmp_path / "record" / record.OUTPUT).read_text() == plain.stdout


def test_record_says_what_was_run_by_what(recorded, tmp_path):
    recorded("record", *PROGRAM, "--out", "o", OMP_DYNAMIC="false")
    said = facts(tmp_path / "record")
    assert said["command"] == [*PROGRAM, "--out", "o"]
    assert (said["status"], said["returncode"], said["processes"]) == ("ended", 0, {"process1": 6})
    assert said["exact_resume"] == "0.2.0"
    about = facts(tmp_path / "record", "process1")
    assert about["torch"] == torch.__version__
    assert (about["threads"], about["rank"], about["world_size"]) == (1, 0, 1)
    assert "OMP_DYNAMIC=false" in about["environment"]


@pytest.mark.parametrize("last", ["sys.exit(3)", "raise ValueError('no')", "import os; os.kill(os.getpid(), 9)"])
def test_exit_status_and_traceback_pass_through(last, recorded, tmp_path):
    (tmp_path / "program.py").write_text(f"{PRINTED}{STEP}{last}\n")
    plain = run([sys.executable, "program.py"], tmp_path)
    result = recorded("record", sys.executable, "program.py")
    assert result.returncode == (128 - plain.returncode if plain.returncode < 0 else plain.returncode)
    assert result.stderr == f"{plain.stderr}recorded in record: 1 update of process1\n"
    assert facts(tmp_path / "record")["returncode"] == plain.returncode


@pytest.mark.parametrize("updates", [0, 1, 4])
def test_program_is_killed_right_before_the_next_update_begins(updates, recorded, tmp_path):
    result = recorded("record", *PROGRAM, "--out", "o", "--save-every", "1", flags=["--kill-after", updates])
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == updates
    said = facts(tmp_path / "record")
    assert (said["status"], said["returncode"]) == ("stopped", None)
    assert said["processes"] == ({"process1": updates} if updates else {})
    if updates:
        assert torch.load(tmp_path / "o" / "latest.pt", weights_only=True)["update"] == updates


def test_program_may_say_goodbye(recorded, tmp_path):
    flags = ["--kill-after", 3, "--stop-signal", "TERM"]
    result = recorded("record", *PROGRAM, "--out", "o", "--on-term", "save", flags=flags)
    assert result.returncode == 0
    # Its handler raises an exception of its own while the recorder waits, which is the program's to catch.
    assert result.stdout.splitlines()[-1] == "preempted in update 4"
    assert torch.load(tmp_path / "o" / "latest.pt", weights_only=True)["update"] == 3
    assert facts(tmp_path / "record")["returncode"] == 7
    assert facts(tmp_path / "record")["problems"] == []


def test_program_that_ignores_the_signal_is_killed_when_its_time_is_over(recorded, tmp_path):
    (tmp_path / "program.py").write_text(
        f"{PRINTED}import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    {STEP}"
    )
    flags = ["--kill-after", 3, "--stop-signal", "TERM", "--grace", 0.5]
    assert recorded("record", sys.executable, "program.py", flags=flags).returncode == 0
    said = facts(tmp_path / "record")
    assert said["status"] == "stopped"
    assert said["returncode"] in (None, -signal.SIGKILL)


def test_nothing_that_the_program_started_outlives_it(recorded, tmp_path):
    (tmp_path / "program.py").write_text(
        f"{PRINTED}import subprocess\nchild = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"open('pid', 'w').write(str(child.pid))\n{STEP}"
    )
    assert recorded("record", sys.executable, "program.py").returncode == 0
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_interrupt_reaches_the_program(tmp_path):
    """Ctrl-C in a terminal."""
    (tmp_path / "program.py").write_text(
        f"{PRINTED}import time\ntry:\n    {STEP}    print('ready', flush=True)\n    time.sleep(100)\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n    sys.exit(5)\n"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [*COMMAND, "--", sys.executable, "program.py"], ENVIRONMENT)
    printed = b""
    while b"ready" not in printed:
        printed += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    while True:
        try:
            printed += os.read(terminal, 4096)
        except OSError:
            break
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 5
    assert b"interrupted" in printed and b"Traceback" not in printed


def test_time_limit_of_the_program_is_its_own(recorded, tmp_path):
    """An exception that its signal handler raises while something is looked at ends what the program says it ends."""
    (tmp_path / "program.py").write_text(
        f"""{PRINTED}
import signal
class Slow(torch.optim.lr_scheduler.LambdaLR):
    def state_dict(self):
        signal.raise_signal(signal.SIGALRM)
        return {{}}
class Limit:
    def __call__(self, number, frame):
        raise TimeoutError
signal.signal(signal.SIGALRM, Limit())
scheduler = Slow(optimizer, lambda step: 1.0)
try:
    {STEP}except TimeoutError:
    print("time is over")
"""
    )
    result = recorded("record", sys.executable, "program.py", flags=["--kill-after", 5])
    assert "time is over" in result.stdout, result.stderr


def test_processes_that_do_not_train_write_nothing(recorded, tmp_path):
    (tmp_path / "program.py").write_text(
        f"""{PRINTED}
import subprocess
if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(8, 2))
    for context in ("fork", "spawn"):
        for x, in torch.utils.data.DataLoader(data, 4, num_workers=2, multiprocessing_context=context):
            optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
    subprocess.run([sys.executable, "-c", "import torch; print(torch.nn.Linear(1, 1)(torch.ones(1)).shape)"])
"""
    )
    result = recorded("record", sys.executable, "program.py")
    assert (result.returncode, result.stderr) == (0, "recorded in record: 4 updates of process1\n")
    assert record.processes(tmp_path / "record") == {"process1": 4}


def test_processes_that_train_are_named_in_their_order(recorded, tmp_path):
    (tmp_path / "program.py").write_text(f"{PRINTED}{STEP}import os\nif os.fork() == 0:\n    {STEP}else: os.wait()\n")
    recorded("record", "sh", "-c", f"{sys.executable} program.py && {sys.executable} program.py")
    assert record.processes(tmp_path / "record") == {f"process{number}": 1 for number in (1, 2, 3, 4)}


def test_window_looks_at_all_in_it_and_at_what_is_cheap_outside(recorded, tmp_path):
    recorded("record", *PROGRAM, "--out", "o", flags=["--window", "3:4"])
    found = rows(tmp_path / "record")
    assert [bool(row.get("Sequential")) for row in found] == [False, False, True, True, False, False]
    recorded("all", *PROGRAM, "--out", "o")
    for column in ("rng.torch", "batch", "loss"):
        assert [row[column] for row in found] == [row[column] for row in rows(tmp_path / "all")]


@pytest.mark.parametrize("updates", [None, 3])
def test_ranks_have_a_trace_each_and_stop_at_the_same_update(updates, recorded, tmp_path):
    run_by = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, PROGRAM[1]]
    flags = ["--kill-after", updates] if updates else []
    assert recorded("record", *run_by, "--out", "o", flags=flags).returncode == 0
    assert record.processes(tmp_path / "record") == {"rank0": updates or 6, "rank1": updates or 6}
    ranks = [rows(tmp_path / "record", f"rank{rank}") for rank in (0, 1)]
    assert facts(tmp_path / "record", "rank1")["world_size"] == 2
    for row, other in zip(*ranks, strict=True):
        # The module that DDP stands before.
        assert row["Sequential"] == other["Sequential"] and row["Sequential.gradients.after"]
        assert row["Sequential.gradients.after"] == other["Sequential.gradients.after"]
        assert row["batch"] != other["batch"]


def test_another_sitecustomize_is_imported_as_ever(recorded, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.CUSTOM = __file__\n")
    program = f"print(CUSTOM, __import__('sitecustomize').__file__)\n{PRINTED}{STEP}"
    result = recorded("record", sys.executable, "-c", program, PYTHONPATH=f"{ROOT / 'src'}:{tmp_path / 'site'}")
    assert result.stdout.split() == [str(tmp_path / "site" / "sitecustomize.py")] * 2
    assert record.processes(tmp_path / "record") == {"process1": 1}


def test_environment_of_the_programs_own_needs_nothing_installed(recorded, tmp_path):
    """A virtual environment with torch and what that needs, without numpy, xxhash and this package."""
    venv.create(tmp_path / "own", with_pip=False)
    site = next((tmp_path / "own" / "lib").glob("python*")) / "site-packages"
    for entry in Path(torch.__file__).parents[1].iterdir():
        if not entry.name.lower().startswith(("numpy", "xxhash", "exact_resume", "_exact")) and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    lines = PRINTED.replace("import numpy as np\n", "")
    program = [tmp_path / "own" / "bin" / "python", "-c", f"{lines}{STEP}{STEP}import xxhash"]
    result, plain = recorded("record", *program), run(program, tmp_path, PYTHONPATH="")
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
    for stderr in (plain.stderr, result.stderr):
        assert "ModuleNotFoundError: No module named 'xxhash'" in stderr
    assert result.stderr.endswith("recorded in record: 2 updates of process1\n")
    assert facts(tmp_path / "record")["problems"] == []
    assert "Linear.float16" in rows(tmp_path / "record")[0]


def test_program_finds_its_surroundings_as_they_are(recorded, tmp_path):
    """Its path, modules that are imported by name, warnings and hooks."""
    (tmp_path / "program.py").write_text(
        f"{PRINTED}{STEP}print(sys.path, sys.meta_path, torch.__spec__.loader, torch.__loader__)\n"
        "print(torch.nn.Module.__call__.__name__, torch.autograd.backward.__module__, torch.optim.AdamW.__init__)\n"
    )
    plain = run([sys.executable, "-W", "error", "program.py"], tmp_path)
    result = recorded("record", sys.executable, "-W", "error", "program.py")
    addresses = [line.split(" at 0x")[0] for line in result.stdout.splitlines()]
    assert addresses == [line.split(" at 0x")[0] for line in plain.stdout.splitlines()]


# Mistakes.


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        (["nosuch"], [], "nosuch: can't be started: No such file or directory"),
        (["/"], [], "/: can't be started: Permission denied"),
        ([sys.executable, "-c", "print(1)"], [], "wanted a program that calls an optimizer's step: found none that"),
        ([sys.executable, "-c", f"{PRINTED}model(torch.ones(1, 2))"], [], "; Linear was called in training"),
        (
            [sys.executable, "-c", f"{PRINTED}{STEP}"],
            ["--kill-after", 3],
            "the program ended after update 1, wanted it to be stopped before update 4",
        ),
        (["x"], ["--window", "3"], "--window: found 3, wanted two numbers of updates such as 10:20"),
        (["x"], ["--window", "4:3"], "--window: found 4:3, wanted two numbers of updates such as 10:20"),
        (["x"], ["--stop-signal", "HELLO"], "--stop-signal: found HELLO, wanted a signal's name such as KILL or TERM"),
        (["x"], ["--kill-after", -1], "--kill-after"),
        ([], [], "Missing argument"),
    ],
)
def test_mistake_is_one_line(command, flags, message, recorded):
    result = recorded("record", *command, flags=flags)
    assert result.returncode == 2
    assert message in result.stderr.replace("'COMMAND...'", "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_folder_of_something_else_is_left_alone(recorded, tmp_path):
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "thesis.txt").write_text("all my work")
    result = recorded("record", *PROGRAM, "--out", "o")
    assert result.returncode == 2
    assert result.stderr.endswith("record: found thesis.txt, wanted a new folder or an earlier record\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["record", "thesis.txt"]


def test_earlier_record_gives_way(recorded, tmp_path):
    recorded("record", *PROGRAM, "--out", "o", "--updates", 3)
    recorded("record", *PROGRAM, "--out", "o", "--updates", 2)
    assert record.processes(tmp_path / "record") == {"process1": 2}


def test_full_disk_ends_the_record_and_not_the_program(recorded, tmp_path):
    """What can't be written, from the fourth piece on, is what the recorder writes."""
    trace = tmp_path / "record" / "process1.trace.csv"
    full = ["strace", "-f", "-o", "/dev/null", "-P", trace, "-e", "inject=write:error=ENOSPC:when=4+"]
    result = recorded("record", *full, *PROGRAM, "--out", "o")
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 6)
    assert "process1.trace.csv can't be written: No space left on device; it ends here" in result.stderr
    assert len(rows(tmp_path / "record")) < 6
