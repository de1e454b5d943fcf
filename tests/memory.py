"""What a run takes of memory of its own, as the system counts it."""

import subprocess
import time
from pathlib import Path

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


def peak(*arguments: str) -> float:
    """Run ndtool once and return the most megabytes that were seen."""
    most = 0.0
    with subprocess.Popen([*NDTOOL, *arguments], env=environment()) as process:
        while process.poll() is None:
            most = max(most, own_megabytes(process.pid))
            time.sleep(0.001)
    assert process.returncode == 0, arguments
    return most
