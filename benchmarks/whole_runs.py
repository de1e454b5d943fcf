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

import machine
import numpy as np

import ndtool

Record = dict[str, Any]

ROW = 1024  # float32 elements: 4 KB
ROWS = 2**18  # 1 GB of such rows
MAX_OUTPUT = 30 << 30  # bytes of the largest output
TIMEOUT = 600  # timeout in seconds of one run

GATHER = ["gather-nd", "data.npy", "idx.npy", "-q", "-o", "out.npy"]
ADD = [
    "scatter-nd", "data.npy", "idx.npy", "updates.npy", "--reduction", "add", "-q", "-o", "out.npy",
]  # fmt: skip
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
        self.folder = folder
        self.environment = environment
        script = Path(sys.executable).with_name("ndtool")
        self._ndtool = [str(script)] if script.exists() else [sys.executable, "-m", "ndtool"]

    def ndtool(self, arguments: list[str]) -> list[str]:
        return [*self._ndtool, *arguments]

    def python(self, program: str) -> list[str]:
        return [sys.executable, "-c", program]

    def save(self, name: str, array: Any) -> None:
        np.save(self.folder / name, array)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        (self.folder / "out.npy").unlink(missing_ok=True)
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def seconds(self, command: list[str], before: Callable[[], object] = lambda: None) -> float:
        """Run a command to its end; the output of its last run is removed before."""
        (self.folder / "out.npy").unlink(missing_ok=True)
        before()
        start = time.perf_counter()
        process = self.start(command)
        try:
            _, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise RuntimeError(f"not done after {TIMEOUT} seconds") from None
        duration = time.perf_counter() - start
        if process.returncode:
            raise RuntimeError(f"status {process.returncode}: {errors[-300:].decode()}")
        return duration

    def compare(
        self,
        arguments: list[str],
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
                durations.append(self.seconds(command, before))
        ndtool_s, numpy_s = median(times[0]), median(times[1])
        return {
            "ndtool_s": ndtool_s,
            "numpy_s": numpy_s,
            "ratio": numpy_s / ndtool_s,
            "target": target,
            "verified": verified,
        }

    def _compare_outputs(self, commands: tuple[list[str], list[str]]) -> bool:
        out, first_output = self.folder / "out.npy", self.folder / "first.npy"
        self.seconds(commands[0])
        out.rename(first_output)
        self.seconds(commands[1])
        first_array, second_array = (
            np.load(first_output, mmap_mode="r"),
            np.load(out, mmap_mode="r"),
        )
        is_equal = (
            first_array.dtype == second_array.dtype and first_array.shape == second_array.shape
        )
        is_equal = is_equal and all(
            np.array_equal(first_array[i : i + 65536], second_array[i : i + 65536])
            for i in range(0, len(first_array), 65536)
        )
        first_output.unlink()
        return bool(is_equal)

    def peak_private(self, command: list[str]) -> float:
        """Return the peak private memory (RssAnon) of a run, in MiB, sampled every 2 ms."""
        process, peak = self.start(command), 0
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


def quick(environment: dict[str, str], repeats: int) -> Record:
    """Measure runs on small files, with compiled modules as in an installation."""
    compileall.compile_dir(Path(ndtool.__file__).parent, quiet=1)
    with temporary_bench(environment) as bench:
        return {
            "tiny": _run_or_report(_tiny, bench, repeats),
            "help": _run_or_report(_help, bench, repeats),
        }


def full(environment: dict[str, str], repeats: int) -> Record:
    """Measure everything; the largest files are removed before the next ones are written."""
    records = quick(environment, 3 * repeats)
    for name, run in RUNS.items():
        print(f"  {name}", flush=True)
        with temporary_bench(environment) as bench:
            records[name] = _run_or_report(run, bench, repeats)
    return records


def _run_or_report(run: Callable[[Bench, int], Record], bench: Bench, repeats: int) -> Record:
    """A run that fails is reported with its reason, and the others continue."""
    try:
        return run(bench, repeats)
    except (RuntimeError, OSError) as error:
        return {"reason": str(error)}


def _save_tiny(bench: Bench) -> None:
    bench.save("data.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    bench.save("idx.npy", np.array([[2], [0]]))


def _tiny(bench: Bench, repeats: int) -> Record:
    _save_tiny(bench)
    return bench.compare(GATHER, NUMPY_TINY, repeats, 1.2)


def _help(bench: Bench, repeats: int) -> Record:
    return bench.compare(["--help"], "import numpy", repeats, 1.2)


def _write_rows(bench: Bench, count: int, seed: int = 0) -> None:
    """Write 1 GB of rows and the indices of `count` of them, and sync."""
    rng = np.random.default_rng(seed)
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
    rng = np.random.default_rng(1)
    bench.save("updates.npy", rng.random((2**16, ROW), np.float32))
    os.sync()
    return bench.compare(ADD, NUMPY_ADD, repeats, 2.0)


def _cold(bench: Bench, repeats: int) -> Record:
    """1000 of 262144 rows with data out of the page cache; the programs are in it."""
    _write_rows(bench, 1000)
    (bench.folder / "small").mkdir()
    small_bench = Bench(bench.folder / "small", bench.environment)
    _save_tiny(small_bench)
    cleared: list[bool] = []

    def drop_page_cache() -> None:
        with (bench.folder / "data.npy").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            Path("/proc/sys/vm/drop_caches").write_text("1")
            cleared.append(True)
        except OSError:
            return
        for command in (small_bench.ndtool(GATHER), small_bench.python(NUMPY_GATHER)):
            small_bench.seconds(command)

    record = bench.compare(GATHER, NUMPY_GATHER, repeats, 6.0, drop_page_cache)
    return record | {"forgotten by": "drop_caches" if cleared else "posix_fadvise"}


def _write_sparse(path: Path, shape: tuple[int, ...]) -> None:
    """Write an array of zeros as a sparse file; its last row is ones."""
    array = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    array[-1] = 1


def _private_sparse(bench: Bench, repeats: int) -> Record:
    """Gather 256 MB from a sparse data file of four times the memory."""
    rows = 4 * machine.memory_size() // (4 * ROW)
    _write_sparse(bench.folder / "data.npy", (rows, ROW))
    indices = np.random.default_rng(0).integers(0, rows, (2**16, 1))
    indices[-1] = -1
    bench.save("idx.npy", indices)
    record = {"peak_mib": bench.peak_private(bench.ndtool(GATHER)), "target_mib": 96}
    out = np.load(bench.folder / "out.npy", mmap_mode="r")
    is_last_row_correct = bool((out[-1] == 1).all() and out.shape == (2**16, ROW))
    return record | {
        "verified": is_last_row_correct,
        "data_bytes": rows * ROW * 4,
        "output_bytes": out.nbytes,
    }


def _private_radix(bench: Bench, repeats: int) -> Record:
    """Scatter 2^24 scalars into 2 GB, including the sort of tuples."""
    size, count = 2**29, 2**24
    _write_sparse(bench.folder / "data.npy", (size,))
    indices = np.random.default_rng(0).integers(0, size, (count, 1))
    bench.save("idx.npy", indices)
    bench.save("updates.npy", np.ones(count, np.float32))
    peak = bench.peak_private(bench.ndtool(ADD))
    expected = np.zeros(size, np.float32)
    expected[-1] = 1
    np.add.at(expected, indices[:, 0], np.float32(1))
    verified = np.array_equal(np.load(bench.folder / "out.npy", mmap_mode="r"), expected)
    return {"peak_mib": peak, "target_mib": 96, "verified": verified, "output_bytes": 4 * size}


def _private_output(bench: Bench, repeats: int) -> Record:
    """Gather an output larger than the memory, if the disk has space."""
    free = shutil.disk_usage(bench.folder).free // 2
    size = min(machine.memory_size() * 21 // 20, MAX_OUTPUT, free)
    rng = np.random.default_rng(0)
    bench.save("data.npy", rng.random((2**14, ROW), np.float32))
    indices = rng.integers(0, 2**14, (size // (4 * ROW), 1))
    bench.save("idx.npy", indices)
    peak = bench.peak_private(bench.ndtool(GATHER))
    out = np.load(bench.folder / "out.npy", mmap_mode="r")
    data = np.load(bench.folder / "data.npy")
    samples = rng.integers(0, len(out), 1000)
    return {
        "peak_mib": peak,
        "target_mib": 96,
        "verified": bool(np.array_equal(out[samples], data[indices[samples, 0]])),
        "output_bytes": out.nbytes,
        "larger than memory": out.nbytes > machine.memory_size(),
    }


def _growth(bench: Bench, repeats: int) -> Record:
    """Gather 256 rows of 4 KB from files of 1 MB to 16 GB: the time must be constant."""
    sizes = [2**20, 2**24, 2**28, 2**32, 2**34]
    duration = {}
    for size in sizes:
        rows = size // (4 * ROW)
        _write_sparse(bench.folder / "data.npy", (rows, ROW))
        bench.save("idx.npy", np.random.default_rng(0).integers(0, rows, (256, 1)))
        command = bench.ndtool(GATHER)
        bench.seconds(command)
        duration[str(size)] = median(bench.seconds(command) for _ in range(repeats))
    times = list(duration.values())
    return {"seconds": duration, "growth": times[-1] / times[0], "target": 1.25}


RUNS: dict[str, Callable[[Bench, int], Record]] = {
    "gather 512 MB of rows": _gather,
    "scatter add 256 MB of rows": _add,
    "cold, 1000 rows of 1 GB": _cold,
    "private memory, sparse data": _private_sparse,
    "private memory, sorted scatter": _private_radix,
    "private memory, huge output": _private_output,
    "growth with the size of data": _growth,
}
