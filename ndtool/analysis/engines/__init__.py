"""Comparison of the outputs of other engines with the correct output of a call.

Each engine runs in its own process (child.py), as some crash on an index out of bounds; with one
thread and with several, as some lose updates. Inputs are mapped files, the output is a file.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.engines import child
from ndtool.analysis.engines.child import ENGINES as ENGINES
from ndtool.analysis.oracle.blocks import block_ranges, flat_view
from ndtool.analysis.oracle.distances import bits, records_as_void
from ndtool.analysis.oracle.reductions import native
from ndtool.analysis.verify import (
    Comparison,
    EngineReport,
    Verification,
    compare,
    difference_error,
    open_arrays,
    output_label,
    recompute,
)
from ndtool.arrays.source import ContiguousSource, Source
from ndtool.errors import (
    BoundsError,
    DifferenceError,
    NdtoolError,
    UsageError,
    format_count,
    printable,
)
from ndtool.machine import threads
from ndtool.rules import shapes, specs
from ndtool.rules.operators import LOWERED, OPERATORS, operator_of
from ndtool.runs.calls import Request
from ndtool.storage import tempfiles
from ndtool.storage.descriptors import map_bytes, release, reserve, write_at

Arrays = dict[str, NDArray[Any]]
EngineProgress = Callable[
    [float, str], object
]  # a callback for the completed fraction, and the running engine
RUNS, SINGLE_THREAD_RUNS = 5, 2  # runs of an engine with several threads, and with one
TIMEOUT = 600  # seconds for one run
_RECOMPUTATION = 0.2  # the fraction of the progress that the correct output takes
_MAX_MESSAGE = 500  # characters of an engine's message
MAX_LISTED = 5  # engines or nodes that an error lists
_POLL_INTERVAL = 0.1  # seconds between checks that a process replies
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
    runs: int = RUNS
    threads: int | None = None
    timeout: int = TIMEOUT


def parse_names(names_text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of engines; "auto" means all that are installed."""
    names: list[str] = []
    for word in names_text.replace(" ", "").split(","):
        if word in ("all", "auto"):
            names += [name for name in ENGINES if word == "all" or not is_missing(name)]
        elif word in ENGINES:
            names.append(word)
        else:
            valid = ", ".join([*ENGINES, "all", "auto"])
            raise UsageError(f"{printable(word)!r} is not an engine: valid {valid}")
    return tuple(dict.fromkeys(names))


def is_missing(name: str) -> bool:
    """Whether a module that an engine needs is not installed."""
    return any(find_spec(module) is None for module in ENGINES[name].modules)


def require_any(names: tuple[str, ...]) -> None:
    """Raise UsageError if none of some engines is installed."""
    if all(map(is_missing, names)):
        packages = " ".join(ENGINES[name].packages for name in names)
        raise UsageError(
            f"no engine to compare with is installed: expected one of {', '.join(names)}",
            hint=f"pip install {packages}",
        )


def verify(
    request: Request,
    names: tuple[str, ...],
    engine_settings: EngineSettings,
    progress: EngineProgress,
    sources: dict[str, Source] | None = None,
) -> Verification:
    """Compare engines, and `request.output` if there is one, with the correct output.

    sources: inputs and output that the caller has opened, by role.
    """
    if request.operator in LOWERED:
        command = operator_of(request.operator).command
        raise UsageError(f"{command} cannot be compared with other engines")
    require_any(names)
    comparison, expected = None, None
    error: NdtoolError | None = None
    with open_arrays(request, sources) as call:
        arrays, result = dict(call.arrays), call.arrays.get("output")
        arrays.pop("output", None)
        try:
            expected = recompute(
                request, arrays, lambda fraction: progress(_RECOMPUTATION * fraction, ""), result
            )
        except BoundsError as exc:
            error = exc
        engine_call = EngineCall(request, arrays, expected, engine_settings, call.sources)
        reports = engine_call.reports(
            names,
            lambda fraction, engine_name: progress(
                _RECOMPUTATION + (1 - _RECOMPUTATION) * fraction, engine_name
            ),
        )
        if result is not None and expected is not None:
            comparison = compare(request, arrays, result, expected, within=engine_settings.within)
            error = difference_error(comparison, output_label(request), request.operator)
    error = error or disagreement(request.operator, reports)
    return Verification(request.output, True, comparison, tuple(reports), error)


