"""The private memory of a run, as the system reports it."""

import json
import subprocess
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from command import NDTOOL, environment


def own_megabytes(pid: int) -> float:
    """Return the private memory of a process, 0 after its end.

    Pages of mapped files are excluded: the system can drop them.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields.get(name, "0").split()[0]) for name in ("RssAnon", "RssShmem")) / 1024


class Measured(NamedTuple):
    """The peak of private memory of a run in megabytes, and its plan."""

    peak: float
    plan: dict[str, Any]


def peak(*arguments: str) -> float:
    """Run ndtool once and return its peak in megabytes."""
    with subprocess.Popen([*NDTOOL, *arguments], env=environment()) as process:
        return _watched(process)


def measured(*arguments: str, stdin: IO[bytes] | None = None) -> Measured:
    """Run ndtool once on files and return its peak beyond the plan's memory."""
    command = [*NDTOOL, *arguments, "--json"]
    with subprocess.Popen(
        command, env=environment(), stdin=stdin, stdout=subprocess.PIPE
    ) as process:
        most = _watched(process)
        assert process.stdout is not None
        return Measured(most, json.loads(process.stdout.read())["plan"])


def _watched(process: subprocess.Popen[bytes]) -> float:
    most = 0.0
    while process.poll() is None:
        most = max(most, own_megabytes(process.pid))
        time.sleep(0.002)
    assert process.returncode == 0, process.args
    return most
