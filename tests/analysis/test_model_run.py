"""A run of a model has the values of onnxruntime, with control flow, functions and old versions."""

from typing import Any

import numpy as np
import pytest
from command import ndtool
from later import later
from test_model import onnx, run, save_text

from ndtool.analysis import model as models
from ndtool.analysis import modelrun
from ndtool.errors import RuleError

ort = later("onnxruntime")
pytestmark = pytest.mark.usefixtures("workdir")
LACKS = {"onnxruntime": None}


@pytest.fixture(params=["onnxruntime", "onnx"], autouse=True)
def engine(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with onnxruntime, and as if it were not installed."""
    if request.param == "onnx":
        monkeypatch.setattr(modelrun, "find_spec", LACKS.get)
    return str(request.param)


def outputs_of_a_run(feeds: dict[str, Any]) -> list[Any]:
    model = onnx.load("m.onnx")
    model_run = models._ModelRun(
        list(models.show("m.onnx").nodes), (), models.EngineSettings(), lambda *_: None
    )
    model_run._write_node_indices(model)
    return modelrun.ModelRun("m.onnx", model, model_run._compute, 1).run(feeds)


def assert_runs_as_in_onnxruntime(feeds: dict[str, Any]) -> list[Any]:
    session = ort.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    actual = outputs_of_a_run(feeds)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)
    return actual


@pytest.mark.parametrize(
    ("trips", "condition", "ends"),
    [
        (None, None, True), (None, True, True), (None, False, False), (0, None, False),
        (2, True, False), (2, False, True), (5, None, True), (5, True, False),
    ],
)  # fmt: skip
def test_loops_with_each_input_absent(
    trips: int | None, condition: bool | None, ends: bool
) -> None:
    """The body gathers, carries a sum, and may end after the third iteration."""
    feeds: dict[str, Any] = {"table": np.arange(1, 6, dtype="f4"), "start": np.array(100, "f4")}
    feeds |= {} if trips is None else {"trips": np.array(trips)}
    feeds |= {} if condition is None else {"go": np.array(condition)}
    types = {"table": "float[5]", "start": "float", "trips": "int64", "go": "bool"}
    save_text(f"""
        g ({", ".join(f"{types[name]} {name}" for name in feeds)}) => (float total, float[N] each) {{
            total, each = Loop <body = body (int64 n, bool more, float sum)
                    => (bool more2, float sum2, float take) {{
                zero = Constant <value_ints = [0]> ()
                two = Constant <value_int = 2> ()
                row = Unsqueeze (n, zero)
                take = GatherND (table, row)
                sum2 = Add (sum, take)
                small = Less (n, two)
                more2 = Identity ({"small" if ends else "more"})
            }}> ({"" if trips is None else "trips"}, {"" if condition is None else "go"}, start)
        }}""")
    assert_runs_as_in_onnxruntime(feeds)


SCAN = """
    g (float[3] x, float start) => (float total, float[3] each, float[1] o) <int64[1] i = {{0}}> {{
        total, each = Scan <num_scan_inputs = 1, body = body (float sum, float n)
                => (float sum2, float each) {{
            sum2 = Add (sum, n)
            {computation}
        }}> (start, x)
        o = Gather (each, i)
    }}"""


def test_a_scan_runs_in_onnxruntime_only(engine: str) -> None:
    """The evaluator mixes up scan outputs."""
    save_text(SCAN.format(computation="each = Neg (sum2)"))
    feeds = {"x": np.float32([1, 2, 4]), "start": np.array(0, "f4")}
    if engine == "onnxruntime":
        assert_runs_as_in_onnxruntime(feeds)
        return
    with pytest.raises(RuleError, match="total: ndtool does not run the subgraphs of Scan"):
        outputs_of_a_run(feeds)


def test_a_scan_of_gathers_is_refused_by_name() -> None:
    save_text(SCAN.format(computation="each = Gather (x, i)"))
    np.savez("in.npz", x=np.float32([1, 2, 4]), start=np.float32(0))
    error = run().error
    assert error is not None
    assert (error.status, error.message) == (
        4, "m.onnx: total: ndtool does not run the subgraphs of Scan",
    )  # fmt: skip


def test_sparse_initializers_are_refused_by_name() -> None:
    save_text("g (int64[2] i) => (float[2] o) { o = Gather (weights, i) }")
    model = onnx.load("m.onnx")
    values = onnx.numpy_helper.from_array(np.float32([5]), "weights")
    positions = onnx.numpy_helper.from_array(np.array([1]), "positions")
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, positions, [3]))
    onnx.save(model, "m.onnx")
    np.savez("in.npz", i=np.array([1, 0]))
    error = run().error
    assert error is not None
    assert error.message == "m.onnx: weights is sparse, which ndtool does not run"


def test_a_function_has_the_default_values_of_its_attributes() -> None:
    save_text("""
        g (float[2,3] x, int64[2,2] i) => (float[] y) { y = mine.Take (x, i) }
        <domain: "mine", opset_import: ["": 18]>
        Take <along: int = 1> (a, b) => (r) { r = GatherElements <axis: int = @along> (a, b) }""")
    x = np.arange(6, dtype="f4").reshape(2, 3)
    (result,) = assert_runs_as_in_onnxruntime({"x": x, "i": np.array([[1, 0], [0, 1]])})
    assert result.tolist() == [[1, 0], [3, 4]]


def test_nested_graphs() -> None:
    save_text("""
        g (bool c, float[4] x) => (float[] o) <int64[3] i = {1, 1, 0}> {
            o = If (c) <
                then_branch = then () => (float[] t) { t = Gather (x, i) },
                else_branch = else () => (float[] n) { n = Neg (x) }
            >
        }""")
    for c in (True, False):
        assert_runs_as_in_onnxruntime({"c": np.array(c), "x": np.arange(4, dtype="f4")})


OLD_GATHER = "g (float[3] x, int64[2] i) => (float[2] take) { take = Gather (x, i) }"


@pytest.mark.parametrize("version", [1, 10, 11])
def test_negative_indices_of_an_old_gather(version: int) -> None:
    save_text(OLD_GATHER, version)
    feeds = {"x": np.float32([1, 2, 3]), "i": np.array([-1, 0])}
    if version >= 7:  # onnxruntime has no earlier operator set
        assert_runs_as_in_onnxruntime(feeds)
    np.savez("in.npz", **feeds)
    outcome = run()
    assert (outcome.error, outcome.nodes[0].runs) == (None, 1)
    warning = "take: Gather-1 allows no negative indices: they count from the end, as in onnxruntime and in Gather-11"  # fmt: skip
    assert outcome.warnings == (() if version == 11 else (warning,))
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert completed.err == ("" if version == 11 else f"warning: {warning}\n")


def test_an_index_out_of_bounds_in_an_old_gather_is_an_error() -> None:
    save_text(OLD_GATHER, 10)
    np.savez("in.npz", x=np.float32([1, 2, 3]), i=np.array([-4, 0]))
    assert ndtool("model", "m.onnx", "--inputs", "in.npz").status == 5


def test_who_computed_the_nodes(engine: str) -> None:
    """An engine that lacks a type is replaced by the evaluator, and the answer says so."""
    save_text("""
        g (float[3] x, int64[2] i) => (bfloat16[] z) {
            n = Neg (x)
            y = Gather (n, i)
            z = Cast <to = 16> (y)
        }""")
    np.savez("in.npz", x=np.float32([1, 2, 3]), i=np.array([-1, 0]))
    outcome = run()
    counts = {item.engine: item.nodes for item in outcome.computed}
    expected = {"onnxruntime": 1, "onnx": 1} if engine == "onnxruntime" else {"onnx": 2}
    assert (outcome.error, counts) == (None, {"ndtool": 1} | expected)
    operators = {item.engine: item.operators for item in outcome.computed}
    assert operators["ndtool"] == ("Gather",)
    assert operators["onnx"] == (("Cast",) if engine == "onnxruntime" else ("Cast", "Neg"))


@pytest.mark.parametrize(
    ("opset", "attributes", "problem"),
    [
        (12, "<batch_dims = 2>", "batch_dims is 2: "),
        (11, "<batch_dims = 1>", "onnx:11 (GatherND-11) does not accept batch_dims: "),
        (10, "", "onnx:10 has no GatherND: "),
    ],
)
def test_a_node_that_breaks_a_rule_of_its_version(
    opset: int, attributes: str, problem: str
) -> None:
    graph = f"g (float[3,4] x, int64[3,1] i) => (float[] y) {{ y = GatherND {attributes} (x, i) }}"
    save_text(graph, opset)
    (record,) = ndtool("model", "m.onnx", "--json").json["nodes"]
    assert (record["problem"] or "").startswith(problem)
    assert bool(record["problem"]) == bool(problem)
    out = " ".join(ndtool("model", "m.onnx").out.decode().split())
    assert (f"breaks a rule: y: {record['problem']}" in out) == bool(problem)
