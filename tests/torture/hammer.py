"""Signals at random times: hammer.py COUNT [SEED].

COUNT runs get a signal each; a run must end with the signal's status, print nothing and preserve
the previous output, or end with status 0 and replace it; no other file may remain.

Prints one JSON object; `failures` must be empty.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import bucket
import zarr
from command import NDTOOL, environment, save
from limits import limit_resources

Report = dict[str, Any]


@contextmanager
def server() -> Iterator[bucket.Bucket]:
    """Run an S3 server on the loopback interface; set the environment variables for clients."""
    with bucket.run_server() as s3_server:
        for name, value in bucket.client_environment(s3_server.endpoint).items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        yield s3_server


RUN = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add", "-q")
SWEEP = ("--memory", "1280KiB")  # enough for the largest chunks
CHUNKED = ("--chunks", "1000,4")
OUTPUTS: dict[str, tuple[str, ...]] = {
    "npy": ("-o", "out.npy"),
    "npz": ("-o", "out.npz:new"),
    "safetensors": ("-o", "out.safetensors:new"),
    "pb": ("-o", "out.pb"),
    "zarr": ("-o", "out.zarr", *CHUNKED),
    "member": ("-o", "store.zarr:g/new", *CHUNKED),
    "stdout": ("-o", "-"),
    "s3": ("-o", "s3://bucket/out.npy"),
    "s3zarr": ("-o", "s3://bucket/out.zarr", "--chunks", "8000,4"),
    "cluster": ("-o", "out.npy", "--workers", "1"),
    "clusterzarr": ("-o", "out.zarr", *CHUNKED, "--workers", "1"),
}
HANDLED_SIGNALS, FATAL_SIGNALS = ("INT", "TERM", "HUP"), ("QUIT", "USR1", "ALRM")


def make_inputs() -> None:
    rng, rows = np.random.default_rng(0), 1 << 16
    save(
        data=rng.random((rows, 4)), idx=rng.integers(0, rows, (rows, 1)), upd=rng.random((rows, 4))
    )


class Storage:
    """A folder and a bucket to which runs write."""

    def __init__(self, s3: bucket.Bucket) -> None:
        self._s3 = s3

    def contents(self) -> dict[str, bytes]:
        paths = (path for path in sorted(Path().rglob("*")) if not path.is_dir())
        files = {str(path): path.read_bytes() for path in paths}
        keys = self._s3.keys()
        files.update({f"s3:{key}": self._s3.get(key) for key in keys})
        files.update({f"folder {path}": b"" for path in Path().rglob(".*ndtool-*")})
        files.update({f"upload {upload['Key']}": b"" for upload in self._s3.uploads()})
        return files

    def restore(self, expected: dict[str, bytes]) -> None:
        """Write these files and objects, and remove all others."""
        if self.contents() == expected:
            return
        self._s3.clear()
        for path in Path().iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, body in expected.items():
            if name.startswith("s3:"):
                self._s3.put(name.removeprefix("s3:"), body)
                continue
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(body)


def has_signal_handlers(pid: int) -> bool:
    """Whether ndtool has installed its signal handlers."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught_signals = next(
            int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")
        )
        return bool(caught_signals >> signal.SIGHUP - 1 & 1)
    return False


def wait_for_exit(group: int) -> bool:
    """Wait until a process group is empty; return False after 30 seconds."""
    for _ in range(3000):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


class SignaledRun(NamedTuple):
    """The outcome of a run that received a signal; is_handled: ndtool had installed its handlers."""

    status: int
    message: str
    out: bytes
    is_handled: bool
    seconds: float
    pid: int


