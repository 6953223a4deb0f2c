"""Snakemake's lock in a folder: lifted when who set it is known to be gone, left alone else."""

import errno
import fcntl
import logging
import subprocess
import sys

import pytest

from conftest import ROOT, snakemake
from exact_resume.pipeline import locks

HOLD = (
    "import sys, time; from exact_resume.pipeline.locks import lift_stale_lock; lift_stale_lock(sys.argv[1]); "
    "print(flush=True); time.sleep(1000)"
)


@pytest.fixture
def folder(tmp_path):
    """A .snakemake; what this process holds there is let go of afterwards."""
    yield tmp_path / ".snakemake"
    for path, file in locks._held:
        file.close()
        path.unlink(missing_ok=True)
    locks._held.clear()


@pytest.fixture
def holder(folder):
    """Another process that holds the lock in `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], cwd=ROOT / "workflow" / "scripts", stdout=subprocess.PIPE
    )
    process.stdout.readline()
    (folder / "locks" / "0.input.lock").write_text("file\n")
    yield process
    process.kill()
    process.communicate()


def locked(folder):
    return (folder / "locks" / "0.input.lock").exists()


def end(process):
    process.kill()
    process.wait()


def test_lock_of_a_living_process_stays_and_that_of_a_killed_one_goes(folder, holder):
    locks.lift_stale_lock(folder)
    assert locked(folder)
    end(holder)
    locks._held.pop()[1].close()
    locks.lift_stale_lock(folder)
    assert not locked(folder)
    assert len(list((folder / "locks").iterdir())) == 1, "what this process keeps is all that is left"


def test_lock_stays_while_one_of_several_lives(folder, holder):
    locks.lift_stale_lock(folder)
    end(holder)
    lift = "import sys; from exact_resume.pipeline.locks import lift_stale_lock; lift_stale_lock(sys.argv[1])"
    subprocess.run([sys.executable, "-c", lift, str(folder)], cwd=ROOT / "workflow" / "scripts", check=True)
    assert locked(folder)


@pytest.mark.parametrize("fact", ["node", "machine_id"])
def test_lock_of_another_machine_stays(folder, holder, monkeypatch, fact):
    end(holder)
    found = locks._machine()
    other = found.replace(found.splitlines()[0 if fact == "node" else 1], "other")
    monkeypatch.setattr(locks, "_machine", lambda: other)
    locks.lift_stale_lock(folder)
    assert locked(folder)


def test_lock_whose_holder_is_unknown_stays(folder):
    (folder / "locks").mkdir(parents=True)
    (folder / "locks" / "0.input.lock").write_text("file\n")
    locks.lift_stale_lock(folder)
    assert locked(folder)


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOSYS, errno.ENOLCK, errno.EPERM])
def test_file_system_without_locks_leaves_the_lock_alone(folder, holder, monkeypatch, number):
    end(holder)

    def refuse(file, operation):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    locks.lift_stale_lock(folder)
    assert locked(folder)


def test_folder_that_cannot_be_written_is_left_alone(tmp_path):
    (tmp_path / ".snakemake").write_text("a file")
    locks.lift_stale_lock(tmp_path / ".snakemake")
    assert (tmp_path / ".snakemake").read_text() == "a file"


def test_other_messages_pass_unchanged():
    record = logging.LogRecord("snakemake", logging.ERROR, "", 1, "something else", (), None)
    assert locks.in_one_line(record)
    assert record.msg == "something else"


@pytest.mark.pipeline
def test_pipeline_says_who_is_working_there_in_one_line(built, tmp_path, holder, folder):
    """The lock is Snakemake's own, and names a file that the pipeline makes."""
    (folder / "locks" / "0.output.lock").write_text("report.md\n")
    result = snakemake(built, "-c1", "report.md", "-d", tmp_path)
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if "error" in line.lower() or "lock" in line.lower()]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith(f"error: {tmp_path}: in use by process {holder.pid} on ")
    assert "Traceback" not in result.stderr


@pytest.mark.pipeline
@pytest.mark.parametrize(("mode", "lifted"), [("default", True), ("remote", False), ("subprocess", False)])
def test_only_the_snakemake_that_starts_the_jobs_lifts_a_lock(built, tmp_path, holder, folder, mode, lifted):
    end(holder)
    result = snakemake(built, "-c1", "-n", "results/train.npy", "-d", tmp_path, "--mode", mode)
    assert result.returncode == 0, result.stderr
    assert locked(folder) != lifted
