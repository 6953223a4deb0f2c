"""A program's save is told to be atomic when no kill can leave a part of a checkpoint under its name."""

import shutil
import subprocess
import sys

import pytest

from exact_resume.faults import atomicity

BEGIN = "import os, pathlib, subprocess, sys, threading; here = pathlib.Path.cwd(); ck = here / 'ck é'\n"
ATOMIC = {
    "renamed": "(here / 'new').write_bytes(bytes(99)); os.replace(here / 'new', ck)",
    "linked": "(here / 'new').write_bytes(bytes(99)); os.link(here / 'new', ck)",
    "folder renamed": (
        "os.mkdir('new'); open('new/a', 'wb').write(b'a'); open('new/b', 'wb').write(b'b'); os.rename('new', 'ck é')"
    ),
    "in a child": (
        'subprocess.run([sys.executable, \'-c\', \'import os; open("new", "w").write("1"); os.replace("new", '
        '"ck é")\'])'
    ),
}
TORN = {
    "written in place": "ck.write_bytes(bytes(99))",
    "relative path": "open('ck é', 'wb').write(bytes(99))",
    "written on after the rename": (
        "file = open('new', 'wb', 0); file.write(b'1'); os.replace('new', ck); file.write(b'2')"
    ),
    "folder filled": "ck.mkdir(); (ck / 'a').write_bytes(b'a'); (ck / 'b').write_bytes(b'b')",
    "one file renamed into a folder": "ck.mkdir(); (here / 'new').write_bytes(b'1'); os.replace('new', ck / 'a')",
    "written by a thread": (
        "work = threading.Thread(target=ck.write_bytes, args=[bytes(99)]); work.start(); work.join()"
    ),
    "by descriptor": (
        "folder = os.open(here, 0); os.chdir('/'); os.write(os.open('ck é', os.O_CREAT | 1, dir_fd=folder), b'1')"
    ),
}


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("name", [*ATOMIC, *TORN])
def test_saves_are_told_apart(tmp_path, name):
    command = [sys.executable, "-c", BEGIN + {**ATOMIC, **TORN}[name]]
    subprocess.run(atomicity.followed(command, tmp_path / "calls.txt"), cwd=tmp_path, check=True)
    assert (tmp_path / "ck é").exists()
    assert atomicity.is_atomic(tmp_path / "calls.txt", tmp_path / "ck é") == (name in ATOMIC)
