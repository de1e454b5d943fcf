"""Arrays larger than memory: ndtool and other programs in a memory cgroup, with uncached files.

The times are compared with that of `dd` to read and write as many bytes in the same cgroup.
Requires root, for the cgroup and to drop the page cache, and disk space for three times the data.
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
HEADER = 128  # bytes of the .npy header


class Work(NamedTuple):
    """A workload on data of `shape`; n: index tuples. peers: programs to compare with."""

    name: str
    command: str
    shape: tuple[int, ...]
    n: int
    indices: Callable[[int, int], Any]
    peers: frozenset[str] = frozenset({"numpy"})


def uniform_indices(size: int, n: int) -> Any:
    return np.random.default_rng(0).integers(0, size, n)


def sorted_indices(size: int, n: int) -> Any:
    return np.sort(uniform_indices(size, n))


def duplicate_indices(size: int, n: int) -> Any:
    """Each of 2^16 elements is selected n / 2^16 times."""
    return uniform_indices(size, 1 << 16)[np.random.default_rng(1).integers(0, 1 << 16, n)]


def workloads(size: int) -> list[Work]:
    """Return the workloads on `size` float32 elements."""
    flat, rows_of_matrix = (size,), 1 << size.bit_length() // 2
    add, all_peers = "scatter-nd --reduction add", frozenset(PEERS)
    rows, matrix = (size >> 10, 1 << 10), (rows_of_matrix, size // rows_of_matrix)
    return [
        Work("gather 1,024 random scalars", "gather-nd", flat, 1 << 10, uniform_indices),
        Work("gather 2^23 random scalars", "gather-nd", flat, 1 << 23, uniform_indices, all_peers),
        Work("gather 2^23 sorted scalars", "gather-nd", flat, 1 << 23, sorted_indices),
        Work("gather 2^27 random scalars", "gather-nd", flat, 1 << 27, uniform_indices),
        Work("gather rows of 4 KiB, half of data", "gather-nd", rows, size >> 11, uniform_indices),
        Work("scatter add 2^23 scalars", add, flat, 1 << 23, uniform_indices, all_peers),
        Work("scatter add 2^26 scalars", add, flat, 1 << 26, uniform_indices),
        Work("scatter none 2^26, heavy duplicates", "scatter-nd", flat, 1 << 26, duplicate_indices),
        Work("elements axis 0, an eighth", "gather-elements", matrix, size >> 3, uniform_indices),
    ]


def value(index: Any) -> Any:
    """Return the element at a linear index: an integer below 2^20, so that small sums are exact."""
    return (index.astype(np.uint32) * np.uint32(2654435761) >> np.uint32(12)).astype(np.float32)


def update(index: Any) -> Any:
    """Return the update at a linear index: 1 to 7."""
    return (index % 7 + 1).astype(np.float32)


class OutOfCoreBench:
    """Data files of `nbytes` bytes, and runs limited to `memory` bytes.

    timeout: seconds of a run.
    """

    def __init__(self, bench: Bench, nbytes: int, memory: int, timeout: float) -> None:
        self.folder, self.size, self.timeout = bench.folder, nbytes // 4, timeout
        self._bench, self._cgroup = bench, _cgroup(memory)
        (self.folder / "small").mkdir()
        self._warmup_bench = Bench(self.folder / "small", bench.environment)
        self._warmup_bench.save("data.npy", np.zeros((2, 2)))
        self._warmup_bench.save("idx.npy", np.zeros((1, 1), np.int64))
        self._warmup_commands = [self._warmup_bench.ndtool(GATHER)]
        data = np.lib.format.open_memmap(self.folder / "data.npy", "w+", np.float32, (self.size,))
        for first in range(0, self.size, BLOCK):
            data[first : first + BLOCK] = value(np.arange(first, first + BLOCK))
        del data
        self.read_seconds_per_byte = self._dd("of=/dev/null") / nbytes
        self.write_seconds_per_byte = self._dd("of=out.npy") / nbytes - self.read_seconds_per_byte

    def close(self) -> None:
        self._cgroup.rmdir()

    def _dd(self, target: str) -> float:
        """Return the seconds that dd takes to read data, and to write as many bytes to a file."""
        seconds = self._run(["dd", "if=data.npy", target, "bs=16M", "status=none"])["seconds"]
        (self.folder / "out.npy").unlink(missing_ok=True)
        return float(seconds)

    def measure(self, work: Work, peers: set[str]) -> Record:
        """Run a workload with ndtool and its peers, and verify the results."""
        self._write_inputs(work)
        command = f"{work.command} data.npy idx.npy"
        if "scatter" in command:
            command += " updates.npy"
        arguments = [*command.split(), "-q", "-o", "out.npy"]
        record = self._run(self._bench.ndtool(arguments))
        record["verified"] = self._is_correct(work)
        disk_seconds = record["read"] * self.read_seconds_per_byte
        disk_seconds += record["written"] * self.write_seconds_per_byte
        record["of disk"] = record["seconds"] / disk_seconds if disk_seconds else None
        record["peers"] = {name: self._peer(work, name) for name in sorted(work.peers & peers)}
        return record

    def _peer(self, work: Work, name: str) -> Record:
        kind = work.command.partition("-")[2] if "gather" in work.command else work.command[-3:]
        line = PEERS[name].get(kind)
        if line is None:
            return {"reason": "not supported"}
        try:
            self._warmup_commands.append(self._warmup_bench.python(f"import {name}"))
            record = self._run([sys.executable, "-c", LOAD_INPUTS_SCRIPT + line])
        except RuntimeError as error:
            return {"reason": str(error)}
        finally:
            del self._warmup_commands[1:]
        verified = (self.folder / "out.npy").exists() and self._is_correct(work)
        return record | {"verified": verified}

    def _write_inputs(self, work: Work) -> None:
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
        """Run a command in the cgroup with an empty page cache; return its seconds and bytes."""
        (self.folder / "out.npy").unlink(missing_ok=True)
        Path("/proc/sys/vm/drop_caches").write_text("3")
        for program in self._warmup_commands:  # so that the page cache has their code
            self._warmup_bench.seconds(program)

        def enter() -> None:
            (self._cgroup / "cgroup.procs").write_text(str(os.getpid()))

        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = subprocess.Popen(
            command, cwd=self.folder, env=self._bench.environment, preexec_fn=enter,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            _, stderr = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RuntimeError(f"not finished after {self.timeout:.0f} s") from None
        seconds = time.perf_counter() - started
        if process.returncode:
            message = stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(f"status {process.returncode}: {message[-200:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "seconds": seconds,
            "read": (after.ru_inblock - before.ru_inblock) * 512,
            "written": (after.ru_oublock - before.ru_oublock) * 512,
        }

    def _is_correct(self, work: Work) -> bool:
        """Whether every element of the output is correct."""
        out = np.load(self.folder / "out.npy", mmap_mode="r")
        indices = np.load(self.folder / "idx.npy", mmap_mode="r")
        if "scatter" in work.command:
            return out.shape == work.shape and self._is_scattered(work, out, indices[:, 0])
        width = work.shape[1] if work.command == "gather-nd" and len(work.shape) > 1 else 1
        flat, rows, columns = out.reshape(-1), indices.reshape(-1), work.shape[-1]
        for first in range(0, len(rows), BLOCK // width):
            selected = rows[first : first + BLOCK // width]
            if "elements" in work.command:
                positions = selected * columns + np.arange(first, first + len(selected)) % columns
            else:
                positions = (selected[:, None] * width + np.arange(width)).reshape(-1)
            block = flat[first * width : first * width + len(positions)]
            if not np.array_equal(block, value(positions)):
                return False
        return len(flat) == len(rows) * width

    def _is_scattered(self, work: Work, out: Any, indices: Any) -> bool:
        """Whether sums, all of which are exact, or the last updates are correct."""
        order = np.argsort(indices, kind="stable")
        positions, updates = indices[order], update(order)
        for start in range(0, self.size, BLOCK):
            expected = value(np.arange(start, start + BLOCK))
            first, stop = np.searchsorted(positions, [start, start + BLOCK])
            if work.command.endswith("add"):
                local = positions[first:stop] - start
                expected += np.bincount(local, updates[first:stop], BLOCK).astype(np.float32)
            else:
                last = np.append(
                    positions[first + 1 : stop] != positions[first : stop - 1], stop > first
                )
                expected[positions[first:stop][last] - start] = updates[first:stop][last]
            if not np.array_equal(out[start : start + BLOCK], expected):
                return False
        return True


LOAD_INPUTS_SCRIPT = """
import numpy as np
data, idx = np.load("data.npy", mmap_mode="r"), np.load("idx.npy", mmap_mode="r")
"""
CREATE_OUTPUT_SCRIPT = """
upd = np.load("updates.npy")
out = np.lib.format.open_memmap("out.npy", "w+", data.dtype, data.shape)
"""
DUCKDB_SCRIPT = """
import duckdb
half = len(data) // 2  # DuckDB accepts fewer than 2^31 rows of an array
low, high = {"value": np.asarray(data[:half])}, {"value": np.asarray(data[half:])}
data_, wanted = "(FROM low UNION ALL FROM high)", {"row_id": np.asarray(idx[:, 0])}
duckdb.sql("SET memory_limit = '500MB'; SET max_temp_directory_size = '20GB'")
"""
PEERS = {
    "numpy": {
        "nd": 'np.save("out.npy", data[idx[:, 0]])',
        "elements": 'np.save("out.npy", np.take_along_axis(data, idx, 0))',
        "add": CREATE_OUTPUT_SCRIPT + "out[:] = data\nnp.add.at(out, idx[:, 0], upd)",
        "-nd": CREATE_OUTPUT_SCRIPT + "out[:] = data\nout[idx[:, 0]] = upd",
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
        "add": CREATE_OUTPUT_SCRIPT
        + """
