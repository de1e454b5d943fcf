"""The nodes of our operators in an ONNX model: what is known of them, and what they do on inputs.

What a model says is read without the onnx package. To run it, the package's reference evaluator
computes what stands between our nodes, and ndtool these themselves.
"""

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ndtool.analysis.engines import Asked, How, Report, Told, disagreement, require_any
from ndtool.analysis.values import as_array
from ndtool.analysis.verify import recomputed
from ndtool.arrays import modelproto, names
from ndtool.arrays.onnx import OPERATORS as TITLES
from ndtool.arrays.source import Known, KnownModel, KnownNode, OperatorNode, whole
from ndtool.arrays.streams import Streams
from ndtool.errors import InputError, NdtoolError, RuleError, UsageError, printable
from ndtool.rules import dtypes, inference, shapes, specs
from ndtool.rules.inference import Given
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.rules.symbols import Symbol
from ndtool.runs.jobs import Request

Arrays = dict[str, NDArray[Any]]
_DATA_SET = "test_data_set_0"  # of ONNX's backend tests
_OLD, _OLD_VERSIONS = "Scatter", (9, 10)  # ScatterElements under its first name, and when it had it


class ModelNode(NamedTuple):
    """A node. version: of its operator, None where ONNX had none. inputs: by role.

    assumed: what must be true of sizes that the model leaves open for the output to be that. runs:
    how often it was computed, None where nothing was; inputs and found, its output, are what they
    were then. reports: how engines did on what came to it first.
    """

    node: OperatorNode
    version: int | None
    inputs: dict[str, tuple[str, Known]]
    output: Known
    assumed: tuple[str, ...] = ()
    runs: int | None = None
    found: Known | None = None
    reports: tuple[Report, ...] = ()


class Outcome(NamedTuple):
    """nodes: all of them. error: what is wrong with one, or an engine's answer that differs."""

    nodes: list[ModelNode]
    error: NdtoolError | None


def nodes(path: str) -> list[ModelNode]:
    """Return the nodes of our operators, in subgraphs and functions too."""
    return _described(names.model(path))


def _described(model: KnownModel) -> list[ModelNode]:
    """Return nodes with what is known of them; what one gives is known to those after it."""
    found = []
    for scope in model.scopes:
        given: dict[str, Known] = {}  # by place and name
        for known in scope:
            one = _node(known, given)
            found.append(one)
            if one.node.output:
                given[known.place + one.node.output] = one.output
    return found


def _node(known: KnownNode, given: dict[str, Known]) -> ModelNode:
    node, place, types = known

    def of(name: str) -> Known:
        if types[name].shape is not None:
            return types[name]
        said = (given.get(around + name) for around in modelproto.outwards(place))
        return next(filter(None, said), types[name])

    roles = zip(OPERATORS[node.operator].inputs, node.inputs, strict=False)
    inputs = {role: (name, of(name)) for role, name in roles}
    output = types[node.output] if node.output else Known(None, None)
    inferred = _inferred(node, {role: one for role, (_, one) in inputs.items()})
    if output.shape is None and inferred is not None:
        return ModelNode(node, _version(node), inputs, *inferred)
    return ModelNode(node, _version(node), inputs, output)


def _version(node: OperatorNode) -> int | None:
    """Return the version of an operator that its operator set means."""
    if node.title == _OLD:
        return _OLD_VERSIONS[0] if node.version in _OLD_VERSIONS else None
    try:
        row = specs.resolve(f"onnx:{node.version}", node.operator)
    except NdtoolError:
        return None
    return row.version


def _inferred(node: OperatorNode, known: dict[str, Known]) -> tuple[Known, tuple[str, ...]] | None:
    """Return what a node gives, and what is assumed then.

    None where the model does not say enough of what it takes.
    """
    sizes: dict[str, shapes.Shape] = {}
    for role in OPERATORS[node.operator].inputs:
        shape = known[role].shape if role in known else None
        if shape is None:
            return None
        sizes[role] = tuple(_size(role, axis, size) for axis, size in enumerate(shape))
    attributes = _attributes(node.attributes)
    if any(type(a) is not type(b) for a, b in zip(attributes, Attributes(), strict=True)):
        return None  # the model has another kind of value there
    try:
        trace, plan = shapes.infer(node.operator, sizes, attributes)
    except NdtoolError:
        return None
    return Known(known["data"].dtype, tuple(map(_said, plan.output))), trace.assumed


class _Open(Symbol):
    """A size of which a model says nothing: it is called after its place."""


