"""Every operator, attribute and way to execute it: the result, or the error, of the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import EXAMPLES, Case, bits_equal, cases, many, note_attributes, raw_bytes
from ways import (
    PACKED_RECORD,
    WAYS,
    calls_with_attributes,
    expected_outcome,
    outcome,
    with_type_of_torch,
)

pytestmark = pytest.mark.usefixtures("fast_small_calls", "small_thresholds")


def check(way: str, case: Case, data: st.DataObject) -> None:
    """Compare a way with the oracle: bits, type, shape or error, and unchanged inputs."""
    if way == "torch":
        case = with_type_of_torch(case, data.draw)
    note_attributes(case)
    expected, before = expected_outcome(case), [raw_bytes(array) for array in case.arrays]
    actual = outcome(lambda: WAYS[way](case, data.draw))
    assert [raw_bytes(array) for array in case.arrays] == before
    if actual is None:
        return
    if not isinstance(expected, np.ndarray):
        assert actual == expected
        return
    assert isinstance(actual, np.ndarray), actual
    if way == "lazy" and expected.dtype.isalignedstruct:  # dask copies no padding
        actual, expected = actual.astype(PACKED_RECORD), expected.astype(PACKED_RECORD)
    assert bits_equal(actual, expected)


@settings(many, max_examples=4 * EXAMPLES)
@given(data=st.data())
def test_calls_on_arrays_give_what_the_oracle_gives(data: st.DataObject) -> None:
    check("arrays", data.draw(st.one_of(cases, calls_with_attributes())), data)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("way", [way for way in WAYS if way != "arrays"])
@many
@given(data=st.data())
def test_every_other_way_gives_what_the_oracle_gives(way: str, data: st.DataObject) -> None:
    if way in ("lazy", "torch"):
        pytest.importorskip({"lazy": "dask.array"}.get(way, way), exc_type=ImportError)
    check(way, data.draw(st.one_of(cases, calls_with_attributes())), data)
