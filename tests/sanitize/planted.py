"""Data races that ThreadSanitizer must and must not report: planted.c, and misused kernels.

python planted.py            runs every case in its own process
python planted.py CASE       runs one
"""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

THREADS = 4
ROUNDS = 20000
SUM = ROUNDS * (ROUNDS - 1) // 2
LIBRARY = Path("planted.so").resolve()
FOUND = "WARNING: ThreadSanitizer: data race"


def planted(name: str) -> Callable[[], None]:
    """Return a case that is a function of planted.c."""

    def case() -> None:
        function = getattr(ctypes.CDLL(str(LIBRARY)), name)
        function.restype = ctypes.c_int64
        result = function(THREADS)
        assert not name.startswith("clean") or result in (SUM, 0), result

    return case


def batches_on_one_place(overlap: bool) -> None:
    """Scatter batches with several threads as if their destinations were disjoint."""
    from ndtool import _kernels

    size, count = 64, 4_000_000  # enough work for every thread
    stride = 0 if overlap else size * 4
    batches = _kernels.Addressing((size,), (4,), size, (count // size,), (stride,), True)
    out = bytearray(count * 4)
    indices = _kernels.Indices(bytearray(count), 1, False, False)
    change = _kernels.UpdateSpec(bytearray(count * 4), 4, "add", "int32")
    piece, options = _kernels.WorkItem(0, count, 0, 4), _kernels.KernelOptions(THREADS)
    _kernels.scatter(batches, indices, piece, change, out, True, options)


def one_output() -> None:
    """Update one array from two Python threads at once."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    import ndtool

    data, index = np.zeros((64, 300)), np.zeros((64, 1), int)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            pool.submit(ndtool.scatter_nd, data, index, np.ones((64, 300)), out=data)


CASES: dict[str, tuple[Callable[[], None], str]] = {
    "race": (planted("race"), "planted.c"),
    "race_dynamic": (planted("race_dynamic"), "planted.c"),
    "race_nowait": (planted("race_nowait"), "planted.c"),
    "clean_reduction": (planted("clean_reduction"), ""),
    "clean_dynamic": (planted("clean_dynamic"), ""),
    "clean_barriers": (planted("clean_barriers"), ""),
    "clean_critical": (planted("clean_critical"), ""),
    "batches_on_one_place": (lambda: batches_on_one_place(True), "_kernels"),
    "batches_on_their_own": (lambda: batches_on_one_place(False), ""),
    "one_output_from_two_threads": (one_output, "_kernels"),
}


def main() -> int:
    """Run every case; return the number of unexpected results."""
    wrong = 0
    for name, (_, where) in CASES.items():
        command = [sys.executable, __file__, name]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if where:
            right = run.returncode == 66 and FOUND in run.stderr and where in run.stderr
        else:
            right = run.returncode == 0 and not run.stderr
        print(f"{name}: {'found' if FOUND in run.stderr else 'nothing'}")
        if not right:
            print(f"not as it should be (status {run.returncode})\n{run.stderr}")
        wrong += not right
    return wrong


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CASES[sys.argv[1]][0]()
    else:
        sys.exit(main())
