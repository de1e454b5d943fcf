"""`ndtool model`: the nodes of our operators in a model, and their results on inputs."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import NDTOOL, ndtool, run_in_terminal, snapshot
from test_html_report import MARKUP, Page
from test_onnx_backend import CASES, OPERATORS

from ndtool.analysis import engines, verify
from ndtool.analysis import model as models
from ndtool.analysis.engines import EngineSettings
from ndtool.arrays.source import DeclaredType
from ndtool.errors import BoundsError, DtypeError, InputError, ResourceError, UsageError

onnx = pytest.importorskip("onnx")
helper = pytest.importorskip("onnx.helper")

pytestmark = pytest.mark.usefixtures("workdir")

FLOAT, INT64, BOOL = 1, 7, 9


def named(name: str, kind: int = FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def save_model(graph: Any, version: int = 18, functions: Any = (), file: str = "m.onnx") -> None:
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))
    onnx.save(model, file)


def embedding(version: int = 13) -> None:
    """Save a model that gathers rows of a table, doubles them, and scatters some into a copy."""
    rows = helper.make_node("GatherND", ["table", "rows"], ["taken"], name="take")
    twice = helper.make_node("Add", ["taken", "taken"], ["doubled"])
    put = helper.make_node("ScatterND", ["table", "rows", "doubled"], ["out"])
    table = onnx.numpy_helper.from_array(np.arange(12, dtype="f4").reshape(4, 3), "table")
    graph = helper.make_graph(
        [rows, twice, put], "g", [named("rows", INT64, ["N", 1])], [named("out", FLOAT, None)],
        initializer=[table], value_info=[named("taken", FLOAT, ["N", 3])],
    )  # fmt: skip
    save_model(graph, version)


def silence(share: float, engine_name: str) -> None:
    assert 0 <= share <= 1


def test_metadata_of_a_model() -> None:
    embedding()
    take, put = models.nodes("m.onnx")
    assert (take.node.node, take.node.operator, take.version) == ("take", "gather_nd", 13)
    assert take.inputs == {
        "data": ("table", DeclaredType("float32", (4, 3))),
        "indices": ("rows", DeclaredType("int64", ("N", 1))),
    }
    assert take.output == DeclaredType("float32", ("N", 3))
    assert (put.node.node, put.version) == ("out", 13)
    assert put.inputs["updates"] == ("doubled", DeclaredType(None, None))
    assert put.output == DeclaredType(None, None)._replace(dtype="float32")


@pytest.mark.parametrize(("opset", "version"), [(11, 11), (12, 12), (17, 13), (10, None)])
def test_the_version_is_that_of_the_operator(opset: int, version: int | None) -> None:
    embedding(opset)
    assert models.nodes("m.onnx")[0].version == version


def test_an_output_that_follows_from_the_inputs() -> None:
    node = helper.make_node("GatherND", ["d", "i"], ["o"], batch_dims=1)
    after = helper.make_node("Identity", ["o"], ["p"])
    inputs = [named("d", FLOAT, [2, 5, 3]), named("i", INT64, [2, 4, 1])]
    save_model(helper.make_graph([node, after], "g", inputs, [named("p")]))
    assert models.nodes("m.onnx")[0].output == DeclaredType("float32", (2, 4, 3))


def test_inferred_outputs_are_known_to_later_nodes() -> None:
    inner = helper.make_graph(
        [helper.make_node("GatherND", ["o", "j"], ["p"])], "branch", [], [named("p")]
    )
    nodes = [
        helper.make_node("ScatterND", ["d", "i", "u"], ["o"]),
        helper.make_node("If", ["c"], ["q"], name="choose", then_branch=inner, else_branch=inner),
        helper.make_node("Pick", ["d", "j"], ["r"], domain="mine"),
    ]
    inputs = [named("c", BOOL, []), named("d", FLOAT, ["N", 3]), named("i", INT64, [4, 1])]
    inputs += [named("u", FLOAT, [4, 3]), named("j", INT64, ["M", 2])]
    picks = [
        helper.make_node("GatherND", ["a", "b"], ["o"]),
        helper.make_node("GatherND", ["p", "b"], ["s"]),  # without a p in its own scope
    ]
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function("mine", "Pick", ["a", "b", "p"], ["s"], picks, opsets)
    save_model(
        helper.make_graph(nodes, "g", inputs, [named("q"), named("r")]), functions=[function]
    )
    found = {one.node.node: one for one in models.nodes("m.onnx")}
    taken = found["choose/then_branch/p"]
    assert taken.inputs["data"] == ("o", DeclaredType("float32", ("N", 3)))
    assert taken.output == DeclaredType("float32", ("M",))
    assert found["mine.Pick/s"].inputs["data"] == ("p", DeclaredType(None, None))


def test_an_input_replaces_a_value(workdir: Path) -> None:
    node = helper.make_node("GatherND", ["d", "i"], ["o"])
    inputs = [named("d", FLOAT, [4]), named("i", INT64, [None, 1])]
    held = onnx.numpy_helper.from_array(np.array([[2]]), "i")
    save_model(helper.make_graph([node], "g", inputs, [named("o")], [held]))
    data, other = np.arange(4, dtype="f4"), np.array([[1], [0]])
    for arrays, shape in (({"d": data}, (1,)), ({"d": data, "i": other}, (2,))):
        np.savez("in.npz", **arrays)
        (one,) = models.run("m.onnx", "in.npz", (), EngineSettings(), silence).nodes
        assert (one.runs, one.actual_output) == (1, DeclaredType("float32", shape))
        folder = workdir / str(len(arrays))
        folder.mkdir()
        for number, array in enumerate(arrays.values()):
            tensor = onnx.numpy_helper.from_array(array)
            (folder / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
        (one,) = models.run("m.onnx", str(folder), (), EngineSettings(), silence).nodes
        assert one.actual_output == DeclaredType("float32", shape)


def test_a_model_without_our_nodes() -> None:
    node = helper.make_node("Identity", ["d"], ["o"])
    save_model(helper.make_graph([node], "g", [named("d", FLOAT, [4])], [named("o")]))
    ran = ndtool("model", "m.onnx")
    assert (ran.status, ran.out) == (0, b"The model has no gather or scatter nodes.\n")


@pytest.mark.parametrize(
    ("data", "indices", "output", "assumed"),
    [
        (["N", 5, "D"], ["N", "M", 1], ("N", "M", "D"), ()),
        (["N", 5, 3], ["B", None, 1], ("B", None, 3), ("data's axis 0 (N) and indices' axis 0 (B) are equal",)),
        ([None, 5, None], [2, 4, 1], (2, 4, None), ("data's axis 0 (data.shape[0]) and indices' axis 0 (2) are equal",)),
        ([-1, 5], [-1, 1], (None,), ("data's axis 0 (data.shape[0]) and indices' axis 0 (indices.shape[0]) are equal",)),
        (["N", 5, 3], ["N", 4, "K"], None, ()),
        ([2, 5, 3], [3, 4, 1], None, ()),
    ],
)  # fmt: skip
def test_an_output_whose_sizes_have_names(
    data: Any, indices: Any, output: Any, assumed: tuple[str, ...]
) -> None:
    node = helper.make_node("GatherND", ["d", "i"], ["o"], "taken", batch_dims=1)
    after = helper.make_node("Identity", ["o"], ["p"])
    inputs = [named("d", FLOAT, data), named("i", INT64, indices)]
    save_model(helper.make_graph([node, after], "g", inputs, [named("p")]))
    (one,) = models.nodes("m.onnx")
    assert (one.output.shape, one.assumed) == (output, assumed)
    ran = ndtool("model", "m.onnx")
    reported = ran.out.decode().splitlines()[2:]
    assert reported == [f"assumed: taken: {sentence}" for sentence in assumed]
    (record,) = ndtool("model", "m.onnx", "--json").json["nodes"]
    assert record["assumed"] == list(assumed)
    assert record["output"]["shape"] == (output and list(output))


@pytest.mark.parametrize(("opset", "version"), [(9, 9), (10, 9), (11, None)])
def test_scatter_is_scatter_elements_under_its_first_name(opset: int, version: int | None) -> None:
    node = helper.make_node("Scatter", ["d", "i", "u"], ["o"], axis=1)
    inputs = [named("d", FLOAT, [1, 3]), named("i", INT64, [1, "N"]), named("u", FLOAT, [1, "N"])]
    save_model(helper.make_graph([node], "g", inputs, [named("o")]), opset)
    (one,) = models.nodes("m.onnx")
    assert (one.node.operator, one.node.title, one.version) == (
        "scatter_elements", "Scatter", version
    )  # fmt: skip
    assert one.output == DeclaredType("float32", (1, 3)) or one.output.shape is None
    np.savez("in.npz", d=np.float32([[1, 2, 3]]), i=np.array([[2, -3]]), u=np.float32([[7, 8]]))
    outcome = models.run("m.onnx", "in.npz", ("numpy",), EngineSettings(), silence)
    (ran,) = outcome.nodes
    if version is None:
        assert outcome.error is not None
        assert outcome.error.status == 4
    else:
        assert (outcome.error, ran.runs, ran.actual_output) == (
            None,
            1,
            DeclaredType("float32", (1, 3)),
        )
        assert [report.result for report in ran.reports] == ["same"]


def test_types_of_less_than_a_byte_have_their_names() -> None:
    kinds = {"INT4": "int4", "UINT4": "uint4", "INT2": "int2", "UINT2": "uint2", "FLOAT4E2M1": "float4_e2m1fn"}  # fmt: skip
    kinds = {title: name for title, name in kinds.items() if hasattr(onnx.TensorProto, title)}
    nodes, inputs, held = [], [named("i", INT64, [1, 1])], []
    for title in kinds:
        kind = getattr(onnx.TensorProto, title)
        nodes += [
            helper.make_node("GatherND", [name, "i"], [f"{name}o"]) for name in (title, f"{title}h")
        ]
        inputs.append(named(title, kind, [4]))
        held.append(helper.make_tensor(f"{title}h", kind, [4], [0, 0, 0, 0]))
    save_model(helper.make_graph(nodes, "g", inputs, [], initializer=held), 25)
    found = [(one.inputs["data"][1], one.output.dtype) for one in models.nodes("m.onnx")]
    assert found == [(DeclaredType(name, (4,)), name) for name in kinds.values() for _ in range(2)]


def nested() -> None:
    """Save a model with a node in each branch of an If, and one in a function."""
    inner = helper.make_node("Gather", ["x", "i"], ["o"], axis=1, name="a/b")
    other = helper.make_node("GatherElements", ["x", "i"], ["e"])
    flat = helper.make_node("Identity", ["e"], ["o"])
    then = helper.make_graph([inner], "t", [], [named("o")])
    otherwise = helper.make_graph([other, flat], "e", [], [named("o")])
    choice = helper.make_node(
        "If", ["c"], ["chosen"], "choice", then_branch=then, else_branch=otherwise
    )
    scatter = helper.make_node("ScatterElements", ["a", "b", "c"], ["r"])
    scatter.attribute.append(onnx.AttributeProto(name="axis", ref_attr_name="along", type=2))
    function = helper.make_function(
        "mine", "Put", ["a", "b", "c"], ["r"], [scatter], [helper.make_opsetid("", 16)], ["along"]
    )
    call = helper.make_node("Put", ["x", "i", "x"], ["put"], domain="mine", along=1)
    graph = helper.make_graph(
        [choice, call], "g",
        [named("c", BOOL, []), named("x", FLOAT, [2, None]), named("i", INT64, ["A", "B"])],
        [named("chosen"), named("put")],
    )  # fmt: skip
    save_model(graph, 18, [function])


def test_subgraphs_and_functions() -> None:
    nested()
    found = {one.node.node: one for one in models.nodes("m.onnx")}
    assert set(found) == {"choice/then_branch/a/b", "choice/else_branch/e", "mine.Put/r"}
    inner = found["choice/then_branch/a/b"]
    assert inner.inputs["data"] == ("x", DeclaredType("float32", (2, None)))
    assert inner.inputs["indices"] == ("i", DeclaredType("int64", ("A", "B")))
    assert found["mine.Put/r"].version == 16
    assert found["mine.Put/r"].inputs["updates"] == (
        "c",
        DeclaredType(None, None),
    )  # not the graph's c


@pytest.mark.parametrize("condition", [True, False])
def test_subgraphs_and_functions_are_run(condition: bool) -> None:
    nested()
    x, i = np.arange(4, dtype="f4").reshape(2, 2), np.array([[1, 0], [1, 0]])
    np.savez("in.npz", c=condition, x=x, i=i)
    outcome = models.run("m.onnx", "in.npz", ("numpy",), EngineSettings(), silence)
    assert outcome.error is None
    runs = {one.node.node: one.runs for one in outcome.nodes}
    assert runs == {
        "choice/then_branch/a/b": int(condition),
        "choice/else_branch/e": int(not condition),
        "mine.Put/r": 1,
    }
    for one in outcome.nodes:
        assert len(one.reports) == one.runs
        assert all(report.result == "same" for report in one.reports)
    shapes = {one.node.node: one.actual_output and one.actual_output.shape for one in outcome.nodes}
    assert shapes["choice/then_branch/a/b"] == ((2, 2, 2) if condition else None)
    assert shapes["mine.Put/r"] == (2, 2)


def test_a_loop_runs_its_node_several_times() -> None:
    node = helper.make_node("GatherND", ["rows", "one"], ["row"])
    body = helper.make_graph(
        [helper.make_node("Unsqueeze", ["n", "zero"], ["one"]), node, helper.make_node("Identity", ["k"], ["k2"])],
        "body", [named("n", INT64, []), named("k", BOOL, [])], [named("k2", BOOL), named("row")],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["count", "go"], ["all"], body=body)
    zero = onnx.numpy_helper.from_array(np.array([0]), "zero")
    go = onnx.numpy_helper.from_array(np.array(True), "go")
    inputs = [named("count", INT64, []), named("rows", FLOAT, ["N"])]
    save_model(helper.make_graph([loop], "g", inputs, [named("all")], initializer=[zero, go]))
    np.savez("in.npz", count=3, rows=np.ones(3, "f4"))
    (one,) = models.run("m.onnx", "in.npz", ("numpy",), EngineSettings(), silence).nodes
    assert (one.runs, len(one.reports), one.inputs["data"][0]) == (3, 1, "rows")
    np.savez("in.npz", count=5, rows=np.ones(3, "f4"))
    outcome = models.run("m.onnx", "in.npz", (), EngineSettings(), silence)
    assert isinstance(outcome.error, BoundsError)
    assert outcome.error.message == "all/body/row: indices out of bounds: 1 of 1 index tuples"
    assert outcome.nodes[0].runs == 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_backend_tests_are_inputs(case: Any, workdir: Path) -> None:
    folder = workdir / "test_data_set_0"
    folder.mkdir()
    onnx.save(case.model, "m.onnx")
    for inputs, (expected,) in case.data_sets:
        for number, array in enumerate(inputs):
            (folder / f"input_{number}.pb").write_bytes(
                onnx.numpy_helper.from_array(array).SerializeToString()
            )
        for where in (workdir, folder):
            outcome = models.run("m.onnx", str(where), (), EngineSettings(), silence)
            (one,) = outcome.nodes
            assert (outcome.error, one.runs) == (None, 1)
            assert one.node.operator == OPERATORS[case.model.graph.node[0].op_type]
            assert one.actual_output == DeclaredType(str(expected.dtype), expected.shape)


def test_engines_are_compared_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding()
    np.savez("in.npz", rows=np.array([[1], [-1]]))
    outcome = models.run("m.onnx", "in.npz", ("numpy", "onnx"), EngineSettings(), silence)
    assert outcome.error is None
    reported = [(one.node.node, r.engine, r.result) for one in outcome.nodes for r in one.reports]
    assert reported == [
        (node, engine, "same") for node in ("take", "out") for engine in ("numpy", "onnx")
    ]
    wrong = engines.Report("numpy", "1", 1, "different", 3, "wrong")
    monkeypatch.setattr(engines.EngineCall, "reports", lambda *_: [wrong])
    outcome = models.run("m.onnx", "in.npz", ("numpy",), EngineSettings(), silence)
    assert outcome.error is not None
    assert outcome.error.status == 8
    assert outcome.error.message == (
        "take: numpy differs from gather_nd; out: numpy differs from scatter_nd"
    )


def test_an_answer_that_differs_names_its_node_and_may_be_within_some_ulps() -> None:
    """Sums of floats in another order are not errors."""
    nodes = [
        helper.make_node("ScatterND", ["d", "i", "u"], ["s"], name="sum", reduction="add"),
        helper.make_node("GatherND", ["s", "i"], ["o"], name="take"),
    ]
    inputs = [named("d", FLOAT, [4]), named("i", INT64, [3, 1]), named("u", FLOAT, [3])]
    save_model(helper.make_graph(nodes, "g", inputs, [named("o")]))
    np.savez(
        "in.npz", d=np.zeros(4, "f4"), i=np.array([[1], [1], [1]]), u=np.float32([0.1, 0.2, 0.3])
    )
    expected = np.float32(0.1) + np.float32(0.2) + np.float32(0.3)
    answer = np.array([0, np.nextafter(expected, np.float32(1)), 0, 0], "f4")

    def reports(requested: engines.EngineCall, *_: Any) -> Any:
        exact = requested._expected
        assert exact is not None
        given = answer if len(exact) == 4 else exact.copy()
        compared = verify.compare(
            requested._request, requested._arrays, given, exact, within=requested._settings.within
        )
        return [engines.add_verdict(engines.Report("torch", "2", 1, "same"), [compared])]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines.EngineCall, "reports", reports)
        error = models.run("m.onnx", "in.npz", ("numpy",), EngineSettings(), silence).error
        assert error is not None
        assert (error.status, error.message) == (8, "sum: torch differs from scatter_nd")
        assert error.places[0].startswith("sum: torch[1] = 0.6")
        assert (
            models.run("m.onnx", "in.npz", ("numpy",), EngineSettings(within=1), silence).error
            is None
        )


def test_within_is_an_option_of_model() -> None:
    embedding()
    np.savez("in.npz", rows=np.array([[1], [-1]]))
    run = ("model", "m.onnx", "--inputs", "in.npz", "--against", "numpy", "--json")
    for flags, within in (((), 0), (("--within", "3"), 3)):
        (report, *_) = ndtool(*run, *flags).json["nodes"][0]["engines"]
        assert (report["result"], report["within"]) == ("same", within)
    assert ndtool(*run, "--within", "-1").status == 2


def test_engines_get_the_inputs_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    nested()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez("in.npz", c=np.array(True), x=x, i=np.array([[2, 0, 1], [1, 2, 0]]))
    requested = []
    reports = engines.EngineCall.reports

    def watched(one: engines.EngineCall, *call: Any) -> Any:
        requested.append(one._request.attributes)
        return reports(one, *call)

    monkeypatch.setattr(engines.EngineCall, "reports", watched)
    outcome = models.run("m.onnx", "in.npz", ("numpy",), EngineSettings(), silence)
    assert outcome.error is None
    assert [attributes.axis for attributes in requested] == [1, 1]


@pytest.mark.parametrize("value", ["x", float("nan"), 1.0])
def test_attributes_of_another_kind_infer_nothing(value: Any) -> None:
    node = helper.make_node("GatherElements", ["x", "i"], ["y"], axis=value)
    shapes = [named("x", FLOAT, [2, 3]), named("i", INT64, [2, 3])]
    save_model(helper.make_graph([node], "g", shapes, [named("y")]))
    (found,) = models.nodes("m.onnx")
    assert found.output.shape is None
    assert ndtool("model", "m.onnx").status == 0


def test_the_command_line(workdir: Path) -> None:
    embedding()
    ran = ndtool("model", "m.onnx")
    assert (ran.status, ran.err) == (0, "")
    rows = [re.split("  +", line) for line in ran.out.decode().splitlines()]
    assert rows == [
        ["node", "operator", "attributes", "inputs", "output"],
        ["take", "GatherND-13", "-", "table float32[4,3], rows int64[N,1]", "taken float32[N,3]"],
        ["out", "ScatterND-13", "-", "table float32[4,3], rows int64[N,1], doubled ?[...]", "out float32[...]"],
    ]  # fmt: skip
    np.savez("in.npz", rows=np.array([[1], [-1]]))
    before = snapshot(workdir)
    ran = ndtool("model", "m.onnx", "--inputs", "in.npz", "--against", "numpy")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.decode().splitlines()
    assert lines[1].endswith("taken float32[2,3]  ok")
    assert lines[5].split() == ["take", "numpy", np.__version__, "1", "the", "same", "bits"]
    record = ndtool("model", "m.onnx", "--inputs", "in.npz", "--against", "numpy", "--json").json
    take, put = record["nodes"]
    assert take | {"engines": None} == {
        "node": "take", "operator": "gather_nd", "title": "GatherND", "version": 13, "opset": 13,
        "attributes": {}, "runs": 1, "engines": None,
        "inputs": {
            "data": {"name": "table", "dtype": "float32", "shape": [4, 3]},
            "indices": {"name": "rows", "dtype": "int64", "shape": [2, 1]},
        },
        "output": {"name": "taken", "dtype": "float32", "shape": [2, 3]},
        "assumed": [],
    }  # fmt: skip
    assert put["engines"][0]["result"] == "same"
    assert put["engines"][0]["equal"] == 12
    assert snapshot(workdir) == before


def test_an_index_out_of_bounds_names_node_and_input() -> None:
    embedding()
    np.savez("in.npz", rows=np.array([[1], [4]]))
    ran = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert ran.status == 5
    assert ran.err == (
        "error: take: indices out of bounds: 1 of 2 index tuples\n"
        "  --> rows[1, 0] = 4\n"
        "      data axis 0 of table has size 4: valid -4..3\n"
        "  hint: 4 equals the size of the axis: are the indices 1-based?\n"
    )
    assert [line.split()[-1] for line in ran.out.decode().splitlines()[1:]] == ["no", "no"]
    record = ndtool("model", "m.onnx", "--inputs", "in.npz", "--json").json
    assert (record["error"], record["value"]) == ("BoundsError", 4)
    assert [one["runs"] for one in record["nodes"]] == [0, 0]


def test_inputs_that_do_not_fit(workdir: Path) -> None:
    embedding()
    np.savez("in.npz", others=np.array([[1]]))
    with pytest.raises(UsageError, match=r"in\.npz has no input rows: expected rows"):
        models.run("m.onnx", "in.npz", (), EngineSettings(), silence)
    (workdir / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty has no inputs: expected input_0\.pb"):
        models.run("m.onnx", "empty", (), EngineSettings(), silence)
    for number in range(2):
        tensor = onnx.numpy_helper.from_array(np.array([[1]]))
        (workdir / "empty" / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
    with pytest.raises(UsageError, match="empty has 2 inputs: expected 1: rows"):
        models.run("m.onnx", "empty", (), EngineSettings(), silence)
    np.savez("in.npz", rows=np.array([1.5]))
    error = models.run("m.onnx", "in.npz", (), EngineSettings(), silence).error
    assert isinstance(error, DtypeError)
    words = "in.npz:rows is float64[1]: the model's input rows is int64[N,1]"
    assert error.message == words


@pytest.mark.parametrize(
    ("array", "given"),
    [
        (np.zeros((4, 3)), "float64[4,3]"),
        (np.zeros((4, 2), "f4"), "float32[4,2]"),
        (np.zeros((5, 3), "f4"), "float32[5,3]"),
        (np.zeros((4, 3, 1), "f4"), "float32[4,3,1]"),
        (np.zeros((), "f4"), "float32[]"),
    ],
    ids=str,
)
def test_an_input_must_match_the_models_declaration(workdir: Path, array: Any, given: str) -> None:
    """As in onnxruntime: the type, the rank, and numeric sizes."""
    node = helper.make_node("GatherND", ["d", "i"], ["o"])
    inputs = [named("d", FLOAT, [4, 3]), named("i", INT64, ["N", 1])]
    save_model(helper.make_graph([node], "g", inputs, [named("o")]))
    np.savez("in.npz", d=array, i=np.array([[1]]))
    ran = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert ran.status == 4
    assert ran.err == f"error: in.npz:d is {given}: the model's input d is float32[4,3]\n"
    assert ran.out.decode().split()[-1] == "no"
    folder = workdir / "folder"
    folder.mkdir()
    for number, one in enumerate((array, np.array([[1]]))):
        tensor = onnx.numpy_helper.from_array(one)
        (folder / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
    error = models.run("m.onnx", "folder", (), EngineSettings(), silence).error
    assert error is not None
    assert error.message.startswith(f"folder/input_0.pb is {given}: the model's input d is ")


def test_members_that_are_no_inputs_are_refused() -> None:
    embedding()
    np.savez("in.npz", rows=np.array([[1]]), row=np.array([[2]]), table=np.zeros((4, 3), "f4"))
    ran = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert ran.status == 4
    assert ran.err == (
        "error: in.npz has row, table, which are not inputs of the model: expected rows\n"
    )


def invalid_models() -> dict[str, tuple[Any, str]]:
    """Return models that no runtime accepts, each with the expected error."""
    take = helper.make_node("GatherND", ["d", "i"], ["o"], name="take")
    again = helper.make_node("GatherND", ["d", "i"], ["o"], name="again")
    two = helper.make_node("GatherND", ["d", "i"], ["o", "p"], name="two")
    late = helper.make_node("GatherND", ["q", "i"], ["o"], name="late")
    unknown = helper.make_node("GatherND", ["d", "i"], ["o"], name="odd", depth=1)
    d, i, o = named("d", FLOAT, [4, 3]), named("i", INT64, [2, 1]), named("o")
    floats = named("i", FLOAT, [2, 1])

    def of(nodes: Any, inputs: Any = (d, i), output: Any = o) -> Any:
        return helper.make_graph(nodes, "g", list(inputs), [output])

    return {
        "two nodes that write one name": (of([take, again]), "'o' has been used as output names"),
        "a node that writes an input": (of([take], (d, i, named("o"))), "'o' has been used"),
        "two outputs": (of([two]), "Node(two) with schema(::GatherND:13) has output size 2"),
        "indices of another type": (of([take], (d, floats)), "node name: take): indices typestr"),
        "an output of another type": (of([take], output=named("o", INT64)), "node name: take"),
        "an output without a type": (of([take], output=named("o", 0)), "o has no element type"),
        "a name that nothing writes": (of([late]), "input 'q' of node"),
        "an output that nothing writes": (of([take], output=named("r")), "output 'r'"),
        "an attribute that is none": (of([unknown]), "Unrecognized attribute: depth"),
    }


@pytest.mark.parametrize("what", invalid_models())
def test_a_model_that_is_not_valid_is_not_run(what: str) -> None:
    graph, words = invalid_models()[what]
    save_model(graph)
    np.savez("in.npz", d=np.zeros((4, 3), "f4"), i=np.array([[1], [0]]))
    outcome = models.run("m.onnx", "in.npz", (), EngineSettings(), silence)
    assert outcome.error is not None
    assert outcome.error.status == 4
    assert outcome.error.message.startswith("m.onnx: the onnx package refuses it: ")
    assert words in outcome.error.message
    assert {one.runs for one in outcome.nodes} == {0}


def test_an_unknown_operator_set() -> None:
    embedding(9999)
    np.savez("in.npz", rows=np.array([[1]]))
    error = models.run("m.onnx", "in.npz", (), EngineSettings(), silence).error
    known = onnx.defs.onnx_opset_version()
    assert error is not None
    assert error.status == 4
    assert error.message == (
        f"m.onnx uses ONNX operator set 9999: the installed onnx package supports 1..{known}"
    )


def test_sizes_that_a_model_says_of_its_outputs_are_not_looked_at() -> None:
    """Exporters write wrong shapes; onnxruntime warns of them."""
    node = helper.make_node("GatherND", ["d", "i"], ["o"])
    inputs = [named("d", FLOAT, [4, 3]), named("i", INT64, [2, 1])]
    save_model(helper.make_graph([node], "g", inputs, [named("o", FLOAT, [7, 7])]))
    np.savez("in.npz", d=np.zeros((4, 3), "f4"), i=np.array([[1], [0]]))
    outcome = models.run("m.onnx", "in.npz", (), EngineSettings(), silence)
    assert outcome.error is None
    assert outcome.nodes[0].actual_output == DeclaredType("float32", (2, 3))


def test_sizes_that_a_branch_says_of_its_outputs_are_not_looked_at() -> None:
    take = helper.make_node("GatherND", ["d", "i"], ["x"], name="take")
    turn = helper.make_node("Neg", ["d"], ["y"])
    branches = {
        "then_branch": helper.make_graph([take], "a", [], [named("x", FLOAT, ["M"])]),
        "else_branch": helper.make_graph([turn], "b", [], [named("y", FLOAT, [5])]),
    }
    choice = helper.make_node("If", ["c"], ["o"], "choice", **branches)
    inputs = [named("c", BOOL, []), named("d", FLOAT, [3]), named("i", INT64, [2, 1])]
    save_model(helper.make_graph([choice], "g", inputs, [named("o", FLOAT, ["N"])]))
    np.savez("in.npz", c=np.array(True), d=np.zeros(3, "f4"), i=np.array([[1], [0]]))
    outcome = models.run("m.onnx", "in.npz", (), EngineSettings(), silence)
    assert (outcome.error, outcome.nodes[0].runs) == (None, 1)


def test_a_model_may_give_sequences() -> None:
    take = helper.make_node("GatherND", ["d", "i"], ["o"])
    listed = helper.make_node("SequenceConstruct", ["o", "d"], ["s"])
    again = helper.make_node("Identity", ["s"], ["t"])
    one, other = (helper.make_tensor_sequence_value_info(name, FLOAT, ["N"]) for name in "st")
    inputs = [named("d", FLOAT, [3]), named("i", INT64, [2, 1])]
    outputs = [named("o", FLOAT, [2]), other]
    graph = helper.make_graph([take, listed, again], "g", inputs, outputs, value_info=[one])
    save_model(graph)
    np.savez("in.npz", d=np.zeros(3, "f4"), i=np.array([[1], [0]]))
    outcome = models.run("m.onnx", "in.npz", (), EngineSettings(), silence)
    assert (outcome.error, outcome.nodes[0].runs) == (None, 1)


def test_an_input_of_strings() -> None:
    node = helper.make_node("GatherND", ["d", "i"], ["o"])
    inputs = [named("d", onnx.TensorProto.STRING, [3]), named("i", INT64, [2, 1])]
    save_model(helper.make_graph([node], "g", inputs, [named("o", onnx.TensorProto.STRING)]))
    np.savez("in.npz", d=np.array(["a", "bb", "c"]), i=np.array([[1], [0]]))
    outcome = models.run("m.onnx", "in.npz", (), EngineSettings(), silence)
    assert (outcome.error, outcome.nodes[0].actual_output) == (None, DeclaredType("string", (2,)))
    np.savez("in.npz", d=np.array(["a", "bb"]), i=np.array([[1], [0]]))
    error = models.run("m.onnx", "in.npz", (), EngineSettings(), silence).error
    assert error is not None
    assert error.message == "in.npz:d is string[2]: the model's input d is string[3]"


def test_external_data_are_relative_to_the_model(workdir: Path) -> None:
    embedding()
    (workdir / "deep").mkdir()
    onnx.save(
        onnx.load("m.onnx"), "deep/m.onnx", save_as_external_data=True, size_threshold=0,
        location="weights.bin",
    )  # fmt: skip
    np.savez("in.npz", rows=np.array([[1], [-1]]))
    outcome = models.run("deep/m.onnx", "in.npz", (), EngineSettings(), silence)
    assert (outcome.error, outcome.nodes[0].runs) == (None, 1)


def test_types_may_follow_from_external_data() -> None:
    """The sizes for Reshape are in another file, where exporters put all data."""
    nodes = [
        helper.make_node("Reshape", ["d", "sizes"], ["r"]),
        helper.make_node("GatherND", ["r", "i"], ["o"]),
    ]
    sizes = onnx.numpy_helper.from_array(np.array([2, 2]), "sizes")
    inputs = [named("d", FLOAT, [4]), named("i", INT64, [2, 1])]
    save_model(helper.make_graph(nodes, "g", inputs, [named("o")], initializer=[sizes]))
    onnx.save(
        onnx.load("m.onnx"), "far.onnx", save_as_external_data=True, size_threshold=0,
        location="weights.bin",
    )  # fmt: skip
    np.savez("in.npz", d=np.zeros(4, "f4"), i=np.array([[1], [0]]))
    outcome = models.run("far.onnx", "in.npz", (), EngineSettings(), silence)
    assert (outcome.error, outcome.nodes[0].actual_output) == (
        None,
        DeclaredType("float32", (2, 2)),
    )
    os.remove("weights.bin")
    with pytest.raises(InputError, match=r"weights\.bin"):
        models.run("far.onnx", "in.npz", (), EngineSettings(), silence)


@pytest.mark.parametrize(
    "problem",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
    ids=repr,
)
def test_too_little_memory_for_the_evaluator(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding()
    np.savez("in.npz", rows=np.array([[1]]))

    def fail(*_: Any) -> None:
        raise problem

    for name in ("onnx.reference.ReferenceEvaluator.run", "onnx.checker.check_model"):
        with monkeypatch.context() as patch:
            patch.setattr(name, lambda *_, **__: fail())
            with pytest.raises(ResourceError, match=r"^m\.onnx: not enough memory: "):
                models.run("m.onnx", "in.npz", (), EngineSettings(), silence)


def test_an_array_too_large_for_the_memory_is_no_broken_rule() -> None:
    size = onnx.numpy_helper.from_array(np.array([1 << 45]), "size")
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["large"]),
        helper.make_node("GatherND", ["large", "rows"], ["o"], name="take"),
    ]
    inputs = [named("rows", INT64, ["N", 1])]
    save_model(helper.make_graph(nodes, "g", inputs, [named("o")], initializer=[size]))
    np.savez("in.npz", rows=np.array([[1]]))
    ran = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert ran.status == 6
    assert ran.err.startswith("error: m.onnx: not enough memory: Unable to allocate 128. TiB")


def test_files_that_are_no_models(workdir: Path) -> None:
    np.save("a.npy", np.ones(3))
    ran = ndtool("model", "a.npy")
    assert ran.status == 3
    assert ran.err == "error: a.npy: not an ONNX model: expected one\n"
    assert ndtool("model", "nowhere.onnx").status == 3
    embedding()
    assert ndtool("model", "m.onnx", "--against", "numpy").status == 2


def test_nodes_that_the_evaluator_lacks() -> None:
    unknown = helper.make_node("Odd", ["x"], ["o"], domain="mine")
    save_model(helper.make_graph([unknown], "g", [named("x")], [named("o")]))
    np.savez("in.npz", x=np.ones(2, "f4"))
    ran = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert ran.status == 4
    assert ran.err.startswith("error: m.onnx: the onnx package cannot run it: Node type 'Odd'")


def test_the_report_of_a_model(workdir: Path) -> None:
    embedding()
    ran = ndtool("model", "m.onnx", "--html", "p.html")
    assert (ran.status, ran.err) == (0, "")
    words = " ".join(Page("p.html").words.split())
    assert "$ ndtool model m.onnx --html p.html" in words
    for cell in ("take GatherND-13", "table float32[4,3], rows int64[N,1]", "taken float32[N,3]"):
        assert cell in words
    assert "Other engines" not in words
    np.savez("in.npz", rows=np.array([[1], [-1]]))
    command = "model", "m.onnx", "--inputs", "in.npz", "--against", "numpy", "--html", "p.html"
    assert ndtool(*command).status == 0
    words = " ".join(Page("p.html").words.split())
    assert "taken float32[2,3] ok" in words
    assert words.count(f"numpy {np.__version__} 1 same") == 2
    np.savez("in.npz", rows=np.array([[1], [4]]))
    assert ndtool(*command, "--json").json["error"] == "BoundsError"
    words = " ".join(Page("p.html").words.split())
    assert "error: take: indices out of bounds: 1 of 2 index tuples rows[1, 0] = 4" in words


def test_the_report_of_a_model_replaces_no_input(workdir: Path) -> None:
    embedding()
    os.rename("m.onnx", "m.html")
    before = snapshot(workdir)
    for page, status in (("m.html", 2), ("nowhere/p.html", 7), ("p.txt", 2)):
        assert ndtool("model", "m.html", "--html", page).status == status
    os.mkdir("inputs")
    assert ndtool("model", "m.html", "--inputs", "inputs", "--html", "inputs/p.html").status == 2
    assert snapshot(workdir) == before


def test_names_in_a_models_page_are_text() -> None:
    node = helper.make_node("GatherND", ["d", "i"], [MARKUP], name=MARKUP)
    inputs = [named("d", FLOAT, ["<b>", 3]), named("i", INT64, [2, 1])]
    save_model(helper.make_graph([node], "g", inputs, [named(MARKUP)]))
    assert ndtool("model", "m.onnx", "--html", "p.html").status == 0
    page = Page("p.html")
    assert MARKUP in page.words
    assert "<b>" in page.words
    assert [tag for tag, _ in page.tags].count("script") == 1


@pytest.mark.parametrize("columns", [60, 200])
def test_tables_fit_the_terminal(columns: int) -> None:
    embedding()
    ran = run_in_terminal(*NDTOOL, "model", "m.onnx", columns=columns, env={"NO_COLOR": "1"})
    assert ran.status == 0
    assert "rows int64[N,1]" in " ".join(ran.screen.split())


def test_no_onnx_is_loaded_to_show_a_model() -> None:
    embedding()
    program = (
        "import sys; from ndtool.__main__ import main\n"
        "sys.argv[1:] = ['model', 'm.onnx']\nmain(); assert 'onnx' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