import polars as pl
table = pl.LazyFrame({"value": data}).with_row_index("row").cast({"row": pl.Int64})
added = pl.LazyFrame({"row": idx[:, 0], "value": upd})
summed = pl.concat([table, added]).group_by("row").agg(pl.col("value").sum()).sort("row")
out[:] = summed.collect(engine="streaming")["value"].to_numpy()
""",
    },
    "duckdb": {
        "nd": DUCKDB_SCRIPT
        + """
gathered = duckdb.sql(f'''
    WITH t AS (SELECT row_number() OVER () - 1 AS row_id, value FROM {data_}),
         w AS (SELECT row_number() OVER () AS nth, row_id FROM wanted)
    SELECT value FROM w JOIN t USING (row_id) ORDER BY nth
''')
np.save("out.npy", gathered.fetchnumpy()["value"])
""",
        "add": DUCKDB_SCRIPT
        + CREATE_OUTPUT_SCRIPT
        + """
added = {"row_id": wanted["row_id"], "value": upd}
summed = duckdb.sql(f'''
    WITH t AS (SELECT row_number() OVER () - 1 AS row_id, value FROM {data_})
    SELECT sum(value) AS value FROM (SELECT * FROM t UNION ALL SELECT * FROM added)
    GROUP BY row_id ORDER BY row_id
''')
out[:] = summed.fetchnumpy()["value"]
""",
    },
}


def _cgroup(memory: int) -> Path:
    """Create a cgroup (version 1 or 2) with a memory limit."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    group = (root if unified else root / "memory") / "ndtool-bench"
    group.mkdir(exist_ok=True)
    limit = "memory.max" if unified else "memory.limit_in_bytes"
    (group / limit).write_text(str(memory))
    return group


