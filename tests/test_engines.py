"""`verify --against`: other engines compared with the exact result, each in its own process."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command import NDTOOL, environment, ndtool, run_in_terminal, save, snapshot
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    Array,
    Case,
    bits_equal,
    gather_cases,
    gather_elements_cases,
    gather_nd_cases,
    scatter_elements_cases,
    scatter_nd_cases,
)
from test_properties import call, many

from ndtool.analysis import engines
from ndtool.analysis.engines import ENGINES, EngineSettings, Report, side
from ndtool.analysis.oracle import reference
from ndtool.errors import BoundsError, UsageError
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs.request import Request

pytestmark = pytest.mark.usefixtures("workdir")

INSTALLED = engines.chosen("auto")
RNG = np.random.default_rng(5)


def quiet(share: float, engine_name: str) -> None:
    assert 0 <= share <= 1


TWICE = EngineSettings(runs=2)


def reports_of(
    operator: str, names: tuple[str, ...], settings: EngineSettings = TWICE, **attributes: Any
) -> list[Report]:
    """Return the reports of engines on the arrays in data.npy, idx.npy and upd.npy."""
    updates = "upd.npy" if "updates" in OPERATORS[operator].inputs else None
    request = Request(operator, "data.npy", "idx.npy", updates, None, Attributes(**attributes))
    return engines.verify(request, names, settings, quiet).reports


def test_engines_that_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "is_missing", lambda name: name in ("torch", "jax"))
    assert engines.chosen("all") == tuple(ENGINES) == tuple(side.ENGINES)
    assert engines.chosen("auto") == tuple(name for name in ENGINES if name not in ("torch", "jax"))
    assert engines.chosen("numpy, torch,numpy") == ("numpy", "torch")
    for wrong in ("", "numpy,", "polars", "Numpy"):
        with pytest.raises(UsageError, match="valid onnxruntime, openvino"):
            engines.chosen(wrong)


# Each engine is called directly, as by its users, and through ndtool.


def torch_call(operator: str, data: Array, indices: Array, updates: Any, **given: Any) -> Array:
    torch = pytest.importorskip("torch")
    data, indices = torch.from_numpy(data), torch.from_numpy(indices)
    if operator == "gather_nd":
        return data[tuple(indices[..., j] for j in range(indices.shape[-1]))].numpy()
    if operator == "gather_elements":
        return torch.gather(data, given["axis"], indices).numpy()
    if operator == "gather":
        return torch.index_select(data, given["axis"], indices).numpy()
    updates = torch.from_numpy(updates)
    if operator == "scatter_nd":
        return data.clone().index_add_(0, indices[:, 0], updates).numpy()
    return data.clone().scatter_add_(given["axis"], indices, updates).numpy()


def jax_call(operator: str, data: Array, indices: Array, updates: Any, **given: Any) -> Array:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        jnp = jax.numpy
        if operator == "gather_nd":
            return np.asarray(
                jnp.asarray(data)[tuple(indices[..., j] for j in range(indices.shape[-1]))]
            )
        if operator in ("gather_elements", "gather"):
            take = jnp.take if operator == "gather" else jnp.take_along_axis
            return np.asarray(take(data, indices, axis=given["axis"]))
        if operator == "scatter_nd":
            return np.asarray(jnp.asarray(data).at[indices[:, 0]].add(updates))
        grid = list(np.indices(indices.shape))
        grid[given["axis"]] = indices
        return np.asarray(jnp.asarray(data).at[tuple(grid)].add(updates))


def numpy_call(operator: str, data: Array, indices: Array, updates: Any, **given: Any) -> Array:
    if operator == "gather_nd":
        return np.array([data[tuple(t)] for t in indices.reshape(-1, indices.shape[-1])]).reshape(
            *indices.shape[:-1], *data.shape[indices.shape[-1] :]
        )
    if operator == "gather":
        return np.take(data, indices, given["axis"])
    if operator == "gather_elements":
        return np.take_along_axis(data, indices, given["axis"])
    out = data.copy()
    if operator == "scatter_nd":
        np.add.at(out, indices[:, 0], updates)
    else:
        grid = list(np.indices(indices.shape))
        grid[given["axis"]] = indices
        np.add.at(out, tuple(grid), updates)
    return out


def model_of(operator: str, operands: dict[str, Array], **given: Any) -> Any:
    helper = pytest.importorskip("onnx.helper")
    element = helper.np_dtype_to_tensor_dtype
    inputs = [
        helper.make_tensor_value_info(n, element(a.dtype), a.shape) for n, a in operands.items()
    ]
    output = helper.make_tensor_value_info("o", inputs[0].type.tensor_type.elem_type, None)
    node = helper.make_node(OPERATORS[operator].title, list(operands), ["o"], **given)
    graph = helper.make_graph([node], "g", inputs, [output])
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def onnx_call(operator: str, data: Array, indices: Array, updates: Any, **given: Any) -> Array:
    reference = pytest.importorskip("onnx.reference")
    operands = {"data": data, "indices": indices} | (
        {} if updates is None else {"updates": updates}
    )
    return reference.ReferenceEvaluator(model_of(operator, operands, **given)).run(None, operands)[
        0
    ]


def onnxruntime_call(
    operator: str, data: Array, indices: Array, updates: Any, **given: Any
) -> Array:
    ort = pytest.importorskip("onnxruntime")
    operands = {"data": data, "indices": indices} | (
        {} if updates is None else {"updates": updates}
    )
    model = model_of(operator, operands, **given).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, operands)[0]


def tensorflow_call(
    operator: str, data: Array, indices: Array, updates: Any, **given: Any
) -> Array:
    tf = pytest.importorskip("tensorflow")
    if operator == "gather_nd":
        return tf.gather_nd(data, indices).numpy()
    if operator == "gather":
        return tf.gather(data, indices, axis=given["axis"]).numpy()
    if operator == "gather_elements":
        return np.asarray(tf.experimental.numpy.take_along_axis(data, indices, given["axis"]))
    return tf.tensor_scatter_nd_add(data, indices, updates).numpy()


DIRECT: dict[str, Callable[..., Array]] = {
    "numpy": numpy_call, "torch": torch_call, "jax": jax_call, "onnx": onnx_call,
    "onnxruntime": onnxruntime_call, "tensorflow": tensorflow_call,
}  # fmt: skip
# Sums whose bits depend on the order of additions.
DATA, UPDATES = RNG.random((6, 5), "f4"), RNG.random((40, 5), "f4")
CALLS = {
    "gather_nd": ((DATA, RNG.integers(0, 5, (3, 4, 2)), None), {}),
    "gather": ((DATA, RNG.integers(0, 5, 7), None), {"axis": 1}),
    "gather_elements": ((DATA, RNG.integers(0, 5, (6, 3)), None), {"axis": 1}),
    "scatter_nd": ((DATA, RNG.integers(0, 6, (40, 1)), UPDATES), {"reduction": "add"}),
    "scatter_elements": (
        (DATA, RNG.integers(0, 6, (40, 5)), UPDATES), {"axis": 0, "reduction": "add"},
    ),
}  # fmt: skip


@pytest.mark.slow("each installed engine is mapped to the call that its users make")
@pytest.mark.parametrize("operator", CALLS)
def test_reports_agree_with_direct_calls(operator: str) -> None:
    (data, indices, updates), given = CALLS[operator]
    save(data=data, idx=indices)
    if updates is not None:
        save(upd=updates)
    arrays = (data, indices) if updates is None else (data, indices, updates)
    exact = call(reference, Case(operator, arrays, given))
    names = tuple(name for name in DIRECT if name in INSTALLED)
    reports = reports_of(operator, names, EngineSettings(runs=1, threads=1), **given)
    assert [one.engine for one in reports] == list(names)
    for one in reports:
        if one.result == "refused":
            assert (one.engine, operator) == ("tensorflow", "scatter_elements")
            assert one.message == "not offered: tensorflow has no ScatterElements"
            continue
        answer = DIRECT[one.engine](operator, data, indices, updates, **given)
        assert (answer.dtype, answer.shape) == (exact.dtype, exact.shape)
        wrong = int((answer.view("i4") != exact.view("i4")).sum())
        assert one.different == wrong, one
        assert one.result == ("different" if wrong else "same")
        assert (bool(one.version), one.threads) == (True, 1)


EVERY = st.one_of(
    gather_nd_cases(),
    gather_cases(),
    gather_elements_cases(),
    scatter_nd_cases(),
    scatter_elements_cases(),
)


def values_from(case: Case, shape: tuple[int, ...]) -> Array:
    """Return distinct integers of a shape."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape) * 7 - len(case.arrays)


