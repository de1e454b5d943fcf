"""What 64 cores would do: a model of the memory traffic that valgrind counts here.

    python benchmarks/cores.py    counts with cachegrind (some minutes), then the model

A call is counted as the difference between two processes, with and without it, so that imports
cancel. Work that does not grow with the number of threads, and threads that share memory's
bandwidth, are all that the model knows: it is no measurement.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CALLS = {
    "gather of scalars": "ndtool.gather(data, indices, out=out, threads=THREADS)",
    "scatter add of scalars": "ndtool.scatter(data, indices, updates, reduction='add', out=data,"
    " threads=THREADS)",
}
TUPLES, ROWS = 1 << 19, 1 << 26
SETUP_SCRIPT = f"""
import numpy as np, ndtool
rng = np.random.default_rng(0)
data, out = np.zeros({ROWS}, np.float32), np.zeros({TUPLES}, np.float32)
indices, updates = rng.integers(0, {ROWS}, {TUPLES}), np.ones({TUPLES}, np.float32)
ndtool.gather(data, indices[:8], out=out[:8])
"""
CACHE = "--LL=33554432,16,64"  # of 32 MiB, of which data are eight times as large
LINE = 64


class Counts(NamedTuple):
    """What cachegrind counts: instructions, and lines read from and written to memory.

    returned: lines written back that were read before, which it does not count.
    """

    instructions: int
    read: int
    written: int
    returned: int = 0


class Machine(NamedTuple):
    """A processor. rate: instructions per second of a core. misses: lines per second of a core,
    which waits for several at once. bandwidth: bytes per second of all memory.
    """

    name: str
    cores: int
    rate: float
    misses: float
    bandwidth: float


# A core of this machine, and one socket of 64 such cores with eight channels of DDR4-3200, of
# whose 204.8 GB/s programs reach 80 %.
CORE = 4e9, 1.2e8
SOCKET = Machine("64 cores, 8 channels", 64, *CORE, 164e9)


def count_call(call: str, threads: int, before: Counts) -> Counts:
    """Count a call with cachegrind. before: the counts of a process without it."""
    after = count_process(SETUP_SCRIPT + call.replace("THREADS", str(threads)))
    counts = Counts(*(a - b for a, b in zip(after, before, strict=True)))
    return counts._replace(returned=TUPLES if "scatter" in call else 0)  # a line for each tuple


def count_process(program: str) -> Counts:
    """Count a process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counts")
        command = [
            "valgrind",
            "--tool=cachegrind",
            "--cache-sim=yes",
            CACHE,
            f"--cachegrind-out-file={out}",
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run(
            [*command, sys.executable, "-c", program],
            check=True,
            capture_output=True,
            env=environment,
        )
        text = out.read_text()
    events = re.search("^events: (.*)$", text, re.MULTILINE)
    summary = re.search("^summary: (.*)$", text, re.MULTILINE)
    assert events is not None, text[:200]
    assert summary is not None, text[:200]
    values = dict(zip(events[1].split(), map(int, summary[1].split()), strict=True))
    return Counts(values["Ir"], values["DLmr"] + values["ILmr"], values["DLmw"])


def seconds(counts: Counts, machine: Machine, cores: int) -> float:
    """Return the modelled time of a call on some cores."""
    lines = counts.read + counts.written
    computing = counts.instructions / cores / machine.rate
    waiting = lines / cores / machine.misses
    moving = LINE * (counts.read + 2 * counts.written + counts.returned) / machine.bandwidth
    return max(computing + waiting, moving)


def table(counts: dict[str, Counts]) -> list[str]:
    """Return the table of modelled speedups."""
    lines = ["| call | " + " | ".join(map(str, CORES)) + " |", "|---|" + "---|" * len(CORES)]
    for name, call_counts in counts.items():
        one_core = seconds(call_counts, SOCKET, 1)
        speedups = (f"{one_core / seconds(call_counts, SOCKET, cores):.1f}" for cores in CORES)
        lines.append(f"| {name} | {' | '.join(speedups)} |")
    return lines


CORES = 1, 2, 4, 8, 16, 32, 64

if __name__ == "__main__":
    print(f"{TUPLES} tuples of {ROWS} float32: counted per tuple")
    print("| call | threads | instructions | bytes read | bytes written |")
    print("|---|---|---|---|---|")
    by_call: dict[str, Counts] = {}
    baseline = count_process(SETUP_SCRIPT)
    for name, call in CALLS.items():
        for threads in (1, 2):
            counts = count_call(call, threads, baseline)
            by_call.setdefault(name, counts)
            per_tuple = (counts.instructions, LINE * counts.read, LINE * counts.written)
            print(
                f"| {name} | {threads} | {' | '.join(f'{n / TUPLES:.1f}' for n in per_tuple)} |",
                flush=True,
            )
    print("\n".join(table(by_call)))
