"""Stress tests of concurrency, signals and secrets: hammer.py KIND COUNT [SEED].

npz, safetensors, zarr, s3: eight processes write COUNT arrays each into one file or store; each
array of a successful run must be present, with its bytes. signals: COUNT runs get a signal at a
random time; a run must end with its status, without output, and leave the old output or, with
status 0, the new one, and nothing else. urls: COUNT URLs with random secrets are passed to every
parameter that takes one; no form of a secret may be in the output.

Prints one JSON object; `wrong` must be empty.
"""

import json
import os
import random
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

import bucket
import test_parallel_writers as parallel
import test_secrets as secrets
import webserver
import zarr
from command import NDTOOL, environment, save
from inputs import open_input
from limits import limit_resources

WRITERS = 8
TARGETS = {
    "npz": ["a.npz"],
    "safetensors": ["m.safetensors"],
    "zarr": ["s.zarr", "g.zarr"],
    "s3": ["s3://bucket/a.npz", "s3://bucket/m.safetensors", "s3://bucket/s.zarr"],
}
Found = dict[str, Any]


@contextmanager
def server() -> Iterator[bucket.Bucket]:
    """Direct s3:// to an S3 server on the loopback interface."""
    with bucket.run_server() as running:
        for name, value in bucket.client_environment(running.endpoint).items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        yield running


# Writers


def write(targets: list[str], rounds: int) -> Found:
    found: Found = {"written": 0, "refused": 0, "wrong": []}
    for target in targets:
        if target == "g.zarr":  # whose metadata list all arrays
            zarr.create_group(target)
            zarr.consolidate_metadata(target)
        done = parallel.written_at_once(target, WRITERS, rounds)
        found["written"] += len(done)
        found["refused"] += WRITERS * rounds - len(done)
        present = parallel.arrays(target)
        found["wrong"] += [[target, name, "lost"] for name in done - present]
        found["wrong"] += [[target, name, "not written"] for name in present - done]
        for name in done & present:
            with open_input(f"{target}:{name}") as one:
                whole = one.whole()
                raw = bytes(one.block(0) if whole is None else whole.buffer)
            if raw != bytes([int(name.partition("_")[2])] * 8):
                found["wrong"].append([target, name, "other bytes"])
    found["wrong"] += [[name, "left"] for name in os.listdir() if "ndtool-" in name]
    return found


# Signals

RUN = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add", "-q")
SWEEP = ("--memory", "1280KiB")  # also of the largest chunks
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
ASK, DIE = ("INT", "TERM", "HUP"), ("QUIT", "USR1", "ALRM")


def make_inputs() -> None:
    rng, rows = np.random.default_rng(0), 1 << 16
    save(
        data=rng.random((rows, 4)), idx=rng.integers(0, rows, (rows, 1)), upd=rng.random((rows, 4))
    )


class Site:
    """A folder and a bucket in which runs write."""

    def __init__(self, s3: bucket.Bucket) -> None:
        self._s3 = s3

    def everything(self) -> dict[str, bytes]:
        paths = (path for path in sorted(Path().rglob("*")) if not path.is_dir())
        found = {str(path): path.read_bytes() for path in paths}
        keys = self._s3.keys()
        found.update({f"s3:{key}": self._s3.get(key) for key in keys})
        found.update({f"folder {path}": b"" for path in Path().rglob(".*ndtool-*")})
        found.update({f"upload {one['Key']}": b"" for one in self._s3.uploads()})
        return found

    def become(self, wanted: dict[str, bytes]) -> None:
        """Restore the original content."""
        if self.everything() == wanted:
            return
        self._s3.clear()
        for path in Path().iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, body in wanted.items():
            if name.startswith("s3:"):
                self._s3.put(name.removeprefix("s3:"), body)
                continue
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(body)