@many
@given(case=EVERY)
def test_our_calls_of_numpy_are_the_operators(case: Case) -> None:
    assume(case.arguments.get("reduction") != "div")  # floats would be rounded
    data, indices, *updates = (
        np.array(a, a.dtype.newbyteorder("="), order="C") for a in case.arrays
    )
    if data.dtype.kind not in "iu":  # or elements would be rounded, or be NaN
        data, *updates = (values_from(case, array.shape) for array in (data, *updates))
    asking = side.Call(
        case.operator, "", 0, case.arguments, data, indices, updates[0] if updates else None, 1
    )  # fmt: skip
    expected = call(reference, case._replace(arrays=(data, indices, *updates)))
    try:
        answer = side.ENGINES["numpy"](np, asking)()
    except side.NotOfferedError:
        reduction, include_self = (
            case.arguments.get(n, True) for n in ("reduction", "include_self")
        )
        empty = case.operator == "scatter_nd" and not indices.shape[-1]
        first = case.arguments.get("duplicates") == "first"
        assert empty or first or reduction == "mean" or not include_self
        return
    assert bits_equal(np.asarray(answer), expected)


@pytest.mark.skipif("onnx" not in INSTALLED, reason="onnx is one of the two engines")
def test_inputs_of_any_kind_reach_an_engine(workdir: Path) -> None:
    data = RNG.random((7, 5))
    np.save("data.npy", np.asfortranarray(data.astype(">f4")))
    np.savez("idx.npz", idx=RNG.integers(-7, 7, (1, 9, 1)))
    np.savez_compressed("upd.npz", upd=RNG.random((1, 9, 5)).astype(">f4"))
    before = snapshot(workdir)
    names = ("scatter_nd", "data.npy", "idx.npz", "upd.npz", None, Attributes(reduction="mul"))
    reports = engines.verify(Request(*names), ("numpy", "onnx"), EngineSettings(), quiet).reports
    assert [(one.engine, one.threads, one.result) for one in reports] == [
        ("numpy", 1, "same"), ("onnx", 1, "same"),
    ]  # fmt: skip
    large = RNG.random((1 << 17, 3))  # mapped without a copy
    save(data=np.asfortranarray(large))
    literal = Request("gather_nd", "data.npy", "[[3, -1], [-9, 0]]")
    (report,) = engines.verify(literal, ("numpy",), EngineSettings(), quiet).reports
    assert report.result == "same"
    assert snapshot(workdir).keys() == before.keys()


