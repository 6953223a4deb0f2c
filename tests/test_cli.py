"""The command exact-resume as a user calls it: in a process of its own, from another folder."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
import torch

import forked
from conftest import ROOT

COMMAND = [sys.executable, "-m", "exact_resume"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
TRACE = "exact-resume trace,2,batch\nrow,configuration,lr,batch,loss\n1,x,0.1,x,1.0\n"
LONG = "model.layers.0.a_name_that_is_longer_than_any_column_of_a_table_in_a_terminal.weight"


class Harm:
    """Pickles as a call that makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.fixture
def call(tmp_path):
    """A function that runs the command in `tmp_path`."""
    command = [forked.python(), str(ROOT / "src" / "exact_resume" / "__main__.py")]
    return lambda *arguments: subprocess.run(
        [*command, *map(str, arguments)], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def in_terminal(folder, width, *arguments, **environment):
    """What the command prints in a terminal that is so wide."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        unset = {name: text for name, text in ENVIRONMENT.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        os.execve(sys.executable, [*COMMAND, *arguments], {**unset, "TERM": "xterm", **environment})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    printed = b""
    while True:
        try:
            printed += os.read(terminal, 2**16)
        except OSError:
            break
    os.waitpid(process, 0)
    return printed.decode().replace("\r", "")


@pytest.fixture
def files(tmp_path):
    """Two weights files that differ in a tensor of a long name, and a resume file with another dtype and values."""
    weights = {LONG: torch.tensor([1.0, 2.0]), "b": torch.ones(3)}
    torch.save(weights, tmp_path / "a.pth")
    torch.save({**weights, LONG: torch.tensor([1.0, 2.5])}, tmp_path / "b.pth")
    torch.save({"model": {"w": torch.ones(2, dtype=torch.float16)}, "step": 3, "lr": 0.1}, tmp_path / "resume.pth")
    return tmp_path


def mistake(result):
    """The one line in which a process told of a user's mistake."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


# In general.


def test_version_and_help(call):
    assert call("--version").stdout == "exact-resume 0.2.0\n"
    assert call().stdout == call("--help").stdout
    for command in ("diagnose", "record", "compare", "verify"):
        result = call(command, "--help")
        assert result.returncode == 0
        assert f"Example:\n    exact-resume {command} " in result.stdout
        assert "exit status" in result.stdout


def test_help_and_diagnose_do_not_import_torch(tmp_path):
    """Which takes seconds."""
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "torch.py").write_text("raise ImportError('torch is imported')")
    for arguments in (["--help"], ["compare", "--help"], ["diagnose", "trace.csv", "trace.csv"]):
        result = subprocess.run(
            [*COMMAND, *arguments], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert (result.returncode, result.stderr) == (0, "")
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([*COMMAND, "verify", "x"], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL, check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "a.pth"], "Missing argument 'B'"),
        (["compare", "a.pth", "b.pth", "--jsn"], "No such option: --jsn"),
        (["comp"], "No such command 'comp'"),
        (["compare", "a.pth", ""], "found an empty argument"),
        (["compare", "a.pth", "nothing.pth"], "nothing.pth: no such file or folder, wanted a checkpoint"),
        (["compare", "a.pth", "text.pth"], "text.pth: not a torch file that is safe to read"),
        (["compare", "/dev/null", "a.pth"], "/dev/null: found neither a file nor a folder, wanted a checkpoint"),
        (["diagnose", "text.pth", "text.pth"], "text.pth: found 'hello' as its first line"),
        (["diagnose", "nothing.csv", "text.pth"], "nothing.csv: no such trace"),
        (["verify"], "Missing argument 'FILE...'"),
    ],
)
def test_mistake_is_one_line(arguments, message, call, files):
    (files / "text.pth").write_text("hello")
    assert message in mistake(call(*arguments))


# diagnose


@pytest.mark.pipeline
def test_diagnose_says_what_was_lost(call, built):
    trace = built / "results" / "trace"
    straight, noopt = trace / "straight.csv", trace / "noopt.csv"
    result = call("diagnose", straight, noopt, "--repeat", trace / "repeat.csv")
    assert result.returncode == 0
    assert "optimizer was lost" in result.stdout and result.stdout.count("\n") == 1
    told = json.loads(call("diagnose", straight, noopt, "--repeat", trace / "repeat.csv", "--json").stdout)
    assert told["sentence"] == result.stdout.strip()
    assert [culprit["component"] for culprit in told["culprits"]] == ["optimizer"]


# compare


def test_compare_of_equal_files_succeeds(call, files):
    result = call("compare", "a.pth", "a.pth")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "equal bit for bit: 2 tensors, 0 other values\n"
    told = json.loads(call("compare", "a.pth", "a.pth", "--json").stdout)
    assert told == {
        "first": "a.pth",
        "second": "a.pth",
        "equal": True,
        "differences": [],
        "tensors": 2,
        "equal_tensors": 2,
        "values": 0,
        "equal_values": 0,
        "max_abs_diff": 0.0,
        "rel_l2": 0.0,
    }


def test_compare_tells_what_differs(call, files):
    result = call("compare", "a.pth", "b.pth")
    assert (result.returncode, result.stderr) == (1, "")
    title, row, summary = result.stdout.splitlines()
    assert title.split() == ["name", "difference", "largest", "relative", "A", "→", "B"]
    assert row.split() == [LONG, "values", "0.5", "0.224", "float32", "[2]"]
    assert summary == "1 of 2 tensors differ; largest difference 0.5, relative 0.177"
    told = json.loads(call("compare", "a.pth", "b.pth", "--json").stdout)
    assert (told["equal"], told["tensors"], told["equal_tensors"]) == (False, 2, 1)
    (difference,) = told["differences"]
    assert list(difference) == [
        "name",
        "what",
        "first",
        "second",
        "max_abs_diff",
        "rel_l2",
        "not_finite",
        "equal_after",
    ]
    assert (difference["name"], difference["max_abs_diff"]) == (LONG, 0.5)


