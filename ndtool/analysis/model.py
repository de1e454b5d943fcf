"""The gather and scatter nodes of an ONNX model: their metadata, and their results on inputs.

Metadata are read without the onnx package. In a run, ndtool computes these nodes and the package's
reference evaluator the others.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ndtool.analysis import modelcheck, modelinputs, modeltensors
from ndtool.analysis.engines import (
    MAX_LISTED,
    EngineCall,
    EngineProgress,
    EngineReport,
    EngineSettings,
    disagreement,
    require_any,
)
from ndtool.analysis.modelinputs import Arrays
from ndtool.analysis.verify import recompute
from ndtool.arrays.source import DeclaredType, ModelInfo, OperatorNode, TypedNode
from ndtool.errors import DifferenceError, DtypeError, NdtoolError, RuleError, UsageError, printable
from ndtool.formats import locators
from ndtool.formats.onnx import OPERATORS as TITLES
from ndtool.formats.onnx import modelproto
from ndtool.rules import dtypes, inference, plans, shapes, specs, tensorscatter
from ndtool.rules.inference import Input
from ndtool.rules.operators import LOWERED, Attributes, operator_of
from ndtool.rules.symbols import Symbol
from ndtool.runs.request import Request


class ModelNode(NamedTuple):
    """A gather or scatter node of a model.

    version: the operator's version, None if its operator set lacks it. inputs: names and types by
    role. assumed: conditions on sizes that the model does not declare. runs: how often a run of the
    model computed the node, None without a run; inputs then have actual types, and actual_output is
    set. reports: on engines, for the node's first inputs. saved: the files of its first inputs and
    output, by role.
    """

    node: OperatorNode
    version: int | None
    inputs: dict[str, tuple[str, DeclaredType]]
    output: DeclaredType
    assumed: tuple[str, ...] = ()
    runs: int | None = None
    actual_output: DeclaredType | None = None
    reports: tuple[EngineReport, ...] = ()
    saved: dict[str, str] | None = None


class Outcome(NamedTuple):
    """The nodes of a model, and the error of a failed run or of an engine that differs."""

    nodes: list[ModelNode]
    error: NdtoolError | None


def nodes(path: str) -> list[ModelNode]:
    """Return the gather and scatter nodes of a model, in subgraphs and functions too."""
    return _model_nodes(locators.model(path))


def _model_nodes(model: ModelInfo) -> list[ModelNode]:
    """Return nodes with their metadata; inferred output types are used for later nodes."""
    model_nodes = []
    for scope in model.scopes:
        outputs: dict[str, DeclaredType] = {}  # by scope and name
        for declared in scope:
            model_node = _model_node(declared, outputs)
            model_nodes.append(model_node)
            if model_node.node.output:
                outputs[declared.scope + model_node.node.output] = model_node.output
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
    inferred = _infer_output(node, {role: declared for role, (_, declared) in inputs.items()})
    if output.shape is None and inferred is not None:
        return ModelNode(node, _version(node), inputs, *inferred)
    return ModelNode(node, _version(node), inputs, output)


def _version(node: OperatorNode) -> int | None:
    """Return the version of a node's operator in its operator set."""
    try:
        row = specs.resolve(f"onnx:{node.version}", node.operator)
    except NdtoolError:
        return None
    return row.version if row.title == node.title else None  # Scatter is ScatterElements since 11


def _infer_output(
    node: OperatorNode, input_types: dict[str, DeclaredType]
) -> tuple[DeclaredType, tuple[str, ...]] | None:
    """Infer a node's output type and its assumptions; None if input types are not declared."""
    sizes: dict[str, plans.Shape] = {}
    is_lowered = node.operator in LOWERED
    for role in input_types if is_lowered else operator_of(node.operator).inputs:
        shape = input_types[role].shape if role in input_types else None
        if shape is None:
            return None
        sizes[role] = tuple(_size(role, axis, size) for axis, size in enumerate(shape))
    attributes = _attributes(node.attributes)
    if any(type(a) is not type(b) for a, b in zip(attributes, Attributes(), strict=True)):
        return None  # an attribute of the wrong type
    plan: plans.Plan | tensorscatter.Lowering
    try:
        if is_lowered:
            trace, plan = tensorscatter.infer(sizes, attributes.axis)
        else:
            trace, plan = shapes.infer(node.operator, sizes, attributes)
    except (NdtoolError, KeyError):  # KeyError: a node without its inputs
        return None
    data = next(iter(input_types.values())).dtype
    return DeclaredType(data, tuple(map(_declared_size, plan.output))), trace.assumptions


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


