"""The machine: which two cores are used, and its description."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CPU = Path("/sys/devices/system/cpu/cpu0")
PACKAGES = {
    "numpy": ["numpy"],
    "onnxruntime": ["onnxruntime"],
    "openvino": ["openvino"],
    "torch": ["torch"],
    "tensorflow": ["tensorflow", "tensorflow-cpu"],
    "jax": ["jax"],
    "polars": ["polars"],
}


def use_two_cores() -> None:
    """Pin the process to two cores; libraries without a setting for threads follow this."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cpus = sorted(os.sched_getaffinity(0))
    siblings = _siblings(cpus[0])
    os.sched_setaffinity(0, {cpus[0], *[cpu for cpu in cpus if cpu not in siblings][:1]})


def describe(peers: list[str]) -> dict[str, Any]:
    """Return the facts needed to compare results; None for a peer that is not installed."""
    return {
        "cpu": processor().partition(": ")[0],
        "cpus": os.cpu_count(),
        "caches": _caches(),
        "memory_bytes": memory_size(),
        "kernel": platform.release(),
        "system": platform.system(),
        "python": platform.python_version(),
        "compiler": _first_line(["cc", "--version"]),
        "ndtool": _version(["ndtool"]),
        "peers": {peer: _version(PACKAGES[peer]) for peer in peers},
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def processor() -> str:
    """Return a processor's name and, if the system reports them, its features."""
    name, flags = (_read_field("/proc/cpuinfo", key) for key in ("model name", "flags"))
    return f"{name or platform.processor()}: {flags}"


def memory_size() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def format_description(machine: dict[str, Any]) -> str:
    """Return the description as a sentence."""
    peers = ", ".join(f"{name} {release}" for name, release in machine["peers"].items() if release)
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    return (
        f"{machine['cpu']}, {machine['cpus']} CPUs ({caches}),"
        f" {machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']} {machine['kernel']},"
        f" Python {machine['python']}, {machine['compiler']}. {peers}."
    )


def _siblings(cpu: int) -> set[int]:
    """Return the processors that share a core with this one."""
    path = CPU.parent / f"cpu{cpu}/topology/thread_siblings_list"
    siblings = {cpu}
    try:
        for cpu_range in path.read_text().strip().split(","):
            first, _, last = cpu_range.partition("-")
            siblings.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        pass
    return siblings


def _caches() -> dict[str, str]:
    caches = {}
    for folder in sorted(CPU.glob("cache/index*")):
        try:
            level, kind, size = (
                (folder / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            caches[f"L{level}{'d' if kind == 'Data' else ''}"] = size
    return caches


def _read_field(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _first_line(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no compiler"
    return result.stdout.splitlines()[0]


def _version(names: list[str]) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return None
