"""Plans, the results of shape inference: N index tuples and the slices that they select."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ndtool.rules.operators import Attributes

Shape = tuple[int, ...]


Position = tuple[int, ...]


class NdPlan(NamedTuple):
    """N index tuples of k components, each of which selects one slice of data.

    batch: the shape of the batch axes of data. tuples: N, over all batches. sizes: the sizes of the
    k indexed axes. slice_shape: the shape of one slice. has_scalar_indices: whether each index is a
    tuple of one component, without an axis of components (Gather, Scatter). shared_axes: the number
    of batch axes that scalar indices have; the same tuples apply to all batches along the other
    batch axes. attributes: of the call, as the spec defines them.
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
    attributes: Attributes = Attributes()

    @property
    def k(self) -> int:
        """Components per index tuple."""
        return len(self.sizes)

    def axis_of(self, component: int) -> int:
        """Return the axis of data that a component of the tuples indexes."""
        return len(self.batch) + component

    @property
    def is_elementwise(self) -> bool:
        """Whether each index selects one element, at its own position off the indexed axis."""
        return False

    @property
    def slice_grid(self) -> Shape:
        """The shape of the grid of slices that the stored tuples select from."""
        return self.index_batch + self.sizes

    @property
    def grid_axes(self) -> tuple[int | None, ...]:
        """For each axis of slice_grid, the axis of positions it shares; None: a component's."""
        return (*range(len(self.index_batch)), *(None for _ in self.sizes))

    @property
    def all_slices(self) -> Shape:
        """The shape of the grid of all slices of data, in every batch."""
        return self.batch + self.sizes

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
    def with_index_tuples(self) -> NdPlan:
        """The same plan with index tuples repeated for every batch, as in GatherND."""
        if not self.has_scalar_indices:
            return self
        indices = (*self.batch, *self.indices[self.shared_axes :], 1)
        return self._replace(indices=indices, has_scalar_indices=False, shared_axes=0)

    @property
    def stored_tuples(self) -> NdPlan:
        """The same plan for the batches of the stored tuples, each of which counts once."""
        return self._replace(batch=self.index_batch, tuples=prod(self.positions))

    def block(self, positions: Shape) -> NdPlan:
        """Return the plan of a block of stored tuples, which select from a grid of elements."""
        grid = block_grid(self, positions)
        return NdPlan(
            "gather_nd", grid, (*positions, self.k), positions, grid[: len(self.index_batch)],
            prod(positions), self.sizes, (), attributes=self.attributes,
        )  # fmt: skip

    def tuple_position(self, position: Position) -> Position:
        """Return the position of the tuple that selects an element of a gather's output."""
        groups, b = len(self.index_batch), len(self.batch)
        return (*position[:groups], *position[b : b + len(self.positions) - groups])

    def components_of(self, target: Position) -> Position:
        """Return the index tuple, without negative components, that selects an element of data."""
        b = len(self.batch)
        return target[b : b + self.k]

    def data_position(self, position: Position, index_tuple: Position) -> Position:
        """Return the position in data of an element of a gather's output.

        index_tuple: the tuple that selects it, normalized.
        """
        b, own_axes = len(self.batch), len(self.positions) - len(self.index_batch)
        return (*position[:b], *index_tuple, *position[b + own_axes :])

    def output_position(self, target: Position, tuple_position: Position) -> Position:
        """Return the position in a gather's output, or in updates, of an element of data.

        tuple_position: the position of a tuple that selects it.
        """
        b = len(self.batch)
        return (*target[:b], *tuple_position[len(self.index_batch) :], *target[b + self.k :])

    def slice_start(self, coordinates: Position) -> Position:
        """Return the leading coordinates in data of a slice in slice_grid, in its first batch."""
        groups = len(self.index_batch)
        repeats = (0,) * (len(self.batch) - groups)
        return (*coordinates[:groups], *repeats, *coordinates[groups:])


class ElementsPlan(NamedTuple):
    """An index for each element, along an axis of data (axis >= 0).

    attributes: of the call, as the spec defines them.
    """

    operator: str
    data: Shape
    indices: Shape
    output: Shape
    axis: int
    attributes: Attributes = Attributes()

    @property
    def k(self) -> int:
        """Components per index tuple: an index is a tuple of one component."""
        return 1

    @property
    def width(self) -> int:
        """Elements of one slice."""
        return 1

    @property
    def slice_shape(self) -> Shape:
        """The shape of one slice."""
        return ()

    @property
    def batch(self) -> Shape:
        """No axis is a batch axis."""
        return ()

    @property
    def index_batch(self) -> Shape:
        """No axis is shared by batches."""
        return ()

    @property
    def batch_repeats(self) -> int:
        """The number of consecutive batches with the same tuples."""
        return 1

    @property
    def has_scalar_indices(self) -> bool:
        """Indices have no axis of components."""
        return True

    @property
    def sizes(self) -> Shape:
        """The size of the indexed axis."""
        return (self.data[self.axis],)

    def axis_of(self, component: int) -> int:
        """Return the axis of data that a component of the tuples indexes."""
        return self.axis + component

    @property
    def is_elementwise(self) -> bool:
        """Whether each index selects one element, at its own position off the indexed axis."""
        return True

    @property
    def slice_grid(self) -> Shape:
        """The shape of the grid of slices that the stored tuples select from."""
        return self.data

    @property
    def grid_axes(self) -> tuple[int | None, ...]:
        """For each axis of slice_grid, the axis of positions it shares; None: a component's."""
        return tuple(None if d == self.axis else d for d in range(len(self.data)))

    @property
    def all_slices(self) -> Shape:
        """The shape of the grid of all slices of data, in every batch."""
        return self.data

    @property
    def positions(self) -> Shape:
        """The shape of indices."""
        return self.indices

    @property
    def tuples(self) -> int:
        """The number of indices."""
        return prod(self.indices)

    @property
    def tuples_per_batch(self) -> int:
        """The number of index tuples in one batch."""
        return self.tuples

    @property
    def with_index_tuples(self) -> ElementsPlan:
        """The same plan: no index is repeated."""
        return self

    @property
    def stored_tuples(self) -> ElementsPlan:
        """The same plan: no index is repeated."""
        return self

    def block(self, positions: Shape) -> ElementsPlan:
        """Return the plan of a block of indices, which select from a grid of elements."""
        grid = block_grid(self, positions)
        return self._replace(data=grid, indices=positions, output=positions)

    def tuple_position(self, position: Position) -> Position:
        """Return the position of the index that selects an element of a gather's output."""
        return position

    def components_of(self, target: Position) -> Position:
        """Return the index, not negative, that selects an element of data."""
        return (target[self.axis],)

    def data_position(self, position: Position, index_tuple: Position) -> Position:
        """Return the position in data of an element of a gather's output."""
        return (*position[: self.axis], *index_tuple, *position[self.axis + 1 :])

    def output_position(self, target: Position, tuple_position: Position) -> Position:
        """Return the position in a gather's output, or in updates, of an element of data."""
        return tuple_position

    def slice_start(self, coordinates: Position) -> Position:
        """Return the position in data of an element in slice_grid."""
        return coordinates


Plan = NdPlan | ElementsPlan


def block_grid(plan: Plan, positions: Shape) -> Shape:
    """Return the grid of slices that a block of tuples selects from; positions: their shape."""
    pairs = zip(plan.slice_grid, plan.grid_axes, strict=True)
    return tuple(size if axis is None else positions[axis] for size, axis in pairs)
