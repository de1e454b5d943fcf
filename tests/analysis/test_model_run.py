"""A run of a model has the values of onnxruntime, with control flow, functions and old versions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool
from test_model import BOOL, FLOAT, INT64, helper, onnx, save_model, value_info

from ndtool.analysis import model as models
from ndtool.analysis import modelrun

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("workdir")
LACKS = {"onnxruntime": None}


@pytest.fixture(params=["onnxruntime", "onnx"], autouse=True)
def engine(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with onnxruntime, and as if it were not installed."""
    if request.param == "onnx":
        monkeypatch.setattr(modelrun, "find_spec", LACKS.get)
    return str(request.param)


def outputs_of_a_run(feeds: dict[str, Any]) -> tuple[list[Any], models._ModelRun]:
    """Return the outputs of m.onnx, and the run."""
    model = onnx.load("m.onnx")
    run = models._ModelRun(
        list(models.nodes("m.onnx").nodes), (), models.EngineSettings(), lambda *_: None
    )
    run._write_node_indices(model)
    return modelrun.ModelRun("m.onnx", model, run._compute, 1).run(feeds), run


def assert_runs_as_in_onnxruntime(feeds: dict[str, Any]) -> list[Any]:
    session = ort.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    actual, _ = outputs_of_a_run(feeds)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)
    return actual


def loop_body(condition: bool) -> Any:
    """Return a body that gathers, carries a sum, and ends after the third iteration."""
    nodes = [
        helper.make_node("Unsqueeze", ["n", "zero"], ["row"]),
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("GatherND", ["table", "row"], ["taken"], name="take"),
        helper.make_node("Add", ["sum", "taken"], ["sum2"]),
        helper.make_node("Less", ["n", "two"], ["small"]),
        helper.make_node("Constant", [], ["two"], value_int=2),
        helper.make_node("Identity", ["small" if condition else "go"], ["go2"]),
    ]
    nodes.sort(key=lambda node: node.op_type != "Constant")
    inputs = [value_info("n", INT64, []), value_info("go", BOOL, []), value_info("sum", FLOAT, [])]
    outputs = [value_info("go2", BOOL, []), value_info("sum2", FLOAT, []), value_info("taken", FLOAT, [])]  # fmt: skip
    return helper.make_graph(nodes, "body", inputs, outputs)


@pytest.mark.parametrize("trips", [None, 0, 2, 5])
@pytest.mark.parametrize("condition", [None, True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_loops_with_each_input_absent(
    trips: int | None, condition: bool | None, ends: bool
) -> None:
    if trips is None and condition is not False and not ends:
        pytest.skip("this loop never ends")
    names = ["" if trips is None else "trips", "" if condition is None else "go", "start"]
    loop = helper.make_node("Loop", names, ["total", "all"], name="loop", body=loop_body(ends))
    inputs = [value_info("table", FLOAT, [5]), value_info("start", FLOAT, [])]
    feeds: dict[str, Any] = {"table": np.arange(1, 6, dtype="f4"), "start": np.float32(100)}
    feeds["start"] = np.asarray(feeds["start"])
    if trips is not None:
        inputs.append(value_info("trips", INT64, []))
        feeds["trips"] = np.array(trips)
    if condition is not None:
        inputs.append(value_info("go", BOOL, []))
        feeds["go"] = np.array(condition)
    outputs = [value_info("total", FLOAT, []), value_info("all", FLOAT, ["N"])]
    save_model(helper.make_graph([loop], "g", inputs, outputs))
    assert_runs_as_in_onnxruntime(feeds)


def test_a_loop_without_a_condition_gives_its_values_on_the_command_line() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go2"]),
            helper.make_node("Gather", ["x", "n"], ["y"], name="take"),
            helper.make_node("Add", ["sum", "y"], ["sum2"]),
        ],
        "body",
        [value_info("n", INT64, []), value_info("go", BOOL, []), value_info("sum", FLOAT, [])],
        [value_info("go2", BOOL, []), value_info("sum2", FLOAT, [])],
    )
    loop = helper.make_node("Loop", ["trips", "", "start"], ["total"], body=body)
    inputs = [value_info("x", FLOAT, [3]), value_info("trips", INT64, []), value_info("start", FLOAT, [])]  # fmt: skip
    save_model(helper.make_graph([loop], "g", inputs, [value_info("total", FLOAT, [])]))
    np.savez("in.npz", x=np.float32([1, 2, 4]), trips=np.array(3), start=np.float32(0))
    (node,) = ndtool("model", "m.onnx", "--inputs", "in.npz", "--json").json["nodes"]
    assert node["runs"] == 3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scans_with_axes_and_directions(reverse: bool, axis: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("GatherElements", ["row", "i"], ["taken"], name="take"),
            helper.make_node("Add", ["state", "taken"], ["state2"]),
            helper.make_node("Neg", ["taken"], ["negative"]),
        ],
        "body",
        [value_info("state", FLOAT, [2]), value_info("row", FLOAT, [3])],
        [value_info("state2", FLOAT, [2]), value_info("negative", FLOAT, [2])],
    )
    scan = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1,
        scan_input_axes=[axis], scan_input_directions=[int(reverse)],
        scan_output_axes=[axis], scan_output_directions=[int(reverse)],
    )  # fmt: skip
    x = np.arange(12, dtype="f4").reshape(4, 3)
    feeds = {"x": x if axis == 0 else x.T.copy(), "start": np.ones(2, "f4")}
    index = onnx.numpy_helper.from_array(np.array([2, -3]), "i")
    inputs = [value_info("start", FLOAT, [2]), value_info("x", FLOAT, feeds["x"].shape)]
    outputs = [value_info("last", FLOAT, [2]), value_info("all", FLOAT, [None, None])]
    save_model(helper.make_graph([scan], "g", inputs, outputs, initializer=[index]))
    assert_runs_as_in_onnxruntime(feeds)


