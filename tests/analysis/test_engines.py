"""`verify --against`: other engines compared with the exact result, each in its own process."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command import NDTOOL, environment, ndtool, save
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import Array, Case, bits_equal, call, cases_of, many

from ndtool import verify
from ndtool.analysis import engines
from ndtool.analysis import verify as verifying
from ndtool.analysis.engines import ENGINES, EngineSettings, child
from ndtool.analysis.oracle import reference
from ndtool.analysis.verify import EngineReport
from ndtool.errors import BoundsError, UsageError
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs.calls import Request

pytestmark = pytest.mark.usefixtures("workdir")

INSTALLED = engines.parse_names("auto")
RNG = np.random.default_rng(5)


def ignore_progress(fraction: float, engine_name: str) -> None:
    assert 0 <= fraction <= 1


TWO_RUNS = EngineSettings(runs=2)


def reports_of(
    operator: str, names: tuple[str, ...], settings: EngineSettings = TWO_RUNS, **attributes: Any
) -> list[EngineReport]:
    """Return the reports of engines on the arrays in data.npy, idx.npy and upd.npy."""
    updates = "upd.npy" if "updates" in OPERATORS[operator].inputs else None
    request = Request(operator, "data.npy", "idx.npy", updates, None, Attributes(**attributes))
    return verified(request, names, settings).engines


def verified(
    request: Request, names: tuple[str, ...], settings: EngineSettings
) -> verifying.Verification:
    """Return the answer about engines."""
    with verifying.open_call(request) as call:
        return engines.verify(call, names, settings, ignore_progress)


def test_names_of_engines_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "is_missing", lambda name: name in ("torch", "jax"))
    assert engines.parse_names("all") == tuple(ENGINES)
    assert engines.parse_names("auto") == tuple(
        name for name in ENGINES if name not in ("torch", "jax")
    )
    assert engines.parse_names("numpy, torch,numpy") == ("numpy", "torch")
    for wrong in ("", "numpy,", "polars", "Numpy"):
        with pytest.raises(UsageError, match="valid onnxruntime, openvino"):
            engines.parse_names(wrong)


# Floats whose sums are exact in any order.
DATA, UPDATES = RNG.integers(-9, 9, (6, 5)).astype("f4"), RNG.integers(-9, 9, (40, 5)).astype("f4")
CALLS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gather_nd": (RNG.integers(0, 5, (3, 4, 2)), None, {}),
    "gather": (RNG.integers(0, 5, 7), None, {"axis": 1}),
    "gather_elements": (RNG.integers(0, 5, (6, 3)), None, {"axis": 1}),
    "scatter_nd": (RNG.integers(0, 6, (40, 1)), UPDATES, {"reduction": "add"}),
    "scatter_elements": (RNG.integers(0, 6, (40, 5)), UPDATES, {"axis": 0, "reduction": "add"}),
}


@pytest.mark.slow("each installed engine is called with the operator's attributes")
@pytest.mark.parametrize("operator", CALLS)
def test_every_engine_gives_exact_sums(operator: str) -> None:
    indices, updates, attributes = CALLS[operator]
    save(data=DATA, idx=indices, upd=UPDATES if updates is None else updates)
    reports = reports_of(operator, INSTALLED, EngineSettings(runs=1, threads=1), **attributes)
    assert [report.engine for report in reports] == list(INSTALLED)
    for report in reports:
        assert (bool(report.version), report.threads) == (True, 1)
        if report.result == "refused":
            assert (report.engine, operator) == ("tensorflow", "scatter_elements")
            assert report.message == "not offered: tensorflow has no ScatterElements"
        else:
            assert (report.result, report.different) == ("same", 0), report


ANY_CASE = st.one_of(
    cases_of("gather_nd"),
    cases_of("gather"),
    cases_of("gather_elements"),
    cases_of("scatter_nd"),
    cases_of("scatter_elements"),
)


def values_from(case: Case, shape: tuple[int, ...]) -> Array:
    """Return distinct integers of a shape."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape) * 7 - len(case.arrays)