class EngineCall:
    """A call to run on engines; expected: its correct output, None if an index is out of bounds.

    sources: of the inputs; mapped files are not copied.
    """

    def __init__(
        self,
        request: Request,
        arrays: Arrays,
        expected: NDArray[Any] | None,
        engine_settings: EngineSettings,
        sources: dict[str, Source] | None = None,
    ) -> None:
        self._request, self._settings, self._arrays = request, engine_settings, arrays
        self._expected = None if expected is None else _as_engine_array(expected)
        self._sources = sources or {}

    def reports(self, names: tuple[str, ...], progress: EngineProgress) -> list[EngineReport]:
        """Return the reports on engines, each with one thread and with several."""
        max_threads = self._settings.threads or max(2, threads.default_threads())
        cases: list[tuple[str, int]] = []
        for name in names:
            counts = (1, max_threads) if ENGINES[name].parallel else (1,)
            cases += [(name, 0)] if is_missing(name) else [(name, n) for n in dict.fromkeys(counts)]
        reports = []
        with ExitStack() as stack:
            job = self._job(stack)
            for case, (name, n_threads) in enumerate(cases):
                progress(case / len(cases), f"{name}, {format_count(n_threads, 'thread')}")
                report = self._report(name, n_threads, job) if n_threads else missing_report(name)
                reports.append(report)
        progress(1, "")
        return reports

    def _job(self, stack: ExitStack) -> dict[str, Any]:
        """Return the job for an engine's process; its files stay open as long as `stack`."""
        operator = OPERATORS[self._request.operator]
        versions = specs.rows("onnx", operator.name)
        if not versions and not specs.rows("openvino", operator.name):
            raise UsageError(
                f"no standard has {operator.command}: other engines cannot be compared"
            )
        nbytes = 0 if self._expected is None else self._expected.nbytes
        return {
            "operator": operator.name,
            "title": operator.title,
            "version": versions[-1].version if versions else 0,
            "attributes": operator.attribute_values(self._request.attributes),
            "arrays": [self._input_file(role, stack) for role in operator.inputs],
            "output": _create_file(nbytes, stack),
            "nbytes": nbytes,
        }

    def _input_file(self, role: str, stack: ExitStack) -> dict[str, Any]:
        """Return the JSON record of an input, with the descriptor of its mapped file or a copy."""
        array, source = self._arrays[role], self._sources.get(role)
        dtype = _engine_dtype(array.dtype)
        code = dtype.name if dtype.isbuiltin == 2 else dtype.str
        record = {"dtype": code, "type": str(array.dtype), "shape": array.shape}
        if array.dtype.isnative and isinstance(source, ContiguousSource) and source.is_mapped:
            assert source.file is not None
            order = "C" if array.flags.c_contiguous else "F"
            return {**record, "fd": source.file.fd, "offset": source.position, "order": order}
        fd = _create_file(array.nbytes, stack)
        flat = flat_view(records_as_void(array))
        for span in block_ranges(array.size, array.itemsize):
            write_at(fd, span.start * array.itemsize, bits(native(flat[span])))
        return {**record, "fd": fd, "offset": 0, "order": "C"}

    def _report(self, name: str, n_threads: int, job: dict[str, Any]) -> EngineReport:
        """Run an engine several times; return the report."""
        runs = min(
            self._settings.runs, SINGLE_THREAD_RUNS if n_threads == 1 else self._settings.runs
        )
        job = {**job, "engine": name, "threads": n_threads, "runs": runs}
        replies, ending = _run(job, self._settings.timeout)
        report = EngineReport(name, None, n_threads, "same")
        if replies and "version" in replies[0]:
            report = replace(report, version=replies.pop(0)["version"])
        last = replies[-1] if replies else {}
        if "missing" in last:
            return missing_report(name, last["missing"])
        outputs = [reply for reply in replies if "place" in reply]
        for output in outputs:
            if wrong := self._type_difference(output):
                return replace(report, result="different", message=wrong)
        if "refused" in last:
            message = printable(last["refused"], _MAX_MESSAGE)
            return replace(report, result="refused", message=message)
        if len(outputs) < runs:
            return replace(report, result="crashed", message=printable(ending, _MAX_MESSAGE))
        places = dict.fromkeys(output["place"] for output in outputs)
        return add_verdict(report, [self._compare(job["output"], place) for place in places])

    def _type_difference(self, reply: dict[str, Any]) -> str:
        """Describe a wrong type or shape of an engine's output; "" if both are correct."""
        actual = f"{reply['dtype']}{shapes.format_shape(reply['shape'])}"
        if self._expected is None:
            return f"returns {actual}, although an index is out of bounds"
        dtype, shape = _engine_dtype(self._expected.dtype), self._expected.shape
        expected = f"{dtype.name}{shapes.format_shape(shape)}"
        return "" if actual == expected else f"returns {actual}, not {expected}"

    def _compare(self, fd: int, place: int) -> Comparison:
        """Compare the output at an offset in the file of outputs."""
        expected = self._expected
        assert expected is not None
        view = map_bytes(fd, place, expected.nbytes)
        try:
            output = np.ndarray(expected.shape, expected.dtype, view)
            within = self._settings.within
            return compare(self._request, self._arrays, output, expected, within=within)
        finally:
            release(view)