@pytest.mark.parametrize("given", [None, 0])
def test_functions_with_default_attributes(given: int | None) -> None:
    nodes = [helper.make_node("GatherElements", ["a", "b"], ["c"]), helper.make_node("Cast", ["c"], ["r"])]  # fmt: skip
    nodes[0].attribute.append(onnx.AttributeProto(name="axis", ref_attr_name="along", type=2))
    nodes[1].attribute.append(onnx.AttributeProto(name="to", ref_attr_name="kind", type=2))
    function = helper.make_function(
        "mine", "Take", ["a", "b"], ["r"], nodes, [helper.make_opsetid("", 18)],
        attribute_protos=[helper.make_attribute("along", 1), helper.make_attribute("kind", INT64)],
    )  # fmt: skip
    attributes = {} if given is None else {"along": given}
    call = helper.make_node("Take", ["x", "i"], ["y"], domain="mine", **attributes)
    inputs = [value_info("x", FLOAT, [2, 3]), value_info("i", INT64, [2, 2])]
    save_model(
        helper.make_graph([call], "g", inputs, [value_info("y", INT64, None)]), 18, [function]
    )
    x = np.arange(6, dtype="f4").reshape(2, 3)
    (result,) = assert_runs_as_in_onnxruntime({"x": x, "i": np.array([[1, 0], [0, 1]])})
    assert result.tolist() == ([[1, 0], [3, 4]] if given is None else [[3, 1], [0, 4]])


def test_sequences_and_nested_graphs() -> None:
    inner = helper.make_graph(
        [helper.make_node("Gather", ["item", "i"], ["z"], name="take")],
        "inner", [value_info("item", FLOAT, ["N"])], [value_info("z", FLOAT, None)],
    )  # fmt: skip
    empty = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"])], "else", [], [value_info("n")]
    )
    then = helper.make_graph(
        [
            helper.make_node("SplitToSequence", ["x", "ones"], ["parts"], keepdims=1),
            helper.make_node("SequenceMap", ["parts"], ["mapped"], name="map", body=inner),
            helper.make_node("ConcatFromSequence", ["mapped"], ["t"], axis=0),
        ],
        "then", [], [value_info("t")],
        initializer=[onnx.numpy_helper.from_array(np.array([2, 2]), "ones")],
    )  # fmt: skip
    choose = helper.make_node("If", ["c"], ["o"], then_branch=then, else_branch=empty)
    index = onnx.numpy_helper.from_array(np.array([1, 1, 0]), "i")
    inputs = [value_info("c", BOOL, []), value_info("x", FLOAT, [4])]
    graph = helper.make_graph([choose], "g", inputs, [value_info("o", FLOAT, None)], [index])
    save_model(graph)
    for c in (True, False):
        assert_runs_as_in_onnxruntime({"c": np.array(c), "x": np.arange(4, dtype="f4")})


