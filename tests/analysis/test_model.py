"""`ndtool model`: the gather and scatter nodes of an ONNX model, and their results on inputs."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, snapshot
from later import later
from nodetests import CASES, OPERATORS

from ndtool.analysis import engines, verify
from ndtool.analysis import model as models
from ndtool.analysis.answers import Typed
from ndtool.analysis.engines import EngineSettings
from ndtool.arrays.source import DeclaredType
from ndtool.errors import DtypeError, InputError, UsageError

onnx = later("onnx")
helper = later("onnx.helper")
parser = later("onnx.parser")

pytestmark = pytest.mark.usefixtures("workdir")


FLOAT, INT64 = 1, 7


def value_info(name: str, kind: int = FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def save_model(graph: Any, version: int = 18, functions: Any = (), file: str = "m.onnx") -> None:
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))
    onnx.save(model, file)


def save_text(graph: str, version: int = 18) -> None:
    """Save a model from ONNX's text format."""
    header = f'<ir_version: 8, opset_import: ["": {version}, "mine": 1]>'
    onnx.save(parser.parse_model(header + graph), "m.onnx")


def save_embedding_model(version: int = 13) -> None:
    """Save a model that gathers rows of a table, doubles them, and scatters some into a copy."""
    gather = helper.make_node("GatherND", ["table", "rows"], ["taken"], name="take")
    add = helper.make_node("Add", ["taken", "taken"], ["doubled"])
    scatter = helper.make_node("ScatterND", ["table", "rows", "doubled"], ["out"])
    table = onnx.numpy_helper.from_array(np.arange(12, dtype="f4").reshape(4, 3), "table")
    graph = helper.make_graph(
        [gather, add, scatter], "g", [value_info("rows", INT64, ["N", 1])], [value_info("out", FLOAT, None)],
        initializer=[table], value_info=[value_info("taken", FLOAT, ["N", 3])],
    )  # fmt: skip
    save_model(graph, version)


def type_of(array: Typed) -> DeclaredType:
    return DeclaredType(array.dtype, array.shape)


def check_progress(share: float, engine_name: str) -> None:
    assert 0 <= share <= 1


def run(
    against: tuple[str, ...] = (), inputs: str = "in.npz", file: str = "m.onnx", within: int = 0
) -> Any:
    """Run a model on the arrays of a file or a folder."""
    return models.show(file, inputs, against, EngineSettings(within=within), check_progress)


def save_gather(data: Any, indices: Any, output: Any = None, **attributes: Any) -> None:
    """Save a model of one GatherND, whose inputs d and i have a type and a shape each."""
    node = helper.make_node("GatherND", ["d", "i"], ["o"], **attributes)
    inputs = [value_info("d", *data), value_info("i", *indices)]
    save_model(helper.make_graph([node], "g", inputs, [value_info("o", *output or ())]))


def write_inputs(folder: Path, arrays: Any) -> None:
    """Write the inputs of a model as the files of a data set."""
    folder.mkdir(exist_ok=True)
    for number, array in enumerate(arrays):
        tensor = onnx.numpy_helper.from_array(array)
        (folder / f"input_{number}.pb").write_bytes(tensor.SerializeToString())


@pytest.mark.parametrize(("opset", "version"), [(11, 11), (12, 12), (17, 13), (10, None)])
def test_the_version_is_that_of_the_operator(opset: int, version: int | None) -> None:
    save_embedding_model(opset)
    assert models.show("m.onnx").nodes[0].version == version


def test_an_input_replaces_an_initializer(workdir: Path) -> None:
    save_text(
        "g (float[4] d, int64[N,1] i) => (float[] o) <int64[1,1] i = {2}> { o = GatherND (d, i) }"
    )
    data, replacement = np.arange(4, dtype="f4"), np.array([[1], [0]])
    for arrays, shape in (({"d": data}, (1,)), ({"d": data, "i": replacement}, (2,))):
        np.savez("in.npz", **arrays)
        (node_info,) = run().nodes
        assert (node_info.runs, type_of(node_info.output)) == (1, DeclaredType("float32", shape))
        folder = workdir / str(len(arrays))
        write_inputs(folder, arrays.values())
        (node_info,) = run(inputs=str(folder)).nodes
        assert type_of(node_info.output) == DeclaredType("float32", shape)


