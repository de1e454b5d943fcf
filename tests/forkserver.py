"""Commands in forks of a process that has imported the packages they need.

A new Python process takes 0.1 s for its imports, and 0.4 to 1 s with zarr or distributed. A fork
has done most of them, and is otherwise a process as any: with its own status, signals, folder,
environment and streams. It loads the kernels itself, because libgomp works with one thread in a
fork of a process that has loaded it. Many tests still start Python.
"""

import atexit
import gc
import importlib
import os
import pickle
import resource
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

AVAILABLE = sys.platform == "linux"
MAX_REQUEST_BYTES = 100_000  # bytes of a request, which is one packet
PRELOADED = (
    "json", "tempfile", "ndtool.cli.program", "ndtool.cli.reporter", "ndtool.formats.locators",
    "ndtool.publish.targets", "ndtool.runs.request",
)  # fmt: skip
# What commands import if one of their arguments contains a word.
PACKAGES = {
    ".npz": "zipfile", "zarr": "zarr", "://": "fsspec", "s3://": "s3fs",
    "--scheduler": "distributed", "verify": "numpy",
}  # fmt: skip
# Variables that Python and libraries read when they start.
_STARTUP_PREFIXES = (
    "PYTHON",
    "COVERAGE",
    "LC_",
    "LANG",
    "LD_",
    "MALLOC_",
    "OPENBLAS_",
    "GLIBC_",
    "OMP_WAIT",
)


class Server:
    """The process that forks, one run at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                cwd="/",
            )  # fmt: skip
        self.connection = ours
        self._environment = startup_variables(os.environ)

    def is_compatible(self, environment: Mapping[str, str]) -> bool:
        """Return whether its Python was started as this environment demands."""
        return self._environment == startup_variables(environment)

    def run(self, request: bytes, streams: Sequence[int]) -> int:
        """Fork, wait, and return the exit status as subprocess does."""
        socket.send_fds(self.connection, [request], streams)
        status: int = pickle.loads(self.connection.recv(1 << 10))
        return status

    def close(self) -> None:
        self.connection.close()
        self._process.wait()


_all: list[Server] = []
_idle: list[Server] = []


def startup_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(_STARTUP_PREFIXES)}


def descriptors() -> set[str]:
    """Return the file descriptors of the servers in this process."""
    return {str(server.connection.fileno()) for server in _all}


def run(
    arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int], addresses: int
) -> int | None:
    """Run `ndtool` with three streams; return its status, or None if it needs a new process.

    addresses: the limit of its address space in bytes, or -1.
    """
    packages = {name for word, name in PACKAGES.items() if any(word in one for one in arguments)}
    request = pickle.dumps((arguments, dict(environment), os.getcwd(), addresses, sorted(packages)))
    if not AVAILABLE or len(request) > MAX_REQUEST_BYTES:
        return None
    try:
        server = _idle.pop()
    except IndexError:
        server = Server()
        _all.append(server)
    if not server.is_compatible(environment):
        _idle.append(server)
        return None
    status = server.run(request, streams)
    _idle.append(server)
    return status


@atexit.register
def close_all() -> None:
    for server in _all:
        server.close()


def serve(connection: socket.socket) -> None:
    """Fork a process for each request, until the connection is closed."""
    while True:
        request, streams, _, _ = socket.recv_fds(connection, 2 * MAX_REQUEST_BYTES, 3)
        if not request:
            return
        *run, packages = pickle.loads(request)
        for name in packages:
            with suppress(ImportError):
                importlib.import_module(name)
        gc.freeze()
        if not (process := os.fork()):
            connection.close()
            run_ndtool(streams, *run)
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(process, 0)
        connection.send(pickle.dumps(os.waitstatus_to_exitcode(status)))


def run_ndtool(
    streams: Sequence[int],
    arguments: Sequence[str],
    environment: dict[str, str],
    folder: str,
    addresses: int,
) -> NoReturn:
    """Turn this fork into `python -m ndtool`."""
    if addresses >= 0:
        resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, f"__{name}__")
        new = open(  # noqa: SIM115
            number, "w" if number else "r", 1 if number == 2 else -1,
            encoding=old.encoding, errors=old.errors, closefd=False,
        )  # fmt: skip
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.chdir(folder)
    added = {name: os.environ[name] for name in os.environ.keys() - before.keys()}
    os.environ.clear()
    os.environ.update(added | environment)
    sys.argv[1:] = arguments
    sys.path.insert(0, folder)
    runpy.run_module("ndtool", run_name="__main__", alter_sys=True)
    os._exit(0)  # not reached: ndtool exits


if __name__ == "__main__":
    del sys.path[0]  # a command's is its folder
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for pytest, which closes the connection
    before = dict(os.environ)
    for module in PRELOADED:
        importlib.import_module(module)
    assert "ndtool._kernels" not in sys.modules
    with socket.socket(fileno=int(sys.argv[1])) as ours:
        serve(ours)
