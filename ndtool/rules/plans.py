"""Plans, the results of shape inference: N index tuples and the slices that they select."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ndtool.rules.operators import Attributes

Shape = tuple[int, ...]
Position = tuple[int, ...]


class Plan(NamedTuple):
    """N index tuples of k components, each of which selects one slice of data.

    batch: the shape of the batch axes of data. tuples: N, over all batches. sizes: the sizes of the
    k indexed axes. slice_shape: the shape of one slice. has_scalar_indices: whether each index is a
    tuple of one component, without an axis of components (all but GatherND, ScatterND).
    shared_axes: the number of batch axes that scalar indices have; the same tuples apply to all
    batches along the other batch axes. elements_axis: the indexed axis (>= 0), if each index
    selects one element, at its own position off this axis; then there are no batch axes.
    attributes: of the call, as the spec defines them.
    """

    operator: str
    data: Shape
    indices: Shape
    output: Shape
    batch: Shape
    tuples: int
    sizes: Shape
    slice_shape: Shape
    has_scalar_indices: bool = False
    shared_axes: int = 0
    elements_axis: int | None = None
    attributes: Attributes = Attributes()

    @property
    def k(self) -> int:
        """Components per index tuple."""
        return len(self.sizes)

    def axis_of(self, component: int) -> int:
        """Return the axis of data that a component of the tuples indexes."""
        first = len(self.batch) if self.elements_axis is None else self.elements_axis
        return first + component

    @property
    def is_elementwise(self) -> bool:
        """Whether each index selects one element, at its own position off the indexed axis."""
        return self.elements_axis is not None

    @property
    def slice_grid(self) -> Shape:
        """The shape of the grid of slices that the stored tuples select from."""
        return self.data if self.is_elementwise else self.index_batch + self.sizes

    @property
    def grid_axes(self) -> tuple[int | None, ...]:
        """For each axis of slice_grid, the axis of positions it shares; None: a component's."""
        if self.is_elementwise:
            return tuple(None if d == self.elements_axis else d for d in range(len(self.data)))
        return (*range(len(self.index_batch)), *(None for _ in self.sizes))

    @property
    def all_slices(self) -> Shape:
        """The shape of the grid of all slices of data, in every batch."""
        return self.data[: len(self.data) - len(self.slice_shape)]

    @property
    def width(self) -> int:
        """Elements of one slice."""
        return prod(self.slice_shape)

    @property
    def positions(self) -> Shape:
        """The shape of the array of index tuples: indices without the axis of components."""
        return self.indices if self.has_scalar_indices else self.indices[:-1]

    @property
    def index_batch(self) -> Shape:
        """The shape of the batch axes of indices."""
        return self.batch[: self.shared_axes] if self.has_scalar_indices else self.batch

    @property
    def batch_repeats(self) -> int:
        """The number of consecutive batches with the same tuples."""
        return prod(self.batch[len(self.index_batch) :])

    @property
    def tuples_per_batch(self) -> int:
        """The number of index tuples in one batch."""
        return prod(self.positions[len(self.index_batch) :])

    @property
    def with_index_tuples(self) -> Plan:
        """The same plan with index tuples repeated for every batch, as in GatherND."""
        if not self.has_scalar_indices or self.is_elementwise:
            return self
        indices = (*self.batch, *self.indices[self.shared_axes :], 1)
        return self._replace(indices=indices, has_scalar_indices=False, shared_axes=0)

    @property
    def stored_tuples(self) -> Plan:
        """The same plan for the batches of the stored tuples, each of which counts once."""
        return self._replace(batch=self.index_batch, tuples=prod(self.positions))

    def tuple_position(self, position: Position) -> Position:
        """Return the position of the tuple that selects an element of a gather's output."""
        groups, b = len(self.index_batch), len(self.batch)
        return (*position[:groups], *position[b : b + len(self.positions) - groups])

    def data_position(self, position: Position, index_tuple: Position) -> Position:
        """Return the position in data of an element of a gather's output.

        index_tuple: the tuple that selects it, normalized.
        """
        first, own_axes = self.axis_of(0), len(self.positions) - len(self.index_batch)
        own_axes = 1 if self.is_elementwise else own_axes
        return (*position[:first], *index_tuple, *position[first + own_axes :])

    def slice_start(self, coordinates: Position) -> Position:
        """Return the leading coordinates in data of a slice in slice_grid, in its first batch."""
        groups = len(self.index_batch)
        repeats = (0,) * (len(self.batch) - groups)
        return (*coordinates[:groups], *repeats, *coordinates[groups:])
