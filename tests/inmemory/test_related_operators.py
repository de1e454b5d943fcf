"""Operators with plain indices and with tuples: hints from one to another."""

from pathlib import Path

import numpy as np
import pytest
from command import ndtool as command
from command import save


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("scatter-nd data.npy ids.npy rows.npy", "ndtool scatter data.npy ids.npy rows.npy"),
        (
            "scatter-nd data.npy ids.npy columns.npy --reduction add",
            "ndtool scatter data.npy ids.npy columns.npy --axis 1 --reduction add",
        ),
        ("scatter data.npy tuples.npy rows.npy", "ndtool scatter-nd data.npy tuples.npy rows.npy"),
        (
            "scatter data.npy element_indices.npy element_updates.npy",
            "ndtool scatter-elements data.npy element_indices.npy element_updates.npy",
        ),
        (
            "scatter-nd data.npy element_indices.npy element_updates.npy",
            "ndtool scatter-elements data.npy element_indices.npy element_updates.npy",
        ),
        ("scatter-elements data.npy ids.npy rows.npy", "ndtool scatter data.npy ids.npy rows.npy"),
        ("gather-nd data.npy element_indices.npy", "ndtool gather data.npy element_indices.npy"),
        ("gather-nd data.npy ids.npy", "ndtool gather data.npy ids.npy"),
        (  # scatter-nd has no --axis
            "scatter data.npy tuples.npy rows.npy --axis 1",
            "ndtool scatter-nd data.npy tuples.npy rows.npy",
        ),
    ],
)
def test_a_hint_at_another_operator_that_the_shapes_fit(
    workdir: Path, call: str, hint: str
) -> None:
    save(data=np.zeros((5, 4)), ids=np.array([1, 2, 3]), tuples=np.array([[1], [2], [3]]))
    save(rows=np.zeros((3, 4)), columns=np.zeros((5, 3)))
    save(element_indices=np.zeros((2, 3), int), element_updates=np.zeros((2, 3)))
    result = command(*call.split(), "-o", "out.npy")
    assert result.status == 4
    assert result.err.rstrip().endswith(hint)
    assert command(*hint.split()[1:], "-o", "out.npy").status == 0
