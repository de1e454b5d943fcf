"""The process of an engine: starts it, requests runs, and kills it at a timeout."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Self

from ndtool.analysis.engines import child
from ndtool.storage import tempfiles
from ndtool.storage.descriptors import write_next

_POLL_INTERVAL = 100  # milliseconds between checks that the process is alive
_OUTPUT_TAIL = 1 << 12  # bytes of its output to read, from the end
# Engines use no GPU, and print only errors.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


class EngineProcess:
    """A process that runs one call on an engine; a context manager that kills it.

    job: the call as a JSON object. timeout: the seconds to wait for a reply.
    """

    def __init__(self, job: dict[str, Any], timeout: int) -> None:
        self._timeout, self._timed_out = timeout, False
        self._output = tempfiles.unnamed_file()
        replies, child_end = os.pipe()
        self._replies = open(replies, "rb")  # noqa: SIM115 - until __exit__
        threads = str(job["threads"])
        inputs = [array["fd"] for array in job["arrays"]]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", child.__file__],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(child_end, job["output"], *inputs),
                start_new_session=True,
                env={**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": threads},
            )
        except BaseException:
            self._replies.close()
            os.close(self._output)
            raise
        finally:
            os.close(child_end)
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)
        self._send(json.dumps({**job, "replies": child_end}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._replies.close()
        os.close(self._output)

    def request_run(self) -> dict[str, Any]:
        """Request one more run; return the reply."""
        self._send("again")
        return self.read_reply()

    def read_reply(self) -> dict[str, Any]:
        """Return the next reply, empty if the process has ended."""
        deadline = time.monotonic() + self._timeout
        while not self._poll.poll(_POLL_INTERVAL) and self._process.poll() is None:
            if time.monotonic() > deadline:
                self._timed_out = True
                self._kill()
        line = self._replies.readline() if self._poll.poll(0) else b""  # also after its end
        reply: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        return reply

    def exit_description(self) -> str:
        """Describe how the process ended, with the last line of its output."""
        code = self._process.wait()
        if self._timed_out:
            return f"no result in {self._timeout} s"
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        size = os.fstat(self._output).st_size
        output = os.pread(self._output, _OUTPUT_TAIL, max(0, size - _OUTPUT_TAIL)).decode(
            "utf-8", "replace"
        )
        last = " ".join(output.rstrip().rpartition("\n")[2].split())
        return f"{cause}: {last}" if last else cause

    def _kill(self) -> None:
        """Kill the process and its children."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it has ended
            pass
        self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            write_next(self._process.stdin.fileno(), line.encode() + b"\n")
        except BrokenPipeError:
            pass  # the process has ended, so the next reply is empty
