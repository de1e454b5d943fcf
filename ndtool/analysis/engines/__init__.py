"""Comparison of the outputs of other engines with the correct output of a call.

Each engine runs in its own process (child.py), as some crash on an index out of bounds; with one
thread and with several, as some lose updates. Inputs are mapped files, the output is a file.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import Pipe
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import verify as verifying
from ndtool.analysis.engines import child
from ndtool.analysis.engines.child import ENGINES as ENGINES
from ndtool.analysis.oracle.blocks import block_ranges, flat_view
from ndtool.analysis.oracle.distances import bits
from ndtool.analysis.oracle.reductions import native
from ndtool.analysis.verify import Arrays, Comparison, EngineReport, Verification, compare
from ndtool.arrays.source import ContiguousSource, Source
from ndtool.errors import UsageError, format_count, printable
from ndtool.inmemory.arguments import rebase
from ndtool.inmemory.buffers import as_void
from ndtool.machine import threads
from ndtool.rules import shapes, specs
from ndtool.rules.operators import LOWERED, OPERATORS, Attributes, operator_of
from ndtool.runs.calls import OpenCall
from ndtool.storage import tempfiles
from ndtool.storage.descriptors import map_bytes, release, reserve, write_at

EngineProgress = Callable[[float, str], object]  # of the completed fraction, and the engine
_MAX_MESSAGE = 500  # characters of an engine's message
_OUTPUT_TAIL = 1 << 12  # bytes of its output to read, from the end
# Engines use no GPU, and print only errors.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


class EngineSettings(NamedTuple):
    """Settings: the accepted distance in ulps, runs, the most threads, seconds for each run."""

    within: int = 0
    runs: int = 5
    threads: int | None = None
    timeout: int = 600


def parse_names(names_text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of engines; "auto" means all that are installed."""
    groups = {name: [name] for name in ENGINES} | {"all": [*ENGINES]}
    groups["auto"] = [name for name in ENGINES if not is_missing(name)]
    words = names_text.replace(" ", "").split(",")
    for word in words:
        if word not in groups:
            raise UsageError(f"{printable(word)!r} is not an engine: valid {', '.join(groups)}")
    return tuple(dict.fromkeys(name for word in words for name in groups[word]))


def is_missing(name: str) -> bool:
    """Whether a module that an engine needs is not installed."""
    return any(find_spec(module) is None for module in ENGINES[name].packages.split())


def require_any(names: tuple[str, ...]) -> None:
    """Raise UsageError if none of some engines is installed."""
    if all(map(is_missing, names)):
        raise UsageError(
            f"no engine to compare with is installed: expected one of {', '.join(names)}",
            hint=f"pip install {' '.join(ENGINES[name].packages for name in names)}",
        )


def verify(
    call: OpenCall,
    names: tuple[str, ...] | None,
    engine_settings: EngineSettings,
    progress: EngineProgress,
) -> Verification:
    """Compare the output of a call from `verify.open_call`, and engines if any are named.

    Without engines, errors are raised; else the answer has the first one.
    """

    def without_name(fraction: float) -> None:
        progress(fraction, "")

    if names is None:
        return verifying.verify(call, without_name, engine_settings.within)
    operator, attributes = call.reported.operator, call.reported.attributes
    if operator in LOWERED:
        command = operator_of(operator).command
        raise UsageError(f"{command} cannot be compared with other engines")
    require_any(names)

    def against(arrays: Arrays, expected: NDArray[Any] | None) -> list[EngineReport]:
        correct = None if expected is None else as_engine_array(expected)
        from_0 = {**arrays, "indices": rebase(arrays["indices"], attributes)}
        engine_call = EngineCall(
            operator, attributes.rebased, from_0, correct, engine_settings, call.sources
        )
        done = verifying.RECOMPUTATION
        return engine_call.reports(
            names, lambda fraction, name: progress(done + (1 - done) * fraction, name)
        )

    return verifying.verify(call, without_name, engine_settings.within, against)