def _attributes(values: dict[str, Any]) -> Attributes:
    attributes = {name: value for name, value in values.items() if value is not None}
    return Attributes(
        **{name: attributes[name] for name in Attributes._fields if name in attributes}
    )


def run(
    path: str,
    inputs: str | Mapping[str, NDArray[Any]],
    engine_names: tuple[str, ...],
    engine_settings: EngineSettings,
    progress: EngineProgress = lambda fraction, engine_name: None,
    save: str | None = None,
) -> Outcome:
    """Run a model on inputs, and compare engines with the outputs of its gather and scatter nodes.

    inputs: the inputs by their names, an archive of them, or a folder with input_0.pb and so on.
    engine_names: engines to compare. save: a folder for the inputs and outputs of these nodes.
    """
    model = locators.model(path)
    if find_spec("onnx") is None:
        raise UsageError(
            "running a model needs the package onnx", hint="pip install 'ndtool[onnx]'"
        )
    if engine_names:
        require_any(engine_names)
    model_run = _ModelRun(_model_nodes(model), engine_names, engine_settings, progress)
    try:
        modelcheck.check(path)
        feeds = modelinputs.read(inputs, model)
    except (RuleError, DtypeError) as exc:
        return Outcome(model_run.nodes, exc)
    if save is not None:
        model_run.folder = modeltensors.prepare(save)
    error = model_run.run(path, feeds)
    return Outcome(model_run.nodes, error or _disagreement(model_run.nodes))


def _disagreement(model_nodes: list[ModelNode]) -> DifferenceError | None:
    """Return the error about the nodes on which engines differ, None if all agree."""
    messages: list[str] = []
    places: list[str] = []
    for model_node in model_nodes:
        if error := disagreement(model_node.node.operator, model_node.reports):
            name = printable(model_node.node.node)
            messages.append(f"{name}: {error.message}")
            places += [f"{name}: {line}" for line in error.places]
    if not messages:
        return None
    omitted = f"; {len(messages) - MAX_LISTED} more nodes" if len(messages) > MAX_LISTED else ""
    return DifferenceError(
        "; ".join(messages[:MAX_LISTED]) + omitted, places=tuple(places[:MAX_LISTED])
    )


class _NodeFailedError(Exception):
    """Raised to end a run: a node cannot be computed."""


