"""The gather and scatter nodes of an ONNX model: their metadata, and their results on inputs.

Metadata are read without the onnx package. In a run, ndtool computes these nodes and an engine the
others (see modelrun).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ndtool import __version__
from ndtool.analysis import modelinputs, modelrun, modeltensors
from ndtool.analysis.answers import Answer, Typed, Value
from ndtool.analysis.engines import (
    EngineCall,
    EngineProgress,
    EngineSettings,
    as_engine_array,
    require_any,
)
from ndtool.analysis.inspect import attributes_text
from ndtool.analysis.modelinputs import Arrays
from ndtool.analysis.modelrun import ModelRun, all_nodes, is_own
from ndtool.analysis.verify import (
    ENGINE_COLUMNS,
    MAX_LISTED,
    EngineReport,
    disagreement,
    engine_rows,
    recompute,
)
from ndtool.arrays.source import DeclaredType, ModelInfo, OperatorNode, TypedNode
from ndtool.errors import (
    DifferenceError,
    DtypeError,
    NdtoolError,
    RuleError,
    UsageError,
    format_count,
    import_extra,
    option,
    printable,
)
from ndtool.formats import locators
from ndtool.formats.onnx import modelproto
from ndtool.inmemory import onnxnodes
from ndtool.machine import threads
from ndtool.notebook import Table
from ndtool.rules import dtypes, inference, plans, specs
from ndtool.rules.dtypes import Dtype
from ndtool.rules.inference import Input
from ndtool.rules.operators import LOWERED, Attributes, operator_of
from ndtool.rules.trace import Symbol

NO_NODES = "The model has no gather or scatter nodes."
NODE_COLUMNS = ("node", "operator", "attributes", "inputs", "output")


@dataclass(frozen=True, slots=True)
class ModelNode(Value):
    """A gather or scatter node of a model. version, opset: those of its operator, operator set.

    version: None if the operator set lacks the operator. inputs: by role; an omitted one is
    missing. assumed: conditions on sizes that the model does not declare. problem: the rule of its
    version that the node breaks, as its declarations show, None if it breaks none. runs: how often
    a run of the model computed it, None without a run; then the types are actual ones. engines: on
    its first inputs, the reports on other engines. saved: the files of its first inputs and output,
    by role.
    """

    OPTIONAL: ClassVar = ("runs", "engines", "saved")
    node: str
    operator: str
    title: str
    version: int | None
    opset: int | None
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Typed]
    output: Typed
    assumed: tuple[str, ...] = ()
    problem: str | None = None
    runs: int | None = None
    engines: tuple[EngineReport, ...] | None = None
    saved: Mapping[str, str] | None = None

    @property
    def row(self) -> tuple[str, ...]:
        """The row of a table with NODE_COLUMNS, and whether it was computed if the model ran."""
        title = self.title + ("" if self.version is None else f"-{self.version}")
        inputs = ", ".join(f"{array.name} {array.description}" for array in self.inputs.values())
        output = f"{self.output.name or ''} {self.output.description}"
        times = {None: (), 0: ("no",), 1: ("ok",)}.get(self.runs, (f"ok, {self.runs} times",))
        return self.node, title, attributes_text(self.attributes), inputs, output, *times


@dataclass(frozen=True, slots=True)
class Computed(Value):
    """How many nodes of a model an engine computed, ndtool included; operators: of these nodes."""

    engine: str
    version: str
    nodes: int
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Model(Answer):
    """The gather and scatter nodes of an ONNX model.

    computed: who computed how many of all nodes, if the model ran. warnings: about the run. error:
    of a run that failed, or about an engine that differs.
    """

    DETAILS: ClassVar = "nodes"
    nodes: tuple[ModelNode, ...]
    computed: tuple[Computed, ...] = ()
    warnings: tuple[str, ...] = ()

    def tables(self) -> list[Table]:
        """Return the nodes, and the reports on other engines."""
        notes = [f"assumed: {node.node}: {item}" for node in self.nodes for item in node.assumed]
        notes += [
            f"breaks a rule: {node.node}: {node.problem}" for node in self.nodes if node.problem
        ]
        others = [
            f"{format_count(item.nodes, 'node')} by {item.engine} ({', '.join(item.operators)})"
            for item in self.computed[1:]
        ]
        notes += [f"computed: {', '.join(others)}"] if others else []
        rows = [node.row for node in self.nodes]
        columns = NODE_COLUMNS + (
            ("computed",) if rows and len(rows[0]) > len(NODE_COLUMNS) else ()
        )
        notes += [
            f"saved: {node.node}: {', '.join(node.saved.values())}"
            for node in self.nodes
            if node.saved
        ]
        tables = [Table("", columns, rows, notes) if rows else Table(NO_NODES, notes=notes)]
        engines = [
            (node.node, *row) for node in self.nodes for row in engine_rows(node.engines or ())
        ]
        return tables + ([Table("", ("node", *ENGINE_COLUMNS), engines)] if engines else [])


def _model_nodes(model: ModelInfo) -> list[ModelNode]:
    """Return nodes with their metadata; inferred output types are used for later nodes."""
    model_nodes = []
    for scope in model.scopes:
        outputs: dict[str, DeclaredType] = {}  # by scope and name
        for declared in scope:
            model_node = _model_node(declared, outputs)
            model_nodes.append(model_node)
            if name := model_node.output.name:
                output = DeclaredType(model_node.output.dtype, model_node.output.shape)
                outputs[declared.scope + name] = output
    return model_nodes


def _model_node(typed_node: TypedNode, outputs: dict[str, DeclaredType]) -> ModelNode:
    node, path, types = typed_node

    def type_of(name: str) -> DeclaredType:
        if types[name].shape is not None:
            return types[name]
        inferred_types = (outputs.get(scope + name) for scope in modelproto.enclosing_graphs(path))
        return next(filter(None, inferred_types), types[name])

    roles = zip(operator_of(node.operator).inputs, node.inputs, strict=False)
    inputs = {role: (name, type_of(name)) for role, name in roles if name}  # "": input omitted
    output = types[node.output] if node.output else DeclaredType(None, None)
    version, problem = _version(node)
    declared_types = {role: declared for role, (_, declared) in inputs.items()}
    inferred, attributes = None, _attributes(node.attributes)
    if all(type(a) is type(b) for a, b in zip(attributes, Attributes(), strict=True)):
        try:
            inferred = _infer_output(node, declared_types, attributes, "ndtool")
            spec = onnxnodes.row_spec(node.title, f"onnx:{node.version}")
            _infer_output(node, declared_types, attributes, spec)
        except NdtoolError as exc:
            problem = problem or exc.message
    assumed: tuple[str, ...] = ()
    if output.shape is None and inferred is not None:
        output, assumed = inferred
    return ModelNode(
        node.node, node.operator, node.title, version, node.version, node.attributes,
        {role: Typed(name, *declared) for role, (name, declared) in inputs.items()},
        Typed(node.output, *output), assumed, problem,
    )  # fmt: skip


def _version(node: OperatorNode) -> tuple[int | None, str | None]:
    """Return the version of a node's operator in its operator set, None and why if it has none."""
    try:
        row = specs.resolve(f"onnx:{node.version}", node.operator)
    except NdtoolError as exc:
        return None, exc.message
    if row.title == node.title:
        return row.version, None
    return None, f"onnx:{node.version} has no {node.title}: onnx:9 and onnx:10 have it"