@many
@given(case=ANY_CASE)
def test_calls_of_numpy_equal_the_reference(case: Case) -> None:
    assume(case.arguments.get("reduction") != "div")  # floats would be rounded
    data, indices, *updates = (
        np.array(a, a.dtype.newbyteorder("="), order="C") for a in case.arrays
    )
    if data.dtype.kind not in "iu":  # or elements would be rounded, or be NaN
        data, *updates = (values_from(case, array.shape) for array in (data, *updates))
    attributes = {"batch_dims": 0, "reduction": "none", "include_self": True, "duplicates": "last"}
    attributes |= case.arguments
    axis = attributes.pop("axis", attributes["batch_dims"]) % max(data.ndim, 1)
    engine_call = child.Call(
        case.operator, "", 0, 1, axis, **attributes, data=data, indices=indices,
        updates=updates[0] if updates else None,
    )  # fmt: skip
    expected = call(reference, case._replace(arrays=(data, indices, *updates)))
    try:
        result = child.prepare("numpy", np, engine_call)()
    except child.NotOfferedError:
        reduction, include_self = (
            case.arguments.get(n, True) for n in ("reduction", "include_self")
        )
        has_empty_tuples = case.operator == "scatter_nd" and not indices.shape[-1]
        keeps_first = case.arguments.get("duplicates") == "first"
        assert has_empty_tuples or keeps_first or reduction == "mean" or not include_self
        return
    assert bits_equal(np.asarray(result), expected)


@pytest.mark.parametrize("code", ["M8[s]", "?", "i1,f4"])
def test_types_without_arithmetic_are_gathered(code: str) -> None:
    data = np.zeros(6, code)
    data.view("u1").reshape(6, -1)[:, 0] = [1, 0, 1, 1, 0, 0]
    save(data=data, idx=np.array([[2], [0], [-6]]))
    reports = reports_of(
        "gather_nd", tuple(name for name in ("numpy", "onnx") if name in INSTALLED)
    )
    assert reports[0].result == "same"
    if code != "?":
        if "onnx" not in INSTALLED:
            pytest.skip("numpy has all types, and onnx is not installed")
        assert (reports[1].result, reports[1].different) == ("refused", None)


@pytest.mark.slow("types that NumPy lacks are passed to torch")
def test_bfloat16_is_passed_to_engines_that_support_it() -> None:
    data = RNG.random(6).astype(ml_dtypes.bfloat16)
    save(data=data.view("V2"), idx=np.array([[2], [0], [2]]), upd=data[:3].view("V2"))
    names = tuple(name for name in ("torch", "numpy", "onnx") if name in INSTALLED)
    request = Request(
        "scatter_nd", "data.npy", "idx.npy", "upd.npy", None, Attributes(reduction="add"), dtype="bfloat16"
    )  # fmt: skip
    reports = verified(request, names, EngineSettings(runs=1, threads=1)).engines
    assert {report.engine: report.result for report in reports} == dict.fromkeys(names, "same")


# Faulty engines: modules that replace torch.

FAKE_TORCH = """
import os, signal, subprocess, sys, time
__version__ = "9.9"
bfloat16 = None
calls = 0
def set_num_threads(n):
    global threads
    threads = n
def from_numpy(array):
    return array
class Tensor:
    dtype = "float32"
    def __init__(self, array): self.array = array
    def numpy(self): return self.array
def gather(data, axis, indices):
    global calls
    calls += 1
    print("output", flush=True)
    answer = data[indices]
    {body}
    return Tensor(answer)
"""


@pytest.fixture
def run_fake_engine(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[EngineReport]]:
    """Return a function that reports on a fake torch; `body` changes its output."""
    save(data=np.arange(5, dtype="f4"), idx=np.array([4, 3, 0]))
    (workdir / "fakes").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(workdir / "fakes"))
    monkeypatch.setattr(engines, "is_missing", lambda name: False)

    def run(body: str, source: str = FAKE_TORCH, **settings: Any) -> list[EngineReport]:
        (workdir / "fakes" / "torch.py").write_text(source.replace("{body}", body))
        return reports_of(
            "gather_elements", ("torch",), EngineSettings(**{"runs": 3, "threads": 2, **settings})
        )

    return run


def test_a_crash_of_an_engine_is_reported(run_fake_engine: Any) -> None:
    reports = run_fake_engine("if threads > 1 and calls == 2: os.kill(os.getpid(), signal.SIGSEGV)")
    assert [(report.result, report.different) for report in reports] == [
        ("same", 0),
        ("crashed", None),
    ]
    assert reports[1].message == "SIGSEGV: output"