def listens(pid: int) -> bool:
    """Whether ndtool has installed its handlers; before, a signal ends Python as usual."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
        return bool(caught >> signal.SIGHUP - 1 & 1)
    return False


def gone(group: int) -> bool:
    """Wait until a process group is empty."""
    for _ in range(3000):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


class Struck(NamedTuple):
    """The outcome of a run; said: stderr. listened: whether ndtool handled the signal."""

    status: int
    message: str
    out: bytes
    listened: bool
    seconds: float
    pid: int


def strike(command: list[str], number: int, seconds: float, reads: bool) -> Struck:
    """Start a run and send it a signal; reads: whether its pipes are read before that."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
        preexec_fn=limit_resources(CORE=0), start_new_session=True,
    ) as process:  # fmt: skip
        streams: list[bytes] = []
        reader = threading.Thread(target=lambda: streams.extend(process.communicate()))
        if reads:
            reader.start()
        time.sleep(seconds)
        listened = listens(process.pid)
        process.send_signal(number)
        if not reads:
            reader.start()
        reader.join()
    out, message = streams
    return Struck(
        process.returncode, message.decode(errors="replace"), out, listened, seconds, process.pid
    )


def send(count: int, rng: random.Random) -> Found:
    with server() as s3:
        return _send(Site(s3), count, rng)


def _send(site: Site, count: int, rng: random.Random) -> Found:
    make_inputs()
    for old in ("out.npz:a", "out.safetensors:a", "store.zarr:g/a"):
        convert(old)
    zarr.consolidate_metadata("store.zarr")
    bare = site.everything()
    for old in ("out.npz:new", "out.safetensors:new", "store.zarr:g/new"):
        convert(old)
    for old in ("out.npy", "out.pb", "out.zarr", "s3://bucket/out.npy"):
        convert(old)
    full = site.everything()
    methods = []
    for name, output in OUTPUTS.items():
        for more in ((), SWEEP) if "cluster" not in name else ((),):
            for before in (bare, full):
                methods.append(undisturbed(site, name, [*NDTOOL, *RUN, *output, *more], before))
    found: Found = {"statuses": Counter(), "early": 0, "wrong": []}
    for i in range(count):
        way = methods[i % len(methods)]
        site.become(way.before)
        catchable = rng.random() < 0.9
        number = getattr(signal, f"SIG{rng.choice(ASK if catchable else DIE)}")
        seconds = rng.uniform(0, 0.4) if rng.random() < 0.3 else rng.uniform(0.1, 1.1 * way.lasts)
        struck = strike(way.command, number, seconds, rng.random() < 0.5)
        after, ended = site.everything(), gone(struck.pid)
        found["statuses"][struck.status] += 1
        found["early"] += not struck.listened
        # If the last request to a store is in progress, the object may exist.
        intact = after == way.before or ("s3" in way.name and after == way.new)
        if struck.status == 0:
            right = after == way.new and struck.out == way.out and not struck.message
        elif struck.listened:
            right = struck.status == (128 + number if catchable else -number) and not struck.message
            right = right and intact and way.out.startswith(struck.out)
        else:
            right = after == way.before
        if not right or not ended:
            names = sorted({*after, *way.before, *way.new})
            changed = [name for name in names if after.get(name) != way.before.get(name)]
            found["wrong"].append([way.command[3:], changed, ended, struck._asdict() | {"out": ""}])
    return found


def convert(output: str) -> None:
    subprocess.run([*NDTOOL, "convert", "idx.npy", output, "-q"], check=True, env=environment())


class Way(NamedTuple):
    """A run, the content before and after it, its output to a pipe, and its seconds."""

    name: str
    command: list[str]
    before: dict[str, bytes]
    new: dict[str, bytes]
    out: bytes
    lasts: float


def undisturbed(site: Site, name: str, command: list[str], before: dict[str, bytes]) -> Way:
    site.become(before)
    started = time.perf_counter()
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment())
    lasts = time.perf_counter() - started
    return Way(name, command, before, site.everything(), ran.stdout, lasts)


# Secrets

