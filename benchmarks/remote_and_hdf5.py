"""Data in servers and in HDF5 files: small ranges a second, the first byte from S3, rows of chunks.

    python benchmarks/remote_and_hdf5.py ranges    10 and 64 requests at once, over HTTP and S3
    python benchmarks/remote_and_hdf5.py first     complete runs that read one row python
    benchmarks/remote_and_hdf5.py hdf5      random rows of a chunked dataset, compared with h5py

The server is another process on the loopback interface, which answers after a delay and does not
check signatures. Alternatives are measured in turn.
"""

import asyncio
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

DELAY = 0.02  # seconds
COUNT, RANGE = 1500, 1 << 16  # ranges of a measurement, bytes of one
SHAPE = (1 << 25, 16)  # of a .npy array of zeros, 2 GiB
REPEATS = 5
SETTINGS = {"AWS_ACCESS_KEY_ID": "one", "AWS_SECRET_ACCESS_KEY": "two"}
S3FS_VARIABLE = "AWS_STS_REGIONAL_ENDPOINTS"  # a variable that ndtool leaves to s3fs
ROWS, COLUMNS, CHUNK = 1_000_000, 64, 1000
H5PY = """
import h5py, numpy as np
i = np.load("i.npy")
with h5py.File("{0}") as file:
    rows, inverse = np.unique(i, return_inverse=True)
    np.save("o.npy", file["x"][rows][inverse])
"""


class RangeServer(asyncio.Protocol):
    """A connection to a server of one array; it answers range requests after `delay` seconds."""

    def __init__(self, delay: float, header: bytes, size: int) -> None:
        self._delay, self._header, self._size, self._got = delay, header, size, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._got = (self._got + data).split(b"\r\n\r\n")
        for request in requests:
            asyncio.get_running_loop().call_later(self._delay, self._answer, request)

    def _answer(self, request: bytes) -> None:
        match = re.search(rb"range: *bytes=(\d+)-(\d+)", request, re.I)
        if match is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        start, stop = int(match[1]), min(int(match[2]) + 1, self._size)
        body = self._header[start:stop].ljust(stop - start, b"\0")
        status_and_headers = (
            f'HTTP/1.1 206 Partial Content\r\nETag: "1"\r\nContent-Length: {stop - start}\r\n'
            f"Content-Range: bytes {start}-{stop - 1}/{self._size}\r\n\r\n"
        )
        self._transport.write(status_and_headers.encode() + body)


def serve(delay: float, port: Any) -> None:
    import io

    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": SHAPE}
    np.lib.format.write_array_header_1_0(file, header)
    size = len(file.getvalue()) + 4 * SHAPE[0] * SHAPE[1]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: RangeServer(delay, file.getvalue(), size), "127.0.0.1", 0, backlog=256
        )
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def running_server(delay: float) -> Iterator[str]:
    """Run the server; yield its host and port, to which s3:// is directed."""
    receiver, sender = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(delay, sender))
    process.start()
    try:
        host = f"127.0.0.1:{receiver.recv()}"
        os.environ.update(SETTINGS, AWS_ENDPOINT_URL=f"http://{host}")
        yield host
    finally:
        process.terminate()
        process.join()


def alternate_calls(alternatives: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Call each alternative several times, in turn; return its results."""
    results: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(REPEATS):
        for name, call in alternatives.items():
            results[name].append(call())
    return results


def ranges() -> None:
    from ndtool.storage.ranged import RemoteFile

    starts = np.random.default_rng(0).choice(4 * SHAPE[0] * SHAPE[1] // (RANGE * 20), COUNT, False)
    byte_ranges = [
        (int(start) * RANGE * 20, int(start) * RANGE * 20 + RANGE) for start in sorted(starts)
    ]

    def measure_rate(url: str, concurrency: int, variables: dict[str, str]) -> float:
        os.environ.update(variables)
        file = RemoteFile(url)
        file._object.concurrency = concurrency
        start = time.perf_counter()
        file.download(byte_ranges)
        seconds = time.perf_counter() - start
        file.close()
        for name in variables:
            del os.environ[name]
        return COUNT / seconds

    with running_server(DELAY) as host:
        alternatives = {
            f"{name}, {concurrency} at once": lambda url=url, n=concurrency, variables=variables: (
                measure_rate(url, n, variables)
            )
            for name, url, variables in (
                ("http", f"http://{host}/bucket/x.npy", {}),
                ("s3", "s3://bucket/x.npy", {}),
                ("s3, settings of s3fs", "s3://bucket/x.npy", {S3FS_VARIABLE: "regional"}),
            )
            for concurrency in (10, 64)
        }
        for name, results in alternate_calls(alternatives).items():
            print(
                f"{name:32} {median(results):6.0f} ranges/s"
                f" ({min(results):.0f} to {max(results):.0f})"
            )


def first() -> None:
    with tempfile.TemporaryDirectory() as folder, running_server(0.0) as host:
        np.save(f"{folder}/x.npy", np.zeros((1000, 16), np.float32))

        def run(data: str, **variables: str) -> float:
            start = time.perf_counter()
            command = [sys.executable, "-m", "ndtool", "gather", data, "[5]", "-o", "o.npy"]
            subprocess.run(command, cwd=folder, env={**os.environ, **variables}, check=True)
            return time.perf_counter() - start

        alternatives = {
            "file": lambda: run("x.npy"),
            "http": lambda: run(f"http://{host}/bucket/x.npy"),
            "s3": lambda: run("s3://bucket/x.npy"),
            "s3, settings of s3fs": lambda: run("s3://bucket/x.npy", **{S3FS_VARIABLE: "regional"}),
        }
        for name, results in alternate_calls(alternatives).items():
            print(f"{name:32} {min(results):.3f} s at least, median {median(results):.3f}")


def hdf5() -> None:
    import h5py

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        table = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        for name, variables in (("plain", {}), ("gzip", {"compression": 4, "shuffle": True})):
            with h5py.File(f"{folder}/{name}.h5", "w") as file:
                file.create_dataset("x", data=table, chunks=(CHUNK, COLUMNS), **variables)

        def run(*command: str) -> float:
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], cwd=folder, check=True)
            return time.perf_counter() - start

        for name in ("plain", "gzip"):
            for count in (20_000, 600_000):
                rows = rng.integers(0, ROWS, count)
                np.save(f"{folder}/i.npy", rows)
                gather = ("-m", "ndtool", "gather", f"{name}.h5", "i.npy", "-q", "-o", "n.npy")
                alternatives = {
                    "ndtool": lambda gather=gather: run(*gather),
                    "h5py": lambda name=name: run("-c", H5PY.format(f"{name}.h5")),
                }
                results = alternate_calls(alternatives)
                assert np.array_equal(np.load(f"{folder}/n.npy"), table[rows])
                assert np.array_equal(np.load(f"{folder}/o.npy"), table[rows])
                ndtool_s, h5py_s = median(results["ndtool"]), median(results["h5py"])
                print(f"{name:6} {count:7} rows: ndtool {ndtool_s:.2f} s, h5py {h5py_s:.2f} s")


if __name__ == "__main__":
    benchmarks = {"ranges": ranges, "first": first, "hdf5": hdf5}
    for name in sys.argv[1:] or benchmarks:
        benchmarks[name]()
