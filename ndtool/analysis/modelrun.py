"""A run of an ONNX model: control flow here, gathers and scatters by ndtool, all else by an engine.

The engine is onnxruntime if it is installed, as models are deployed in it; else, and for operators
and types that its CPU kernels lack, it is the reference evaluator of the onnx package. Each run of
other nodes between two that are computed here is a model of its own.

The evaluator never executes subgraphs or functions: it runs a Loop without `cond` zero times, mixes
up scan outputs, and ignores default attributes of functions. Scan and SequenceMap run in
onnxruntime if they have no gathers and scatters.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.arrays.assembly import library_errors
from ndtool.errors import (
    InputError,
    NdtoolError,
    ResourceError,
    RuleError,
    lacks_memory,
    library_message,
    printable,
)
from ndtool.formats.onnx import OPERATORS as TITLES
from ndtool.formats.onnx.modelproto import DOMAINS

Array = NDArray[Any]
Compute = Callable[[Any, Sequence[Any], str], Any]

_MAX_CONSTANT = 1 << 16  # bytes; larger constants are inputs of an engine's model, not copied
_MAX_CHECKED = (1 << 31) - 1  # bytes of a model with its tensors; the package checks no larger ones
_MAX_MESSAGE = 500  # characters of a message of an engine


class _Undefined(Exception):  # noqa: N818 - not an error: another engine follows
    """An engine lacks an operator or a type."""


class Engine(NamedTuple):
    """An engine: its name, its version, and the function that compiles a model for it."""

    name: str
    version: str
    compile: Callable[[Any], Callable[[list[str], dict[str, Any]], list[Any]]]


class _Segment(NamedTuple):
    """Consecutive nodes of a graph that an engine computes; inputs, outputs: names of values."""

    nodes: list[Any]
    inputs: list[str]
    outputs: list[str]


class _Body(NamedTuple):
    """A graph or a function: its constants, its nodes as steps, the names of its outputs.

    owner: keeps its protobuf messages alive, as their IDs are keys.
    """

    owner: Any
    constants: dict[str, Array]
    steps: list[Any]
    outputs: list[str]


class ModelRun:
    """A run of a model of the onnx package.

    path: for messages. compute: returns the output of a gather or scatter, given the node, its
    inputs and its standard such as "onnx:13". computed: by an engine's name and version, the
    operators of the nodes that it computed, by their IDs.
    """

    def __init__(self, path: str, model: Any, compute: Compute, threads: int) -> None:
        self._path, self._model, self._compute = path, model, compute
        self._functions = {
            (function.domain, function.name, getattr(function, "overload", "")): function
            for function in model.functions
        }
        self._engines = list(_engines(threads))
        self._bodies: dict[int, _Body] = {}  # by the ID of a graph or of a function's node
        self._constants: dict[int, Array] = {}  # by the ID of the array
        self._sessions: dict[tuple[Any, ...], tuple[Engine, Any]] = {}
        self.computed: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of the model."""
        opsets = {opset.domain: opset.version for opset in self._model.opset_import}
        return self._graph(self._model.graph, ChainMap(dict(feeds)), opsets)

    def _graph(self, graph: Any, scope: ChainMap[str, Any], opsets: dict[str, int]) -> list[Any]:
        """Return the outputs of a graph; scope: its inputs, then the values of outer graphs."""
        if id(graph) not in self._bodies:
            numpy_helper: Any = import_module("onnx.numpy_helper")
            constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
            outputs = [value.name for value in graph.output]
            self._bodies[id(graph)] = self._body(graph, graph.node, constants, outputs)
        body, given = self._bodies[id(graph)], scope.maps[0]
        given.update({name: body.constants[name] for name in body.constants.keys() - given.keys()})
        return self._results(body, scope, opsets)

    def _body(
        self, owner: Any, nodes: Iterable[Any], constants: dict[str, Array], outputs: list[str]
    ) -> _Body:
        """Return a graph or a function as steps; nodes Constant become constants."""
        others = list[Any]()
        for node in nodes:
            is_constant = node.op_type == "Constant" and node.domain in DOMAINS
            if is_constant and node.attribute[0].name != "sparse_value":
                constants = {**constants, node.output[0]: _constant(node)}
            else:
                others.append(node)
        self._constants |= {id(array): array for array in constants.values()}
        return _Body(owner, constants, self._segments(others, outputs), outputs)

    def _results(self, body: _Body, scope: ChainMap[str, Any], opsets: dict[str, int]) -> list[Any]:
        """Compute the steps of a body in order; return its outputs."""
        for step in body.steps:
            if isinstance(step, _Segment):
                values = self._run_segment(step, scope, opsets)
                scope.update(zip(step.outputs, values, strict=True))
                continue
            operands = [scope[name] if name else None for name in step.input]
            if is_own(step):
                domain = next((name for name in DOMAINS if name in opsets), "")
                results = [self._compute(step, operands, f"onnx:{opsets.get(domain, 0)}")]
            elif _function_key(step) in self._functions:
                results = self._call(self._functions[_function_key(step)], step, operands)
            else:
                label = f"{self._path}: {_name(step)}: {step.op_type} fails"
                with library_errors(label, RuleError, _MAX_MESSAGE):
                    results = self._control(step, operands, scope, opsets)
            names = zip(step.output, results, strict=False)  # optional outputs may be missing
            scope.update((name, value) for name, value in names if name)
        return [scope[name] for name in body.outputs]

    def _segments(self, nodes: Any, outputs: list[str]) -> list[Any]:
        """Return the nodes of a graph as steps: single nodes, and segments for an engine."""
        steps: list[Any] = []
        for node in nodes:
            if self._is_computed_here(node):
                steps.append(node)
            elif steps and isinstance(steps[-1], list):
                steps[-1].append(node)
            else:
                steps.append([node])
        readers = {name: {len(steps)} for name in outputs}  # the steps that read a name
        for n, step in enumerate(steps):
            for name in _names_read(step if isinstance(step, list) else [step]):
                readers.setdefault(name, set()).add(n)
        for n, step in enumerate(steps):
            if isinstance(step, list):
                written = {name for node in step for name in node.output if name}
                read = [name for name in dict.fromkeys(_names_read(step)) if name not in written]
                needed = [name for name in written if readers.get(name, set()) - {n}]
                steps[n] = _Segment(step, read, sorted(needed))
        return [step for step in steps if not isinstance(step, _Segment) or step.outputs]

    def _is_computed_here(self, node: Any) -> bool:
        if is_own(node) or _function_key(node) in self._functions:
            return True
        if node.op_type in ("If", "Loop") and node.domain in DOMAINS:
            return True
        graphs = _graphs_of(node)
        return any(self._is_computed_here(inner) for graph in graphs for inner in graph.node)

    def _call(self, function: Any, node: Any, operands: list[Any]) -> list[Any]:
        """Return the outputs of a function of the model."""
        if id(node) not in self._bodies:
            attributes = {item.name: item for item in function.attribute_proto}
            attributes |= {item.name: item for item in node.attribute}
            nodes = [_bind(inner, attributes) for inner in function.node]
            self._bodies[id(node)] = self._body((node, nodes), nodes, {}, list(function.output))
        body = self._bodies[id(node)]
        values = dict.fromkeys(function.input) | body.constants
        values |= dict(zip(function.input, operands, strict=False))
        opsets = {opset.domain: opset.version for opset in function.opset_import}
        return self._results(body, ChainMap(values), opsets)

    def _control(
        self, node: Any, operands: list[Any], scope: ChainMap[str, Any], opsets: dict[str, int]
    ) -> list[Any]:
        """Return the outputs of If or Loop; RuleError for other operators with subgraphs."""
        helper: Any = import_module("onnx.helper")
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}

        def run_body(graph: Any, inputs: Sequence[Any]) -> list[Any]:
            names = [value.name for value in graph.input]
            return self._graph(
                graph, scope.new_child(dict(zip(names, inputs, strict=True))), opsets
            )

        if node.op_type == "If" and node.domain in DOMAINS:
            is_true = bool(np.asarray(operands[0]).reshape(-1)[0])
            return run_body(attributes["then_branch" if is_true else "else_branch"], ())
        if node.op_type == "Loop" and node.domain in DOMAINS:
            return _loop(attributes["body"], operands, run_body)
        raise self._subgraph_error(node)

    def _subgraph_error(self, node: Any) -> RuleError:
        return RuleError(
            f"{printable(self._path)}: {_name(node)}: ndtool does not run the subgraphs of"
            f" {printable(node.op_type)}"
        )

    def _run_segment(
        self, segment: _Segment, scope: ChainMap[str, Any], opsets: dict[str, int]
    ) -> list[Any]:
        """Return the outputs of a segment, computed by the first engine that can."""
        feeds = {name: scope[name] for name in segment.inputs}
        with_subgraphs = next((node for node in segment.nodes if any(_graphs_of(node))), None)
        types = {name: _type_of(value) for name, value in feeds.items()}
        key = (id(segment.nodes[0]), tuple(types.values()))
        engines = [self._sessions[key][0]] if key in self._sessions else self._engines
        for engine in engines:
            if with_subgraphs is not None and engine.name == "onnx":  # it mixes up scan outputs
                raise self._subgraph_error(with_subgraphs)
            try:
                if key not in self._sessions:
                    model, inputs = self._segment_model(segment, feeds, types, opsets)
                    self._sessions[key] = engine, (engine.compile(model), inputs)
                compute, inputs = self._sessions[key][1]
                results: list[Any] = compute(
                    segment.outputs, {name: feeds[name] for name in inputs}
                )
            except _Undefined as exc:
                self._sessions.pop(key, None)
                if engine is engines[-1]:
                    raise self._engine_error(engine, exc) from None
            except NdtoolError:
                raise
            except Exception as exc:
                raise self._engine_error(engine, exc) from None
            else:
                self.computed[engine.name, engine.version] |= {
                    id(node): node.op_type for node in segment.nodes
                }
                return results
        raise AssertionError("the last engine computes or raises")

    def _engine_error(self, engine: Engine, exc: Exception) -> NdtoolError:
        title, reason = engine.name, library_message(exc, _MAX_MESSAGE)
        if lacks_memory(exc):
            return ResourceError(f"{printable(self._path)}: not enough memory: {reason}")
        title = "the onnx package" if title == "onnx" else title
        return RuleError(f"{printable(self._path)}: {title} cannot run it: {reason}")

    def _segment_model(
        self,
        segment: _Segment,
        feeds: dict[str, Any],
        types: dict[str, tuple[Any, ...]],
        opsets: dict[str, int],
    ) -> tuple[Any, list[str]]:
        """Return a segment as a model, and the names of its inputs; small constants are stored."""
        helper: Any = import_module("onnx.helper")
        onnx: Any = import_module("onnx")
        numpy_helper: Any = import_module("onnx.numpy_helper")
        constants = [  # an engine may need them while it compiles a model
            name
            for name in segment.inputs
            if id(feeds[name]) in self._constants and feeds[name].nbytes <= _MAX_CONSTANT
        ]
        inputs = [name for name in segment.inputs if name not in constants]
        graph = helper.make_graph(
            segment.nodes,
            "segment",
            [onnx.ValueInfoProto(name=name, type=_type_proto(types[name])) for name in inputs],
            [onnx.ValueInfoProto(name=name) for name in segment.outputs],
            [numpy_helper.from_array(feeds[name], name) for name in constants],
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        return helper.make_model(
            graph, opset_imports=imports, ir_version=max(8, self._model.ir_version)
        ), inputs


def _engines(threads: int) -> Iterator[Engine]:
    """Yield the engines that are installed, in order of preference."""
    if find_spec("onnxruntime") is not None:
        try:
            ort: Any = import_module("onnxruntime")
            compile_model = partial(_onnxruntime, ort, threads)
            yield Engine("onnxruntime", ort.__version__, compile_model)
        except (ImportError, AttributeError):
            pass  # an incomplete installation
    onnx: Any = import_module("onnx")
    yield Engine("onnx", onnx.__version__, _evaluator)


def _onnxruntime(
    ort: Any, threads: int, model: Any
) -> Callable[[list[str], dict[str, Any]], list[Any]]:
    """Return the function that runs a model in onnxruntime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as exc:
        raise _Undefined(library_message(exc, _MAX_MESSAGE)) from None

    def run(outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
        try:
            results: list[Any] = session.run(outputs, feeds)
        except Exception as exc:
            # A plain RuntimeError: no type of NumPy for a value, such as bfloat16.
            if type(exc) is RuntimeError or type(exc).__name__ == "NotImplemented":
                raise _Undefined(library_message(exc, _MAX_MESSAGE)) from None
            raise
        return results

    return run


def _evaluator(model: Any) -> Callable[[list[str], dict[str, Any]], list[Any]]:
    """Return the function that runs a model in the reference evaluator of the onnx package."""
    reference: Any = import_module("onnx.reference")
    evaluator = reference.ReferenceEvaluator(model)
    return lambda outputs, feeds: [
        value if value is None or isinstance(value, list) else np.asarray(value)
        for value in evaluator.run(outputs, feeds)
    ]


def _name(node: Any) -> str:
    """Return the name of a node, or of its output, for messages."""
    return printable(node.name or next(iter(node.output), ""))


def is_own(node: Any) -> bool:
    """Whether ndtool computes a node."""
    return node.op_type in TITLES and node.domain in DOMAINS


def all_nodes(model: Any) -> Iterator[Any]:
    """Yield all nodes of a model, each before those in its subgraphs; those of functions last."""

    def walk(nodes: Any) -> Iterator[Any]:
        for node in nodes:
            yield node
            for graph in _graphs_of(node):
                yield from walk(graph.node)

    yield from walk(model.graph.node)
    for function in model.functions:
        yield from walk(function.node)


def _function_key(node: Any) -> tuple[str, str, str]:
    return node.domain, node.op_type, getattr(node, "overload", "")


def _graphs_of(node: Any) -> Iterator[Any]:
    """Yield the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _names_read(nodes: Iterable[Any]) -> list[str]:
    """Return the names that nodes read, those that their subgraphs take from outside included."""
    names: list[str] = []
    for node in nodes:
        names += filter(None, node.input)
        for graph in _graphs_of(node):
            inner = {value.name for value in graph.input}
            inner |= {tensor.name for tensor in graph.initializer}
            inner |= {name for graph_node in graph.node for name in graph_node.output}
            outputs = [value.name for value in graph.output]
            read = [*_names_read(graph.node), *outputs]
            names += [name for name in read if name not in inner]
    return names


def _bind(node: Any, attributes: dict[str, Any]) -> Any:
    """Return a copy of a function's node, with the values of the function's attributes."""
    bound = type(node)()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in attributes:
                bound.attribute.add().CopyFrom(attributes[attribute.ref_attr_name])
                bound.attribute[-1].name = attribute.name
            continue
        target = bound.attribute.add()
        target.CopyFrom(attribute)
        for graph in (*([target.g] if target.HasField("g") else ()), *target.graphs):
            for n, inner in enumerate(graph.node):
                graph.node[n].CopyFrom(_bind(inner, attributes))
    return bound


def _constant(node: Any) -> Array:
    """Return the value of a node Constant."""
    helper: Any = import_module("onnx.helper")
    numpy_helper: Any = import_module("onnx.numpy_helper")
    (attribute,) = node.attribute
    if attribute.name == "value":
        value: Array = numpy_helper.to_array(attribute.t)
        return value
    values: Any = helper.get_attribute_value(attribute)
    texts = "string" in attribute.name
    if texts:
        values = [item.decode() for item in values] if isinstance(values, list) else values.decode()
    return np.array(values, object if texts else np.float32 if "float" in attribute.name else None)


def _type_of(value: Any) -> tuple[Any, ...]:
    """Return the type of a value: (element type, rank) or ("sequence", element type)."""
    helper: Any = import_module("onnx.helper")
    if isinstance(value, list):
        return ("sequence", _type_of(value[0])[0] if value else None)
    if value is None:
        return (None, 0)
    if value.dtype.kind in "OSU":
        return (import_module("onnx").TensorProto.STRING, value.ndim)
    return (helper.np_dtype_to_tensor_dtype(value.dtype), value.ndim)


def _type_proto(kind: tuple[Any, ...]) -> Any:
    helper: Any = import_module("onnx.helper")
    if kind[0] is None or kind[-1] is None:  # an optional value, an empty sequence
        return None
    if kind[0] == "sequence":
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind[1], None))
    return helper.make_tensor_type_proto(kind[0], [None] * kind[1])