def wait_for_end(alive: int) -> None:
    """Wait until the processes that hold the other end of a pipe have ended."""
    with open(alive, "rb") as pipe:
        assert pipe.read() == b""


def test_an_engine_that_hangs_is_killed(run_fake_engine: Any, workdir: Path) -> None:
    """With its children: they hold the only other descriptors of a FIFO."""
    os.mkfifo("alive")
    alive = os.open("alive", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(alive, True)
    body = "held = os.open('alive', 1); subprocess.Popen(['sleep', '1000'], pass_fds=[held])"
    timeout = 1
    while not (workdir / "begun").exists():  # it may not have begun in time
        (report,) = run_fake_engine(
            f"{body}; open('begun', 'w'); time.sleep(1000)", timeout=timeout, threads=1
        )
        assert (report.result, report.message) == ("crashed", f"no result in {timeout} s")
        timeout *= 2
    wait_for_end(alive)


@pytest.mark.parametrize(
    ("body", "settings", "result", "different", "message"),
    [
        ("", {}, "same", 0, None),
        ("os._exit(3)", {}, "crashed", None, "exit status 3: output"),
        ("raise ValueError('not\\n  that\\x1b[1m ' + 900 * 'x')", {}, "refused", None,
         "not that\\x1b[1m " + 481 * "x" + "..."),
        ("answer = answer.astype('f8')", {}, "different", None,
         "returns float64[3], not float32[3]"),
        ("answer = answer.copy(); answer[1] += 1e-6", {}, "different", 1,
         "1 of 3 elements differ, by up to 4 ulp"),
        ("answer = answer.copy(); answer[1] += 1e-6", {"within": 4}, "same", 1,
         "1 of 3 elements differ, by up to 4 ulp, within 4 ulp"),
    ],
)  # fmt: skip
def test_the_report_of_an_engine(
    run_fake_engine: Any, body: str, settings: Any, result: str, different: int, message: str
) -> None:
    reports = run_fake_engine(body, **settings)
    assert [(report.engine, report.version, report.threads) for report in reports] == [
        ("torch", "9.9", 1), ("torch", "9.9", 2),
    ]  # fmt: skip
    for report in reports:
        outcome = report.result, report.different, report.message
        assert outcome == (result, different, message)
        if different:
            assert report.comparison.largest.position == (1,)


def test_an_engine_that_cannot_be_imported_is_missing(run_fake_engine: Any) -> None:
    (report, _) = run_fake_engine("", source="import nowhere.to.be.found")
    assert (report.result, report.threads) == ("missing", None)
    assert report.message == "pip install torch (No module named 'nowhere')"


def test_results_that_vary_between_runs_are_unstable(run_fake_engine: Any) -> None:
    body = "answer = answer.copy(); answer[:calls - 1] = 7"
    reports = run_fake_engine(body)
    assert [(report.result, report.different) for report in reports] == [
        ("unstable", 1),
        ("unstable", 2),
    ]
    assert reports[1].message == (
        "bits vary between runs; at worst 2 of 3 elements differ, by up to 10485760 ulp"
    )
    # the comparison of an output is independent of later ones
    assert reports[1].comparison.first.output == 7
    assert [report.result for report in run_fake_engine(body, runs=1)] == ["same", "same"]


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux terminates a process with its parent"
)
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_an_engine_ends_with_its_parent(run_fake_engine: Any, workdir: Path, signum: int) -> None:
    os.mkfifo("alive")
    body = "held = open('alive', 'wb', 0); held.write(b'.'); time.sleep(1000)"
    (workdir / "fakes" / "torch.py").write_text(FAKE_TORCH.replace("{body}", body))
    command = (*NDTOOL, "verify", "gather-elements", "data.npy", "idx.npy", "--against", "torch")
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
        alive = os.open("alive", os.O_RDONLY | os.O_NONBLOCK)
        ready, _, _ = select.select([alive, os.pidfd_open(process.pid)], [], [])
        assert ready == [alive], "the command ended before the engine began"
        os.set_blocking(alive, True)
        assert os.read(alive, 1) == b"."
        process.send_signal(signum)
    wait_for_end(alive)
    names = sorted(path.name for path in workdir.iterdir())
    assert names == ["alive", "data.npy", "fakes", "idx.npy"]


