"""The words and keywords that Python arguments take, so that an editor completes them."""

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
    """A torch tensor, recognized by a method that arrays lack, so that mypy needs no torch."""

    def data_ptr(self) -> int:
        """Return the address of the first element."""


class _Options(TypedDict, total=False):
    """The keyword arguments of every operator."""

    out: NDArray[Any] | Tensor | None
    threads: int | None
    spec: str
    pad: SupportsIndex | None
    negatives: bool


class GatherOptions(_Options, total=False):
    """The keyword arguments of gathers."""

    out_of_bounds: GatherMode
    fill: object


class ScatterOptions(_Options, total=False):
    """The keyword arguments of scatters."""

    out_of_bounds: ScatterMode
    include_self: bool
    duplicates: Duplicates


class BatchedGatherOptions(GatherOptions, total=False):
    """Those of gather."""

    batch_dims: SupportsIndex


class BatchedScatterOptions(ScatterOptions, total=False):
    """Those of scatter and scatter_nd."""

    batch_dims: SupportsIndex