@pytest.mark.parametrize("version", [1, 10, 11])
def test_negative_indices_of_an_old_gather(version: int) -> None:
    gather = helper.make_node("Gather", ["x", "i"], ["y"], name="take")
    inputs = [value_info("x", FLOAT, [3]), value_info("i", INT64, [2])]
    save_model(helper.make_graph([gather], "g", inputs, [value_info("y", FLOAT, [2])]), version)
    feeds = {"x": np.float32([1, 2, 3]), "i": np.array([-1, 0])}
    if version >= 7:  # onnxruntime has no earlier operator set
        assert_runs_as_in_onnxruntime(feeds)
    np.savez("in.npz", **feeds)
    outcome = models.run("m.onnx", "in.npz", (), models.EngineSettings())
    assert (outcome.error, outcome.nodes[0].runs) == (None, 1)
    warning = "take: Gather-1 allows no negative indices: they count from the end, as in onnxruntime and in Gather-11"  # fmt: skip
    assert outcome.warnings == (() if version == 11 else (warning,))
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert completed.err == ("" if version == 11 else f"warning: {warning}\n")


def test_an_index_out_of_bounds_in_an_old_gather_is_an_error() -> None:
    gather = helper.make_node("Gather", ["x", "i"], ["y"], name="take")
    inputs = [value_info("x", FLOAT, [3]), value_info("i", INT64, [2])]
    save_model(helper.make_graph([gather], "g", inputs, [value_info("y", FLOAT, [2])]), 10)
    np.savez("in.npz", x=np.float32([1, 2, 3]), i=np.array([-4, 0]))
    assert ndtool("model", "m.onnx", "--inputs", "in.npz").status == 5