def _size(role: str, axis: int, size: int | str | None) -> int:
    """Return a size of an input as rules take it."""
    if isinstance(size, str):
        return Symbol(size)
    return _Open(f"{role}.shape[{axis}]") if size is None or size < 0 else size


def _said(size: int) -> int | str | None:
    """Return a size as a model says it."""
    if isinstance(size, _Open):
        return None
    return str(size) if isinstance(size, Symbol) else size


def _attributes(values: dict[str, Any]) -> Attributes:
    given = {name: value for name, value in values.items() if value is not None}
    return Attributes(**{name: given[name] for name in Attributes._fields if name in given})


def run(
    path: str, where: str, against: tuple[str, ...], how: How, tick: Told = lambda share, who: None
) -> Outcome:
    """Compute a model on inputs, and compare engines with what our nodes give.

    where: an archive of the inputs by their names, or a folder with input_0.pb and so on.
    """
    model = names.model(path)
    feeds = _inputs(where, model)
    if find_spec("onnx") is None:
        raise UsageError("to run a model needs the package onnx", hint="pip install 'ndtool[onnx]'")
    if against:
        require_any(against)
    running = _Running(_described(model), against, how, tick)
    error = running.run(path, feeds)
    found = [report for node in running.nodes for report in node.reports]
    return Outcome(running.nodes, error or disagreement("the model's nodes", found))


def _inputs(where: str, model: KnownModel) -> Arrays:
    """Return what is given to a model, by name; what has a value in it may be left out."""
    needed = [name for name in model.inputs if name not in model.held]
    if os.path.isdir(where):
        files = _tensors(where)
        taken = list(model.inputs) if len(files) == len(model.inputs) else needed
        if len(files) != len(taken):
            wanted = f"expected {len(needed)}: {', '.join(map(printable, needed))}"
            raise UsageError(f"{printable(where)} has {len(files)} inputs: {wanted}")
        arguments = dict(zip(taken, files, strict=True))
    else:
        members = {entry.member or "": entry.name for entry in names.describe(where)}
        if missing := [name for name in needed if name not in members]:
            raise UsageError(
                f"{printable(where)} has no input {', '.join(map(printable, missing))}:"
                f" the model takes {', '.join(map(printable, needed)) or 'none'}"
            )
        arguments = {name: members[name] for name in model.inputs if name in members}
    return {name: _array(argument, model.inputs[name]) for name, argument in arguments.items()}


def _tensors(folder: str) -> list[str]:
    """Return the files input_0.pb and so on of a folder, or of the data set in it."""
    for place in (folder, os.path.join(folder, _DATA_SET)):
        found = list(_numbered(place))
        if found:
            return found
    raise InputError(
        f"{printable(folder)} has no inputs: expected input_0.pb there or in {_DATA_SET}"
    )


def _numbered(folder: str) -> Iterator[str]:
    number = 0
    while os.path.exists(file := os.path.join(folder, f"input_{number}.pb")):
        yield file
        number += 1


def _array(argument: str, known: Known) -> NDArray[Any]:
    source = names.open_source(argument, Streams())
    try:
        facts = source.facts
        dtype = facts.dtype
        if dtype.kind == "V" and known.dtype in dtypes.EXTENDED:
            dtype = dtypes.view_as(dtype, known.dtype)
        array = as_array(whole(source).buffer, dtype, facts.shape, facts.order == "F")
        return array.astype(array.dtype.newbyteorder("="), order="C")
    finally:
        source.close()


class _RefusedError(Exception):
    """A node cannot be computed; what follows it cannot either."""


