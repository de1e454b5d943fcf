"""What a run takes of memory of its own, as the system counts it."""

import json
import subprocess
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from command import NDTOOL, environment


def own_megabytes(pid: int) -> float:
    """Return what a process has of its own now, 0 when it is gone.

    Pages of mapped files belong to the system, which can drop them.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields.get(name, "0").split()[0]) for name in ("RssAnon", "RssShmem")) / 1024


class Measured(NamedTuple):
    """The most megabytes that a run was seen to have of its own, and its plan."""

    peak: float
    plan: dict[str, Any]


def peak(*arguments: str) -> float:
    """Run ndtool once and return the most megabytes that were seen."""
    with subprocess.Popen([*NDTOOL, *arguments], env=environment()) as process:
        return _watched(process)


def measured(*arguments: str, stdin: IO[bytes] | None = None) -> Measured:
    """Run ndtool once on files and return what it took beside what it planned to take."""
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