def _infer_output(
    node: OperatorNode, input_types: dict[str, DeclaredType], attributes: Attributes, spec: str
) -> tuple[DeclaredType, tuple[str, ...]] | None:
    """Infer a node's output type and its assumptions; None if input types are not declared.

    Raises RuleError or DtypeError if the node breaks a rule of a standard.
    """
    sizes, types = dict[str, plans.Shape](), dict[str, Dtype]()
    roles = [*input_types] if node.operator in LOWERED else operator_of(node.operator).inputs
    for role in roles:
        dtype, shape = input_types.get(role, (None, None))
        if dtype is None or shape is None:
            return None
        sizes[role] = tuple(_size(role, axis, size) for axis, size in enumerate(shape))
        types[role] = dtypes.from_name("U1" if dtype == "string" else dtype)
    if node.operator.endswith("_nd") and any(
        isinstance(size, Symbol) for size in sizes["indices"][-1:]
    ):
        return None  # how many axes of data a tuple indexes is unknown
    _, trace, plan = inference.check(node.operator, types, sizes, attributes, spec)
    output = tuple(map(_declared_size, plan.output))
    return DeclaredType(input_types[roles[0]].dtype, output), trace.assumptions


class _UndeclaredSize(Symbol):
    """A size that a model does not declare, named after its axis."""


