"""The operators' signatures, one protocol each, and the functions that have them.

A protocol is generic in the arrays that a function takes (`Data`, `Indices`), what it returns
(`Result`), what `out` is (`Out`, None where there is no output to fill) and the options that only
functions on files have (`Option`, Never for others). `bind` makes functions of them: Python's own
check of arguments, then one call of a backend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Generic, Literal, Protocol, SupportsIndex, TypedDict, TypeVar

from ndtool.rules.operators import ALL_OPERATORS, Attributes

Reduction = Literal[
    "none", "add", "sub", "mul", "div", "max", "min", "mean",
    "update", "assign", "sum", "subtract", "prod", "multiply", "divide", "amax", "maximum", "amin",
    "minimum",
]  # fmt: skip
Duplicates = Literal["last", "first", "error"]
GatherMode = Literal["error", "clip", "wrap", "fill"]
ScatterMode = Literal["error", "clip", "wrap", "drop"]
Mode = Literal["error", "clip", "wrap", "fill", "drop"]
WriteMode = Literal["linear", "circular"]
OperatorName = Literal[
    "gather_nd", "scatter_nd", "gather_elements", "scatter_elements", "gather", "scatter",
    "tensor_scatter",
]  # fmt: skip
Data = TypeVar("Data")
Indices = TypeVar("Indices")
Result = TypeVar("Result")
Out = TypeVar("Out")
Option = TypeVar("Option")
_Data = TypeVar("_Data", contravariant=True)
_Indices = TypeVar("_Indices", contravariant=True)
_Result = TypeVar("_Result", covariant=True)
_Out = TypeVar("_Out", contravariant=True)
_Option = TypeVar("_Option", contravariant=True)


class AttributeOptions(TypedDict, total=False):
    """The attributes of an operator, keyword arguments of questions about its calls.

    batch_dims, axis, reduction, mode: attributes in the standards. out_of_bounds, fill, pad,
    negatives, include_self, duplicates: as in ndtool.gather_nd and ndtool.scatter_nd.
    """

    batch_dims: SupportsIndex
    axis: SupportsIndex | None
    reduction: Reduction
    mode: WriteMode
    out_of_bounds: Mode
    fill: object
    pad: SupportsIndex | None
    negatives: bool
    include_self: bool
    duplicates: Duplicates
    index_base: SupportsIndex


# The sentences about parameters that several operators have.
_PARAMETERS = {
    "threads": "1..1024, default all processors.",
    "spec": 'the standard to validate against, "ndtool", "onnx:N" or "openvino:N".',
    "negatives": "if False, negative indices are out of bounds.",
    "index_base": "1 if indices count from 1: 0 and negative ones are out of bounds then.",
}
_OF_GATHERS = {
    "out": "receives the result; unchanged when an index is out of bounds.",
    "out_of_bounds": '"error", or what other libraries do silently: "clip" (an index clamps to the'
    ' first or last one), "wrap" (it is taken modulo the axis size), "fill" (the slice is filled'
    " with `fill`, a number, 0 if None). Valid negative indices stay valid.",
    "pad": "an index equal to it selects nothing: its slice is filled with `fill`.",
}
_OF_SCATTERS = {
    "reduction": 'how an update is combined with the current value: "none" (assignment), "add",'
    ' "sub", "mul", "div" (of floats), "max", "min" or "mean" (the sum, divided once by the number'
    " of summands; of integers rounded down), in row-major order of indices; other libraries'"
    ' names, as "amax", are accepted. The bits are those of the sequential loop at any number of'
    " threads.",
    "out": "receives the result; `out=data` updates in place.",
    "out_of_bounds": '"error", "clip" to the first or last index, "wrap" modulo the axis size, or'
    ' "drop", which skips the update.',
    "pad": "an index equal to it selects nothing: its update is skipped.",
    "include_self": "if False, the first update of an element is copied and the next ones are"
    " reduced, so that old values take no part.",
    "duplicates": 'which of several updates of an element "none" assigns, "last" or "first"; with'
    ' "error" no element may have several.',
}


class GatherND(Protocol[_Data, _Indices, _Result, _Out, _Option]):
    """The signature of gather_nd."""

    def __call__(
        self,
        data: _Data,
        indices: _Indices,
        batch_dims: SupportsIndex = 0,
        *,
        out: _Out | None = None,
        threads: int | None = None,
        spec: str = "ndtool",
        out_of_bounds: GatherMode = "error",
        fill: object = None,
        pad: SupportsIndex | None = None,
        negatives: bool = True,
        index_base: SupportsIndex = 0,
        **options: _Option,
    ) -> _Result:
        """Gather the slices of data that index tuples select (ONNX GatherND, OpenVINO GatherND-8).

        data: shape (d0, .., dr-1), any fixed-size dtype. indices: shape (.., k), any integer dtype;
        each value in -s..s-1 for its axis of size s. batch_dims: the number of leading axes that
        both share.

        Returns data's dtype, shape indices.shape[:-1] + data.shape[batch_dims + k:].
        Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

        >>> import ndtool
        >>> ndtool.gather_nd([[0, 1], [2, 3]], [[0, 0], [1, 1]])
        array([0, 3])
        """
        ...


class ScatterND(Protocol[_Data, _Indices, _Result, _Out, _Option]):
    """The signature of scatter_nd."""

    def __call__(
        self,
        data: _Data,
        indices: _Indices,
        updates: _Data,
        reduction: Reduction = "none",
        *,
        batch_dims: SupportsIndex = 0,
        out: _Out | None = None,
        threads: int | None = None,
        spec: str = "ndtool",
        out_of_bounds: ScatterMode = "error",
        pad: SupportsIndex | None = None,
        negatives: bool = True,
        index_base: SupportsIndex = 0,
        include_self: bool = True,
        duplicates: Duplicates = "last",
        **options: _Option,
    ) -> _Result:
        """Copy data, then set or reduce the slices that index tuples select (ONNX ScatterND).

        data: any fixed-size dtype. indices: shape (.., k), any integer dtype. updates: data's
        dtype, shape indices.shape[:-1] + data.shape[batch_dims + k:]. batch_dims: the number of
        leading axes that data and indices share.

        Returns data's dtype and shape.
        Raises BoundsError (an IndexError), DtypeError (a TypeError), or DuplicatesError or another
        RuleError (a ValueError).

        >>> import ndtool
        >>> ndtool.scatter_nd([1, 2, 3, 4], [[1], [1]], [10, 10], "add")
        array([ 1, 22,  3,  4])
        """
        ...


class GatherElements(Protocol[_Data, _Indices, _Result, _Out, _Option]):
    """The signature of gather_elements."""

    def __call__(
        self,
        data: _Data,
        indices: _Indices,
        axis: SupportsIndex = 0,
        *,
        out: _Out | None = None,
        threads: int | None = None,
        spec: str = "ndtool",
        out_of_bounds: GatherMode = "error",
        fill: object = None,
        pad: SupportsIndex | None = None,
        negatives: bool = True,
        index_base: SupportsIndex = 0,
        **options: _Option,
    ) -> _Result:
        """Gather one element per index, along an axis (ONNX GatherElements).

        data: rank r >= 1, any fixed-size dtype. indices: rank r, any integer dtype, no longer than
        data off the axis. axis: -r..r-1.

        Returns data's dtype and indices' shape.
        Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

        >>> import ndtool
        >>> ndtool.gather_elements([[1, 2], [3, 4]], [[0, 0], [1, 0]], axis=1)
        array([[1, 1],
               [4, 3]])
        """
        ...


class ScatterElements(Protocol[_Data, _Indices, _Result, _Out, _Option]):
    """The signature of scatter_elements."""

    def __call__(
        self,
        data: _Data,
        indices: _Indices,
        updates: _Data,
        axis: SupportsIndex = 0,
        reduction: Reduction = "none",
        *,
        out: _Out | None = None,
        threads: int | None = None,
        spec: str = "ndtool",
        out_of_bounds: ScatterMode = "error",
        pad: SupportsIndex | None = None,
        negatives: bool = True,
        index_base: SupportsIndex = 0,
        include_self: bool = True,
        duplicates: Duplicates = "last",
        **options: _Option,
    ) -> _Result:
        """Copy data, then set or reduce an element per index along an axis (ONNX ScatterElements).

        data: rank r >= 1, any fixed-size dtype. indices: rank r, any integer dtype, no longer than
        data off the axis. updates: data's dtype, indices' shape. axis: -r..r-1.

        Returns data's dtype and shape.
        Raises BoundsError (an IndexError), DtypeError (a TypeError), or DuplicatesError or another
        RuleError (a ValueError).

        >>> import ndtool
        >>> ndtool.scatter_elements([[1, 2, 3]], [[0, 2]], [[9, 8]], axis=1)
        array([[9, 2, 8]])
        """
        ...


class Gather(Protocol[_Data, _Indices, _Result, _Out, _Option]):
    """The signature of gather."""

    def __call__(
        self,
        data: _Data,
        indices: _Indices,
        axis: SupportsIndex | None = None,
        *,
        batch_dims: SupportsIndex = 0,
        out: _Out | None = None,
        threads: int | None = None,
        spec: str = "ndtool",
        out_of_bounds: GatherMode = "error",
        fill: object = None,
        pad: SupportsIndex | None = None,
        negatives: bool = True,
        index_base: SupportsIndex = 0,
        **options: _Option,
    ) -> _Result:
        """Gather the slices of data that indices select along an axis (ONNX Gather, NumPy's take).

        data: rank r >= 1, any fixed-size dtype. indices: any shape, any integer dtype; each value
        in -s..s-1 for the axis of size s. axis: -r..r-1, default batch_dims. batch_dims: the number
        of leading axes that both share, at most axis (OpenVINO Gather-8, TensorFlow's gather).

        Returns data's dtype, shape data.shape[:axis] + indices.shape[batch_dims:] +
        data.shape[axis+1:].
        Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

        >>> import ndtool
        >>> ndtool.gather([[0, 1], [2, 3], [4, 5]], [2, 0])
        array([[4, 5],
               [0, 1]])
        """
        ...


class Scatter(Protocol[_Data, _Indices, _Result, _Out, _Option]):
    """The signature of scatter."""

    def __call__(
        self,
        data: _Data,
        indices: _Indices,
        updates: _Data,
        axis: SupportsIndex | None = None,
        reduction: Reduction = "none",
        *,
        batch_dims: SupportsIndex = 0,
        out: _Out | None = None,
        threads: int | None = None,
        spec: str = "ndtool",
        out_of_bounds: ScatterMode = "error",
        pad: SupportsIndex | None = None,
        negatives: bool = True,
        index_base: SupportsIndex = 0,
        include_self: bool = True,
        duplicates: Duplicates = "last",
        **options: _Option,
    ) -> _Result:
        """Copy data, then set or reduce the slices that indices select along an axis.

        The inverse of gather: torch's index_add and index_copy, OpenVINO ScatterUpdate-3. data:
        rank r >= 1, any fixed-size dtype. indices: any shape, any integer dtype; each value in
        -s..s-1 for the axis of size s. updates: data's dtype, the shape that gather returns:
        data.shape[:axis] + indices.shape[batch_dims:] + data.shape[axis+1:]. axis: -r..r-1, default
        batch_dims. batch_dims: the number of leading axes that data and indices share, at most
        axis.

        Returns data's dtype and shape.
        Raises BoundsError (an IndexError), DtypeError (a TypeError), or DuplicatesError or another
        RuleError (a ValueError).

        >>> import ndtool
        >>> ndtool.scatter([[0, 1], [2, 3]], [1, 1], [[10, 20], [30, 40]], reduction="add")
        array([[ 0,  1],
               [42, 63]])
        """
        ...


class TensorScatter(Protocol[_Data, _Indices, _Result, _Out, _Option]):
    """The signature of tensor_scatter."""

    def __call__(
        self,
        past: _Data,
        update: _Data,
        write_indices: _Indices | None = None,
        axis: SupportsIndex = -2,
        mode: WriteMode = "linear",
        *,
        out: _Out | None = None,
        threads: int | None = None,
        spec: str = "ndtool",
        **options: _Option,
    ) -> _Result:
        """Copy past, and write update from an index of each batch on (ONNX TensorScatter).

        past: shape (B, .., s, ..), rank r >= 2, any fixed-size dtype: a key or value cache. update:
        past's dtype and shape, but for the axis, where it has n <= s. write_indices: shape (B,),
        any integer dtype; the index along the axis of update's first element in each batch; zeros
        if None. axis: -r..r-1, not the batch axis 0. mode: "linear", where 0 <= write_indices <= s
        - n, or "circular", where every index is taken modulo s. out: receives the result;
        `out=past` updates in place.

        Returns past's dtype and shape.
        Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

        >>> import ndtool
        >>> ndtool.tensor_scatter([[[1], [2], [3]]], [[[8], [9]]], [2], mode="circular").tolist()
        [[[9], [2], [8]]]
        """
        ...


class Operators(Generic[Data, Indices, Result, Out, Option]):
    """The operators on one kind of arrays."""

    gather_nd: GatherND[Data, Indices, Result, Out, Option]
    scatter_nd: ScatterND[Data, Indices, Result, Out, Option]
    gather_elements: GatherElements[Data, Indices, Result, Out, Option]
    scatter_elements: ScatterElements[Data, Indices, Result, Out, Option]
    gather: Gather[Data, Indices, Result, Out, Option]
    scatter: Scatter[Data, Indices, Result, Out, Option]
    tensor_scatter: TensorScatter[Data, Indices, Result, Out, Option]


_PROTOCOLS: dict[str, Any] = {
    "gather_nd": GatherND, "scatter_nd": ScatterND, "gather_elements": GatherElements,
    "scatter_elements": ScatterElements, "gather": Gather, "scatter": Scatter,
    "tensor_scatter": TensorScatter,
}  # fmt: skip


def bind(
    backend: Callable[..., Any],
    module: str,
    types: Mapping[str, str],
    notes: str,
    omitted: tuple[str, ...] = (),
    options: Mapping[str, tuple[object, str]] | None = None,
) -> Any:
    """Return the operators as functions of a module, as Operators.

    backend: called with data, indices, updates (None of a gather), out, a dict of the options if
    there are any, then the call: name, threads, spec, *attributes. types: the annotations, by
    the names of the type variables. notes: text for the docstrings. omitted: parameters that the
    functions do not have. options: the default and the annotation of more parameters.
    """
    operators = Operators[Any, Any, Any, Any, Any]()
    for name, protocol in _PROTOCOLS.items():
        signature = protocol.__call__
        function = _function(name, signature, backend, module, omitted, options)
        substituted = {
            parameter: re.sub(r"\b_(\w+)", lambda match: types[match[1]], annotation)
            for parameter, annotation in signature.__annotations__.items()
            if parameter not in (*omitted, "options")
        }
        extra = {option: annotation for option, (_, annotation) in (options or {}).items()}
        result = substituted.pop("return")
        function.__annotations__ = {**substituted, **extra, "return": result}
        function.__doc__ = _docstring(signature, notes, omitted, ALL_OPERATORS[name].scatters)
        setattr(operators, name, function)
    return operators


def _function(
    name: str,
    signature: FunctionType,
    backend: Callable[..., Any],
    module: str,
    omitted: tuple[str, ...],
    options: Mapping[str, tuple[object, str]] | None,
) -> FunctionType:
    """Return a function with the parameters of a signature that calls the backend."""
    code, keyword_defaults = signature.__code__, signature.__kwdefaults__ or {}
    names = code.co_varnames[1 : code.co_argcount]
    keywords = [
        keyword
        for keyword in code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        if keyword not in omitted
    ]
    defaults = Attributes._field_defaults | {"out": None, "threads": None}
    given = {parameter: parameter for parameter in (*names, *keywords)}
    attributes = (given.get(field, repr(default)) for field, default in defaults.items())
    *values, out, threads = attributes
    roles = ALL_OPERATORS[name].inputs
    data, indices, updates = (
        ("past", "write_indices", "update") if "past" in roles else (*roles, "None")[:3]
    )
    extra = f", dict({', '.join(f'{option}={option}' for option in options)})" if options else ""
    parameters = [*names, "*", *keywords, *(options or ())]
    source = (
        f"def {name}({', '.join(parameters)}):\n"
        f" return _backend({data}, {indices}, {updates}, {out}{extra},"
        f" {name!r}, {threads}, spec, {', '.join(values)})\n"
    )
    namespace: dict[str, Any] = {"_backend": backend, "__name__": module}
    exec(compile(source, f"<signature of {name}>", "exec"), namespace)
    function: FunctionType = namespace[name]
    function.__defaults__ = signature.__defaults__
    function.__kwdefaults__ = {keyword: keyword_defaults[keyword] for keyword in keywords} | {
        option: default for option, (default, _) in (options or {}).items()
    }
    return function


def _docstring(
    signature: FunctionType, notes: str, omitted: tuple[str, ...], scatters: bool
) -> str:
    """Return a docstring with all parameters but omitted ones and those in a front end's notes."""
    from textwrap import dedent, fill

    first, _, remaining = (signature.__doc__ or "").partition("\n")
    arguments, *paragraphs = dedent(remaining).strip("\n").split("\n\n")
    arguments = " ".join(arguments.split())
    texts = _PARAMETERS | (_OF_SCATTERS if scatters else _OF_GATHERS)
    entries = re.split(r"(?<=\.) (?=[a-z_]+: )", arguments)
    entries += [
        f"{name}: {texts[name]}"
        for name in signature.__annotations__
        if name in texts and f" {name}: " not in arguments
    ]
    left_out = [*omitted, *re.findall(r"(?<= )[a-z_]+(?=: )", notes)]
    arguments = " ".join(entry for entry in entries if entry.partition(":")[0] not in left_out)
    parts = [first, fill(arguments, 100), *([fill(notes, 100)] if notes else []), *paragraphs]
    return "\n\n".join(parts) + "\n"