def test_a_scalar_is_an_update() -> None:
    save(data=np.arange(3.0), idx=np.array([-1]), upd=np.array(0.5))
    names = tuple(name for name in ("numpy", "torch", "onnx") if name in INSTALLED)
    reports = reports_of("scatter_nd", names, EngineSettings(runs=1, threads=1), reduction="add")
    assert {one.result for one in reports} == {"same"}, reports


@pytest.mark.parametrize("kind", ["M8[s]", "U3", "V5", "?", "i1,f4", "f4,f4"])
def test_types_that_are_moved_only(kind: str) -> None:
    data = np.zeros(6, kind)
    data.view("u1").reshape(6, -1)[:, 0] = [1, 0, 1, 1, 0, 0]
    save(data=data, idx=np.array([[2], [0], [-6]]))
    reports = reports_of(
        "gather_nd", tuple(name for name in ("numpy", "onnx") if name in INSTALLED)
    )
    assert reports[0].result == "same"
    if kind != "?":
        if "onnx" not in INSTALLED:
            pytest.skip("numpy has all types, and onnx is not installed")
        assert (reports[1].result, reports[1].different) == ("refused", None)
        assert reports[1].message.startswith("not offered: onnx has no ")


def test_bfloat16_reaches_those_who_have_it() -> None:
    data = RNG.random(6).astype(ml_dtypes.bfloat16)
    save(data=data.view("V2"), idx=np.array([[2], [0], [2]]), upd=data[:3].view("V2"))
    names = tuple(name for name in ("torch", "jax", "numpy", "onnx") if name in INSTALLED)
    request = Request(
        "scatter_nd", "data.npy", "idx.npy", "upd.npy", None, Attributes(reduction="add"), dtype="bfloat16"
    )  # fmt: skip
    reports = engines.verify(request, names, EngineSettings(runs=1, threads=1), quiet).reports
    assert {one.engine: one.result for one in reports} == dict.fromkeys(names, "same")


