"""Other engines on a call's inputs: their answers beside the exact one.

Each runs in a process of its own, as some crash where an index is out of bounds, and with one and
with several threads, as some lose updates with several. Inputs reach it through files that it maps,
its answers come back through one; neither has a name. What it is asked stands in engineside.py.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.distances import bits, opaque
from ndtool.analysis.engineprocess import EngineProcess
from ndtool.analysis.reductions import native
from ndtool.analysis.reference import in_order, pieces
from ndtool.analysis.verify import Comparison, Opened, compare, difference, exactly, recomputed
from ndtool.arrays import spill
from ndtool.arrays.local import Stretch
from ndtool.arrays.storage import map_bytes, release, reserve, write_at
from ndtool.engine import threads
from ndtool.errors import BoundsError, DifferenceError, NdtoolError, UsageError, printable
from ndtool.rules import shapes, specs
from ndtool.rules.operators import OPERATORS

if TYPE_CHECKING:
    from ndtool.runs.jobs import Request

Arrays = dict[str, NDArray[Any]]
Told = Callable[[float, str], None]  # is told the share that is done, and who is at it
RUNS, ALONE = 5, 2  # answers of an engine with several threads, and with one
TIMEOUT = 600  # seconds for one answer
_OURS = 0.2  # the share of the work that is not engines', as far as a bar shows it
_LONG = 500  # characters of what an engine says
_LISTED = 5  # engines of which the first difference is told


class Engine(NamedTuple):
    """modules: what it is imported as, and what else our call of it needs. packages: pip's names.

    parallel: whether it may use several threads.
    """

    modules: tuple[str, ...]
    packages: str
    parallel: bool = True


ENGINES = {
    "onnxruntime": Engine(("onnxruntime", "onnx"), "onnxruntime onnx"),
    "openvino": Engine(("openvino",), "openvino"),
    "torch": Engine(("torch",), "torch"),
    "tensorflow": Engine(("tensorflow",), "tensorflow"),
    "jax": Engine(("jax",), "jax"),
    "numpy": Engine(("numpy",), "numpy", parallel=False),
    "onnx": Engine(("onnx",), "onnx", parallel=False),
}


class Report(NamedTuple):
    """How an engine did with some threads; None: it never ran.

    result: "same", "different", "unstable" (other bits from run to run, in the worst of them
    different), "refused", "crashed" or "missing". different: how many elements, None where
    that cannot be said. message: in words. compared: the worst answer beside the exact one.
    """

    engine: str
    version: str | None
    threads: int | None
    result: str
    different: int | None = None
    message: str | None = None
    compared: Comparison | None = None


class Verdict(NamedTuple):
    """reports: of every engine. compared: of the output, where there is one. error: what is wrong.

    That is an index out of bounds, or a difference, first that of the output.
    """

    reports: list[Report]
    compared: Comparison | None
    error: NdtoolError | None


class How(NamedTuple):
    """How engines are asked: how often, with how many threads at most, how long they may take."""

    within: int = 0
    runs: int = RUNS
    threads: int | None = None
    timeout: int = TIMEOUT


def chosen(words: str) -> tuple[str, ...]:
    """Return the engines of a list with commas; "all" are all, "auto" those that are installed."""
    names: list[str] = []
    for word in words.replace(" ", "").split(","):
        if word in ("all", "auto"):
            names += [name for name in ENGINES if word == "all" or not lacking(name)]
        elif word in ENGINES:
            names.append(word)
        else:
            known = ", ".join([*ENGINES, "all", "auto"])
            raise UsageError(f"{printable(word)!r} is no engine: valid {known}")
    return tuple(dict.fromkeys(names))


def lacking(name: str) -> bool:
    """Whether what an engine needs is not installed."""
    return any(find_spec(module) is None for module in ENGINES[name].modules)


def require_any(names: tuple[str, ...]) -> None:
    """Raise UsageError where none of some engines is installed."""
    if all(map(lacking, names)):
        packages = " ".join(ENGINES[name].packages for name in names)
        raise UsageError(
            f"no engine to compare with is installed: expected one of {', '.join(names)}",
            hint=f"pip install {packages}",
        )


def verify(request: "Request", names: tuple[str, ...], how: How, tick: Told) -> Verdict:
    """Compare engines, and `request.output` where there is one, with what the operator gives."""
    require_any(names)
    compared, expected = None, None
    error: NdtoolError | None = None
    with Opened(request) as call:
        arrays, result = dict(call.arrays), call.arrays.get("output")
        arrays.pop("output", None)
        try:
            expected = recomputed(request, arrays, lambda share: tick(_OURS * share, ""), result)
        except BoundsError as exc:
            error = exc
        asked = Asked(request, arrays, expected, how, call.stretches)
        reports = asked.reports(names, lambda share, who: tick(_OURS + (1 - _OURS) * share, who))
        if result is not None and expected is not None:
            compared = compare(request, arrays, result, expected, within=how.within)
            error = difference(compared, call.label, request.operator)
        call.recheck()
    return Verdict(reports, compared, error or disagreement(request.operator, reports))


class Asked:
    """A call that engines are asked, with what it must give; None where an index is out of bounds.

    stretches: the inputs' bytes, of which those of files are taken from there.
    """

    def __init__(
        self,
        request: "Request",
        arrays: Arrays,
        expected: NDArray[Any] | None,
        how: How,
        stretches: dict[str, Stretch] | None = None,
    ) -> None:
        self._request, self._how, self._arrays = request, how, arrays
        self._expected = None if expected is None else _native(expected)
        self._stretches = stretches or {}

    def reports(self, names: tuple[str, ...], tick: Told) -> list[Report]:
        """Return how each engine does, with one thread and with several."""
        most = max(2, threads.default()) if self._how.threads is None else self._how.threads
        cases: list[tuple[str, int | None]] = []
        for name in names:
            several = (1, most) if ENGINES[name].parallel else (1,)
            cases += [(name, n) for n in dict.fromkeys(several)] if not lacking(name) else []
            cases += [(name, None)] if lacking(name) else []
        found = []
        with ExitStack() as kept:
            job = self._job(kept)
            for done, (name, team) in enumerate(cases):
                words = f"{name}, {team} thread" + "s" * (team != 1)
                tick(done / len(cases), words)
                if team is None:
                    found.append(missing(name))
                else:
                    found.append(self._report(name, team, job))
        tick(1, "")
        return found

    def _job(self, kept: ExitStack) -> dict[str, Any]:
        """Return what an engine is told, with files open for as long as `kept` is."""
        operator = OPERATORS[self._request.operator]
        room = 0 if self._expected is None else self._expected.nbytes
        output = _temporary(room, kept)
        return {
            "operator": operator.name,
            "title": operator.title,
            "version": specs.rows("onnx", operator.name)[-1].version,
            "attributes": operator.given(self._request.attributes),
            "arrays": [self._lent(role, kept) for role in operator.inputs],
            "output": output,
            "room": room,
        }

    def _lent(self, role: str, kept: ExitStack) -> dict[str, Any]:
        """Return where an input is for others: in its own file if it stands there as it is."""
        array, stretch = self._arrays[role], self._stretches.get(role)
        dtype = _plain(array.dtype)
        code = dtype.name if dtype.isbuiltin == 2 else dtype.str
        told = {"dtype": code, "type": str(array.dtype), "shape": array.shape}
        if array.dtype.isnative and stretch is not None and stretch.mapped:
            assert stretch.place is not None
            order = "C" if array.flags.c_contiguous else "F"
            return {**told, "fd": stretch.place.fd, "offset": stretch.position, "order": order}
        fd = _temporary(array.nbytes, kept)
        flat = in_order(opaque(array))
        for piece in pieces(array.size, array.itemsize):
            write_at(fd, piece.start * array.itemsize, bits(native(flat[piece])))
        return {**told, "fd": fd, "offset": 0, "order": "C"}

    def _report(self, name: str, team: int, job: dict[str, Any]) -> Report:
        """Ask an engine, run by run."""
        runs = self._how.runs if team > 1 else min(ALONE, self._how.runs)
        report = Report(name, None, team, "same")
        with EngineProcess({**job, "engine": name, "threads": team}, self._how.timeout) as side:
            told = side.reply()
            report = report._replace(version=told.get("version"))
            found: dict[str, Comparison] = {}
            for _ in range(runs if report.version is not None else 0):
                told = side.ask()
                if "digest" not in told:
                    break
                if wrong := self._unlike(told):
                    return report._replace(result="different", message=wrong)
                if told["digest"] not in found:
                    found[told["digest"]] = self._answer(job["output"])
            if "refused" in told:
                return report._replace(result="refused", message=printable(told["refused"], _LONG))
            if "missing" in told:
                return missing(name, told["missing"])
            if "digest" not in told:
                return report._replace(result="crashed", message=printable(side.ending(), _LONG))
        return judged(report, list(found.values()))

    def _unlike(self, told: dict[str, Any]) -> str:
        """Say what is wrong with an answer before its elements are looked at."""
        found = f"{told['dtype']}{shapes.written(told['shape'])}"
        if self._expected is None:
            return f"answers {found}, though an index is out of bounds"
        wanted = f"{_plain(self._expected.dtype).name}{shapes.written(self._expected.shape)}"
        return "" if found == wanted else f"gives {found}, not {wanted}"

    def _answer(self, fd: int) -> Comparison:
        expected = self._expected
        assert expected is not None
        view = map_bytes(fd, 0, expected.nbytes)
        try:
            answer = np.ndarray(expected.shape, expected.dtype, view)
            within = self._how.within
            return compare(self._request, self._arrays, answer, expected, within=within)
        finally:
            release(view)


def missing(name: str, reason: str = "") -> Report:
    """Return the report of an engine that is not installed, or not whole."""
    message = f"pip install {ENGINES[name].packages}"
    if reason:
        message += f" ({printable(reason)})"
    return Report(name, None, None, "missing", message=message)


def judged(report: Report, found: list[Comparison]) -> Report:
    """Return what is said of an engine by all of its answers that are not the same."""
    worst = max(found, key=lambda one: (one.beyond, one.different))
    report = report._replace(different=worst.different, compared=worst)
    if not worst.beyond:
        message = f"{_differing(worst)}, within {worst.within} ulp" if worst.different else None
        return report._replace(message=message)
    if len(found) == 1:
        return report._replace(result="different", message=_differing(worst))
    message = f"not the same bits from run to run; at worst {_differing(worst)}"
    return report._replace(result="unstable", message=message)


def _differing(compared: Comparison) -> str:
    """Say how many elements differ, and how."""
    text = f"{compared.different} of {compared.total} elements differ"
    lost, doubled = compared.lost or 0, compared.doubled or 0
    if lost or doubled:
        text += f": {lost + doubled} of {compared.looked_into} off by exactly one update"
        text += f" ({lost} lack one, {doubled} met one twice)"
    elif compared.largest is not None and compared.largest.ulps is not None:
        text += f", by up to {compared.largest.ulps} ulp"
    return text


def disagreement(operator: str, reports: list[Report]) -> DifferenceError | None:
    """Return the error about engines that do not give what the operator gives, if there are any."""
    wrong = {one.engine: one for one in reports if one.result in ("different", "unstable")}
    if not wrong:
        return None
    verb = "differs" if len(wrong) == 1 else "differ"
    places = []
    for one in wrong.values():
        if one.compared is not None and one.compared.first is not None:
            first = one.compared.first
            position = ", ".join(map(str, first.position))
            found, wanted = exactly(first.output), exactly(first.expected)
            places.append(f"{one.engine}[{position}] = {found}, not {wanted}")
    return DifferenceError(
        f"{', '.join(wrong)} {verb} from {operator}", places=tuple(places[:_LISTED])
    )


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that engines are told: numbers in this machine's order, else just bytes."""
    known = dtype.kind in "biufc" or dtype.isbuiltin == 2
    return dtype.newbyteorder("=") if known else np.dtype(f"V{dtype.itemsize}")


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as engines have it; a copy need not fit into memory."""
    dtype = _plain(array.dtype)
    if dtype.kind == "V" or array.dtype.isnative:
        return array if dtype.isbuiltin == 2 else array.view(dtype)
    result = np.ndarray(array.shape, dtype, spill.room(array.nbytes, "temporary copy"))
    flat, room = in_order(array), result.reshape(-1)
    for piece in pieces(array.size, array.itemsize):
        room[piece] = native(flat[piece])
    return result


def _temporary(nbytes: int, kept: ExitStack) -> int:
    """Return a descriptor of a new file with room for some bytes, open for as long as `kept` is."""
    fd = spill.unnamed_file()
    kept.callback(os.close, fd)
    if nbytes:
        reserve(fd, nbytes, "temporary copy")
    return fd