def _size(role: str, axis: int, size: int | str | None) -> int:
    """Return a size of an input for shape rules: a symbol if it is not a declared number."""
    if isinstance(size, str):
        return Symbol(size)
    return _UndeclaredSize(f"{role}.shape[{axis}]") if size is None or size < 0 else size


def _declared_size(size: int) -> int | str | None:
    """Return a size in the form of a declaration: None if it is undeclared."""
    if isinstance(size, _UndeclaredSize):
        return None
    return str(size) if isinstance(size, Symbol) else size


def _attributes(values: Mapping[str, Any]) -> Attributes:
    attributes = {name: value for name, value in values.items() if value is not None}
    return Attributes(
        **{name: attributes[name] for name in Attributes._fields if name in attributes}
    )


def show(
    path: str,
    inputs: str | Mapping[str, NDArray[Any]] | None = None,
    engine_names: tuple[str, ...] | None = None,
    engine_settings: EngineSettings = EngineSettings(),  # noqa: B008 - immutable
    progress: EngineProgress = lambda fraction, engine_name: None,
    save: str | None = None,
) -> Model:
    """Return the gather and scatter nodes of a model, in subgraphs and functions too; run it.

    inputs: the inputs by their names, an archive of them, or a folder with input_0.pb and so on;
    None for no run. engine_names: engines to compare. save: a folder for the inputs and outputs of
    these nodes.
    """
    if inputs is None:
        for name, value, purpose in (
            ("against", engine_names, "compares the outputs of nodes"),
            ("save", save, "writes the tensors of a run"),
        ):
            if value is not None:
                raise UsageError(f"{option(name)} requires {option('inputs')}: it {purpose}")
        return Model(tuple(_model_nodes(locators.model(path))))
    model = locators.model(path)
    import_extra("onnx", "running a model", "onnx")
    if engine_names:
        require_any(engine_names)
    model_run = _ModelRun(_model_nodes(model), engine_names or (), engine_settings, progress)
    try:
        modelrun.check(path)
        feeds = modelinputs.read(inputs, model)
    except (RuleError, DtypeError) as exc:
        return Model(tuple(model_run.nodes), error=exc)
    if save is not None:
        model_run.folder = modeltensors.prepare(save)
    error = model_run.run(path, feeds) or _disagreement(model_run.nodes)
    warnings = tuple(model_run.warnings)
    return Model(tuple(model_run.nodes), model_run.computed, warnings, error=error)


def _disagreement(model_nodes: list[ModelNode]) -> DifferenceError | None:
    """Return the error about the nodes on which engines differ, None if all agree."""
    messages: list[str] = []
    places: list[str] = []
    for model_node in model_nodes:
        if error := disagreement(model_node.operator, model_node.engines or ()):
            name = printable(model_node.node)
            messages.append(f"{name}: {error.message}")
            places += [f"{name}: {line}" for line in error.places]
    if not messages:
        return None
    omitted = f"; {len(messages) - MAX_LISTED} more nodes" if len(messages) > MAX_LISTED else ""
    return DifferenceError(
        "; ".join(messages[:MAX_LISTED]) + omitted, places=tuple(places[:MAX_LISTED])
    )