@pytest.mark.parametrize(
    ("data", "indices", "output", "assumed"),
    [
        (["N", 5, "D"], ["N", "M", 1], ("N", "M", "D"), ()),
        (["N", 5, 3], ["B", None, 1], ("B", None, 3), ("data's axis 0 (N) and indices' axis 0 (B) are equal",)),
        ([None, 5, None], [2, 4, 1], (2, 4, None), ("data's axis 0 (data.shape[0]) and indices' axis 0 (2) are equal",)),
        ([-1, 5], [-1, 1], (None,), ("data's axis 0 (data.shape[0]) and indices' axis 0 (indices.shape[0]) are equal",)),
        ([2, 5, 3], [3, 4, 1], None, ()),
    ],
)  # fmt: skip
def test_an_output_whose_sizes_have_names(
    data: Any, indices: Any, output: Any, assumed: tuple[str, ...]
) -> None:
    node = helper.make_node("GatherND", ["d", "i"], ["o"], "taken", batch_dims=1)
    identity = helper.make_node("Identity", ["o"], ["p"])
    inputs = [value_info("d", FLOAT, data), value_info("i", INT64, indices)]
    save_model(helper.make_graph([node, identity], "g", inputs, [value_info("p")]))
    (node_info,) = models.show("m.onnx").nodes
    assert (node_info.output.shape, node_info.assumed) == (output, assumed)
    completed = ndtool("model", "m.onnx")
    lines = completed.out.decode().splitlines()[2:]
    (record,) = ndtool("model", "m.onnx", "--json").json["nodes"]
    broken = [f"breaks a rule: taken: {record['problem']}"] if record["problem"] else []
    assert lines == [*(f"assumed: taken: {sentence}" for sentence in assumed), *broken]
    assert record["assumed"] == list(assumed)
    assert bool(broken) == (data[0] == 2 and indices[0] == 3)
    assert record["output"]["shape"] == (output and list(output))


@pytest.mark.parametrize(("opset", "version"), [(10, 9), (11, None)])
def test_scatter_is_scatter_elements_under_its_first_name(opset: int, version: int | None) -> None:
    inputs = "float[1,3] d, int64[1,N] i, float[1,N] u"
    save_text(f"g ({inputs}) => (float[] o) {{ o = Scatter <axis = 1> (d, i, u) }}", opset)
    (node_info,) = models.show("m.onnx").nodes
    assert (node_info.operator, node_info.title, node_info.version) == (
        "scatter_elements", "Scatter", version
    )  # fmt: skip
    np.savez("in.npz", d=np.float32([[1, 2, 3]]), i=np.array([[2, -3]]), u=np.float32([[7, 8]]))
    outcome = run(("numpy",))
    if version is None:
        assert outcome.error.status == 4
    else:
        assert [report.result for report in outcome.nodes[0].engines] == ["same"]


def test_subbyte_types_have_names() -> None:
    kinds = {"INT4": "int4", "UINT4": "uint4", "INT2": "int2", "FLOAT4E2M1": "float4_e2m1fn"}
    kinds = {title: name for title, name in kinds.items() if hasattr(onnx.TensorProto, title)}
    nodes = [helper.make_node("GatherND", [title, "i"], [f"{title}o"]) for title in kinds]
    inputs = [value_info(title, getattr(onnx.TensorProto, title), [4]) for title in kinds]
    save_model(helper.make_graph(nodes, "g", [value_info("i", INT64, [1, 1]), *inputs], []), 25)
    found = [(node.inputs["data"].dtype, node.output.dtype) for node in models.show("m.onnx").nodes]
    assert found == [(name, name) for name in kinds.values()]


