"""The tables of operators and out-of-bounds modes, and the attributes of a call."""

from collections import ChainMap
from collections.abc import Callable
from typing import Any, NamedTuple

from ndtool.rules.reductions import ADD, REDUCTIONS


class Mode(NamedTuple):
    """An out-of-bounds mode.

    name: the value of the option. participle: the verb form in reports. gathers, scatters: whether
    these operators have the mode. redirect: a function of a stored index and an axis size, integers
    or arrays, that returns a valid index, which an axis of size 0 lacks. skips: whether the
    complete tuple selects nothing. ignores_distance: whether all indices below the bounds have the
    same result, and all above.
    """

    name: str
    participle: str
    gathers: bool = True
    scatters: bool = True
    redirect: Callable[[Any, Any], Any] | None = None
    skips: bool = False
    ignores_distance: bool = True


CLIP = "clip"
MODES = {
    row.name: row
    for row in (
        Mode("error", "refused"),
        Mode(CLIP, "clipped", redirect=lambda i, size: (i > 0) * (size - 1)),
        Mode("wrap", "wrapped", redirect=lambda i, size: i % size, ignores_distance=False),
        Mode("fill", "filled", scatters=False, skips=True),
        Mode("drop", "dropped", gathers=False, skips=True),
    )
}


def mode_names(scatters: bool) -> tuple[str, ...]:
    """Return the names of the modes that scatters, or else gathers, have."""
    return tuple(row.name for row in MODES.values() if (row.scatters if scatters else row.gathers))


PADDING = -(1 << 63)  # what `rebase` in inmemory/arguments.py replaces padding by


class Attributes(NamedTuple):
    """The attributes of a call, by the standards' names. An operator ignores inapplicable ones.

    axis: None for the default, see `resolved_axis`. reduction: a key of reductions.REDUCTIONS.
    out_of_bounds: a key of MODES; no standard has this attribute. fill: the fill value of
    mode "fill", and of pad, as text; None if it was not given. pad: the index that selects nothing.
    negatives: whether negative indices count from the end. include_self: whether an element's
    current value is included in its reduction; else its first update is copied. duplicates: one of
    reductions.DUPLICATES. index_base: 1 if indices count from 1, which `rebase` in
    inmemory/arguments.py shifts. mode: of tensor_scatter.
    """

    batch_dims: int = 0
    axis: int | None = None
    reduction: str = "none"
    out_of_bounds: str = "error"
    fill: str | None = None
    pad: int | None = None
    negatives: bool = True
    include_self: bool = True
    duplicates: str = "last"
    index_base: int = 0
    mode: str = "linear"

    @property
    def resolved_axis(self) -> int:
        """The axis of the call; by default the first after the batch axes."""
        return self.batch_dims if self.axis is None else self.axis

    @property
    def may_skip_tuples(self) -> bool:
        """Whether tuples may select nothing."""
        return MODES[self.out_of_bounds].skips or self.pad is not None

    @property
    def rebases_indices(self) -> bool:
        """Whether indices as stored do not count from 0."""
        return self.index_base != 0

    @property
    def rebased(self) -> "Attributes":
        """The attributes of indices that `rebase` made to count from 0."""
        if not self.rebases_indices:
            return self
        return self._replace(index_base=0, pad=None if self.pad is None else PADDING)

    def valid_indices(self, size: int) -> tuple[int, int]:
        """Return the lowest and the highest valid index, as written, of an axis of a size."""
        return (-size if self.negatives else 0) + self.index_base, size - 1 + self.index_base

    @property
    def copies_first_update(self) -> bool:
        """Whether the first update of a slice is copied, not reduced with the current value."""
        return self.duplicates == "first" if self.reduction == "none" else not self.include_self

    @property
    def operator_signs(self) -> tuple[str, str]:
        """The signs of the first update of an element and of the others, such as ("=", "+")."""
        sign = REDUCTIONS[self.reduction].symbol
        return (
            "=" if self.copies_first_update else sign,
            "ignored" if self.duplicates == "first" else sign,
        )

    @property
    def is_counted(self) -> bool:
        """Whether the updates of each slice are counted."""
        return self.is_mean or self.copies_first_update

    @property
    def is_mean(self) -> bool:
        """Whether the reduction is a mean: sums are divided by the counts of their summands."""
        return REDUCTIONS[self.reduction].needs_counts


# Attributes that all operators of ndtool have, and no operator of a standard.
COMMON_ATTRIBUTES = (
    "out_of_bounds", "fill", "pad", "negatives", "include_self", "duplicates", "index_base",
)  # fmt: skip