class EngineCall(NamedTuple):
    """A call to run on engines; expected: its correct output, from `as_engine_array`, if any.

    arrays: the inputs, with indices that count from 0. sources: of the inputs; mapped files are not
    copied.
    """

    operator: str
    attributes: Attributes
    arrays: Arrays
    expected: NDArray[Any] | None
    settings: EngineSettings
    sources: dict[str, Source] = {}  # noqa: RUF012 - it is never changed

    def reports(self, names: tuple[str, ...], progress: EngineProgress) -> list[EngineReport]:
        """Return the reports on engines, each with one thread and with several."""
        max_threads = self.settings.threads or max(2, threads.default_threads())
        cases: list[tuple[str, int]] = []
        for name in names:
            counts = (1, max_threads) if ENGINES[name].parallel else (1,)
            cases += [(name, 0)] if is_missing(name) else [(name, n) for n in dict.fromkeys(counts)]
        reports, fields = [], self._call_fields()
        with ExitStack() as stack:
            roles = OPERATORS[self.operator].inputs
            files = {role: self._input_file(role, stack) for role in roles}
            nbytes = 0 if self.expected is None else self.expected.nbytes
            output = _create_file(nbytes, stack)
            for case, (name, n_threads) in enumerate(cases):
                progress(case / len(cases), f"{name}, {format_count(n_threads, 'thread')}")
                runs = self.settings.runs if n_threads > 1 else min(2, self.settings.runs)
                job = name, runs, output, nbytes, {**fields, "threads": n_threads}, files
                reports.append(self._report(job) if n_threads else missing_report(name))
        progress(1, "")
        return reports

    def _call_fields(self) -> dict[str, Any]:
        """Return the fields of the child's Call, but threads and arrays."""
        operator, attributes = OPERATORS[self.operator], self.attributes
        names = ("batch_dims", "reduction", "include_self", "duplicates")
        return {
            "operator": operator.name,
            "title": operator.title,
            "version": max((row.version for row in specs.rows("onnx", operator.name)), default=0),
            "axis": attributes.resolved_axis % max(self.arrays["data"].ndim, 1),
            **{name: getattr(attributes, name) for name in names},
        }

    def _input_file(self, role: str, stack: ExitStack) -> tuple[Any, ...]:
        """Return the descriptor of an input's mapped file or of a copy, its offset and type."""
        array, source = self.arrays[role], self.sources.get(role)
        dtype = _engine_dtype(array.dtype)
        if array.dtype.isnative and isinstance(source, ContiguousSource) and source.is_mapped:
            assert source.file is not None
            order = "C" if array.flags.c_contiguous else "F"
            return source.file.fd, source.position, dtype, array.shape, order
        fd = _create_file(array.nbytes, stack)
        flat = flat_view(as_void(array))
        for span in block_ranges(array.size, array.itemsize):
            write_at(fd, span.start * array.itemsize, bits(native(flat[span])))
        return fd, 0, dtype, array.shape, "C"

    def _report(self, job: tuple[Any, ...]) -> EngineReport:
        """Run an engine several times; return the report."""
        name, runs, output, _, fields, _ = job
        replies, ending = _run(job, self.settings.timeout)
        facts = {key: value for reply in replies for key, value in reply.items()}
        report = EngineReport(name, facts.get("version"), fields["threads"], "same")
        if "missing" in facts:
            return missing_report(name, facts["missing"])
        results = [reply for reply in replies if "place" in reply]
        for result in results:
            if wrong := self._type_difference(result):
                return replace(report, result="different", message=wrong)
        if "refused" in facts:
            message = printable(facts["refused"], _MAX_MESSAGE)
            return replace(report, result="refused", message=message)
        if len(results) < runs:
            return replace(report, result="crashed", message=printable(ending, _MAX_MESSAGE))
        places = dict.fromkeys(result["place"] for result in results)
        return report.with_outputs([self._compare(output, place) for place in places])

    def _type_difference(self, reply: dict[str, Any]) -> str:
        """Describe a wrong type or shape of an engine's output; "" if both are correct."""
        actual = f"{reply['dtype']}{shapes.format_shape(reply['shape'])}"
        if self.expected is None:
            return f"returns {actual}, although an index is out of bounds"
        expected = f"{self.expected.dtype.name}{shapes.format_shape(self.expected.shape)}"
        return "" if actual == expected else f"returns {actual}, not {expected}"

    def _compare(self, fd: int, place: int) -> Comparison:
        """Compare the output at an offset in the file of outputs."""
        assert self.expected is not None
        view = map_bytes(fd, place, self.expected.nbytes)
        try:
            output = np.ndarray(self.expected.shape, self.expected.dtype, view)
            call = self.operator, self.attributes, self.arrays
            return compare(*call, output, self.expected, within=self.settings.within)
        finally:
            release(view)


def _run(job: tuple[Any, ...], timeout: int) -> tuple[list[dict[str, Any]], str]:
    """Run a job in a process of its own; return its replies, and how it ended.

    timeout: seconds between replies, after which the process and its children are killed.
    """
    _, _, output, _, fields, files = job
    replies: list[dict[str, Any]] = []
    connection, other = Pipe()
    with ExitStack() as stack:
        printed = _create_file(0, stack)
        stack.callback(connection.close)
        with other:
            process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", child.__file__, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=(other.fileno(), output, *(file[0] for file in files.values())),
                start_new_session=True,
                env={**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": str(fields["threads"])},
            )
        try:
            connection.send(job)
            while connection.poll(timeout):
                replies.append(connection.recv())
            return replies, f"no result in {timeout} s"
        except (EOFError, OSError):  # it has ended
            code = process.wait()
        finally:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        start = max(0, os.fstat(printed).st_size - _OUTPUT_TAIL)
        text = os.pread(printed, _OUTPUT_TAIL, start).decode("utf-8", "replace")
        last = " ".join(text.rstrip().rpartition("\n")[2].split())
        return replies, f"{cause}: {last}" if last else cause


def missing_report(name: str, reason: str = "") -> EngineReport:
    """Return the report on an engine that is not installed, or not completely."""
    message = f"pip install {ENGINES[name].packages}" + (reason and f" ({printable(reason)})")
    return EngineReport(name, None, None, "missing", message=message)


def _engine_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that engines receive: numbers in native byte order, all others as void."""
    is_number = dtype.kind in "biufc" or dtype.isbuiltin == 2
    return dtype.newbyteorder("=") if is_number else np.dtype(f"V{dtype.itemsize}")


def as_engine_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the type that engines receive."""
    dtype = _engine_dtype(array.dtype)
    return array.view(dtype) if dtype.kind == "V" or array.dtype.isnative else native(array)


def _create_file(nbytes: int, stack: ExitStack) -> int:
    """Create an unnamed file of `nbytes` bytes; return its descriptor, which `stack` closes."""
    fd = tempfiles.unnamed_file()
    stack.callback(os.close, fd)
    if nbytes:
        reserve(fd, nbytes, "temporary copy")
    return fd