# Faulty engines: modules that replace torch.

FAKE = """
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
    print("chatting", flush=True)
    answer = data[indices]
    {body}
    return Tensor(answer)
"""


@pytest.fixture
def fake(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Report]]:
    """Return the report on a replaced torch that changes its output before it returns it."""
    save(data=np.arange(5, dtype="f4"), idx=np.array([4, 3, 0]))
    (workdir / "fakes").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(workdir / "fakes"))
    monkeypatch.setattr(engines, "is_missing", lambda name: False)

    def run_fake(body: str, source: str = FAKE, **settings: Any) -> list[Report]:
        (workdir / "fakes" / "torch.py").write_text(source.replace("{body}", body))
        return reports_of(
            "gather_elements", ("torch",), EngineSettings(**{"runs": 3, "threads": 2, **settings})
        )

    return run_fake


def test_an_engine_that_is_right(fake: Any) -> None:
    assert fake("") == [
        Report("torch", "9.9", n, "same", 0, None, one.compared)
        for n, one in enumerate(fake(""), 1)
    ]


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_an_engine_that_crashes(fake: Any, name: str) -> None:
    reports = fake(f"if threads > 1 and calls == 2: os.kill(os.getpid(), signal.{name})")
    assert [(one.result, one.different) for one in reports] == [("same", 0), ("crashed", None)]
    assert reports[1].message == f"{name}: chatting"


def test_an_engine_that_exits(fake: Any) -> None:
    assert {one.message for one in fake("os._exit(3)")} == {"exit status 3: chatting"}


def test_an_engine_that_hangs(fake: Any, workdir: Path) -> None:
    forked = (
        "child = subprocess.Popen(['sleep', '1000'])\n    open('pid', 'w').write(str(child.pid))"
    )
    reports = fake(f"{forked}\n    time.sleep(1000)", timeout=1, threads=1)
    assert [(one.result, one.message) for one in reports] == [("crashed", "no result in 1 s")]
    assert gone(int((workdir / "pid").read_text()))


def test_an_engine_that_refuses(fake: Any) -> None:
    reports = fake("raise ValueError('not\\n  that\\x1b[1m ' + 900 * 'x')")
    assert {one.result for one in reports} == {"refused"}
    assert reports[0].message.startswith("not that\\x1b[1m xxx")
    assert len(reports[0].message) == 500


def test_an_engine_that_cannot_be_loaded(fake: Any) -> None:
    (report, _) = fake("", source="import nowhere.to.be.found")
    assert (report.result, report.threads) == ("missing", None)
    assert report.message == "pip install torch (No module named 'nowhere')"


def test_an_engine_that_gives_another_type_or_shape(fake: Any) -> None:
    assert {one.message for one in fake("answer = answer.astype('f8')")} == {
        "returns float64[3], not float32[3]"
    }
    (report, _) = fake("answer = answer[:, None]")
    assert (report.result, report.different) == ("different", None)
    assert report.message == "returns float32[3,1], not float32[3]"


