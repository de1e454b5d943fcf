"""The private memory of a run, as /proc reports it."""

import json
import subprocess
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from command import NDTOOL, Completed, environment


def private_megabytes(pid: int) -> float:
    """Return the private memory of a process, 0 after its end.

    Pages of mapped files are excluded: the system can drop them.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields.get(name, "0").split()[0]) for name in ("RssAnon", "RssShmem")) / 1024


class MemoryUse(NamedTuple):
    """The peak of private memory of a run in megabytes, and its plan."""

    peak: float
    plan: dict[str, Any]


def run_measured(*arguments: object) -> tuple[Completed, float]:
    """Run ndtool once; return the result and the peak of its private memory in megabytes."""
    command = [*NDTOOL, *map(str, arguments)]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        peak = watch_peak(process)
        out, err = process.communicate()
    return Completed(process.returncode, out, err.decode()), peak


def peak_megabytes(*arguments: object) -> float:
    """Run ndtool once, successfully, and return the peak of its private memory in megabytes."""
    completed, peak = run_measured(*arguments)
    assert completed.status == 0, completed
    return peak


def measure_memory(*arguments: str, stdin: IO[bytes] | None = None) -> MemoryUse:
    """Run ndtool once with --json and return its peak memory and its plan."""
    command = [*NDTOOL, *arguments, "--json"]
    with subprocess.Popen(
        command, env=environment(), stdin=stdin, stdout=subprocess.PIPE
    ) as process:
        peak = watch_peak(process)
        assert process.stdout is not None
        assert process.returncode == 0, arguments
        return MemoryUse(peak, json.loads(process.stdout.read())["plan"])


def watch_peak(process: subprocess.Popen[bytes]) -> float:
    """Return the peak of a process's private memory in megabytes, at its end."""
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, private_megabytes(process.pid))
        time.sleep(0.002)
    return peak
