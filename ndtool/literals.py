"""Types of Python arguments as Literal and TypedDict, so that editors complete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, TypedDict

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


class Tensor(Protocol):
    """A torch tensor for type checkers without torch: it has a method that arrays lack."""

    def data_ptr(self) -> int:
        """Return the address of the first element."""


class CallOptions(TypedDict, total=False):
    """The attributes that all operators share: all but batch_dims, axis and reduction."""

    out_of_bounds: Mode
    fill: object
    pad: SupportsIndex | None
    negatives: bool
    include_self: bool
    duplicates: Duplicates


class _CommonOptions(TypedDict, total=False):
    """The keyword arguments of every operator, in memory or lazy."""

    spec: str
    pad: SupportsIndex | None
    negatives: bool


class LazyGatherOptions(_CommonOptions, total=False):
    """The keyword arguments of lazy gathers."""

    out_of_bounds: GatherMode
    fill: object


class LazyScatterOptions(_CommonOptions, total=False):
    """The keyword arguments of lazy scatters."""

    out_of_bounds: ScatterMode
    include_self: bool
    duplicates: Duplicates


class _InMemoryOptions(TypedDict, total=False):
    """The keyword arguments of operators in memory, which lazy operators lack."""

    out: NDArray[Any] | Tensor | None
    threads: int | None


class GatherOptions(LazyGatherOptions, _InMemoryOptions, total=False):
    """The keyword arguments of gathers."""


class ScatterOptions(LazyScatterOptions, _InMemoryOptions, total=False):
    """The keyword arguments of scatters."""


class BatchedGatherOptions(GatherOptions, total=False):
    """The keyword arguments of gather."""

    batch_dims: SupportsIndex


class BatchedScatterOptions(ScatterOptions, total=False):
    """The keyword arguments of scatter and scatter_nd."""

    batch_dims: SupportsIndex
