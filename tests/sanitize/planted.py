"""Data races that ThreadSanitizer must report, and code without races: planted.c, misused kernels.

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
RACE_REPORT = "WARNING: ThreadSanitizer: data race"


def planted(name: str) -> Callable[[], None]:
    """Return a case that calls a function of planted.c."""

    def case() -> None:
        function = getattr(ctypes.CDLL(str(LIBRARY)), name)
        function.restype = ctypes.c_int64
        result = function(THREADS)
        assert not name.startswith("clean") or result in (SUM, 0), result

    return case


def scatter_batches(overlap: bool) -> None:
    """Scatter batches with several threads, to the same or to disjoint destinations."""
    from ndtool import _kernels

    size, count = 64, 4_000_000  # enough work for every thread
    stride = 0 if overlap else size * 4
    batches = _kernels.Addressing((size,), (4,), size, (count // size,), (stride,), True)
    out = bytearray(count * 4)
    indices = _kernels.Indices(bytearray(count), 1, False, False)
    spec = _kernels.UpdateSpec(bytearray(count * 4), 4, "add", "int32")
    item, options = _kernels.WorkItem(0, count, 0, 4), _kernels.KernelOptions(THREADS)
    _kernels.scatter(batches, indices, item, spec, out, True, options)


def update_one_output() -> None:
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
    "overlapping_batches": (lambda: scatter_batches(True), "_kernels"),
    "disjoint_batches": (lambda: scatter_batches(False), ""),
    "one_output_from_two_threads": (update_one_output, "_kernels"),
}


def main() -> int:
    """Run all cases; return the number of unexpected results."""
    unexpected = 0
    for name, (_, reported_file) in CASES.items():
        command = [sys.executable, __file__, name]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if reported_file:
            is_expected = (
                run.returncode == 66 and RACE_REPORT in run.stderr and reported_file in run.stderr
            )
        else:
            is_expected = run.returncode == 0 and not run.stderr
        print(f"{name}: {'found' if RACE_REPORT in run.stderr else 'nothing'}")
        if not is_expected:
            print(f"unexpected result (status {run.returncode})\n{run.stderr}")
        unexpected += not is_expected
    return unexpected


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CASES[sys.argv[1]][0]()
    else:
        sys.exit(main())
