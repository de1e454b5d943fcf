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

FIXTURES = Path(__file__).parent.parent / "fixtures"
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
    """Return our environment without variables that affect ndtool's output; None removes a name."""
    ours = {k for k in os.environ if k.startswith(_NDTOOL_VARIABLES)} - {
        "OMP_WAIT_POLICY"
    }  # of `make test`
    names = {k: v for k, v in os.environ.items() if k not in ours}
    names.update({k: v for k, v in changes.items() if v is not None})
    return {k: v for k, v in names.items() if changes.get(k, v) is not None}


def ndtool(*arguments: object, **options: Any) -> Completed:
    """Run `ndtool` without a terminal, in a fork unless an option needs a new process.

    addresses: the limit of its address space in bytes.
    """
    if options.keys() <= {"stdin", "env", "addresses"}:
        names = environment(**(options.get("env") or {}))
        source, sink = os.pipe()
        with ThreadPoolExecutor(1) as pool, open(source, "rb", 0) as stdin:
            pool.submit(write, sink, options.get("stdin", b""))
            ran = run_forked(
                arguments, names, stdin.fileno(), addresses=options.get("addresses", -1)
            )
        if ran:
            return ran
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
    names: dict[str, str],
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
        texts = iter([pool.submit(read, source) for source, _ in pipes])
        try:
            status = forkserver.run(list(map(str, arguments)), names, streams, addresses)
        finally:
            for _, sink in pipes:
                os.close(sink)
        written = [next(texts).result() if stream < 0 else b"" for stream in (out, err)]
    if status is None:
        return None
    return Completed(status, written[0], written[1].decode("utf-8", "backslashreplace"))


def python(program: str, *arguments: object, **options: Any) -> Completed:
    """Run a program in another Python process."""
    return execute(sys.executable, "-c", program, *arguments, **options)


def execute(*command: object, stdin: bytes = b"", env: Any = None, **options: Any) -> Completed:
    """Run a command without a terminal."""
    ran = subprocess.run(
        list(map(str, command)),
        input=stdin,
        capture_output=True,
        env=environment(**(env or {})),
        check=False,
        **options,
    )
    return Completed(ran.returncode, ran.stdout, ran.stderr.decode("utf-8", "backslashreplace"))


def run_in_terminal(
    *command: object,
    columns: int = 80,
    stdout: bool = True,
    stderr: bool = True,
    env: Any = None,
    **options: Any,
) -> Completed:
    """Run a command with some of its standard streams on a terminal, the others on pipes."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    blocks = []

    def watch() -> None:
        try:
            while block := os.read(ours, 1 << 16):
                blocks.append(block)
        except OSError:
            pass  # the last process has closed the terminal

    names = environment(**{"TERM": "xterm", **(env or {})})
    reader = threading.Thread(target=watch)
    reader.start()
    ran = None
    if command[: len(NDTOOL)] == NDTOOL and not options:
        streams = {"out": theirs if stdout else -1, "err": theirs if stderr else -1}
        ran = run_forked(command[len(NDTOOL) :], names, theirs, **streams)
    if not ran:
        new = subprocess.run(
            list(map(str, command)), stdin=theirs, stdout=theirs if stdout else subprocess.PIPE,
            stderr=theirs if stderr else subprocess.PIPE, env=names, check=False, **options,
        )  # fmt: skip
        ran = Completed(new.returncode, new.stdout or b"", (new.stderr or b"").decode())
    os.close(theirs)
    reader.join()
    os.close(ours)
    screen = b"".join(blocks).decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return ran._replace(screen=screen)


def save(**arrays: Any) -> None:
    """Write each array as NAME.npy in the current folder."""
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and time of every file under a folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
