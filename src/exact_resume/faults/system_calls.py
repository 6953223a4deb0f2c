"""The system calls that a save makes: recorded by strace, and made to fail or to be the last thing that a process
does.
"""

import codecs
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from exact_resume.errors import LabError

HOW_TO_GET_STRACE = "apt-get install strace (Debian, Ubuntu), dnf install strace (Fedora), pacman -S strace (Arch)"
PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = -1
# Status of a process that said what went wrong.
FAILED = 1

LINE = re.compile(r"(?P<pid>\d+) +(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>.*)")
RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<rest>.*)")
UNFINISHED = " <unfinished ...>"
DESCRIPTOR = re.compile(r"(?:AT_FDCWD|\d+)<((?:[^<>\\]|\\.)*)>")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass
class Call:
    """A system call: its name, its arguments as text, its result (-1 when it failed), the paths of the descriptors that
    it was given and got, and the text arguments, which are paths where the call takes some.
    """

    name: str
    arguments: str
    result: int
    descriptors: list
    texts: list


def need_strace():
    """Raise LabError, saying how to get it, where there is no strace."""
    if sys.platform != "linux":
        raise LabError(f"strace: found the system {sys.platform}, wanted Linux, where system calls can be made to fail")
    if not shutil.which("strace"):
        raise LabError(f"strace: not found, wanted it to make system calls fail: {HOW_TO_GET_STRACE}")


def under_strace(action, paths, options):
    """Fork, call `action()` in the child under strace with `options`, for the calls on `paths` alone, and return
    (status, lines).

    `status` is what subprocess calls returncode: 0 when the action returned, FAILED when it raised, negative the signal
    that ended the process. A fork has everything imported, so that a case takes milliseconds. The child's own output is
    dropped.
    """
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        _act_when_told(action, ready, go)
    os.close(ready)
    with tempfile.TemporaryDirectory() as folder, os.fdopen(go, "wb") as gate:
        log = Path(folder, "strace.txt")
        chosen = [part for path in paths for part in ("-P", str(path))]
        command = ["strace", "-f", "-y", "-s", "0", "-p", str(child), "-o", str(log), *chosen, *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            said = strace.stderr.readline()
            if "attached" not in said:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise LabError(
                    f"strace: found {(said + strace.stderr.read()).strip()!r}, wanted it to follow a "
                    "process of this user"
                )
            gate.write(b"!")
            gate.flush()
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, log.read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _act_when_told(action, ready, go):
    """In the child: call `action` when the parent writes to `go`, and end the process."""
    status = FAILED
    try:
        os.close(go)
        # Where only a parent may follow its child (Yama), strace, a child of the parent, has to be let.
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.read(ready, 1)
        action()
        status = 0
    finally:
        os._exit(status)


def record(action, paths):
    """Return the calls on `paths` that `action()` makes in a process of its own, a list of Call, and the process's
    status.
    """
    status, lines = under_strace(action, paths, [])
    return parse(lines), status


def kill_at(action, paths, name, number):
    """Kill the process in which `action()` runs when it is about to make its `number`-th call `name` on `paths`.

    Return whether that came to pass.
    """
    status, _ = under_strace(action, paths, ["-e", f"inject={name}:signal=SIGKILL:when={number}"])
    return status == -signal.SIGKILL


def fail_at(action, paths, name, number, error):
    """Let the `number`-th call `name` on `paths` that `action()` makes fail with `error`, such as "ENOSPC".

    Return (whether that came to pass, the process's status).
    """
    status, lines = under_strace(action, paths, ["-e", f"inject={name}:error={error}:when={number}"])
    return any(line.endswith("(INJECTED)") for line in lines), status


def parse(lines):
    """Return the calls in the lines that `strace -f -y` wrote, a list of Call; those that never returned are left
    out.
    """
    calls, begun = [], {}
    for line in lines:
        if line.endswith(UNFINISHED):
            begun[line.split(maxsplit=1)[0]] = line.removesuffix(UNFINISHED)
            continue
        resumed = RESUMED.fullmatch(line)
        found = LINE.fullmatch(begun.pop(resumed["pid"], "") + resumed["rest"] if resumed else line)
        if found and not found["result"].startswith("?"):
            arguments, result = found["arguments"], found["result"]
            descriptors = [_unescaped(path) for path in DESCRIPTOR.findall(arguments + " " + result)]
            texts = [_unescaped(text) for text in QUOTED.findall(arguments)]
            calls.append(Call(found["name"], arguments, int(re.match(r"-?\d+", result)[0]), descriptors, texts))
    return calls


def _unescaped(text):
    return os.fsdecode(codecs.escape_decode(os.fsencode(text))[0])
