"""Complete runs, from files to a file: the command compared with a line of NumPy."""

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from report import memory_size

import ndtool

Record = dict[str, Any]

ROW = 1024  # float32 elements: 4 KB
ROWS = 2**18  # 1 GB of such rows
MAX_OUTPUT = 30 << 30  # bytes of the largest output
TIMEOUT = 600  # seconds of one run
DROP_CACHES = Path("/proc/sys/vm/drop_caches")

GATHER = "gather-nd data.npy idx.npy -q -o out.npy"
ADD = "scatter-nd data.npy idx.npy updates.npy --reduction add -q -o out.npy"
NUMPY_TINY = (
    "import numpy as np; d = np.load('data.npy'); i = np.load('idx.npy');"
    " np.save('out.npy', d[i[:, 0]])"
)
NUMPY_GATHER = NUMPY_TINY.replace("'data.npy'", "'data.npy', mmap_mode='r'")
NUMPY_ADD = (
    "import numpy as np; d = np.load('data.npy'); i = np.load('idx.npy');"
    " np.add.at(d, i[:, 0], np.load('updates.npy')); np.save('out.npy', d)"
)


class Bench:
    """A folder of files and the runs in it, without the environment variables for peers."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.out = folder / "out.npy"
        script = Path(sys.executable).with_name("ndtool")
        self._ndtool = [str(script)] if script.exists() else [sys.executable, "-m", "ndtool"]

    def ndtool(self, arguments: str) -> list[str]:
        return [*self._ndtool, *arguments.split()]

    def python(self, program: str) -> list[str]:
        return [sys.executable, "-c", program]

    def save(self, name: str, array: Any) -> None:
        np.save(self.folder / name, array)

    def load(self, name: str = "out.npy") -> Any:
        return np.load(self.folder / name, mmap_mode="r")

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command; the output of the last one is removed before."""
        self.out.unlink(missing_ok=True)
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def seconds(self, command: list[str]) -> float:
        """Run a command to its end."""
        start = time.perf_counter()
        process = self.start(command)
        try:
            _, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RuntimeError(f"not done after {TIMEOUT} seconds") from None
        duration = time.perf_counter() - start
        if process.returncode:
            raise RuntimeError(f"status {process.returncode}: {errors[-300:].decode()}")
        return duration

    def compare(
        self,
        arguments: str,
        program: str,
        repeats: int,
        target: float,
        before: Callable[[], object] = lambda: None,
    ) -> Record:
        """Run ndtool and a line of Python alternately, on the same files; compare their outputs."""
        commands = self.ndtool(arguments), self.python(program)
        verified = self._compare_outputs(commands) if "-o" in arguments else True
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats):
            for command, durations in zip(commands, times, strict=True):
                before()
                durations.append(self.seconds(command))
        own, numpy = map(median, times)
        record = {"ndtool_s": own, "numpy_s": numpy, "ratio": numpy / own}
        return record | {"target": target, "verified": verified}

    def _compare_outputs(self, commands: tuple[list[str], list[str]]) -> bool:
        self.seconds(commands[0])
        self.out.rename(self.folder / "first.npy")
        self.seconds(commands[1])
        first, second = self.load("first.npy"), self.load()
        return (first.dtype, first.shape) == (second.dtype, second.shape) and all(
            np.array_equal(first[i : i + 65536], second[i : i + 65536])
            for i in range(0, len(first), 65536)
        )

    def peak_private(self, arguments: str) -> float:
        """Return the peak private memory (RssAnon) of a run, in MiB, sampled every 2 ms."""
        process, peak = self.start(self.ndtool(arguments)), 0
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        deadline = time.monotonic() + TIMEOUT
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            with suppress(OSError, ValueError, StopIteration):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                peak = max(peak, int(next(x for x in lines if x.startswith("RssAnon")).split()[1]))
            time.sleep(0.002)
        reader.join()
        if process.returncode:
            raise RuntimeError(f"status {process.returncode}")
        return peak / 1024


@contextmanager
def temporary_bench(environment: dict[str, str]) -> Iterator[Bench]:
    """Create a folder for the runs, on the disk of the project, and remove it afterwards."""
    build = Path(__file__).parents[1] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=build) as name:
        yield Bench(Path(name), environment)


def run_all(environment: dict[str, str], repeats: int, quick: bool) -> Record:
    """Measure each run in a new folder; one that fails has a reason, and the others continue."""
    compileall.compile_dir(Path(ndtool.__file__).parent, quiet=1)  # as in an installation
    records: Record = {}
    for name, run in (QUICK_RUNS if quick else QUICK_RUNS | RUNS).items():
        print(f"  {name}", flush=True)
        with temporary_bench(environment) as bench:
            try:
                records[name] = run(bench, 3 * repeats if name in QUICK_RUNS else repeats)
            except (RuntimeError, OSError) as error:
                records[name] = {"reason": str(error)}
    return records