def save_nested_model() -> None:
    """Save a model with a node in each branch of an If, and one in a function."""
    # the declared sizes of outputs are not those of the outputs
    save_text("""
        g (bool c, float[2,K] x, int64[A,B] i) => (float[] chosen, float[] put) {
            chosen = If (c) <
                then_branch = t () => (float[M,2,7] o) { o = Gather <axis = 1> (x, i) },
                else_branch = e () => (float[5,5] o) { e = GatherElements (x, i) o = Identity (e) }
            >
            put = mine.Put <along = 1> (x, i, x)
        }
        <domain: "mine", opset_import: ["": 16]>
        Put <along> (a, b, c) => (r) { r = ScatterElements <axis: int = @along> (a, b, c) }""")
    model = onnx.load("m.onnx")
    model.graph.node[0].name = "choice"
    model.graph.node[0].attribute[0].g.node[0].name = "a/b"
    onnx.save(model, "m.onnx")


@pytest.mark.parametrize("condition", [True, False])
def test_subgraphs_and_functions_are_run(condition: bool) -> None:
    save_nested_model()
    nodes_by_name = {node_info.node: node_info for node_info in models.show("m.onnx").nodes}
    branch_node = nodes_by_name["choice/then_branch/a/b"]
    function_node = nodes_by_name["mine.Put/r"]
    assert branch_node.inputs["data"] == Typed("x", "float32", (2, "K"))
    assert branch_node.inputs["indices"] == Typed("i", "int64", ("A", "B"))
    assert function_node.version == 16
    assert function_node.inputs["updates"] == Typed("c", None, None)  # not the graph's c
    x, i = np.arange(4, dtype="f4").reshape(2, 2), np.array([[1, 0], [1, 0]])
    np.savez("in.npz", c=condition, x=x, i=i)
    outcome = run(("numpy",))
    assert outcome.error is None
    runs = {node_info.node: node_info.runs for node_info in outcome.nodes}
    assert runs == {
        "choice/then_branch/a/b": int(condition),
        "choice/else_branch/e": int(not condition),
        "mine.Put/r": 1,
    }
    for node_info in outcome.nodes:
        assert len(node_info.engines) == node_info.runs
        assert all(report.result == "same" for report in node_info.engines)
    shapes = {
        node_info.node: node_info.output and node_info.output.shape for node_info in outcome.nodes
    }
    assert shapes["choice/then_branch/a/b"] == ((2, 2, 2) if condition else ("M", 2, 7))
    assert shapes["mine.Put/r"] == (2, 2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_backend_tests_are_inputs(case: Any, workdir: Path) -> None:
    folder = workdir / "test_data_set_0"
    onnx.save(case.model, "m.onnx")
    for inputs, (expected,) in case.data_sets:
        write_inputs(folder, inputs)
        for location in (workdir, folder):
            outcome = run(inputs=str(location))
            (node_info,) = outcome.nodes
            assert (outcome.error, node_info.runs) == (None, 1)
            assert node_info.operator == OPERATORS[case.model.graph.node[0].op_type]
            assert type_of(node_info.output) == DeclaredType(str(expected.dtype), expected.shape)


def test_engines_are_compared_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    save_embedding_model()
    np.savez("in.npz", rows=np.array([[1], [-1]]))
    outcome = run(("numpy", "onnx"))
    assert outcome.error is None
    reported = [(node.node, r.engine, r.result) for node in outcome.nodes for r in node.engines]
    assert reported == [
        (node, engine, "same") for node in ("take", "out") for engine in ("numpy", "onnx")
    ]

    def reports(engine_call: engines.EngineCall, *_: Any) -> Any:
        expected = engine_call.expected
        assert expected is not None
        comparison = verify.compare(
            engine_call.operator, engine_call.attributes, engine_call.arrays,
            np.nextafter(expected, np.float32(99)), expected, within=engine_call.settings.within,
        )  # fmt: skip
        return [verify.EngineReport("torch", "2", 1, "same").with_outputs([comparison])]

    monkeypatch.setattr(engines.EngineCall, "reports", reports)
    error = run(("numpy",)).error
    message = "take: torch differs from gather_nd; out: torch differs from scatter_nd"
    assert (error.status, error.message) == (8, message)
    assert error.places[0].startswith("take: torch[0, 0] = 3.")
    assert run(("numpy",), within=1).error is None


def test_the_output_of_the_command_line(workdir: Path) -> None:
    save_embedding_model()
    completed = ndtool("model", "m.onnx")
    assert (completed.status, completed.err) == (0, "")
    rows = [re.split("  +", line) for line in completed.out.decode().splitlines()]
    assert rows == [
        ["node", "operator", "attributes", "inputs", "output"],
        ["take", "GatherND-13", "-", "table float32[4,3], rows int64[N,1]", "taken float32[N,3]"],
        ["out", "ScatterND-13", "-", "table float32[4,3], rows int64[N,1], doubled ?[...]", "out float32[...]"],
    ]  # fmt: skip
    np.savez("in.npz", rows=np.array([[1], [-1]]))
    before = snapshot(workdir)
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz", "--against", "numpy")
    assert (completed.status, completed.err) == (0, "")
    lines = completed.out.decode().splitlines()
    assert lines[1].endswith("taken float32[2,3]  ok")
    assert lines[3].startswith("computed: 1 node by onn")
    assert lines[6].split() == ["take", "numpy", np.__version__, "1", "the", "same", "bits"]
    record = ndtool("model", "m.onnx", "--inputs", "in.npz", "--against", "numpy", "--json").json
    gather, scatter = record["nodes"]
    assert gather | {"engines": None} == {
        "node": "take", "operator": "gather_nd", "title": "GatherND", "version": 13, "opset": 13,
        "attributes": {}, "runs": 1, "engines": None,
        "inputs": {
            "data": {"name": "table", "dtype": "float32", "shape": [4, 3]},
            "indices": {"name": "rows", "dtype": "int64", "shape": [2, 1]},
        },
        "output": {"name": "taken", "dtype": "float32", "shape": [2, 3]},
        "assumed": [], "problem": None,
    }  # fmt: skip
    assert scatter["engines"][0]["result"] == "same"
    assert scatter["engines"][0]["equal"] == 12
    assert snapshot(workdir) == before


def test_an_index_out_of_bounds_names_node_and_input() -> None:
    save_embedding_model()
    np.savez("in.npz", rows=np.array([[1], [4]]))
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert completed.status == 5
    assert completed.err == (
        "error: take: indices out of bounds: 1 of 2 index tuples\n"
        "  --> rows[1, 0] = 4\n"
        "      data axis 0 of table has size 4: valid -4..3\n"
        "  hint: 4 equals the size of the axis: are the indices 1-based? Then: --index-base 1\n"
    )
    assert [line.split()[-1] for line in completed.out.decode().splitlines()[1:]] == ["no", "no"]
    record = ndtool("model", "m.onnx", "--inputs", "in.npz", "--json").json
    assert (record["error"], record["value"]) == ("BoundsError", 4)
    assert [node["runs"] for node in record["nodes"]] == [0, 0]


def test_inputs_that_do_not_match_the_model(workdir: Path) -> None:
    save_embedding_model()
    np.savez("in.npz", others=np.array([[1]]))
    message = r"in\.npz lacks the model's input rows: expected arrays named rows"
    with pytest.raises(UsageError, match=message):
        run()
    (workdir / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty has no inputs: expected input_0\.pb"):
        run(inputs="empty")
    write_inputs(workdir / "empty", [np.array([[1]])] * 2)
    with pytest.raises(UsageError, match="empty has 2 inputs: expected 1: rows"):
        run(inputs="empty")
    np.savez("in.npz", rows=np.array([1.5]))
    error = run().error
    assert isinstance(error, DtypeError)
    message = "in.npz:rows is float64[1]: the model's input rows is int64[N,1]"
    assert error.message == message


@pytest.mark.parametrize(
    ("array", "type_text"),
    [
        (np.zeros((4, 3)), "float64[4,3]"),
        (np.zeros((5, 3), "f4"), "float32[5,3]"),
        (np.zeros((4, 3, 1), "f4"), "float32[4,3,1]"),
    ],
    ids=str,
)
def test_an_input_must_match_the_models_declaration(array: Any, type_text: str) -> None:
    """The type, the rank and numeric sizes are compared, as in onnxruntime."""
    save_gather((FLOAT, [4, 3]), (INT64, ["N", 1]))
    np.savez("in.npz", d=array, i=np.array([[1]]))
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert completed.status == 4
    assert completed.err == f"error: in.npz:d is {type_text}: the model's input d is float32[4,3]\n"
    assert completed.out.decode().split()[-1] == "no"


# Models that no runtime accepts: outputs, nodes, the type of indices, and the expected error.
INVALID_MODELS = {
    "two nodes that write one name":
        ("float[] o", "o = GatherND (d, i) o = GatherND (d, i)", "'o' has been used as output"),
    "two outputs": ("float[] o", "o, p = GatherND (d, i)", "(::GatherND:13) has output size 2"),
    "an output of another type": ("int64[] o", "o = GatherND (d, i)", "Inferred elem type"),
    "a name that nothing writes": ("float[] o", "o = GatherND (q, i)", "input 'q' of node"),
    "an unknown attribute":
        ("float[] o", "o = GatherND <depth = 1> (d, i)", "Unrecognized attribute: depth"),
}  # fmt: skip


@pytest.mark.parametrize("case", [*INVALID_MODELS, "an output without a type"])
def test_a_model_that_is_not_valid_is_not_run(case: str) -> None:
    if case in INVALID_MODELS:
        output, nodes, message = INVALID_MODELS[case]
        save_text(f"g (float[4,3] d, int64[2,1] i) => ({output}) {{ {nodes} }}")
    else:
        save_gather((FLOAT, [4, 3]), (INT64, [2, 1]), (0,))
        message = "o has no element type"
    np.savez("in.npz", d=np.zeros((4, 3), "f4"), i=np.array([[1], [0]]))
    outcome = run()
    assert outcome.error is not None
    assert outcome.error.status == 4
    assert outcome.error.message.startswith("m.onnx: the onnx package refuses it: ")
    assert message in outcome.error.message
    assert {node.runs for node in outcome.nodes} == {0}


def test_external_data_are_relative_to_the_model(workdir: Path) -> None:
    save_embedding_model()
    (workdir / "deep").mkdir()
    onnx.save(
        onnx.load("m.onnx"), "deep/m.onnx", save_as_external_data=True, size_threshold=0,
        location="weights.bin",
    )  # fmt: skip
    np.savez("in.npz", rows=np.array([[1], [-1]]))
    outcome = run(file="deep/m.onnx")
    assert (outcome.error, outcome.nodes[0].runs) == (None, 1)


def test_an_array_larger_than_memory_is_a_resource_error() -> None:
    save_text("""
        g (int64[N,1] rows) => (float[] o) <int64[1] size = {35184372088832}> {
            large = ConstantOfShape (size)
            o = GatherND (large, rows)
        }""")
    np.savez("in.npz", rows=np.array([[1]]))
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz")
    assert completed.status == 6
    assert completed.err.startswith("error: m.onnx: not enough memory: ")


def test_files_that_are_no_models(workdir: Path) -> None:
    np.save("a.npy", np.ones(3))
    completed = ndtool("model", "a.npy")
    assert completed.status == 3
    assert completed.err == "error: a.npy is not an ONNX model: expected an .onnx file\n"
    assert ndtool("model", "nowhere.onnx").status == 3
    save_embedding_model()
    assert ndtool("model", "m.onnx", "--against", "numpy").status == 2
