"""What decides the bits of a training run besides its settings. Cheap: no torch is imported."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path


def fingerprint():
    """Return a dict of the torch version and the CPU: two machines that agree in it are expected to train the same bits."""
    return {"torch": version("torch"), "cpu": cpu_model(), "simd": simd_extensions()}


def cpu_model():
    """Return the CPU's name as the system gives it."""
    names = _cpuinfo("model name")
    if names:
        return names
    if platform.system() == "Darwin":
        return subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], check=True, capture_output=True, text=True).stdout.strip()
    return platform.processor() or platform.machine()


def simd_extensions():
    """Return the CPU's vector extensions, which torch's kernels are chosen by; virtual machines hide more telling names."""
    flags = _cpuinfo("flags") or _cpuinfo("Features") or ""
    return " ".join(sorted(flag for flag in set(flags.split()) if flag.startswith(("sse", "fma", "avx", "amx", "asimd", "sve"))))


def _cpuinfo(field):
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