def _loop(body: Any, operands: list[Any], run_body: Callable[..., list[Any]]) -> list[Any]:
    """Run a Loop: a missing trip count is no limit, a missing condition is true."""
    (trips, condition), carried = operands[:2], list(operands[2:])
    limit = None if trips is None else int(np.asarray(trips).reshape(-1)[0])
    goes_on = condition is None or bool(np.asarray(condition).reshape(-1)[0])
    scans: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    iteration = 0
    while goes_on and (limit is None or iteration < limit):
        state = np.array(iteration, np.int64), np.array(goes_on)
        after, *results = run_body(body, (*state, *carried))
        goes_on = bool(np.asarray(after).reshape(-1)[0])
        carried = results[: len(carried)]
        for scan, value in zip(scans, results[len(carried) :], strict=True):
            scan.append(value)
        iteration += 1
    declared = body.output[len(body.output) - len(scans) :]
    return [*carried, *(_stack(*pair) for pair in zip(scans, declared, strict=True))]


def _stack(values: list[Any], declared: Any) -> Array:
    """Return the values of all iterations as one array; without any, of the declared type."""
    if values:
        return np.stack(values)
    helper: Any = import_module("onnx.helper")
    tensor = declared.type.tensor_type
    if not tensor.elem_type:
        raise RuleError(f"{printable(declared.name)} has no iteration and no declared type")
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return np.zeros([0, *(size.dim_value for size in tensor.shape.dim)], dtype)