def test_an_engine_that_differs(fake: Any) -> None:
    (one, _) = fake("answer = answer.copy(); answer[1] += 1e-6")
    assert (one.result, one.different) == ("different", 1)
    assert one.message == "1 of 3 elements differ, by up to 4 ulp"
    assert one.compared.largest.position == (1,)
    (one, _) = fake("answer = answer.copy(); answer[1] += 1e-6", within=4)
    assert (one.result, one.different) == ("same", 1)
    assert one.message == "1 of 3 elements differ, by up to 4 ulp, within 4 ulp"


def test_an_engine_that_is_not_the_same_from_run_to_run(fake: Any) -> None:
    body = "answer = answer.copy(); answer[:calls - 1] = 7"
    reports = fake(body)
    assert [(one.result, one.different) for one in reports] == [("unstable", 1), ("unstable", 2)]
    assert reports[1].message == (
        "bits vary between runs; at worst 2 of 3 elements differ, by up to 10485760 ulp"
    )
    # the comparison of an output is independent of later ones
    assert reports[1].compared.first.output == 7
    assert [one.result for one in fake(body, runs=1)] == ["same", "same"]


def gone(pid: int) -> bool:
    """Wait until a process has ended."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends it with whoever asks")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_engine_ends_with_its_parent(fake: Any, workdir: Path, number: int) -> None:
    fake("open('pid', 'w').write(str(os.getpid()))")
    (workdir / "pid").unlink()
    source = FAKE.replace("{body}", "open('pid', 'w').write(str(os.getpid())); time.sleep(1000)")
    (workdir / "fakes" / "torch.py").write_text(source)
    command = (*NDTOOL, "verify", "gather-elements", "data.npy", "idx.npy", "--against", "torch")
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
        while not (workdir / "pid").exists() or not (workdir / "pid").read_text():
            time.sleep(0.01)
        process.send_signal(number)
    assert gone(int((workdir / "pid").read_text()))
    assert sorted(path.name for path in workdir.iterdir()) == [
        "data.npy",
        "fakes",
        "idx.npy",
        "pid",
    ]


def test_updates_that_are_lost_are_counted() -> None:
    save(data=np.zeros(50, "i8"), idx=RNG.integers(0, 50, (200, 1)), upd=RNG.integers(1, 99, 200))
    request = Request(
        "scatter_nd", "data.npy", "idx.npy", "upd.npy", None, Attributes(reduction="add")
    )
    arrays = {role: np.load(getattr(request, role)) for role in ("data", "indices", "updates")}
    expected = call(reference, Case("scatter_nd", tuple(arrays.values()), {"reduction": "add"}))
    answer = expected.copy()
    for number in (3, 8, 9):
        answer[arrays["indices"][number, 0]] -= arrays["updates"][number]
    different = int((answer != expected).sum())
    worst = engines.compare(request, arrays, answer, expected)
    report = engines.with_verdict(
        Report("x", "1", 2, "same"), [engines.compare(request, arrays, expected, expected), worst]
    )
    assert report.result == "unstable"
    assert report.different == different
    assert f"at worst {different} of 50 elements differ; " in report.message
    assert (
        f"off by exactly one update: {worst.lost} lost one, 0 applied one twice" in report.message
    )
    assert worst.lost >= 1


def test_out_of_bounds(fake: Any) -> None:
    save(idx=np.array([0, 5, 1]))
    assert [one.message for one in fake("answer = indices.astype('f4')")] == 2 * [
        "index 5 is out of bounds for axis 0 with size 5"
    ]
    verdict = engines.verify(
        Request("gather_elements", "data.npy", "idx.npy"), ("numpy",), EngineSettings(), quiet
    )
    assert isinstance(verdict.error, BoundsError)
    assert verdict.reports[0].result == "refused"


# The command.


def test_the_command_line(fake: Any, workdir: Path) -> None:
    fake("answer = answer.copy(); answer[1] = 7")
    run = ("verify", "gather-elements", "data.npy", "idx.npy")
    ran = ndtool(*run, "--against", "numpy")
    assert (ran.status, ran.err) == (0, "")
    version = np.__version__
    assert (
        ran.out.decode()
        == f"engine{' ' * len(version)}  threads  answer\nnumpy {version}  1        the same bits\n"
    )
    ran = ndtool(*run, "--against", "torch,numpy", "--threads", "3", "--runs", "2")
    assert ran.status == 8
    assert ran.out.decode().splitlines()[1:] == [
        "torch 9.9    1, 3     1 of 3 elements differ, by up to 10485760 ulp",
        f"numpy {version}  1        the same bits",
    ]
    assert ran.err == (
        "error: torch differs from gather_elements\n"
        "  --> torch[1] = 7.0 (bytes 0000e040), not 3.0 (bytes 00004040)\n"
    )
    record = ndtool(*run, "--against", "torch,numpy", "--threads", "2", "--json").json
    assert (record["error"], record["status"]) == ("DifferenceError", 8)
    keys = ("engine", "version", "threads", "result", "different")
    assert [[one[key] for key in keys] for one in record["engines"]] == [
        ["torch", "9.9", 1, "different", 1],
        ["torch", "9.9", 2, "different", 1],
        ["numpy", version, 1, "same", 0],
    ]
    assert record["engines"][0]["first"]["output"] == 7
    assert record["engines"][2]["message"] is None
    np.save("out.npy", np.array([4, 3, 0], "f4"))
    ran = ndtool(*run, "out.npy", "--against", "numpy", "--json")
    assert (ran.status, ran.json["verified"], ran.json["equal"]) == (0, True, 3)
    np.save("out.npy", np.array([4, 3, 1], "f4"))
    ran = ndtool(*run, "out.npy", "--against", "numpy", "--json")
    assert (ran.status, ran.json["different"], ran.json["engines"][0]["result"]) == (8, 1, "same")


def test_wrong_usage(workdir: Path) -> None:
    save(data=np.arange(5), idx=np.array([[1]]))
    run = ("verify", "gather-nd", "data.npy", "idx.npy")
    ran = ndtool(*run)
    assert (ran.status, ran.out) == (2, b"")
    assert "missing argument 'OUTPUT': expected one, or --against with engines" in ran.err
    ran = ndtool(*run, "--against", "numpy,polars")
    assert ran.status == 2
    assert "'polars' is not an engine: valid onnxruntime, openvino, torch" in ran.err


def test_no_engine_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "is_missing", lambda name: name != "numpy")
    save(data=np.arange(5), idx=np.array([[1]]))
    with pytest.raises(UsageError, match="no engine to compare with is installed") as caught:
        reports_of("gather_nd", ("torch", "jax"))
    assert caught.value.hint == "pip install torch jax"
    reports = reports_of("gather_nd", ("torch", "numpy"))
    assert [(one.result, one.message) for one in reports] == [
        ("missing", "pip install torch"),
        ("same", None),
    ]


@pytest.mark.parametrize("columns", [60, 200])
def test_the_table_fits_the_terminal(fake: Any, columns: int) -> None:
    save(idx=np.array([4, 3, 3]))
    fake("raise ValueError('a word ' * 20)")
    ran = run_in_terminal(
        *NDTOOL, "verify", "gather-elements", "data.npy", "idx.npy", "--against", "torch,numpy",
        columns=columns, stderr=False,
    )  # fmt: skip
    assert ran.status == 0
    screen = re.sub("\x1b\\[[0-9;]*m", "", ran.screen)
    assert max(map(len, screen.splitlines())) <= columns
    assert "the same bits" in screen
    assert screen.split().count("word") == 20


def test_help_names_the_engines() -> None:
    text = " ".join(ndtool("verify", "gather", "--help").out.decode().split())
    assert f"{', '.join(ENGINES)}; all; auto" in text


def test_no_engine_is_loaded_to_verify(workdir: Path) -> None:
    save(data=np.arange(5), idx=np.array([[1]]))
    program = (
        "import sys; from ndtool.__main__ import main\n"
        "sys.argv[1:] = ['verify', 'gather-nd', 'data.npy', 'idx.npy', '--against', 'numpy,onnx']\n"
        "main(); assert not {'torch', 'jax', 'onnx', 'tensorflow'} & set(sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
