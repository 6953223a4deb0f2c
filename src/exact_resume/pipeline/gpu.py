"""What is known of NVIDIA's GPUs without importing torch, which takes longer than all else before the first job."""

import ctypes
import os
import re
from importlib.metadata import distribution
from pathlib import Path

from exact_resume.errors import LabError

DRIVER = Path("/proc/driver/nvidia")


def facts():
    """Return a dict of what decides the bits that a GPU computes: their models, which of them is chosen, the driver,
    torch's CUDA.

    What the system doesn't tell is empty.
    """
    models = [_after("Model:", path) for path in sorted(DRIVER.glob("gpus/*/information"))]
    # Which one is used matters when they differ.
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "") if len(set(models)) > 1 else ""
    return {
        "gpu": ", ".join(models),
        "gpu_chosen": chosen,
        "driver": _after("NVRM version:", DRIVER / "version"),
        "cuda": _torch_built_for("cuda"),
    }


def check():
    """Raise LabError, one line, when torch can't train on a GPU here. A ROCm build, which says cuda too, is left to
    torch itself.
    """
    if _torch_built_for("hip"):
        return
    if not _torch_built_for("cuda"):
        raise LabError(
            "config key training.device: found cuda, but the installed torch is built without it; wanted cpu"
        )
    if not _devices():
        raise LabError("config key training.device: found cuda, but there is no GPU here that CUDA can use; wanted cpu")


def _devices():
    """The number of GPUs that CUDA's own library sees."""
    count = ctypes.c_int(0)
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return 0
    # 0 is success.
    return 0 if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) else count.value


def _torch_built_for(platform):
    """The version of the `platform`, cuda or hip, that torch was built for; "" for none."""
    text = Path(distribution("torch").locate_file("torch/version.py")).read_text(encoding="utf-8")
    found = re.search(rf"^{platform}\b[^=\n]*= *'([^']+)'", text, re.MULTILINE)
    return found.group(1) if found else ""


def _after(label, path):
    """What follows `label` on its line in the file `path`, "" when there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((" ".join(line.removeprefix(label).split()) for line in lines if line.startswith(label)), "")