def load(path: str) -> Any:
    """Load a model with its external data."""
    onnx: Any = import_module("onnx")
    with library_errors(f"{path}: the onnx package cannot load it", InputError, _MAX_MESSAGE):
        return onnx.load(path)


def check(path: str) -> None:
    """Raise RuleError for a model with invalid structure, operators or types."""
    onnx: Any = import_module("onnx")
    checker: Any = import_module("onnx.checker")
    inference: Any = import_module("onnx.shape_inference")
    model, newest = load(path), onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in DOMAINS and opset.version > newest:
            raise RuleError(
                f"{printable(path)} uses ONNX operator set {opset.version}:"
                f" the installed onnx package supports 1..{newest}"
            )
    graphs = [model.graph, *(graph for node in all_nodes(model) for graph in _graphs_of(node))]
    for tensor in (tensor for graph in graphs for tensor in graph.sparse_initializer):
        name = printable(tensor.values.name)
        raise RuleError(f"{printable(path)}: {name} is sparse, which ndtool does not run")
    if model.ByteSize() > _MAX_CHECKED:
        return
    with library_errors(f"{path}: the onnx package refuses it", RuleError, _MAX_MESSAGE):
        unknown = []
        for value in (*model.graph.input, *model.graph.output):
            if value.type.HasField("tensor_type"):
                if not value.type.tensor_type.elem_type:
                    raise ValueError(f"{value.name} has no element type")
                if not value.type.tensor_type.HasField("shape"):
                    unknown.append(value.type.tensor_type)
                    value.type.tensor_type.shape.SetInParent()  # only the checker requires a shape
        checker.check_model(model, skip_opset_compatibility_check=True)  # functions' may differ
        for tensor_type in unknown:  # else their rank would be 0
            tensor_type.ClearField("shape")
        for graph in graphs:
            for value in (*graph.output, *graph.value_info):
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")  # runtimes only warn if it is wrong
        inference.infer_shapes(model, check_type=True, strict_mode=True)
