"""The cases: fifteen for the targets, and the grid of other widths and layouts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

Shape = tuple[int, ...]
Pattern = Literal["uniform", "distinct", "negative", "sorted", "clustered", "one"]
Layout = Literal["C", "F", "reversed"]


@dataclass(frozen=True)
class Case:
    """One call of an operator: shapes, element types, and the distribution of its indices.

    attribute: batch_dims or the axis. pattern: the distribution of indices; negative: of both
    signs. layout: of data.
    """

    name: str
    operator: str
    data_shape: Shape
    indices_shape: Shape
    dtype: str = "float32"
    index_dtype: str = "int64"
    attribute: int = 0
    reduction: str = "none"
    pattern: Pattern = "uniform"
    layout: Layout = "C"

    @property
    def has_tuples(self) -> bool:
        return self.operator.endswith("_nd")

    @property
    def is_scatter(self) -> bool:
        return self.operator.startswith("scatter")

    @property
    def k(self) -> int:
        """Components of an index tuple."""
        return self.indices_shape[-1]

    @property
    def batch_dims(self) -> int:
        return self.attribute if self.operator == "gather_nd" else 0

    @property
    def selected_shape(self) -> Shape:
        """The shape of all selected slices together: gather's output, scatter's updates."""
        if self.has_tuples:
            return self.indices_shape[:-1] + self.data_shape[self.batch_dims + self.k :]
        return self.indices_shape

    @property
    def output(self) -> Shape:
        return self.data_shape if self.is_scatter else self.selected_shape

    def limit_dimensions(self, max_size: int) -> "Case":
        """Return the same case with no dimension above `max_size`."""
        data, indices = (
            tuple(min(n, max_size) for n in s) for s in (self.data_shape, self.indices_shape)
        )
        return replace(self, data_shape=data, indices_shape=indices)


def gather_nd(name: str, data: Shape, indices: Shape, batch_dims: int = 0, **options: Any) -> Case:
    return Case(name, "gather_nd", data, indices, attribute=batch_dims, **options)


def scatter_nd(name: str, data: Shape, indices: Shape, reduction: str, **options: Any) -> Case:
    return Case(name, "scatter_nd", data, indices, reduction=reduction, **options)


def gather_elements(name: str, data: Shape, axis: int, **options: Any) -> Case:
    return Case(name, "gather_elements", data, data, attribute=axis, **options)


def scatter_elements(name: str, data: Shape, axis: int, reduction: str, **options: Any) -> Case:
    return Case(
        name, "scatter_elements", data, data, attribute=axis, reduction=reduction, **options
    )


SQUARE = (4096, 4096)
TUPLES = (2**23, 2)

CASES = (
    gather_nd("rows256", (2**20, 64), (2**20, 1)),
    gather_nd("rows4k", (2**16, 1024), (2**16, 1)),
    gather_nd("rows16", (2**22, 4), (2**22, 1)),
    gather_nd("scalars", SQUARE, TUPLES),
    gather_nd("scalars1d", (2**24,), (2**23, 1)),
    gather_nd("batch", (64, 8192, 128), (64, 4096, 1), 1),
    gather_elements("gather-elements-axis0", SQUARE, 0),
    gather_elements("gather-elements-axis1", SQUARE, 1),
    scatter_nd("scatter-none-rows", (2**20, 64), (2**19, 1), "none", pattern="distinct"),
    scatter_nd("scatter-add-rows", (2**20, 64), (2**19, 1), "add"),
    scatter_nd("scatter-add-scalars", SQUARE, TUPLES, "add"),
    scatter_nd("scatter-max-scalars", SQUARE, TUPLES, "max"),
    scatter_nd("scatter-add-histogram", (1024,), (2**23, 1), "add"),
    scatter_elements("scatter-elements-add-axis0", SQUARE, 0, "add"),
    scatter_elements("scatter-elements-add-axis1", SQUARE, 1, "add"),
)

CONTIGUOUS_ROWS = ("rows256", "rows4k", "batch")  # compared with a memcpy of the same bytes
# In these cases a second thread must help.
LATENCY_BOUND_CASES = (
    "rows16",
    "scalars",
    "scalars1d",
    "scatter-add-scalars",
    "scatter-max-scalars",
)


def _others() -> Iterator[Case]:
    """Yield the grid of other widths, index types, distributions, element types and layouts."""
    line, grid, tuples = (2**23,), (2048, 2048), (2**21, 1)
    options: dict[str, Any]
    for dtype, size in (("uint8", 1), ("float16", 2), ("float64", 8), ("complex128", 16)):
        options = {"dtype": dtype}
        axis0 = f"scatter-elements-none-axis0-{size}B"
        yield gather_nd(f"scalars-{size}B", line, tuples, **options)
        yield gather_elements(f"gather-elements-axis0-{size}B", grid, 0, **options)
        yield gather_elements(f"gather-elements-axis1-{size}B", grid, 1, **options)
        yield scatter_nd(f"scatter-none-scalars-{size}B", line, tuples, "none", **options)
        yield scatter_elements(axis0, grid, 0, "none", **options)
    for width in (3, 7, 24, 100):
        options, name = {"dtype": "uint8"}, f"scatter-none-rows-{width}B"
        yield gather_nd(f"rows-{width}B", (2**20, width), (2**20, 1), **options)
        yield scatter_nd(name, (2**20, width), (2**19, 1), "none", **options)

    options = {"index_dtype": "int32"}
    yield gather_nd("rows256-int32", (2**20, 64), (2**19, 1), **options)
    for index_dtype in ("int32", "int16", "uint32"):
        yield gather_nd(f"scalars-{index_dtype}", SQUARE, (2**22, 2), index_dtype=index_dtype)
    yield gather_elements("gather-elements-axis0-int32", grid, 0, **options)
    yield gather_elements("gather-elements-axis1-int32", grid, 1, **options)
    yield scatter_nd("scatter-add-scalars-int32", SQUARE, (2**22, 2), "add", **options)
    yield scatter_elements("scatter-elements-add-axis1-int32", grid, 1, "add", **options)
    options = {"pattern": "negative"}
    yield gather_nd("rows256-negative", (2**20, 64), (2**19, 1), **options)
    yield gather_nd("scalars-negative", SQUARE, (2**22, 2), **options)
    yield gather_elements("gather-elements-axis0-negative", grid, 0, **options)
    yield scatter_nd("scatter-add-scalars-negative", SQUARE, (2**22, 2), "add", **options)
    yield gather_nd("scalars-k3", (256, 256, 256), (2**22, 3))
    yield gather_nd("scalars-k4", (64, 64, 64, 64), (2**22, 4))
    yield scatter_nd("scatter-add-k3", (256, 256, 256), (2**22, 3), "add")
    yield gather_nd("batches-of-one-tuple", (2**20, 16), (2**20, 1), 1)
    for pattern in ("sorted", "clustered"):
        options = {"pattern": pattern}
        yield gather_nd(f"rows256-{pattern}", (2**20, 64), (2**19, 1), **options)
        yield gather_nd(f"scalars-{pattern}", (2**24,), (2**22, 1), **options)
        yield gather_elements(f"gather-elements-axis0-{pattern}", grid, 0, **options)
        yield scatter_nd(f"scatter-add-scalars-{pattern}", (2**24,), (2**22, 1), "add", **options)
        yield scatter_nd(f"scatter-add-rows-{pattern}", (2**18, 64), (2**17, 1), "add", **options)

    yield gather_nd("tiny-slices", (2**20, 2), (2**20, 1))
    yield gather_nd("one-huge-slice", (4, 2**24), (1, 1))
    yield scatter_nd("scatter-none-one-huge-slice", (4, 2**23), (1, 1), "none")
    yield scatter_nd("scatter-add-one-huge-slice", (4, 2**23), (1, 1), "add")
    yield gather_nd("rows64-in-cache", (4096, 16), (2**18, 1))
    yield gather_nd("scalars-in-cache", (2**14,), (2**21, 1))
    yield scatter_nd("scatter-add-in-cache", (2**14,), (2**21, 1), "add")
    yield gather_elements("gather-elements-axis0-in-cache", (256, 256), 0)
    yield scatter_elements("scatter-elements-add-axis0-in-cache", (256, 256), 0, "add")
    yield gather_nd("rows-256-of-1GB", (2**22, 64), (2**18, 1))
    yield gather_nd("scalars-of-1GB", (2**28,), (2**22, 1))
    yield scatter_nd("scatter-add-into-1GB", (2**28,), (2**22, 1), "add")
    options = {"pattern": "one"}
    yield scatter_nd("scatter-add-one-slot", (2**22,), (2**21, 1), "add", **options)
    yield scatter_nd("scatter-max-one-slot", (2**22,), (2**21, 1), "max", **options)
    yield scatter_nd("scatter-add-rows-one-slot", (2**16, 64), (2**15, 1), "add", **options)
    yield scatter_elements("scatter-elements-add-one-slot", (1024, 1024), 0, "add", **options)

    grid = (1024, 1024)
    for dtype in ("float64", "int64", "float16", "bfloat16", "int32", "uint8"):
        options, elements = {"dtype": dtype}, "scatter-elements"
        yield scatter_nd(f"scatter-add-{dtype}", (2**22,), (2**20, 1), "add", **options)
        yield scatter_nd(f"scatter-max-{dtype}", (2**22,), (2**20, 1), "max", **options)
        yield scatter_nd(f"scatter-add-rows-{dtype}", (2**16, 64), (2**15, 1), "add", **options)
        yield scatter_elements(f"{elements}-add-axis0-{dtype}", grid, 0, "add", **options)
        yield scatter_elements(f"{elements}-max-axis1-{dtype}", grid, 1, "max", **options)
    grid, tuples = (2048, 2048), (2**21, 2)
    for layout in ("F", "reversed"):
        options = {"layout": layout}
        yield gather_nd(f"rows256-{layout}", (2**18, 64), (2**18, 1), **options)
        yield gather_nd(f"scalars-{layout}", grid, tuples, **options)
        yield gather_elements(f"gather-elements-axis0-{layout}", grid, 0, **options)
        yield gather_elements(f"gather-elements-axis1-{layout}", grid, 1, **options)
        yield scatter_nd(f"scatter-add-scalars-{layout}", grid, tuples, "add", **options)
        yield scatter_elements(f"scatter-elements-axis0-{layout}", grid, 0, "add", **options)


OTHER_CASES = tuple(_others())

# Small enough for a shared machine; every kernel once.
CI = (
    gather_nd("rows256", (2**18, 64), (2**17, 1)),
    gather_nd("rows16", (2**20, 4), (2**20, 1)),
    gather_nd("scalars", (2048, 2048), (2**20, 2)),
    gather_nd("batch", (16, 8192, 64), (16, 4096, 1), 1),
    gather_elements("gather-elements-axis0", (2048, 2048), 0),
    gather_elements("gather-elements-axis1", (2048, 2048), 1),
    scatter_nd("scatter-none-rows", (2**17, 64), (2**16, 1), "none", pattern="distinct"),
    scatter_nd("scatter-add-rows", (2**16, 64), (2**15, 1), "add"),
    scatter_nd("scatter-add-scalars", (2048, 2048), (2**20, 2), "add"),
    scatter_nd("scatter-max-scalars", (2048, 2048), (2**20, 2), "max"),
    scatter_nd("scatter-add-histogram", (1024,), (2**20, 1), "add"),
    scatter_elements("scatter-elements-add-axis0", (1024, 1024), 0, "add"),
    scatter_elements("scatter-elements-add-axis1", (1024, 1024), 1, "add"),
)