@contextmanager
def prepare_bench(
    environment: dict[str, str], nbytes: int, memory: int, timeout: float
) -> Iterator[OutOfCoreBench]:
    with temporary_bench(environment) as bench:
        out_of_core = OutOfCoreBench(bench, nbytes, memory, timeout)
        try:
            yield out_of_core
        finally:
            out_of_core.close()


def run(
    environment: dict[str, str],
    gib: int = 8,
    only: list[str] | None = None,
    peers: set[str] | None = None,
    timeout: float = 60,
) -> int:
    """Measure and print a table; data have `gib` GiB, and runs are limited to an eighth of that."""
    with prepare_bench(environment, gib << 30, gib << 27, timeout) as bench:
        read, write = bench.read_seconds_per_byte * 1e9, bench.write_seconds_per_byte * 1e9
        print(f"{gib} GiB, cgroup of {gib / 8:g} GiB; dd reads 1 GB in {read:.2f} s,"
              f" writes it in {write:.2f} s")  # fmt: skip
        print("| work | ndtool | read + written, GiB | time / dd | peers |\n|---|---|---|---|---|")
        for work in workloads(bench.size):
            if any(fnmatchcase(work.name, pattern) for pattern in only or ["*"]):
                print(
                    _row(work, bench.measure(work, set(PEERS) if peers is None else peers)),
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
