"""The command line in another process, on files, optionally with a terminal."""

import json
import os
import pty
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import forkserver
import numpy as np
from limits import limit_resources

FIXTURES = Path(__file__).parents[2] / "fixtures"
NDTOOL = (sys.executable, "-m", "ndtool")
_NDTOOL_VARIABLES = ("NDTOOL_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_", "OMP_")


class Completed(NamedTuple):
    """The exit status and output of a run; `screen`: the output to a terminal."""

    status: int
    out: bytes
    err: str
    screen: str = ""

    @property
    def json(self) -> Any:
        """The JSON object on stdout, else on stderr."""
        return json.loads(self.out or self.err)


def environment(**changes: str | None) -> dict[str, str]:
    """Return the environment without variables that affect ndtool's output; None removes a name."""
    removed = {name for name in os.environ if name.startswith(_NDTOOL_VARIABLES)} - {
        "OMP_WAIT_POLICY"
    }  # set by `make test`
    variables = {name: value for name, value in os.environ.items() if name not in removed}
    variables.update({name: value for name, value in changes.items() if value is not None})
    return {
        name: value for name, value in variables.items() if changes.get(name, value) is not None
    }


def ndtool(*arguments: object, **options: Any) -> Completed:
    """Run `ndtool` without a terminal, in a fork unless an option needs a new process.

    addresses: the limit of its address space in bytes.
    """
    if options.keys() <= {"stdin", "env", "addresses"}:
        variables = environment(**(options.get("env") or {}))
        source, sink = os.pipe()
        with ThreadPoolExecutor(1) as pool, open(source, "rb", 0) as stdin:
            pool.submit(write, sink, options.get("stdin", b""))
            completed = run_forked(
                arguments, variables, stdin.fileno(), addresses=options.get("addresses", -1)
            )
        if completed:
            return completed
    if addresses := options.pop("addresses", None):
        options.setdefault("preexec_fn", limit_resources(AS=addresses))
    return execute(*NDTOOL, *arguments, **options)


def write(pipe: int, content: bytes) -> None:
    with suppress(BrokenPipeError), open(pipe, "wb", 0) as file:
        file.write(content)


def read(pipe: int) -> bytes:
    with open(pipe, "rb") as file:
        return file.read()


def run_forked(
    arguments: Sequence[object],
    variables: dict[str, str],
    stdin: int,
    *,
    out: int = -1,
    err: int = -1,
    addresses: int = -1,
) -> Completed | None:
    """Run `ndtool` in a fork on the streams, -1 for a pipe; return None if it needs a new process."""
    pipes = [os.pipe() for stream in (out, err) if stream < 0]
    sinks = iter([sink for _, sink in pipes])
    streams = [stdin, *(next(sinks) if stream < 0 else stream for stream in (out, err))]
    with ThreadPoolExecutor(2) as pool:
        reads = iter([pool.submit(read, source) for source, _ in pipes])
        try:
            status = forkserver.run(list(map(str, arguments)), variables, streams, addresses)
        finally:
            for _, sink in pipes:
                os.close(sink)
        outputs = [next(reads).result() if stream < 0 else b"" for stream in (out, err)]
    if status is None:
        return None
    return Completed(status, outputs[0], outputs[1].decode("utf-8", "backslashreplace"))


def python(program: str, *arguments: object, **options: Any) -> Completed:
    """Run a program in another Python process."""
    return execute(sys.executable, "-c", program, *arguments, **options)


def start(*words: object, env: Any = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start `ndtool` in a new process whose streams are pipes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [*NDTOOL, *map(str, words)]
    return subprocess.Popen(command, env=environment(**(env or {})), **pipes, **options)


def shell(script: str, *words: object, **options: Any) -> Completed:
    """Run a script of bash in which "$@" is ndtool, with further words of a command."""
    return execute("bash", "-c", script, "bash", *NDTOOL, *words, **options)


def execute(*command: object, stdin: bytes = b"", env: Any = None, **options: Any) -> Completed:
    """Run a command without a terminal."""
    completed = subprocess.run(
        list(map(str, command)),
        input=stdin,
        capture_output=True,
        env=environment(**(env or {})),
        check=False,
        **options,
    )
    return Completed(
        completed.returncode, completed.stdout, completed.stderr.decode("utf-8", "backslashreplace")
    )


def run_in_terminal(
    *command: object,
    columns: int = 80,
    stdout: bool = True,
    stderr: bool = True,
    env: Any = None,
    **options: Any,
) -> Completed:
    """Run a command with some of its standard streams on a terminal, the remaining ones on pipes."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (50, columns))
    blocks = []

    def read_screen() -> None:
        try:
            while block := os.read(controller, 1 << 16):
                blocks.append(block)
        except OSError:
            pass  # the last process has closed the terminal

    variables = environment(**{"TERM": "xterm", **(env or {})})
    reader = threading.Thread(target=read_screen)
    reader.start()
    completed = None
    if command[: len(NDTOOL)] == NDTOOL and not options:
        streams = {"out": terminal if stdout else -1, "err": terminal if stderr else -1}
        completed = run_forked(command[len(NDTOOL) :], variables, terminal, **streams)
    if not completed:
        process = subprocess.run(
            list(map(str, command)), stdin=terminal, stdout=terminal if stdout else subprocess.PIPE,
            stderr=terminal if stderr else subprocess.PIPE, env=variables, check=False, **options,
        )  # fmt: skip
        completed = Completed(
            process.returncode, process.stdout or b"", (process.stderr or b"").decode()
        )
    os.close(terminal)
    reader.join()
    os.close(controller)
    screen = b"".join(blocks).decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return completed._replace(screen=screen)


def save(**arrays: Any) -> None:
    """Write each array as NAME.npy in the current folder."""
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)


def save_stores(folder: Path, **arrays: tuple[Any, tuple[int, ...]]) -> None:
    """Write each array as NAME.npy, and in chunks of a size as NAME.zarr."""
    import zarr

    for name, (array, chunks) in arrays.items():
        np.save(folder / f"{name}.npy", array)
        store = zarr.create_array(
            folder / f"{name}.zarr", shape=array.shape, chunks=chunks, dtype=array.dtype
        )
        store[...] = array


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and modification time of every file under a folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
