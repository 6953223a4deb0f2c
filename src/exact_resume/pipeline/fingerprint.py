"""What decides the bits of a training run besides its settings. Cheap: no torch is imported."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from exact_resume.pipeline import gpu

# Variables by which libraries take other kernels, another precision or fewer threads than they are told. Those of
# thread counts, such as OMP_NUM_THREADS, are none of them: torch.set_num_threads wins.
VARIABLES = [
    *("OMP_DYNAMIC", "OMP_THREAD_LIMIT"),
    *("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "TORCH_MKLDNN_MATMUL_MIN_DIM"),
    *(f"{prefix}_{name}" for prefix in ("ONEDNN", "DNNL") for name in ("MAX_CPU_ISA", "DEFAULT_FPMATH_MODE")),
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"),
    *("TORCH_BLAS_PREFER_CUBLASLT", "PYTORCH_TUNABLEOP_ENABLED", "CUDA_FORCE_PTX_JIT"),
]


def fingerprint(device):
    """Return a dict of the torch version, the CPU and, when `device` is cuda, the GPU, and the environment variables
    that choose kernels: two machines that agree in it are expected to train the same bits.
    """
    found = {"torch": version("torch"), "cpu": cpu_model(), "simd": simd_extensions(), "environment": environment()}
    return {**found, **gpu.facts()} if device == "cuda" else found


def environment():
    """Return those of VARIABLES that are set, as text."""
    return " ".join(f"{name}={os.environ[name]}" for name in sorted(VARIABLES) if os.environ.get(name))


def cpu_model():
    """Return the CPU's name as the system gives it."""
    names = _cpuinfo("model name")
    if names:
        return names
    if platform.system() == "Darwin":
        return subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], check=True, capture_output=True, text=True
        ).stdout.strip()
    return platform.processor() or platform.machine()


def simd_extensions():
    """Return the CPU's vector extensions, which torch's kernels are chosen by; virtual machines hide more telling
    names.
    """
    flags = _cpuinfo("flags") or _cpuinfo("Features") or ""
    return " ".join(
        sorted(flag for flag in set(flags.split()) if flag.startswith(("sse", "fma", "avx", "amx", "asimd", "sve")))
    )


def _cpuinfo(field):
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
