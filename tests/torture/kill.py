"""Kill runs at random times and check the remaining files: kill.py COUNT [SEED].

Prints one JSON object with counts: runs, killed and completed ones; incomplete outputs, changed
inputs and leftover files (all three must be 0); and complete files with a temporary name, which a
kill between the two calls that replace a file leaves.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

NDTOOL = [sys.executable, "-m", "ndtool"]
SIZE = 1 << 18
PREVIOUS = b"previous content"
INPUTS = ("data.npy", "idx.npy", "upd.npy")
RUNS = (
    ["gather-nd", "data.npy", "idx.npy", "-o", "gathered.npy"],
    ["scatter-nd", *INPUTS, "-o", "moved.npy"],
    ["scatter-nd", *INPUTS, "--reduction", "add", "-o", "added.npz"],
    ["gather-elements", "wide.npy", "wide_idx.npy", "-o", "elements.npy", "--sync"],
)


def make_inputs() -> None:
    rng = np.random.default_rng(0)
    np.save("data.npy", rng.random(SIZE))
    np.save("idx.npy", rng.integers(0, SIZE, (SIZE, 1)))
    np.save("upd.npy", rng.random(SIZE))
    np.save("wide.npy", rng.random((512, 512)))
    np.save("wide_idx.npy", rng.integers(0, 512, (512, 512)))


def folder_state() -> dict[str, tuple[int, int, int]]:
    """Return inode, size and modification time of each file in the folder."""
    stats = {path.name: path.stat() for path in Path().iterdir()}
    return {name: (s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats.items()}


def measure_seconds(run: list[str]) -> float:
    """Run without a signal and return its seconds."""
    start = time.perf_counter()
    subprocess.run([*NDTOOL, *run], check=True)
    return time.perf_counter() - start


def run_and_kill(run: list[str], seconds: float) -> bool:
    """Start a run, kill it after a delay; return whether it was still running."""
    with subprocess.Popen([*NDTOOL, *run], stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.kill()
    assert process.returncode in (0, -9), process.returncode
    return process.returncode != 0


def kill_runs(count: int, seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    make_inputs()
    inputs, expected, seconds = folder_state(), {}, {}
    for run in RUNS:
        name = next(word for word in run if word[-4:] in (".npy", ".npz") and word not in inputs)
        seconds[name] = min(measure_seconds(run) for _ in range(3))
        expected[name] = Path(name).read_bytes()
        os.unlink(name)
    counts = dict.fromkeys(
        ("killed", "completed", "incomplete", "changed_inputs", "leftover", "complete_temporary"), 0
    )
    for run_number in range(count):
        run, name = RUNS[run_number % len(RUNS)], list(expected)[run_number % len(RUNS)]
        before = None if rng.random() < 0.3 else PREVIOUS
        if before is not None:
            Path(name).write_bytes(before)
        # Kill a third of the runs at any time, the others after their imports.
        share = rng.uniform(0, 1) if rng.random() < 0.3 else rng.uniform(0.5, 1)
        counts["killed" if run_and_kill(run, share * seconds[name]) else "completed"] += 1
        after, output = folder_state(), Path(name)
        content = output.read_bytes() if output.exists() else None
        counts["incomplete"] += content not in (before, expected[name])
        counts["changed_inputs"] += {k: v for k, v in after.items() if k in inputs} != inputs
        for temporary_name in after.keys() - inputs.keys() - {name}:
            counts[
                "complete_temporary"
                if Path(temporary_name).read_bytes() == expected[name]
                else "leftover"
            ] += 1
            os.unlink(temporary_name)
        output.unlink(missing_ok=True)
    return {"runs": count, **counts}


def main() -> int:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        counts = kill_runs(count, seed)
        os.chdir("/")
    print(json.dumps(counts))
    return int(counts["incomplete"] + counts["changed_inputs"] + counts["leftover"] > 0)


if __name__ == "__main__":
    sys.exit(main())