def _run(job: dict[str, Any], timeout: int) -> tuple[list[dict[str, Any]], str]:
    """Run a job in a process of its own; return its replies, and how it ended.

    timeout: seconds from one reply to the next, after which the process is killed, as it is with
    its children when it has ended.
    """
    with ExitStack() as stack:
        printed, replies = _create_file(0, stack), _create_file(0, stack)
        inputs = [array["fd"] for array in job["arrays"]]
        threads, arguments = str(job["threads"]), json.dumps({**job, "replies": replies})
        process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", child.__file__, arguments],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            pass_fds=(replies, job["output"], *inputs),
            start_new_session=True,
            env={**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": threads},
        )
        try:
            code = _wait(process, replies, timeout)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # it has ended
                pass
            process.wait()
        lines = _tail(replies, os.fstat(replies).st_size).splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        if code is None:
            return records, f"no result in {timeout} s"
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        last = " ".join(_tail(printed, _OUTPUT_TAIL).rstrip().rpartition("\n")[2].split())
        return records, f"{cause}: {last}" if last else cause


def _wait(process: subprocess.Popen[bytes], replies: int, timeout: int) -> int | None:
    """Return the exit status of a process, None if it does not reply in time."""
    size, deadline = 0, time.monotonic() + timeout
    while time.monotonic() <= deadline:
        try:
            return process.wait(_POLL_INTERVAL)
        except subprocess.TimeoutExpired:
            if (replied := os.fstat(replies).st_size) > size:
                size, deadline = replied, time.monotonic() + timeout
    return None


def _tail(fd: int, nbytes: int) -> str:
    """Return the last bytes of a file as text."""
    start = max(0, os.fstat(fd).st_size - nbytes)
    return os.pread(fd, nbytes, start).decode("utf-8", "replace")


def missing_report(name: str, reason: str = "") -> EngineReport:
    """Return the report on an engine that is not installed, or not completely."""
    message = f"pip install {ENGINES[name].packages}"
    if reason:
        message += f" ({printable(reason)})"
    return EngineReport(name, None, None, "missing", message=message)


def add_verdict(report: EngineReport, comparisons: list[Comparison]) -> EngineReport:
    """Complete a report with the comparisons of all distinct outputs."""
    worst = max(comparisons, key=lambda comparison: (comparison.beyond, comparison.different))
    report = replace(report, different=worst.different, comparison=worst)
    if not worst.beyond:
        message = (
            f"{_describe_difference(worst)}, within {worst.within} ulp" if worst.different else None
        )
        return replace(report, message=message)
    if len(comparisons) == 1:
        return replace(report, result="different", message=_describe_difference(worst))
    message = f"bits vary between runs; at worst {_describe_difference(worst)}"
    return replace(report, result="unstable", message=message)


def _describe_difference(comparison: Comparison) -> str:
    """Describe how many elements differ, by how much, and the diagnosis."""
    text = f"{comparison.different} of {comparison.total} elements differ"
    if not comparison.findings and comparison.largest and comparison.largest.ulps is not None:
        text += f", by up to {comparison.largest.ulps} ulp"
    return "; ".join([text, *comparison.findings])


def disagreement(operator: str, reports: Sequence[EngineReport]) -> DifferenceError | None:
    """Return the error about engines whose output differs from the operator's, or None."""
    differing = {
        report.engine: report for report in reports if report.result in ("different", "unstable")
    }
    if not differing:
        return None
    verb = "differs" if len(differing) == 1 else "differ"
    places = []
    for report in differing.values():
        if report.comparison is not None and report.comparison.first is not None:
            first = report.comparison.first
            position = ", ".join(map(str, first.position))
            actual, expected = first.with_bytes
            places.append(f"{report.engine}[{position}] = {actual}, not {expected}")
    return DifferenceError(
        f"{', '.join(differing)} {verb} from {operator}", places=tuple(places[:MAX_LISTED])
    )


def _engine_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that engines receive: numbers in native byte order, all others as void."""
    is_number = dtype.kind in "biufc" or dtype.isbuiltin == 2
    return dtype.newbyteorder("=") if is_number else np.dtype(f"V{dtype.itemsize}")


def _as_engine_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the type that engines receive; a copy may exceed memory."""
    dtype = _engine_dtype(array.dtype)
    if dtype.kind == "V" or array.dtype.isnative:
        return array if dtype.isbuiltin == 2 else array.view(dtype)
    result = np.ndarray(array.shape, dtype, tempfiles.allocate(array.nbytes, "temporary copy"))
    flat, target = flat_view(array), result.reshape(-1)
    for span in block_ranges(array.size, array.itemsize):
        target[span] = native(flat[span])
    return result


def _create_file(nbytes: int, stack: ExitStack) -> int:
    """Create an unnamed file of `nbytes` bytes; return its descriptor, which `stack` closes."""
    fd = tempfiles.unnamed_file()
    stack.callback(os.close, fd)
    if nbytes:
        reserve(fd, nbytes, "temporary copy")
    return fd