def test_indices_out_of_bounds_are_refused_by_all_engines(run_fake_engine: Any) -> None:
    save(idx=np.array([0, 5, 1]))
    assert [report.message for report in run_fake_engine("answer = indices.astype('f4')")] == 2 * [
        "index 5 is out of bounds for axis 0 with size 5"
    ]
    request = Request("gather_elements", "data.npy", "idx.npy")
    verdict = verified(request, ("numpy",), EngineSettings())
    assert isinstance(verdict.error, BoundsError)
    assert verdict.engines[0].result == "refused"


# The command.


def test_the_command_prints_a_table_of_engines(run_fake_engine: Any, workdir: Path) -> None:
    run_fake_engine("answer = answer.copy(); answer[1] = 7")
    command = ("verify", "gather-elements", "data.npy", "idx.npy")
    completed = ndtool(*command, "--against", "numpy")
    assert (completed.status, completed.err) == (0, "")
    version = np.__version__
    assert (
        completed.out.decode()
        == f"engine{' ' * len(version)}  threads  answer\nnumpy {version}  1        the same bits\n"
    )
    completed = ndtool(*command, "--against", "torch,numpy", "--threads", "3", "--runs", "2")
    assert completed.status == 8
    assert completed.out.decode().splitlines()[1:] == [
        "torch 9.9    1, 3     1 of 3 elements differ, by up to 10485760 ulp",
        f"numpy {version}  1        the same bits",
    ]
    assert completed.err == (
        "error: torch differs from gather_elements\n"
        "  --> torch[1] = 7.0 (bytes 0000e040), not 3.0 (bytes 00004040)\n"
    )
    record = ndtool(*command, "--against", "torch,numpy", "--threads", "2", "--json").json
    assert (record["error"], record["status"]) == ("DifferenceError", 8)
    keys = ("engine", "version", "threads", "result", "different")
    assert [[engine[key] for key in keys] for engine in record["engines"]] == [
        ["torch", "9.9", 1, "different", 1],
        ["torch", "9.9", 2, "different", 1],
        ["numpy", version, 1, "same", 0],
    ]
    assert record["engines"][0]["first"]["output"] == 7
    assert record["engines"][2]["message"] is None
    np.save("out.npy", np.array([4, 3, 0], "f4"))
    completed = ndtool(*command, "out.npy", "--against", "numpy", "--json")
    assert (completed.status, completed.json["verified"], completed.json["equal"]) == (0, True, 3)
    np.save("out.npy", np.array([4, 3, 1], "f4"))
    completed = ndtool(*command, "out.npy", "--against", "numpy", "--json")
    assert (completed.status, completed.json["different"]) == (8, 1)
    assert completed.json["engines"][0]["result"] == "same"


def test_wrong_usage_is_reported(workdir: Path) -> None:
    save(data=np.arange(5), idx=np.array([[1]]))
    command = ("verify", "gather-nd", "data.npy", "idx.npy")
    completed = ndtool(*command)
    assert (completed.status, completed.out) == (2, b"")
    assert "missing argument 'OUTPUT': expected one, or --against with engines" in completed.err
    completed = ndtool(*command, "--against", "numpy,polars")
    assert completed.status == 2
    assert "'polars' is not an engine: valid onnxruntime, openvino, torch" in completed.err


def test_missing_engines_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "is_missing", lambda name: name != "numpy")
    save(data=np.arange(5), idx=np.array([[1]]))
    with pytest.raises(UsageError, match="no engine to compare with is installed") as excinfo:
        reports_of("gather_nd", ("torch", "jax"))
    assert excinfo.value.hint == "pip install torch jax"
    reports = reports_of("gather_nd", ("torch", "numpy"))
    assert [(report.result, report.message) for report in reports] == [
        ("missing", "pip install torch"),
        ("same", None),
    ]


def test_tensor_scatter_is_not_compared_with_engines() -> None:
    past, update = np.zeros((2, 4, 3)), np.ones((2, 2, 3))
    with pytest.raises(UsageError, match="tensor-scatter cannot be compared with other engines"):
        verify("tensor_scatter", past, update, np.array([0, 1]), against="auto")
