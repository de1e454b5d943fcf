"""Plans, the results of shape inference: N index tuples and the slices that they select."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]


class NdPlan(NamedTuple):
    """N index tuples of k components, each of which selects one slice of data.

    batch: the leading axes of data that number the batches. tuples: N, over all batches. sizes: the
    lengths of the k indexed axes. slice_shape: the shape of one slice. plain: whether indices are
    plain numbers, tuples of one component without an axis of its own (Gather, Scatter). shared: of
    plain indices, how many leading axes they have in common with data; the same tuples are for all
    batches along the others.
    """

    operator: str
    data: Shape
    indices: Shape
    output: Shape
    batch: Shape
    tuples: int
    sizes: Shape
    slice_shape: Shape
    plain: bool = False
    shared: int = 0

    @property
    def k(self) -> int:
        """Components per index tuple."""
        return len(self.sizes)

    @property
    def width(self) -> int:
        """Elements of one slice."""
        return prod(self.slice_shape)

    @property
    def positions(self) -> Shape:
        """The shape of indices in tuples, without the axis of components."""
        return self.indices if self.plain else self.indices[:-1]

    @property
    def groups(self) -> Shape:
        """The leading axes of indices that number their batches."""
        return self.batch[: self.shared] if self.plain else self.batch

    @property
    def repeats(self) -> int:
        """The number of successive batches that share their tuples."""
        return prod(self.batch[len(self.groups) :])

    @property
    def per_batch(self) -> int:
        """The number of index tuples in one batch."""
        return prod(self.positions[len(self.groups) :])

    @property
    def unrolled(self) -> NdPlan:
        """The same plan with the indices repeated for every batch, as GatherND has them."""
        if not self.plain:
            return self
        indices = (*self.batch, *self.indices[self.shared :], 1)
        return self._replace(indices=indices, plain=False, shared=0)


class ElementsPlan(NamedTuple):
    """One index for each element, along one axis of data (counted from the front)."""

    operator: str
    data: Shape
    indices: Shape
    output: Shape
    axis: int

    @property
    def positions(self) -> Shape:
        """The shape of indices."""
        return self.indices


Plan = NdPlan | ElementsPlan
