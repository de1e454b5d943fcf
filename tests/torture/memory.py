"""Measure the private memory of each operator: memory.py small|large.

Prints a JSON object: the peak of private memory in megabytes (RssAnon and RssShmem; pages of mapped
files belong to the system, which can drop them) of each run, on data of 128 MB or 16 GB in
sparse files, with two threads, to a file and from and to pipes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from command import NDTOOL
from memory import watch_peak
from npyfile import write_sparse

COLUMNS = 1 << 13


def make_inputs(rows: int) -> None:
    """Write data of rows x 32 kB and indices and updates of up to 64 MB."""
    rng = np.random.default_rng(0)
    write_sparse("data.npy", "<f4", (rows, COLUMNS))
    write_sparse("fortran.npy", "<f4", (rows, COLUMNS), True)
    write_sparse("swapped.npy", ">f4", (rows, COLUMNS))
    count = 1 << 22
    pairs = np.stack([rng.integers(0, n, count) for n in (rows, COLUMNS)], 1)
    np.save("pairs.npy", pairs)
    np.save("ones.npy", np.ones(count, "<f4"))
    index_rows = 1 << 9
    axis_0_indices = rng.integers(0, rows, (index_rows, COLUMNS), dtype="i4")
    np.save("down.npy", axis_0_indices)
    np.save("down_fortran.npy", np.asfortranarray(axis_0_indices))
    np.save("down_ones.npy", np.ones((index_rows, COLUMNS), "<f4"))
    axis_1_rows = min(rows, 1 << 13)
    np.save("along.npy", rng.integers(0, COLUMNS, (axis_1_rows, index_rows), dtype="i4"))
    np.save("along_ones.npy", np.ones((axis_1_rows, index_rows), "<f4"))
    tall_rows = rows * COLUMNS // 4
    write_sparse("tall.npy", "<f4", (tall_rows, 4))
    np.save("many.npy", rng.integers(0, tall_rows, (1 << 20, 4)))
    np.save("many_ones.npy", np.ones((1 << 20, 4), "<f4"))
    np.save("three.npy", rng.integers(0, tall_rows, (3, 4)))
    np.save("three_ones.npy", np.ones((3, 4), "<f4"))


FILES = (
    "gather-nd data pairs",
    "gather-nd fortran pairs",
    "scatter-nd data pairs ones",
    "scatter-nd swapped pairs ones --reduction add",
    "gather-elements data down",
    "gather-elements fortran down_fortran",
    "gather-elements data along --axis 1",
    "scatter-elements data down down_ones --reduction max",
    "scatter-elements fortran down_fortran down_ones --reduction add",
    "scatter-elements data along along_ones --axis 1",
    "gather-elements tall many",
    "gather-elements tall three",
    "scatter-elements tall many many_ones --reduction add",
    "scatter-elements tall three three_ones",
)
PIPES = (
    "gather-nd data pairs",
    "scatter-nd swapped pairs ones --reduction add",
    "scatter-elements fortran down_fortran down_ones --reduction add",
)


def peak(run: str, piped: bool) -> float:
    """Run once; return the peak of private memory in megabytes."""
    words = run.split()
    inputs = [f"{word}.npy" for word in words[1:] if os.path.exists(f"{word}.npy")]
    options = words[1 + len(inputs) :]
    names = ["-"] * len(inputs) if piped else inputs
    command = [
        *NDTOOL,
        words[0],
        *names,
        *options,
        "--threads",
        "2",
        "-o",
        "-" if piped else "out.npy",
    ]
    cat = subprocess.Popen(["cat", *inputs] if piped else ["true"], stdout=subprocess.PIPE)
    sink = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with subprocess.Popen(command, stdin=cat.stdout, stdout=sink.stdin) as process:
        peak_megabytes = watch_peak(process)
    assert process.returncode == 0, run
    assert cat.stdout is not None
    assert sink.stdin is not None
    cat.stdout.close()
    sink.stdin.close()
    cat.wait()
    sink.wait()
    Path("out.npy").unlink(missing_ok=True)
    return peak_megabytes


def main() -> None:
    rows = {"small": 1 << 12, "large": 1 << 19}[sys.argv[1]]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        os.chdir(folder)
        make_inputs(rows)
        is_small = sys.argv[1] == "small"
        runs = FILES if is_small else [run for run in FILES if run.split()[1] == "data"]
        results = {run: round(peak(run, False)) for run in runs}
        if is_small:
            results |= {f"{run}, piped": round(peak(run, True)) for run in PIPES}
        os.chdir("/")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
