"""The index tuples of a call, in row-major order, some at a time."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool.analysis import values
from ndtool.analysis.reference import Tick
from ndtool.engine import bind, check
from ndtool.errors import BoundsError
from ndtool.rules import inference
from ndtool.rules.shapes import Shape
from ndtool.runs.direct import Operands
from ndtool.runs.jobs import Job

Array = NDArray[Any]

BLOCK = 1 << 17  # index components that are looked at together: what stays in a core's cache


class Tuples(NamedTuple):
    """indices: the array. rows: the same as a row for each tuple."""

    operands: Operands
    indices: Array
    rows: Array

    def blocks(self, tick: Tick) -> Iterator[tuple[int, Array]]:
        """Yield the number of a tuple, and it and those after it as rows."""
        count, k = self.rows.shape
        step = max(1, BLOCK // max(k, 1))
        for first in range(0, count, step):
            yield first, self.rows[first : first + step]
            tick(min(first + step, count) / count)

    def checked(self, tick: Tick) -> Iterator[tuple[int, Array]]:
        """Yield the same; BoundsError, as a run's, at the first block that is out of bounds."""
        operands, found = self.operands, self.operands.inference
        addressing, _, k = bind.bind_check(found.plan, operands.negatives)
        bound = operands.bound
        for first, block in self.blocks(tick):
            if k and _kernels.check(addressing, bound, first, len(block), 1):
                error = check.refusal(found.plan, bound, operands.negatives)
                if isinstance(error, BoundsError):
                    inference.point_out(error, found.inputs)
                raise error
            yield first, block


def of(job: Job) -> Tuples:
    """Return the index tuples of a call whose inputs are open; no value was looked at."""
    operands = Operands(job.inference, job.sources, {}, memoryview(b""), job.threads)
    _, dtype, shape = job.inference.inputs["indices"]
    operands = operands._replace(indices=operands.put_right("indices", dtype.order, False))
    _, count, k = bind.bind_check(job.inference.plan, operands.negatives)
    indices = values.as_array(operands.indices, dtype, shape)
    return Tuples(operands, indices, indices.reshape(count, k))


def found(block: Array, wanted: Shape, sizes: Shape) -> Array:
    """Return which rows of a block name a place, from the front or from the end."""
    numbers = np.arange(len(block)) if not wanted else None
    for column, place, size in zip(block.T, wanted, sizes, strict=True):
        left = column if numbers is None else column[numbers]
        hits = left == place
        if block.dtype.kind == "i":
            hits |= left == place - size
        (some,) = np.nonzero(hits)
        numbers = some if numbers is None else numbers[some]
    assert numbers is not None
    return numbers
