"""The results of tasks, which the policy collects and another run can resume."""

from __future__ import annotations

import json
from typing import NamedTuple

REPORT_BYTES = 128  # bytes of a block's bounds report in the trailer of its segment


class TaskResult(NamedTuple):
    """The result of a task. attempt: its ID. offsets: the partition offsets of a split.

    out_of_bounds: the indices of a block that are out of bounds, if the mode allows that.
    """

    attempt: int
    offsets: bytes = b""
    out_of_bounds: OutOfBounds | None = None

    @property
    def trailer(self) -> bytes:
        """The last bytes of a split's segment, from which a resumed run reads the task's result."""
        return self.offsets + json.dumps(self.out_of_bounds).encode().ljust(REPORT_BYTES)

    @classmethod
    def parse(cls, attempt: int, end: bytes) -> TaskResult:
        """Parse the trailer of a segment into its result; ValueError if it is malformed."""
        out_of_bounds = json.loads(end[-REPORT_BYTES:])
        return cls(
            attempt,
            end[:-REPORT_BYTES],
            None if out_of_bounds is None else OutOfBounds(*map(int, out_of_bounds)),
        )


class OutOfBounds(NamedTuple):
    """The first index out of bounds of a block, and the number of tuples with such an index.

    Tuples that batches share are counted once.
    """

    position: int
    component: int
    value: int
    tuples: int
