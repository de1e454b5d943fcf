"""Make every system call of a run fail, one after the other, with strace.

syscalls.py [STEP]: every STEP-th call only. Calls of Python's startup fail, too, so a run may end
with any status: with 0 the output must be correct, else no file may have changed.
Prints one JSON object: the number of runs, their statuses, and the failures (which must be empty).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

FAULTS = (
    "openat:error=EMFILE",
    "openat:error=EACCES",
    "read:error=EIO",
    "pread64:error=EIO",
    "mmap:error=ENOMEM",
    "newfstatat:error=EIO",
    "pwrite64:error=ENOSPC",
    "pwrite64:error=EIO",
    "pwrite64:signal=KILL",
    "fallocate:error=ENOSPC",
    "fallocate:error=EOPNOTSUPP",
    "fallocate:signal=KILL",
    "ftruncate:error=EIO",
    "fsync:error=EIO",
    "linkat:error=EPERM",
    "linkat:signal=KILL",
    "linkat:signal=TERM",
    "renameat:error=EIO",
    "renameat:signal=TERM",
    "close:error=EIO",
    "clone3:error=EAGAIN",
    "madvise:error=EINVAL",
)
RUN = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "out.npy", "--sync", "--threads", "2")
STRACE = ("strace", "-f", "-qq", "-o", "../log")
MARKS = ("INJECTED", "killed by SIGKILL", "si_code=SI_KERNEL")
PREVIOUS = b"previous content"
ROWS = 1 << 10


def folder_contents() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path().iterdir()}


def run_with_fault(fault: str, number: int) -> int | None:
    """Run once with a fault in a call; return the status, None if the run made fewer calls."""
    call = fault.partition(":")[0]
    inject = ("-e", f"trace={call}", "-e", f"inject={fault}:when={number}")
    command = [*STRACE, *inject, sys.executable, "-m", "ndtool", *RUN]
    status = subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode
    log = Path("../log").read_text(errors="replace")
    return status if any(mark in log for mark in MARKS) else None


def inject_faults(step: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    np.save("data.npy", rng.random((ROWS, 128)))
    np.save("idx.npy", rng.integers(0, ROWS, (ROWS, 1)))
    np.save("upd.npy", rng.random((ROWS, 128)))
    subprocess.run([sys.executable, "-m", "ndtool", *RUN], check=True)
    expected = Path("out.npy").read_bytes()
    Path("out.npy").write_bytes(PREVIOUS)
    before = folder_contents()
    statuses: Counter[int] = Counter()
    failures = []
    for fault in FAULTS:
        number = 1
        while (status := run_with_fault(fault, number)) is not None:
            statuses[status] += 1
            after = folder_contents()
            has_result = after.get("out.npy") == expected
            if "signal=KILL" in fault:  # between link and rename the file has a temporary name
                for name in [n for n in after.keys() - before.keys() if after[n] == expected]:
                    del after[name]
                    os.unlink(name)
            # Published with status 7: fsync of the folder failed; with a kill: it came after the rename.
            unchanged = status != 0 and after == before
            is_published = has_result and (status in (0, 7) or "signal=KILL" in fault)
            if not (unchanged or (is_published and after.keys() == before.keys())):
                failures.append([fault, number, status, sorted(after)])
            Path("out.npy").write_bytes(PREVIOUS)
            number += step
        Path("out.npy").write_bytes(PREVIOUS)
    return {
        "runs": statuses.total(),
        "statuses": dict(sorted(statuses.items())),
        "failures": failures,
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/run")
        os.chdir(f"{folder}/run")
        report = inject_faults(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
        os.chdir("/")
    print(json.dumps(report))
    return int(bool(report["failures"]))


if __name__ == "__main__":
    sys.exit(main())