def run_and_signal(
    command: list[str], number: int, seconds: float, reads_pipes: bool
) -> SignaledRun:
    """Start a run and send it a signal; reads_pipes: read its output from the start."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
        preexec_fn=limit_resources(CORE=0), start_new_session=True,
    ) as process:  # fmt: skip
        streams: list[bytes] = []
        reader = threading.Thread(target=lambda: streams.extend(process.communicate()))
        if reads_pipes:
            reader.start()
        time.sleep(seconds)
        is_handled = has_signal_handlers(process.pid)
        process.send_signal(number)
        if not reads_pipes:
            reader.start()
        reader.join()
    out, message = streams
    return SignaledRun(
        process.returncode, message.decode(errors="replace"), out, is_handled, seconds, process.pid
    )


def check_signals(storage: Storage, count: int, rng: random.Random) -> Report:
    make_inputs()
    for output_path in ("out.npz:a", "out.safetensors:a", "store.zarr:g/a"):
        convert(output_path)
    zarr.consolidate_metadata("store.zarr")
    without_outputs = storage.contents()
    for output_path in ("out.npz:new", "out.safetensors:new", "store.zarr:g/new"):
        convert(output_path)
    for output_path in ("out.npy", "out.pb", "out.zarr", "s3://bucket/out.npy"):
        convert(output_path)
    with_outputs = storage.contents()
    references = [
        run_undisturbed(storage, name, [*NDTOOL, *RUN, *output, *options], contents)
        for name, output in OUTPUTS.items()
        for options in (((), SWEEP) if "cluster" not in name else ((),))
        for contents in (without_outputs, with_outputs)
    ]
    report: Report = {"statuses": Counter(), "early": 0, "failures": []}
    for i in range(count):
        reference = references[i % len(references)]
        storage.restore(reference.before)
        is_handled_signal = rng.random() < 0.9
        number = getattr(
            signal, f"SIG{rng.choice(HANDLED_SIGNALS if is_handled_signal else FATAL_SIGNALS)}"
        )
        seconds = (
            rng.uniform(0, 0.4) if rng.random() < 0.3 else rng.uniform(0.1, 1.1 * reference.seconds)
        )
        signaled = run_and_signal(reference.command, number, seconds, rng.random() < 0.5)
        after, has_exited = storage.contents(), wait_for_exit(signaled.pid)
        report["statuses"][signaled.status] += 1
        report["early"] += not signaled.is_handled
        # A last request to a store that is in progress may create the object.
        is_intact = after == reference.before or (
            "s3" in reference.name and after == reference.after
        )
        if signaled.status == 0:
            is_correct = (
                after == reference.after and signaled.out == reference.out and not signaled.message
            )
        elif signaled.is_handled:
            is_correct = (
                signaled.status == (128 + number if is_handled_signal else -number)
                and not signaled.message
            )
            is_correct = is_correct and is_intact and reference.out.startswith(signaled.out)
        else:
            is_correct = after == reference.before
        if not is_correct or not has_exited:
            names = sorted({*after, *reference.before, *reference.after})
            changed = [name for name in names if after.get(name) != reference.before.get(name)]
            report["failures"].append(
                [reference.command[3:], changed, has_exited, signaled._asdict() | {"out": ""}]
            )
    return report


def convert(output: str) -> None:
    subprocess.run([*NDTOOL, "convert", "idx.npy", output, "-q"], check=True, env=environment())


class UndisturbedRun(NamedTuple):
    """A run without a signal: the files before and after it, its output to a pipe, its seconds."""

    name: str
    command: list[str]
    before: dict[str, bytes]
    after: dict[str, bytes]
    out: bytes
    seconds: float


def run_undisturbed(
    storage: Storage, name: str, command: list[str], before: dict[str, bytes]
) -> UndisturbedRun:
    storage.restore(before)
    start = time.perf_counter()
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment())
    seconds = time.perf_counter() - start
    return UndisturbedRun(name, command, before, storage.contents(), completed.stdout, seconds)


def main() -> int:
    count, seed = int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    warnings.simplefilter("ignore")
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with server() as s3:
                report = check_signals(Storage(s3), count, random.Random(seed))
        except pytest.skip.Exception as exc:  # a required package is not installed
            report = {"skipped": str(exc), "failures": []}
        os.chdir(before)
    print(json.dumps(report))
    return int(bool(report["failures"]))


if __name__ == "__main__":
    sys.exit(main())