_SHOWN_EXTENSIONS = ("include_self", "duplicates", "index_base")  # beside the standards' own
EXTENSIONS = ("pad", "index_base", "negatives")  # that every standard refuses
GATHER_ATTRIBUTES = ("fill",)  # that scatters do not have
SCATTER_ATTRIBUTES = ("reduction", "include_self", "duplicates")  # that gathers do not have


class Example(NamedTuple):
    """An example for the help. types: types and shapes of the inputs.

    output_index: the index of the output element that `explain` explains.
    """

    types: tuple[str, ...]
    attributes: dict[str, int | str]
    output_index: str


class Operator(NamedTuple):
    """An operator of the family.

    name: ndtool's name. title: the standards' name. inputs, attributes: their names, in order.
    summary: for the help. axis: the default, None for the first after the batch axes.
    """

    name: str
    title: str
    inputs: tuple[str, ...]
    attributes: tuple[str, ...]
    summary: str
    example: Example
    axis: int | None = None

    @property
    def scatters(self) -> bool:
        """Whether the operator scatters updates into a copy of data; else it gathers."""
        return "updates" in self.inputs or "update" in self.inputs

    @property
    def command(self) -> str:
        """The name on the command line."""
        return self.name.replace("_", "-")

    def attribute_values(self, attributes: Attributes) -> dict[str, int | str]:
        """Return the values of the operator's attributes, and of ndtool's if not the defaults."""
        default = attributes.resolved_axis if self.axis is None else self.axis
        axis = default if attributes.axis is None else attributes.axis
        resolved = attributes._replace(axis=axis)
        values = {name: getattr(resolved, name) for name in self.attributes}
        extensions = {name: getattr(attributes, name) for name in _SHOWN_EXTENSIONS}
        defaults = Attributes._field_defaults
        return values | {k: value for k, value in extensions.items() if value != defaults[k]}


_GATHER = ("data", "indices")
_SCATTER = (*_GATHER, "updates")
# fmt: off
OPERATORS = {
    operator.name: operator
    for operator in (
        Operator(
            "gather_nd", "GatherND", _GATHER, ("batch_dims",),
            "Gather slices of DATA by index tuples (ONNX and OpenVINO GatherND).",
            Example(("float32[8,128,64]", "int64[8,5,1]"), {"batch_dims": 1}, "0,0"),
        ),
        Operator(
            "scatter_nd", "ScatterND", _SCATTER, ("reduction", "batch_dims"),
            "Copy DATA and update slices by index tuples (ONNX ScatterND).",
            Example(("float32[4,3]", "int64[2,1]", "float32[2,3]"), {"reduction": ADD}, "0,0,0"),
        ),
        Operator(
            "gather_elements", "GatherElements", _GATHER, ("axis",),
            "Gather one element of DATA per index along an axis (ONNX GatherElements).",
            Example(("int32[3,3]", "int64[2,3]"), {"axis": 1}, "0,0"),
        ),
        Operator(
            "scatter_elements", "ScatterElements", _SCATTER, ("axis", "reduction"),
            "Copy DATA and update one element per index along an axis (ONNX ScatterElements).",
            Example(("int8[3,3]", "int64[2,3]", "int8[2,3]"), {"axis": 1}, "0,0"),
        ),
        Operator(
            "gather", "Gather", _GATHER, ("axis", "batch_dims"),
            "Gather slices of DATA by indices along an axis (ONNX Gather, numpy.take).",
            Example(("float32[128,64]", "int64[3]"), {"axis": 0}, "0,0,0"),
        ),
        Operator(
            "scatter", "ScatterUpdate", _SCATTER, ("axis", "reduction", "batch_dims"),
            "Copy DATA and update slices by indices along an axis (OpenVINO ScatterUpdate).",
            Example(("float32[3,5]", "int64[2]", "float32[3,2]"), {"axis": 1}, "0,0"),
        ),
    )
}
# Operators that are lowered to an operator of OPERATORS, with computed indices.
LOWERED = {
    "tensor_scatter": Operator(
        "tensor_scatter", "TensorScatter", ("past", "update", "write_indices"), ("axis", "mode"),
        "Copy PAST and write UPDATE along an axis, from an index of each batch (ONNX"
        " TensorScatter).",
        Example(("float32[2,8,64]", "float32[2,1,64]", "int64[2]"), {"axis": 1}, "0,0,0"),
        axis=-2,
    ),
}
# fmt: on
WRITE_MODES = ("linear", "circular")  # of tensor_scatter
# A lowered operator's inputs by their names in the operator that it is lowered to.
LOWERED_INPUTS = {"past": "data", "update": "updates", "write_indices": "indices"}


ALL_OPERATORS = ChainMap(LOWERED, OPERATORS)  # iterates OPERATORS first


def operator_of(name: str) -> Operator:
    """Return the row of an operator, lowered ones included."""
    return ALL_OPERATORS[name]