def test_who_computed_the_nodes(engine: str) -> None:
    """An engine that lacks a type is replaced by the evaluator, and the answer says so."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Gather", ["n", "i"], ["y"]),
        helper.make_node("Cast", ["y"], ["z"], to=onnx.TensorProto.BFLOAT16),
    ]
    inputs = [value_info("x", FLOAT, [3]), value_info("i", INT64, [2])]
    save_model(helper.make_graph(nodes, "g", inputs, [value_info("z", 16, None)]))
    np.savez("in.npz", x=np.float32([1, 2, 3]), i=np.array([-1, 0]))
    outcome = models.run("m.onnx", "in.npz", (), models.EngineSettings())
    counts = {item.engine: item.nodes for item in outcome.computed}
    expected = {"onnxruntime": 1, "onnx": 1} if engine == "onnxruntime" else {"onnx": 2}
    assert (outcome.error, counts) == (None, {"ndtool": 1} | expected)
    operators = {item.engine: item.operators for item in outcome.computed}
    assert operators["ndtool"] == ("Gather",)
    assert operators["onnx"] == (("Cast",) if engine == "onnxruntime" else ("Cast", "Neg"))


@pytest.mark.parametrize(
    ("opset", "attributes", "problem"),
    [
        (12, {"batch_dims": 2}, "batch_dims is 2: "),
        (12, {"batch_dims": -1}, "batch_dims is -1: "),
        (11, {"batch_dims": 1}, "onnx:11 (GatherND-11) does not accept batch_dims: "),
        (10, {}, "onnx:10 has no GatherND: "),
        (13, {"batch_dims": 1}, None),
    ],
)
def test_a_node_that_breaks_a_rule_of_its_version(
    opset: int, attributes: dict[str, int], problem: str | None
) -> None:
    gather = helper.make_node("GatherND", ["x", "i"], ["y"], name="take", **attributes)
    inputs = [value_info("x", FLOAT, [3, 4]), value_info("i", INT64, [3, 1])]
    save_model(helper.make_graph([gather], "g", inputs, [value_info("y", FLOAT, None)]), opset)
    (record,) = ndtool("model", "m.onnx", "--json").json["nodes"]
    out = ndtool("model", "m.onnx").out.decode()
    if problem is None:
        assert record["problem"] is None
        assert "breaks a rule" not in out
    else:
        assert record["problem"].startswith(problem)
        assert f"breaks a rule: take: {record['problem']}" in " ".join(out.split())


def test_large_initializers_are_not_copied_into_models(
    monkeypatch: pytest.MonkeyPatch, workdir: Path
) -> None:
    add = helper.make_node("Add", ["x", "w"], ["s"])
    gather = helper.make_node("Gather", ["s", "i"], ["y"])
    weights = onnx.numpy_helper.from_array(np.ones(1 << 16, "f4"), "w")
    inputs = [value_info("x", FLOAT, [1 << 16]), value_info("i", INT64, [2])]
    graph = helper.make_graph([add, gather], "g", inputs, [value_info("y")], initializer=[weights])
    save_model(graph)
    sizes = []
    compile_model = modelrun._onnxruntime
    monkeypatch.setattr(
        modelrun,
        "_onnxruntime",
        lambda ort, n, model: [sizes.append(model.ByteSize()), compile_model(ort, n, model)][1],
    )
    (result,), _ = outputs_of_a_run({"x": np.ones(1 << 16, "f4"), "i": np.array([3, 4])})
    assert result.tolist() == [2, 2]
    assert all(size < 1 << 12 for size in sizes)


def test_a_loop_whose_iterations_differ_in_shape_is_an_error() -> None:
    """Its scan output is no array; onnxruntime refuses it, too."""
    numbers = [onnx.numpy_helper.from_array(np.array(n), name) for n, name in enumerate("zo")]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Range", ["z", "n", "o"], ["ids"]),
            helper.make_node("Gather", ["x", "ids"], ["t"], name="take"),
        ],
        "body", [value_info("n", INT64, []), value_info("c", BOOL, [])],
        [value_info("c2", BOOL, []), value_info("t", FLOAT, ["K"])], numbers,
    )  # fmt: skip
    loop = helper.make_node("Loop", ["m", ""], ["y"], name="loop", body=body)
    inputs = [value_info("x", FLOAT, [5]), value_info("m", INT64, [])]
    save_model(helper.make_graph([loop], "g", inputs, [value_info("y", FLOAT, None)]))
    np.savez("in.npz", x=np.ones(5, "f4"), m=np.array(3))
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert completed.status == 4
    assert completed.err.startswith("error: m.onnx: loop: Loop fails: ")


def test_a_scan_of_scalars_gives_a_vector() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Unsqueeze", ["n", "zero"], ["tuple"]),
            helper.make_node("GatherND", ["x", "tuple"], ["taken"], name="take"),
            helper.make_node("Add", ["sum", "taken"], ["sum2"]),
            helper.make_node("Identity", ["sum2"], ["each"]),
        ],
        "body", [value_info("sum", FLOAT, []), value_info("n", INT64, [])],
        [value_info("sum2", FLOAT, []), value_info("each", FLOAT, [])],
        [onnx.numpy_helper.from_array(np.array([0]), "zero")],
    )  # fmt: skip
    scan = helper.make_node("Scan", ["start", "ids"], ["total", "all"], body=body, num_scan_inputs=1)  # fmt: skip
    inputs = [value_info("x", FLOAT, [3]), value_info("start", FLOAT, []), value_info("ids", INT64, [4])]  # fmt: skip
    outputs = [value_info("total", FLOAT, []), value_info("all", FLOAT, [4])]
    save_model(helper.make_graph([scan], "g", inputs, outputs))
    feeds = {"x": np.float32([1, 2, 4]), "start": np.array(0, "f4"), "ids": np.array([2, 0, -1, 1])}
    assert_runs_as_in_onnxruntime(feeds)


def test_control_flow_without_gathers_is_not_left_to_the_evaluator(engine: str) -> None:
    """A type that onnxruntime lacks makes the evaluator compute its nodes, one by one."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Add", ["s", "s"], ["s2"])],
        "body", [value_info("n", INT64, []), value_info("c", BOOL, []), value_info("s", 16, [])],
        [value_info("c2", BOOL, []), value_info("s2", 16, [])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["x"], ["start"], to=onnx.TensorProto.BFLOAT16),
        helper.make_node("Loop", ["trips", "", "start"], ["last"], body=body),
        helper.make_node("Cast", ["last"], ["y"], to=FLOAT),
    ]
    inputs = [value_info("x", FLOAT, []), value_info("trips", INT64, [])]
    save_model(helper.make_graph(nodes, "g", inputs, [value_info("y", FLOAT, [])]))
    (result,), _ = outputs_of_a_run({"x": np.array(1, "f4"), "trips": np.array(3)})
    assert result == 8
