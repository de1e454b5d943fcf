"""Commands run in forks of a process that has already imported the packages they need.

A new Python process takes 0.1 s for its imports, and 0.2 to 1 s with h5py or distributed. A fork
has all modules imported, and has its own exit status, signals, current folder, environment and
streams. Many tests still start a new Python process.
"""

import atexit
import gc
import importlib
import os
import pickle
import pkgutil
import resource
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import ndtool

AVAILABLE = sys.platform == "linux"
MAX_REQUEST_BYTES = 100_000  # a request is one packet
NOT_PRELOADED = {  # the program itself, and what imports torch, dask or xarray
    "ndtool.__main__", "ndtool.dask", "ndtool.onnx", "ndtool.torch", "ndtool.xarray", "ndtool.inmemory.gradients",
    "ndtool.outofcore.localcluster",
}  # fmt: skip
# The package that a command imports if an argument contains the key; none that starts threads.
PACKAGES = {
    ".zarr": "numcodecs", ".h5": "h5py", "://": "fsspec", "s3://": "s3fs",
    "--scheduler": "distributed",
}  # fmt: skip
# Prefixes of variables that Python and libraries read at startup.
_STARTUP_PREFIXES = (
    "PYTHON",
    "COVERAGE",
    "LC_",
    "LANG",
    "LD_",
    "MALLOC_",
    "OPENBLAS_",
    "GLIBC_",
    "GOMP_",
    "OMP_WAIT",
)


class Server:
    """A process that forks for one run at a time."""

    def __init__(self) -> None:
        parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(child.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[child.fileno()],
                cwd="/", env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        self.connection = parent
        self._environment = startup_variables(os.environ)

    def is_compatible(self, environment: Mapping[str, str]) -> bool:
        """Return whether the process was started with the startup variables of an environment."""
        return self._environment == startup_variables(environment)

    def run(self, request: bytes, streams: Sequence[int]) -> int:
        """Fork, wait, and return the exit status, negative for a signal as in subprocess."""
        socket.send_fds(self.connection, [request], streams)
        status: int = pickle.loads(self.connection.recv(1 << 10))
        return status

    def close(self) -> None:
        self.connection.close()
        self._process.wait()


_all: list[Server] = []
_idle: list[Server] = []


def startup_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_STARTUP_PREFIXES)
    }


def descriptors() -> set[str]:
    """Return the file descriptors of the servers in this process."""
    return {str(server.connection.fileno()) for server in _all}


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    address_space: int,
) -> int | None:
    """Run `ndtool` with three streams; return its status, or None if it needs a new process.

    address_space: the limit of its address space in bytes, or -1.
    """
    packages = {
        name for word, name in PACKAGES.items() if any(word in argument for argument in arguments)
    }
    request = pickle.dumps(
        (arguments, dict(environment), os.getcwd(), address_space, sorted(packages))
    )
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
        *run_arguments, packages = pickle.loads(request)
        for name in packages:
            with suppress(ImportError):
                importlib.import_module(name)
        gc.freeze()
        # a fork of several threads would use one
        assert len(os.listdir("/proc/self/task")) == 1, packages
        if not (process := os.fork()):
            connection.close()
            run_ndtool(streams, *run_arguments)
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(process, 0)
        connection.send(pickle.dumps(os.waitstatus_to_exitcode(status)))


def run_ndtool(
    streams: Sequence[int],
    arguments: Sequence[str],
    environment: dict[str, str],
    directory: str,
    address_space: int,
) -> NoReturn:
    """Execute `python -m ndtool` in this fork."""
    if address_space >= 0:
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        original = getattr(sys, f"__{name}__")
        reopened = open(  # noqa: SIM115
            fd, "w" if fd else "r", 1 if fd == 2 else -1,
            encoding=original.encoding, errors=original.errors, closefd=False,
        )  # fmt: skip
        setattr(sys, name, reopened)
        setattr(sys, f"__{name}__", reopened)
    os.chdir(directory)
    added = {name: os.environ[name] for name in os.environ.keys() - initial_environment.keys()}
    os.environ.clear()
    os.environ.update(added | environment)
    sys.argv[1:] = arguments
    sys.path.insert(0, directory)
    runpy.run_module("ndtool", run_name="__main__", alter_sys=True)
    os._exit(0)  # not reached: ndtool exits


if __name__ == "__main__":
    del sys.path[0]  # run_ndtool inserts the command's folder instead
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, pytest closes the connection
    initial_environment = dict(os.environ)
    for module in pkgutil.walk_packages(ndtool.__path__, "ndtool."):
        if module.name not in NOT_PRELOADED:
            importlib.import_module(module.name)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)