class _ModelRun:
    """A run of a model: records the inputs and outputs of nodes as the evaluator computes them."""

    def __init__(
        self,
        model_nodes: list[ModelNode],
        engine_names: tuple[str, ...],
        engine_settings: EngineSettings,
        progress: EngineProgress,
    ) -> None:
        self.folder: str | None = None  # for the tensors of nodes
        self.nodes = [model_node._replace(runs=0) for model_node in model_nodes]
        self._engine_names, self._settings, self._progress = engine_names, engine_settings, progress
        self._error: NdtoolError | None = None

    def run(self, path: str, feeds: Arrays) -> NdtoolError | None:
        """Run the model; return the error of the first node that fails, or None."""
        onnx: Any = import_module("onnx")
        with modelcheck.converted_errors(path):
            try:
                model = onnx.load(path)
                self._write_node_indices(model)
                evaluator = self._evaluator()(model)
                evaluator.run(None, feeds)
            except _NodeFailedError:
                return self._error
        return None

    def _write_node_indices(self, model: Any) -> None:
        """Write the index of each node in `nodes` to its doc_string; the evaluator preserves it."""
        unassigned: dict[str, list[int]] = {}
        for node_index, model_node in enumerate(self.nodes):
            unassigned.setdefault(model_node.node.node, []).append(node_index)
        for name, node in _walk(model):
            node.doc_string = str(unassigned[name].pop(0))

    def _evaluator(self) -> Any:
        """Return an evaluator class that computes and records gathers and scatters with ndtool.

        It does so in subgraphs and functions, too.
        """
        reference: Any = import_module("onnx.reference")
        operators: Any = import_module("ndtool.onnx")
        model_run = self

        def recording_class(operator_class: Any) -> Any:
            class RecordingOperator(operator_class):  # type: ignore[misc]
                def _run(self, *inputs: Any, **attributes: Any) -> Any:
                    node_index = int(self.onnx_node.doc_string)
                    compute = super()._run
                    return model_run._compute(
                        node_index, inputs, attributes, lambda: compute(*inputs, **attributes)
                    )

            RecordingOperator.__name__ = operator_class.__name__
            return RecordingOperator

        operator_classes = [recording_class(operator_class) for operator_class in operators.OPS]

        class Evaluator(reference.ReferenceEvaluator):  # type: ignore[misc]
            def __init__(self, proto: Any, **settings: Any) -> None:
                super().__init__(proto, **{**settings, "new_ops": operator_classes})

        return Evaluator

    def _compute(
        self,
        node_index: int,
        inputs: tuple[Any, ...],
        attributes: dict[str, Any],
        compute: Callable[[], Any],
    ) -> Any:
        """Compute a node for the evaluator; attributes: with the values of function parameters."""
        model_node = self.nodes[node_index]
        try:
            (result,) = compute()
            if not model_node.runs and self._engine_names:
                model_node = model_node._replace(
                    reports=self._compare_engines(node_index, inputs, attributes)
                )
        except NdtoolError as exc:
            self._error = _add_names(exc, model_node, inputs)
            raise _NodeFailedError from exc
        arrays = [array for array in inputs if array is not None]  # None: an optional input
        named_arrays = zip(model_node.inputs.items(), arrays, strict=True)
        if not model_node.runs and self.folder is not None:
            tensors = {**dict(zip(model_node.inputs, arrays, strict=True)), "output": result}
            saved = modeltensors.save(self.folder, node_index, model_node.node.node, tensors)
            model_node = model_node._replace(saved=saved)
        actual_inputs = {role: (name, _type_of(array)) for (role, (name, _)), array in named_arrays}
        runs = (model_node.runs or 0) + 1
        self.nodes[node_index] = model_node._replace(
            inputs=actual_inputs, runs=runs, actual_output=_type_of(result)
        )
        return (result,)

    def _compare_engines(
        self, node_index: int, inputs: tuple[Any, ...], attributes: dict[str, Any]
    ) -> tuple[EngineReport, ...]:
        model_node = self.nodes[node_index]
        if model_node.node.operator in LOWERED:
            message = f"{model_node.node.title} is not compared with other engines"
            return tuple(
                EngineReport(engine, None, None, "refused", None, message)
                for engine in self._engine_names
            )
        operator = operator_of(model_node.node.operator)
        arrays = dict(zip(operator.inputs, inputs, strict=True))
        names: dict[str, Any] = {**_input_names(model_node)}
        request = Request(operator.name, attributes=_attributes(attributes), **names)
        expected = recompute(request, arrays)
        engine_call = EngineCall(request, arrays, expected, self._settings)
        completed, name = node_index / len(self.nodes), printable(model_node.node.node, 40)

        def report_progress(fraction: float, engine_name: str) -> None:
            self._progress(
                completed + fraction / len(self.nodes),
                f"{name}: {engine_name}" if engine_name else name,
            )

        return tuple(engine_call.reports(self._engine_names, report_progress))


def _type_of(array: NDArray[Any]) -> DeclaredType:
    """Return the type and shape of an input or output of a node."""
    strings = array.dtype.kind in "OSU"
    return DeclaredType("string" if strings else dtypes.from_numpy(array.dtype).name, array.shape)


def _input_names(model_node: ModelNode) -> dict[str, str]:
    """Return the names of a node's inputs, by role."""
    return {role: name for role, (name, _) in model_node.inputs.items()}


def _add_names(exc: NdtoolError, model_node: ModelNode, inputs: tuple[Any, ...]) -> NdtoolError:
    """Add the names of a node and of its inputs to an error; return it."""
    named_inputs = {
        role: Input(name, dtypes.from_numpy(array.dtype), array.shape)
        for (role, name), array in zip(
            _input_names(model_node).items(),
            [array for array in inputs if array is not None],
            strict=True,
        )
    }
    inference.name_inputs(exc, named_inputs)
    exc.message = f"{printable(model_node.node.node)}: {exc.message}"
    return exc


def _walk(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the paths and gather and scatter nodes of a model of the onnx package."""
    yield from _walk_nodes(model.graph.node, "")
    for function in model.functions:
        path = f"{function.domain}.{function.name}" if function.domain else function.name
        overload = getattr(function, "overload", "")
        yield from _walk_nodes(function.node, f"{path}:{overload}/" if overload else f"{path}/")


def _walk_nodes(graph_nodes: Any, path: str) -> Iterator[tuple[str, Any]]:
    for node in graph_nodes:
        name = path + (node.name or next(iter(node.output), "") or node.op_type)
        if node.op_type in TITLES and node.domain in ("", "ai.onnx"):
            yield name, node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk_nodes(attribute.g.node, f"{name}/{attribute.name}/")
            for node_index, graph in enumerate(attribute.graphs):
                yield from _walk_nodes(graph.node, f"{name}/{attribute.name}/{node_index}/")