def _save_tiny(bench: Bench) -> None:
    bench.save("data.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    bench.save("idx.npy", np.array([[2], [0]]))


def _tiny(bench: Bench, repeats: int) -> Record:
    _save_tiny(bench)
    return bench.compare(GATHER, NUMPY_TINY, repeats, 1.2)


def _help(bench: Bench, repeats: int) -> Record:
    return bench.compare("--help", "import numpy", repeats, 1.2)


def _write_rows(bench: Bench, count: int) -> None:
    """Write 1 GB of rows and the indices of `count` of them, and sync."""
    rng = np.random.default_rng(0)
    data = np.lib.format.open_memmap(bench.folder / "data.npy", "w+", np.float32, (ROWS, ROW))
    for i in range(0, ROWS, 8192):
        data[i : i + 8192] = rng.random((8192, ROW), np.float32)
    bench.save("idx.npy", rng.integers(0, ROWS, (count, 1)))
    os.sync()


def _gather(bench: Bench, repeats: int) -> Record:
    _write_rows(bench, 2**17)
    return bench.compare(GATHER, NUMPY_GATHER, repeats, 2.0)


def _add(bench: Bench, repeats: int) -> Record:
    _write_rows(bench, 2**16)
    bench.save("updates.npy", np.random.default_rng(1).random((2**16, ROW), np.float32))
    os.sync()
    return bench.compare(ADD, NUMPY_ADD, repeats, 2.0)


def _cold(bench: Bench, repeats: int) -> Record:
    """1000 of 262144 rows with data out of the page cache; the programs are in it."""
    _write_rows(bench, 1000)
    (bench.folder / "small").mkdir()
    small_bench = Bench(bench.folder / "small", bench.environment)
    _save_tiny(small_bench)

    def drop_page_cache() -> None:
        with (bench.folder / "data.npy").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with suppress(OSError):
            DROP_CACHES.write_text("1")
        for command in (small_bench.ndtool(GATHER), small_bench.python(NUMPY_GATHER)):
            small_bench.seconds(command)

    return bench.compare(GATHER, NUMPY_GATHER, repeats, 6.0, drop_page_cache)


def _write_sparse(bench: Bench, shape: tuple[int, ...]) -> None:
    """Write data of zeros as a sparse file; the last row is ones."""
    array = np.lib.format.open_memmap(bench.folder / "data.npy", "w+", np.float32, shape)
    array[-1] = 1


def _memory_record(peak: float, verified: bool, out: Any) -> Record:
    record = {"peak_mib": peak, "target_mib": 96, "verified": bool(verified)}
    return record | {"output_bytes": out.nbytes}


def _private_sparse(bench: Bench, repeats: int) -> Record:
    """Gather 256 MB from a sparse data file of four times the memory."""
    rows = 4 * memory_size() // (4 * ROW)
    _write_sparse(bench, (rows, ROW))
    indices = np.random.default_rng(0).integers(0, rows, (2**16, 1))
    indices[-1] = -1
    bench.save("idx.npy", indices)
    peak, out = bench.peak_private(GATHER), bench.load()
    return _memory_record(peak, (out[-1] == 1).all() and out.shape == (2**16, ROW), out)


def _private_radix(bench: Bench, repeats: int) -> Record:
    """Scatter 2^24 scalars into 2 GB, including the sort of tuples."""
    size, count = 2**29, 2**24
    _write_sparse(bench, (size,))
    indices = np.random.default_rng(0).integers(0, size, (count, 1))
    bench.save("idx.npy", indices)
    bench.save("updates.npy", np.ones(count, np.float32))
    peak, expected = bench.peak_private(ADD), np.zeros(size, np.float32)
    expected[-1] = 1
    np.add.at(expected, indices[:, 0], np.float32(1))
    return _memory_record(peak, np.array_equal(bench.load(), expected), expected)


def _private_output(bench: Bench, repeats: int) -> Record:
    """Gather an output larger than the memory, if the disk has space."""
    free = shutil.disk_usage(bench.folder).free // 2
    size = min(memory_size() * 21 // 20, MAX_OUTPUT, free)
    rng = np.random.default_rng(0)
    data = rng.random((2**14, ROW), np.float32)
    bench.save("data.npy", data)
    indices = rng.integers(0, 2**14, (size // (4 * ROW), 1))
    bench.save("idx.npy", indices)
    peak, out = bench.peak_private(GATHER), bench.load()
    samples = rng.integers(0, len(out), 1000)
    return _memory_record(peak, np.array_equal(out[samples], data[indices[samples, 0]]), out)


def _growth(bench: Bench, repeats: int) -> Record:
    """Gather 256 rows of 4 KB from files of 1 MB to 16 GB: the time must be constant."""
    durations = {}
    for size in (2**20, 2**24, 2**28, 2**32, 2**34):
        rows = size // (4 * ROW)
        _write_sparse(bench, (rows, ROW))
        bench.save("idx.npy", np.random.default_rng(0).integers(0, rows, (256, 1)))
        command = bench.ndtool(GATHER)
        bench.seconds(command)
        durations[str(size)] = median(bench.seconds(command) for _ in range(repeats))
    times = list(durations.values())
    return {"seconds": durations, "growth": times[-1] / times[0], "target": 1.25}


Run = Callable[[Bench, int], Record]
QUICK_RUNS: dict[str, Run] = {"tiny": _tiny, "help": _help}
RUNS: dict[str, Run] = {
    "gather 512 MB of rows": _gather,
    "scatter add 256 MB of rows": _add,
    "cold, 1000 rows of 1 GB": _cold,
    "private memory, sparse data": _private_sparse,
    "private memory, sorted scatter": _private_radix,
    "private memory, huge output": _private_output,
    "growth with the size of data": _growth,
}
