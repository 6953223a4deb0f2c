"""What is told of the machine without torch: the variables that choose kernels do change bits, and the GPU is found
where there is one.
"""

import subprocess
import sys

import pytest
import torch

from conftest import ROOT
from exact_resume.errors import LabError
from exact_resume.pipeline import fingerprint, gpu

VERSION = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 12.3.0
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A function that lays out the driver's files for GPUs of the given models."""
    monkeypatch.setattr(gpu, "DRIVER", tmp_path)

    def lay_out(*models):
        (tmp_path / "version").write_text(VERSION)
        for number, model in enumerate(models):
            folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
            folder.mkdir(parents=True)
            (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 16\n")

    return lay_out


def test_driver_tells_gpus_and_its_version(driver):
    driver("NVIDIA H200", "NVIDIA H200")
    facts = gpu.facts()
    assert facts["gpu"] == "NVIDIA H200, NVIDIA H200"
    assert facts["driver"] == "NVIDIA UNIX x86_64 Kernel Module 535.104.05 Sat Aug 19 01:15:15 UTC 2023"
    assert facts["cuda"] == (torch.version.cuda or "")


def test_choice_of_gpu_counts_only_among_different_ones(driver, monkeypatch):
    driver("NVIDIA H200", "NVIDIA T4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu.facts()["gpu_chosen"] == "1"


def test_machine_without_a_driver_has_no_gpu(driver):
    assert gpu.facts() == {"gpu": "", "gpu_chosen": "", "driver": "", "cuda": torch.version.cuda or ""}


def test_gpu_belongs_to_the_fingerprint_of_a_run_on_cuda_alone(driver):
    driver("NVIDIA H200")
    assert fingerprint.fingerprint("cuda").items() >= gpu.facts().items()
    assert not fingerprint.fingerprint("cpu").keys() & gpu.facts().keys()


def test_cuda_is_refused_just_where_torch_finds_none():
    if torch.cuda.is_available():
        gpu.check()
    else:
        with pytest.raises(LabError, match=r"^config key training\.device: found cuda, but .*; wanted cpu$"):
            gpu.check()


@pytest.mark.parametrize(
    ("built", "refused"), [({"cuda": "13.0"}, "no GPU here"), ({"hip": "6.4"}, None), ({}, "built without it")]
)
def test_builds_of_torch_are_told_apart(monkeypatch, built, refused):
    """CUDA's library sees no device: there is none, or none is visible."""
    monkeypatch.setattr(gpu, "_torch_built_for", lambda platform: built.get(platform, ""))
    monkeypatch.setattr(gpu, "_devices", lambda: 0)
    if refused:
        with pytest.raises(LabError, match=refused):
            gpu.check()
    else:
        gpu.check()


def test_torch_is_not_imported():
    code = (
        "import sys; from exact_resume.pipeline.fingerprint import fingerprint; fingerprint('cuda'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "workflow" / "scripts", check=False).returncode == 0


def test_variables_that_are_set_count_in_one_order(monkeypatch):
    for name in fingerprint.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert fingerprint.environment() == ""
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert fingerprint.environment() == "ATEN_CPU_CAPABILITY=default MKL_CBWR=AVX2"


MULTIPLY = """\
import hashlib, torch
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(7)
a = torch.randn(64, 64, generator=generator)
print(hashlib.sha256((a @ a).softmax(1).sum(0).exp().numpy().tobytes()).hexdigest())
"""


@pytest.mark.skipif("avx2" not in fingerprint.simd_extensions(), reason="there is no older kernel to choose")
def test_older_kernels_give_other_bits(monkeypatch):
    """What the variables are in the fingerprint for: the same sum, in vectors of another length."""

    def computed(**environment):
        result = subprocess.run(
            [sys.executable, "-c", MULTIPLY], env=environment, capture_output=True, text=True, check=True
        )
        return result.stdout

    assert computed() == computed()
    assert computed(ATEN_CPU_CAPABILITY="default") != computed()
