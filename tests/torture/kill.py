"""Kill runs at random times and check the remaining files: kill.py COUNT [SEED].

Prints one JSON object: runs, how many were killed and how many finished before; how many outputs
were incomplete, inputs changed and incomplete files left behind (all must be 0); and how many
complete files have a temporary name, which can happen between the two calls that replace.
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
OLD = b"previous content"
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


def looks() -> dict[str, tuple[int, int, int]]:
    """Return the content of the folder, as far as it shows without reading files."""
    stats = {path.name: path.stat() for path in Path().iterdir()}
    return {name: (s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats.items()}


def lasting(run: list[str]) -> float:
    """Run without a signal and return its seconds."""
    started = time.perf_counter()
    subprocess.run([*NDTOOL, *run], check=True)
    return time.perf_counter() - started


def killed_at(run: list[str], seconds: float) -> bool:
    """Start a run, kill it after a delay; return whether it was still running."""
    with subprocess.Popen([*NDTOOL, *run], stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.kill()
    assert process.returncode in (0, -9), process.returncode
    return process.returncode != 0


def torture(count: int, seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    make_inputs()
    inputs, wanted, lasts = looks(), {}, {}
    for run in RUNS:
        name = next(word for word in run if word[-4:] in (".npy", ".npz") and word not in inputs)
        lasts[name] = min(lasting(run) for _ in range(3))
        wanted[name] = Path(name).read_bytes()
        os.unlink(name)
    found = dict.fromkeys(("killed", "done", "torn", "inputs", "left", "whole"), 0)
    for number in range(count):
        run, name = RUNS[number % len(RUNS)], list(wanted)[number % len(RUNS)]
        before = None if rng.random() < 0.3 else OLD
        if before is not None:
            Path(name).write_bytes(before)
        # A third of them at any time, the others after the imports, during the work.
        share = rng.uniform(0, 1) if rng.random() < 0.3 else rng.uniform(0.5, 1)
        found["killed" if killed_at(run, share * lasts[name]) else "done"] += 1
        after, output = looks(), Path(name)
        now = output.read_bytes() if output.exists() else None
        found["torn"] += now not in (before, wanted[name])
        found["inputs"] += {k: v for k, v in after.items() if k in inputs} != inputs
        for other in after.keys() - inputs.keys() - {name}:
            found["whole" if Path(other).read_bytes() == wanted[name] else "left"] += 1
            os.unlink(other)
        output.unlink(missing_ok=True)
    return {"runs": count, **found}


def main() -> int:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = torture(count, seed)
        os.chdir("/")
    print(json.dumps(found))
    return int(found["torn"] + found["inputs"] + found["left"] > 0)


if __name__ == "__main__":
    sys.exit(main())
