"""Arrays larger than memory: the command and its peers in a memory cgroup, with cold files.

Compared with the disk: the time of `dd` to read and write as many bytes in the same cgroup.
Requires root, for the cgroup and for dropping the page cache, and space for three times the data.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from whole_runs import GATHER, Bench, Record, temporary_bench

BLOCK = 1 << 22  # elements to generate, or compare, at a time
HEADER = 128  # bytes before the data


class Work(NamedTuple):
    """One workload on data of `shape`; n: index tuples. peers: those that support it."""

    name: str
    command: str
    shape: tuple[int, ...]
    n: int
    indices: Callable[[int, int], Any]
    peers: frozenset[str] = frozenset({"numpy"})


def uniform(size: int, n: int) -> Any:
    return np.random.default_rng(0).integers(0, size, n)


def ordered(size: int, n: int) -> Any:
    return np.sort(uniform(size, n))


def repeated(size: int, n: int) -> Any:
    """Each of 2^16 elements is selected n / 2^16 times."""
    return uniform(size, 1 << 16)[np.random.default_rng(1).integers(0, 1 << 16, n)]


def works(size: int) -> list[Work]:
    """Return the workloads on `size` float32 elements."""
    flat, side = (size,), 1 << size.bit_length() // 2
    add, everybody = "scatter-nd --reduction add", frozenset(PEERS)
    rows, matrix = (size >> 10, 1 << 10), (side, size // side)
    return [
        Work("gather 1,024 random scalars", "gather-nd", flat, 1 << 10, uniform),
        Work("gather 2^23 random scalars", "gather-nd", flat, 1 << 23, uniform, everybody),
        Work("gather 2^23 sorted scalars", "gather-nd", flat, 1 << 23, ordered),
        Work("gather 2^27 random scalars", "gather-nd", flat, 1 << 27, uniform),
        Work("gather rows of 4 KiB, half of data", "gather-nd", rows, size >> 11, uniform),
        Work("scatter add 2^23 scalars", add, flat, 1 << 23, uniform, everybody),
        Work("scatter add 2^26 scalars", add, flat, 1 << 26, uniform),
        Work("scatter none 2^26, heavy duplicates", "scatter-nd", flat, 1 << 26, repeated),
        Work("elements axis 0, an eighth", "gather-elements", matrix, size >> 3, uniform),
    ]


def value(number: Any) -> Any:
    """Return the element at a linear index: an integer below 2^20, so that small sums are exact."""
    return (number.astype(np.uint32) * np.uint32(2654435761) >> np.uint32(12)).astype(np.float32)


def update(number: Any) -> Any:
    """Return the update at a linear index: 1 to 7."""
    return (number % 7 + 1).astype(np.float32)


class Beyond:
    """Data files of some bytes, and runs that have less memory."""

    def __init__(self, bench: Bench, nbytes: int, memory: int, patience: float) -> None:
        self.folder, self.size, self.patience = bench.folder, nbytes // 4, patience
        self._bench, self._group = bench, _group(memory)
        (self.folder / "small").mkdir()
        self._small = Bench(self.folder / "small", bench.environment)
        self._small.save("data.npy", np.zeros((2, 2)))
        self._small.save("idx.npy", np.zeros((1, 1), np.int64))
        self._programs = [self._small.ndtool(GATHER)]
        data = np.lib.format.open_memmap(self.folder / "data.npy", "w+", np.float32, (self.size,))
        for at in range(0, self.size, BLOCK):
            data[at : at + BLOCK] = value(np.arange(at, at + BLOCK))
        del data
        self.reading = self._dd("of=/dev/null") / nbytes
        self.writing = self._dd("of=out.npy") / nbytes - self.reading

    def close(self) -> None:
        self._group.rmdir()

    def _dd(self, target: str) -> float:
        """Return the seconds in which dd reads data, and writes as many bytes."""
        took = self._run(["dd", "if=data.npy", target, "bs=16M", "status=none"])["seconds"]
        (self.folder / "out.npy").unlink(missing_ok=True)
        return float(took)

    def measure(self, work: Work, peers: set[str]) -> Record:
        """Run a workload with ndtool and its peers; results are verified."""
        self._make(work)
        command = f"{work.command} data.npy idx.npy"
        if "scatter" in command:
            command += " updates.npy"
        arguments = [*command.split(), "-q", "-o", "out.npy"]
        record = self._run(self._bench.ndtool(arguments))
        record["verified"] = self._is_right(work)
        moved = record["read"] * self.reading + record["written"] * self.writing
        record["of disk"] = record["seconds"] / moved if moved else None
        record["peers"] = {name: self._peer(work, name) for name in sorted(work.peers & peers)}
        return record

    def _peer(self, work: Work, name: str) -> Record:
        kind = work.command.partition("-")[2] if "gather" in work.command else work.command[-3:]
        line = PEERS[name].get(kind)
        if line is None:
            return {"reason": "no way to do it"}
        try:
            self._programs.append(self._small.python(f"import {name}"))
            record = self._run([sys.executable, "-c", BEGINNING + line])
        except RuntimeError as error:
            return {"reason": str(error)}
        finally:
            del self._programs[1:]
        verified = (self.folder / "out.npy").exists() and self._is_right(work)
        return record | {"verified": verified}

    def _make(self, work: Work) -> None:
        """Write data with the workload's shape, and indices and updates."""
        with open(self.folder / "data.npy", "r+b") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": work.shape}
            np.lib.format.write_array_header_1_0(file, header)
            assert file.tell() == HEADER
        indices = work.indices(work.shape[0], work.n)
        shape = (
            (work.n // work.shape[-1], work.shape[-1]) if "elements" in work.command else (-1, 1)
        )
        np.save(self.folder / "idx.npy", indices.reshape(shape))
        (self.folder / "updates.npy").unlink(missing_ok=True)
        if "scatter" in work.command:
            np.save(self.folder / "updates.npy", update(np.arange(work.n)))
        os.sync()

    def _run(self, command: list[str]) -> Record:
        """Run a command in the cgroup, with a cold page cache; return its time and bytes."""
        (self.folder / "out.npy").unlink(missing_ok=True)
        Path("/proc/sys/vm/drop_caches").write_text("3")
        for program in self._programs:  # which are no part of the data
            self._small.seconds(program)

        def enter() -> None:
            (self._group / "cgroup.procs").write_text(str(os.getpid()))

        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = subprocess.Popen(
            command, cwd=self.folder, env=self._bench.environment, preexec_fn=enter,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            _, complaint = process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RuntimeError(f"not done in {self.patience:.0f} s") from None
        took = time.perf_counter() - started
        if process.returncode:
            why = complaint.decode(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(f"status {process.returncode}: {why[-200:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "seconds": took,
            "read": (after.ru_inblock - before.ru_inblock) * 512,
            "written": (after.ru_oublock - before.ru_oublock) * 512,
        }

    def _is_right(self, work: Work) -> bool:
        """Whether every element of the output is correct."""
        out = np.load(self.folder / "out.npy", mmap_mode="r")
        indices = np.load(self.folder / "idx.npy", mmap_mode="r")
        if "scatter" in work.command:
            return out.shape == work.shape and self._is_scattered(work, out, indices[:, 0])
        width = work.shape[1] if work.command == "gather-nd" and len(work.shape) > 1 else 1
        flat, rows, wide = out.reshape(-1), indices.reshape(-1), work.shape[-1]
        for at in range(0, len(rows), BLOCK // width):
            row = rows[at : at + BLOCK // width]
            if "elements" in work.command:
                positions = row * wide + np.arange(at, at + len(row)) % wide
            else:
                positions = (row[:, None] * width + np.arange(width)).reshape(-1)
            if not np.array_equal(flat[at * width : at * width + len(positions)], value(positions)):
                return False
        return len(flat) == len(rows) * width

    def _is_scattered(self, work: Work, out: Any, indices: Any) -> bool:
        """Whether sums, all of which are exact, or the last updates are correct."""
        order = np.argsort(indices, kind="stable")
        positions, updates = indices[order], update(order)
        for at in range(0, self.size, BLOCK):
            wanted = value(np.arange(at, at + BLOCK))
            first, stop = np.searchsorted(positions, [at, at + BLOCK])
            if work.command.endswith("add"):
                here = positions[first:stop] - at
                wanted += np.bincount(here, updates[first:stop], BLOCK).astype(np.float32)
            else:
                last = np.append(
                    positions[first + 1 : stop] != positions[first : stop - 1], stop > first
                )
                wanted[positions[first:stop][last] - at] = updates[first:stop][last]
            if not np.array_equal(out[at : at + BLOCK], wanted):
                return False
        return True


BEGINNING = """
import numpy as np
data, idx = np.load("data.npy", mmap_mode="r"), np.load("idx.npy", mmap_mode="r")
"""
SCATTERED = """
upd = np.load("updates.npy")
out = np.lib.format.open_memmap("out.npy", "w+", data.dtype, data.shape)
"""
DUCKDB = """
import duckdb
half = len(data) // 2  # as it takes less than 2^31 rows from an array
low, high = {"value": np.asarray(data[:half])}, {"value": np.asarray(data[half:])}
data_, wanted = "(FROM low UNION ALL FROM high)", {"row_id": np.asarray(idx[:, 0])}
duckdb.sql("SET memory_limit = '500MB'; SET max_temp_directory_size = '20GB'")
"""
PEERS = {
    "numpy": {
        "nd": 'np.save("out.npy", data[idx[:, 0]])',
        "elements": 'np.save("out.npy", np.take_along_axis(data, idx, 0))',
        "add": SCATTERED + "out[:] = data\nnp.add.at(out, idx[:, 0], upd)",
        "-nd": SCATTERED + "out[:] = data\nout[idx[:, 0]] = upd",
    },
    "dask": {
        "nd": """
import dask.array as da
chunked = da.from_array(data, chunks=1 << 24)
np.save("out.npy", chunked.vindex[np.asarray(idx[:, 0])].compute(num_workers=2))
"""
    },
    "polars": {
        "nd": """
import polars as pl
table = pl.LazyFrame({"value": data}).with_row_index("row")
wanted = pl.LazyFrame({"row": idx[:, 0]}).with_row_index("at").cast(pl.Int64)
joined = wanted.join(table.cast({"row": pl.Int64}), "row").sort("at").select("value")
np.save("out.npy", joined.collect(engine="streaming")["value"].to_numpy())
""",
        "add": SCATTERED
        + """
import polars as pl
table = pl.LazyFrame({"value": data}).with_row_index("row").cast({"row": pl.Int64})
more = pl.LazyFrame({"row": idx[:, 0], "value": upd})
summed = pl.concat([table, more]).group_by("row").agg(pl.col("value").sum()).sort("row")
out[:] = summed.collect(engine="streaming")["value"].to_numpy()
""",
    },
    "duckdb": {
        "nd": DUCKDB
        + """
found = duckdb.sql(f'''
    WITH t AS (SELECT row_number() OVER () - 1 AS row_id, value FROM {data_}),
         w AS (SELECT row_number() OVER () AS nth, row_id FROM wanted)
    SELECT value FROM w JOIN t USING (row_id) ORDER BY nth
''')
np.save("out.npy", found.fetchnumpy()["value"])
""",
        "add": DUCKDB
        + SCATTERED
        + """
more = {"row_id": wanted["row_id"], "value": upd}
summed = duckdb.sql(f'''
    WITH t AS (SELECT row_number() OVER () - 1 AS row_id, value FROM {data_})
    SELECT sum(value) AS value FROM (SELECT * FROM t UNION ALL SELECT * FROM more)
    GROUP BY row_id ORDER BY row_id
''')
out[:] = summed.fetchnumpy()["value"]
""",
    },
}


def _group(memory: int) -> Path:
    """Create a cgroup with a memory limit, of either version."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    group = (root if unified else root / "memory") / "ndtool-bench"
    group.mkdir(exist_ok=True)
    limit = "memory.max" if unified else "memory.limit_in_bytes"
    (group / limit).write_text(str(memory))
    return group


@contextmanager
def prepared(
    environment: dict[str, str], nbytes: int, memory: int, patience: float
) -> Iterator[Beyond]:
    with temporary_bench(environment) as bench:
        beyond = Beyond(bench, nbytes, memory, patience)
        try:
            yield beyond
        finally:
            beyond.close()


def run(
    environment: dict[str, str],
    gib: int = 8,
    only: list[str] | None = None,
    peers: set[str] | None = None,
    patience: float = 60,
) -> int:
    """Measure and print a table; data have `gib` GiB, the runs an eighth of that."""
    with prepared(environment, gib << 30, gib << 27, patience) as beyond:
        read, write = beyond.reading * 1e9, beyond.writing * 1e9
        print(f"{gib} GiB, cgroup of {gib / 8:g} GiB; dd reads 1 GB in {read:.2f} s,"
              f" writes it in {write:.2f} s")  # fmt: skip
        print("| work | ndtool | moved, GiB | of the disk's time | peers |\n|---|---|---|---|---|")
        for work in works(beyond.size):
            if any(fnmatchcase(work.name, pattern) for pattern in only or ["*"]):
                print(
                    _row(work, beyond.measure(work, set(PEERS) if peers is None else peers)),
                    flush=True,
                )
    return 0


def _row(work: Work, record: Record) -> str:
    read, written = record["read"] / 2**30, record["written"] / 2**30
    share = "-" if record["of disk"] is None else f"{record['of disk']:.2f}"
    peers = ", ".join(
        f"{name} {r['reason'] if 'reason' in r else _seconds(r)}"
        for name, r in record["peers"].items()
    )
    return f"| {work.name} | {_seconds(record)} | {read:.1f} + {written:.1f} | {share} | {peers} |"


def _seconds(record: Record) -> str:
    return f"{record['seconds']:.2f} s" + " **wrong**" * (not record["verified"])