class _ModelRun:
    """A run of a model: computes its gathers and scatters, and records their inputs and outputs."""

    def __init__(
        self,
        model_nodes: list[ModelNode],
        engine_names: tuple[str, ...],
        engine_settings: EngineSettings,
        progress: EngineProgress,
    ) -> None:
        self.folder: str | None = None  # for the tensors of nodes
        self.nodes = [replace(node, runs=0, engines=()) for node in model_nodes]
        self.computed: tuple[Computed, ...] = ()
        self.warnings: list[str] = []
        self._engine_names, self._settings, self._progress = engine_names, engine_settings, progress

    def run(self, path: str, feeds: Arrays) -> NdtoolError | None:
        """Run the model; return the error of the first node that fails, or None."""
        model = modelrun.load(path)
        self._write_node_indices(model)
        n_threads = self._settings.threads or threads.default_threads()
        model_run = ModelRun(path, model, self._compute, n_threads)
        try:
            model_run.run(feeds)
        except NdtoolError as exc:
            return exc
        finally:
            computed = {("ndtool", __version__): [node.title for node in self.nodes if node.runs]}
            for engine, titles in model_run.computed.items():
                computed[engine] = list(titles.values())
            self.computed = tuple(
                Computed(*engine, len(titles), tuple(sorted(set(titles))))
                for engine, titles in computed.items()
            )
        return None

    def _write_node_indices(self, model: Any) -> None:
        """Write the index of each node in `nodes` to its doc_string, which copies preserve."""
        found = list(filter(is_own, all_nodes(model)))
        if [node.op_type for node in found] != [model_node.title for model_node in self.nodes]:
            raise RuleError("the onnx package reads other nodes in the model than ndtool")
        for node_index, node in enumerate(found):
            node.doc_string = str(node_index)

    def _compute(self, node: Any, inputs: Sequence[Any], spec: str) -> Any:
        """Return the output of a node of ndtool's. spec: its operator set, as in "onnx:13"."""
        node_index = int(node.doc_string)
        model_node = self.nodes[node_index]
        helper: Any = import_module("onnx.helper")
        attributes = {
            item.name: value.decode() if isinstance(value, bytes) else value
            for item in node.attribute
            for value in (helper.get_attribute_value(item),)
        }
        present = (array for array in inputs if array is not None)  # None: an optional input
        arrays = dict(zip(model_node.inputs, present, strict=True))
        names = {role: array.name or "" for role, array in model_node.inputs.items()}
        try:
            spec = self._allow_negatives(model_node, spec, inputs)
            title = model_node.title
            result = onnxnodes.compute(model_node.operator, title, spec, inputs, attributes)
            if not model_node.runs and self._engine_names:
                reports = self._compare_engines(node_index, arrays, attributes)
                model_node = replace(model_node, engines=reports)
        except NdtoolError as exc:
            named_inputs = {
                role: Input(names[role], dtypes.from_numpy(array.dtype), array.shape)
                for role, array in arrays.items()
            }
            inference.name_inputs(exc, named_inputs)
            exc.message = f"{printable(model_node.node)}: {exc.message}"
            raise
        if not model_node.runs and self.folder is not None:
            tensors = {**arrays, "output": result}
            saved = modeltensors.save(self.folder, node_index, model_node.node, tensors)
            model_node = replace(model_node, saved=saved)
        self.nodes[node_index] = replace(
            model_node,
            inputs={role: _typed(names[role], array) for role, array in arrays.items()},
            output=_typed(model_node.output.name, result),
            assumed=(),
            runs=(model_node.runs or 0) + 1,
        )
        return result

    def _allow_negatives(self, model_node: ModelNode, spec: str, inputs: Sequence[Any]) -> str:
        """Return the standard of a node; a later one, with a warning, if its own lacks negatives.

        Runtimes count negative indices from the end in every version.
        """
        if model_node.operator in LOWERED:
            return spec
        rules = onnxnodes.row_spec(model_node.title, spec)
        row = specs.resolve(rules, model_node.operator)
        if row.negatives or not bool((np.asarray(inputs[1]) < 0).any()):
            return spec
        later = next(item for item in specs.rows("onnx", row.operator) if item.negatives)
        warning = (
            f"{printable(model_node.node)}: {row.title}-{row.version} allows no negative"
            " indices: they count from the end, as in onnxruntime and in"
            f" {later.title}-{later.version}"
        )
        if warning not in self.warnings:
            self.warnings.append(warning)
        return later.spec

    def _compare_engines(
        self, node_index: int, arrays: Arrays, attributes: dict[str, Any]
    ) -> tuple[EngineReport, ...]:
        model_node = self.nodes[node_index]
        if model_node.operator in LOWERED:
            message = f"{model_node.title} is not compared with other engines"
            return tuple(
                EngineReport(engine, None, None, "refused", None, message)
                for engine in self._engine_names
            )
        call = model_node.operator, _attributes(attributes), arrays
        engine_call = EngineCall(*call, as_engine_array(recompute(*call)), self._settings)
        completed, name = node_index / len(self.nodes), printable(model_node.node, 40)

        def report_progress(fraction: float, engine_name: str) -> None:
            self._progress(
                completed + fraction / len(self.nodes),
                f"{name}: {engine_name}" if engine_name else name,
            )

        return tuple(engine_call.reports(self._engine_names, report_progress))


def _typed(name: str | None, array: NDArray[Any]) -> Typed:
    """Return the name, type and shape of an input or output of a node."""
    strings = array.dtype.kind in "OSU"
    return Typed(name, "string" if strings else dtypes.from_numpy(array.dtype).name, array.shape)