LETTERS = string.ascii_letters + string.digits
ODD = LETTERS + " /@:%&'\"<>+=?#é\t[]\\"
KINDS = (
    "{base}/forbidden.npy", "{base}/failing.npy", "{base}/garbled.npy", "{base}/none.npy",
    "{base}/away.npy", "{base}/x.npy", "http://127.0.0.1:9/x.npy", "HTTP://127.0.0.1:9/x.zarr",
    "http://host:99999/x.npy", "http://[::1/x.npy", "s3://bucket/x.npy", "s3://bucket/x.zarr",
    "s3://bucket", "github://main/x.npy", "nonsense://host/x.npy", "memory://x.npy",
    "tcp://127.0.0.1:1", "zip://x.npy::http://127.0.0.1:9/x.zip", "simplecache::s3://bucket/x.npy",
    "file://host/x.npy", "s3://bucket/x.npz:member", "http://127.0.0.1:9/x.html",
)  # fmt: skip


def secret(rng: random.Random) -> str:
    """Return a unique word, with or without special characters."""
    unusual = "".join(rng.choices(ODD, k=rng.choice((0, 0, 4, 20, 300))))
    return "".join(rng.choices(LETTERS, k=8)) + unusual + "".join(rng.choices(LETTERS, k=6))


def tell(count: int, rng: random.Random) -> Found:
    found: Found = {"urls": count, "calls": 0, "statuses": Counter(), "wrong": []}
    save(data=np.arange(12.0).reshape(3, 4), idx=np.array([[0], [2]]), out=np.zeros((2, 4)))
    Path("model.onnx").write_bytes(b"\x08\x0a")
    with webserver.serving() as web:
        base = web.add("/x.npy", Path("data.npy").read_bytes()).removesuffix("/x.npy")
        web.add("/forbidden.npy", b"", refusals=[403] * 10**6)
        web.add("/failing.npy", b"", refusals=[500] * 10**6)
        web.add("/garbled.npy", b"<html></html>", shift=1)
        for i in range(count):
            user, password, query = (secret(rng) for _ in range(3))
            # A slash would end a user's name; keys of S3 contain some, and users paste them.
            login = f"://{quote(user, safe='')}:{quote(password, safe=rng.choice(('', '/+')))}@"
            url = KINDS[i % len(KINDS)].format(base=base).replace("://", login)
            url += f"?token={quote(query, safe='')}" if rng.random() < 0.8 else ""
            web.objects["/away.npy"] = webserver.Object(b"", moved=url.replace("/away", "/none"))
            spelled = {form for one in (user, password, query) for form in secrets.forms(one)}
            spelled |= {part for one in (user, password, query) for part in (one[:8], one[-6:])}
            cases = list(_cases(url, rng))
            compare_undisturbed = secrets.run(
                cases, **bucket.client_environment("http://127.0.0.1:9")
            )
            for case, (status, text) in zip(cases, compare_undisturbed, strict=True):
                found["calls"] += 1
                found["statuses"][status] += 1
                if status == 1 or any(form in text for form in spelled):
                    found["wrong"].append([case, status, text[-600:]])
    return found


def _cases(url: str, rng: random.Random) -> Iterator[list[str]]:
    """Yield a call of every command with the URL for each parameter that takes one."""
    for command, path in secrets.leaves():
        known = {one.name for one in command.params}
        for parameter in filter(secrets.takes_urls, command.params):
            case = secrets.call(command, path, parameter.name or "", url)
            more = {name for name in ("json", "html") if name in known - {parameter.name}}
            chosen = rng.choice([None, *sorted(more)])
            yield [*case, *{None: [], "json": ["--json"], "html": ["--html", "page.html"]}[chosen]]


def main() -> int:
    kind, count, seed = sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["0"])[0])
    hammers: dict[str, Callable[[], Found]] = {
        "signals": lambda: send(count, random.Random(seed)),
        "urls": lambda: tell(count, random.Random(seed)),
    }
    warnings.simplefilter("ignore")
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with server() if kind == "s3" else nullcontext():
                found = hammers[kind]() if kind in hammers else write(TARGETS[kind], count)
        except pytest.skip.Exception as exc:  # a required package is not installed
            found = {"skipped": str(exc), "wrong": []}
        os.chdir(before)
    print(json.dumps(found))
    return int(bool(found["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