def test_compare_of_nested_files_tells_dtypes_and_values(call, files):
    torch.save({"model": {"w": torch.ones(2)}, "step": 4, "lr": 0.1, "x": torch.ones(1)}, files / "other.pth")
    result = call("compare", "other.pth", "resume.pth")
    assert result.returncode == 1
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1:] == [
        "step values 4 → 3",
        "x missing float32 [1]",
        "model.w dtype 0 0 float32 float32 [2] → float16 [2]",
        "1 of 1 tensor differ; 1 of 2 other values differ; 1 missing; largest difference 0, relative 0",
    ]


def test_json_has_no_infinity(call, files):
    torch.save({"w": torch.tensor([float("nan")])}, files / "nan.pth")
    torch.save({"w": torch.tensor([1.0])}, files / "one.pth")

    def refuse(constant):
        raise AssertionError(constant)

    told = json.loads(call("compare", "one.pth", "nan.pth", "--json").stdout, parse_constant=refuse)
    assert told["differences"][0]["not_finite"] == 1
    assert " inf " in call("compare", "one.pth", "nan.pth").stdout


# verify


def test_verify_tells_what_files_hold(call, files):
    result = call("verify", "a.pth", "resume.pth")
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.split()[:6] for line in result.stdout.splitlines()[1:]] == [
        ["a.pth", "yes", "torch", "CRC-32", "2", "5"],
        ["resume.pth", "yes", "torch", "CRC-32", "1", "2"],
    ]
    told = json.loads(call("verify", "a.pth", "resume.pth", "--json").stdout)
    assert told[1] == {
        "file": "resume.pth",
        "whole": True,
        "error": None,
        "form": "torch",
        "checked": "CRC-32",
        "tensors": 1,
        "values": 2,
        "elements": 2,
        "tensor_bytes": 4,
        "bytes": (files / "resume.pth").stat().st_size,
        "dtypes": {"float16": 1},
        "keys": ["model", "step", "lr"],
    }


def test_verify_names_the_file_that_is_not_whole_and_goes_on(call, files):
    content = bytearray((files / "a.pth").read_bytes())
    content[content.index(struct.pack("<f", 2.0)) + 1] ^= 1
    (files / "damaged.pth").write_bytes(content)
    torch.save(Harm(), files / "hostile.pth")
    result = call("verify", "damaged.pth", "hostile.pth", "a.pth")
    assert result.returncode == 1
    damaged, hostile = result.stderr.splitlines()
    assert damaged.startswith("error: damaged.pth: record ") and "is damaged: its CRC-32" in damaged
    assert hostile.startswith("error: hostile.pth: not a checkpoint that is safe to read: found ")
    assert not (files / "harm").exists()
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        ["damaged.pth", "no"],
        ["hostile.pth", "no"],
        ["a.pth", "yes"],
    ]
    told = json.loads(call("verify", "damaged.pth", "a.pth", "--json").stdout)
    assert [entry["whole"] for entry in told] == [False, True]
    assert "is damaged" in told[0]["error"]


# Where it prints.


@pytest.mark.parametrize("width", [30, 80, 200])
def test_nothing_is_cut_in_a_terminal_of_any_width(width, files):
    printed = in_terminal(files, width, "compare", "a.pth", "b.pth", NO_COLOR="1")
    cells = [line[: line.index(" values ")] if " values " in line else line for line in printed.splitlines()]
    assert LONG in "".join("".join(cells).split())
    assert "0.224" in printed and "float32 [2]" in printed
    if width > 30:
        table = printed.partition("1 of 2 tensors")[0]
        assert all(len(line) <= width for line in table.splitlines() if "\x1b" not in line)


def test_colours_are_for_terminals_that_want_them(call, files):
    assert "\x1b" not in call("compare", "a.pth", "b.pth").stdout
    assert "\x1b[3" not in in_terminal(files, 100, "compare", "a.pth", "b.pth", NO_COLOR="1")


def test_names_from_a_file_can_not_steer_a_terminal(call, files):
    torch.save({"\x1b[2J\nw [red]": torch.ones(1)}, files / "c.pth")
    result = call("compare", "a.pth", "c.pth")
    assert "\\x1b[2J\\nw [red]" in result.stdout and "\x1b" not in result.stdout
    assert "\\x1b[2J\\nw [red]" in in_terminal(files, 200, "compare", "a.pth", "c.pth")


def test_reader_that_goes_away_is_no_error(tmp_path):
    """As head does."""
    torch.save({f"w{number}": number for number in range(20_000)}, tmp_path / "a.pth")
    torch.save({}, tmp_path / "b.pth")
    command = [*COMMAND, "compare", "a.pth", "b.pth"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("name ")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait()


def test_interrupt_is_quiet(tmp_path):
    os.mkfifo(tmp_path / "trace.csv")
    command = [*COMMAND, "diagnose", "trace.csv", "trace.csv"]
    process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    # It waits for what is written to its pipe; as soon as it reads there it is past its imports.
    with open(tmp_path / "trace.csv", "w"):
        process.send_signal(2)
        assert process.stderr.read().strip() == ""
        assert process.wait() == 130