class _Running:
    """A run of a model: nodes are told what came to them as the evaluator comes to them."""

    def __init__(
        self, found: list[ModelNode], against: tuple[str, ...], how: How, tick: Told
    ) -> None:
        self.nodes = [one._replace(runs=0) for one in found]
        self._against, self._how, self._tick = against, how, tick
        self._error: NdtoolError | None = None

    def run(self, path: str, feeds: Arrays) -> NdtoolError | None:
        """Evaluate; return what is wrong with one of our nodes, after which nothing is computed."""
        onnx: Any = import_module("onnx")
        try:
            model = onnx.load(path)
            self._number(model)
            evaluator = self._evaluator()(model)
            evaluator.run(None, feeds)
        except _RefusedError:
            return self._error
        except NdtoolError:
            raise
        except Exception as exc:
            words = " ".join(str(exc).split()) or type(exc).__name__
            raise RuleError(
                f"{printable(path)}: the onnx package cannot run it: {printable(words, 500)}"
            ) from exc
        return None

    def _number(self, model: Any) -> None:
        """Write the number of each of our nodes into it, where the evaluator keeps it."""
        free: dict[str, list[int]] = {}
        for number, one in enumerate(self.nodes):
            free.setdefault(one.node.node, []).append(number)
        for name, node in _walk(model):
            node.doc_string = str(free[name].pop(0))

    def _evaluator(self) -> Any:
        """Return an evaluator that has our operators, in subgraphs and functions too."""
        reference: Any = import_module("onnx.reference")
        ours: Any = import_module("ndtool.onnx")
        running = self

        def watched(kind: Any) -> Any:
            class Watched(kind):  # type: ignore[misc]
                def _run(self, *inputs: Any, **attributes: Any) -> Any:
                    number = int(self.onnx_node.doc_string)
                    compute = super()._run
                    return running._met(
                        number, inputs, attributes, lambda: compute(*inputs, **attributes)
                    )

            Watched.__name__ = kind.__name__
            return Watched

        kinds = [watched(kind) for kind in ours.OPS]

        class Evaluator(reference.ReferenceEvaluator):  # type: ignore[misc]
            def __init__(self, proto: Any, **settings: Any) -> None:
                super().__init__(proto, **{**settings, "new_ops": kinds})

        return Evaluator

    def _met(
        self,
        number: int,
        inputs: tuple[Any, ...],
        attributes: dict[str, Any],
        compute: Callable[[], Any],
    ) -> Any:
        """Compute a node that the evaluator has come to; a function's parameters are values now."""
        one = self.nodes[number]
        try:
            (result,) = compute()
            if not one.runs and self._against:
                one = one._replace(reports=self._compared(number, inputs, attributes))
        except NdtoolError as exc:
            self._error = _named(exc, one, inputs)
            raise _RefusedError from exc
        given = zip(one.inputs.items(), inputs, strict=True)
        met = {role: (name, _known(array)) for (role, (name, _)), array in given}
        runs = (one.runs or 0) + 1
        self.nodes[number] = one._replace(inputs=met, runs=runs, found=_known(result))
        return (result,)

    def _compared(
        self, number: int, inputs: tuple[Any, ...], attributes: dict[str, Any]
    ) -> tuple[Report, ...]:
        one = self.nodes[number]
        operator = OPERATORS[one.node.operator]
        arrays = dict(zip(operator.inputs, inputs, strict=True))
        called: dict[str, Any] = {**_called(one)}
        request = Request(operator.name, attributes=_attributes(attributes), **called)
        expected = recomputed(request, arrays)
        asked = Asked(request, arrays, expected, self._how)
        done, name = number / len(self.nodes), printable(one.node.node, 40)

        def tell(share: float, who: str) -> None:
            self._tick(done + share / len(self.nodes), f"{name}: {who}" if who else name)

        return tuple(asked.reports(self._against, tell))


def _known(array: NDArray[Any]) -> Known:
    """Return the type and shape of an array that a node took or gave."""
    strings = array.dtype.kind in "OSU"
    return Known("string" if strings else dtypes.from_numpy(array.dtype).name, array.shape)


def _called(one: ModelNode) -> dict[str, str]:
    """Return the names of a node's inputs, by role."""
    return {role: name for role, (name, _) in one.inputs.items()}


def _named(exc: NdtoolError, one: ModelNode, inputs: tuple[Any, ...]) -> NdtoolError:
    """Put the names of a node and of its inputs into an error."""
    given = {
        role: Given(name, dtypes.from_numpy(array.dtype), array.shape)
        for (role, name), array in zip(_called(one).items(), inputs, strict=True)
    }
    inference.point_out(exc, given)
    exc.message = f"{printable(one.node.node)}: {exc.message}"
    return exc


def _walk(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the nodes of our operators in a model of the onnx package, with their paths."""
    yield from _walk_nodes(model.graph.node, "")
    for function in model.functions:
        path = f"{function.domain}.{function.name}" if function.domain else function.name
        overload = getattr(function, "overload", "")
        yield from _walk_nodes(function.node, f"{path}:{overload}/" if overload else f"{path}/")


def _walk_nodes(found: Any, path: str) -> Iterator[tuple[str, Any]]:
    for node in found:
        name = path + (node.name or next(iter(node.output), "") or node.op_type)
        if node.op_type in TITLES and node.domain in ("", "ai.onnx"):
            yield name, node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk_nodes(attribute.g.node, f"{name}/{attribute.name}/")
            for number, graph in enumerate(attribute.graphs):
                yield from _walk_nodes(graph.node, f"{name}/{attribute.name}/{number}/")
