"""Messages in cases that complete runs do not reach."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from ndtool.analysis import infer
from ndtool.cli import console
from ndtool.errors import BoundsError, DtypeError, RuleError, UsageError, format_size
from ndtool.inmemory import ops
from ndtool.rules import dtypes, specs
from ndtool.rules.operators import Attributes


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "1 byte"), (999, "999 bytes"), (10_240, "10.2 kB"), (999_499, "999 kB"),
     (999_500, "1 MB"), (5 << 40, "5.5 TB"), (10**18, "1000 PB")],
)  # fmt: skip
def test_sizes(count: int, text: str) -> None:
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-6, "2 us"), (0.0012, "1.2 ms"), (2.5, "2.5 s"), (60, "1 min 0 s"), (125.4, "2 min 5 s")],
)
def test_times(seconds: float, text: str) -> None:
    assert console.format_duration(seconds) == text


class OtherType(NamedTuple):
    """A type registered by another package."""

    hasobject: bool = False
    itemsize: int = 4
    name: str = "complex32"
    kind: str = "W"
    isbuiltin: int = 0
    names: None = None


VOID_TYPES = {"data": "V2[3]", "indices": "int8[1,1]", "updates": "V2[1]"}
ADD = Attributes(reduction="add")
LONG_DOUBLES = {"data": dtypes.from_code("<f16"), "indices": dtypes.from_code("<i8")}
FLOAT32 = dtypes.from_name("float32")
RECORDS: list[Any] = [
    [("a", "<i4", [2])], [("a", "|V2000000000"), ("b", "|V2000000000")],
]  # fmt: skip
REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: infer.infer("scatter_nd", VOID_TYPES, ADD), DtypeError,
     "reduction add is not defined for data of V2"),
    (lambda: ops.scatter_nd([1], [[0]], [1], spec=3), UsageError, "spec is 3: it must be a str"),  # type: ignore[arg-type]
    (lambda: ops.gather_elements([1], [0], "x"), RuleError, "axis is 'x': it must be an integer"),  # type: ignore[arg-type]
    (lambda: ops.scatter_nd([1], [[0]], [1], "avg"), UsageError,  # type: ignore[arg-type]
     "reduction is 'avg': expected one of none, add"),
    (lambda: dtypes.from_numpy(OtherType()), DtypeError,
     r"complex32.*is not one that a \.npy file can hold"),
    (lambda: dtypes.from_numpy(np.dtype(object)), DtypeError, "holds Python objects"),
    (lambda: dtypes.from_numpy(np.dtype("V0")), DtypeError, "0 bytes per element"),
    (lambda: dtypes.view_as(FLOAT32, "bfloat16"), DtypeError,
     "float32 cannot be read as bfloat16: only V2"),
    (lambda: dtypes.from_descr("<b3"), DtypeError, "'<b3' is not an element type that NumPy has"),
    (lambda: dtypes.from_descr(["a"]), DtypeError, r"not a \(name, descr\)"),
    (lambda: dtypes.from_descr(RECORDS[0]), DtypeError, r"shape is \[2\]: expected sizes"),
    (lambda: dtypes.from_descr(RECORDS[1]), DtypeError, "a record has more than"),
    (lambda: specs.accept("onnx:13", "gather_nd", LONG_DOUBLES), DtypeError,
     "does not accept data of float128: no version of onnx accepts it"),
    (lambda: ops.gather_nd(np.zeros((2, 3)), np.array([[0], [1]]), 1, spec="onnx:11"), RuleError,
     "does not accept batch_dims: onnx:12 is the first"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_reports_of_refusals(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_types_under_another_name() -> None:
    inference = infer.infer("scatter_nd", VOID_TYPES, ADD, dtype="bfloat16")
    assert {item.dtype for item in inference.inputs.values()} == {"bfloat16", "int8"}
    assert dtypes.view_as(FLOAT32, "float32") is FLOAT32
    assert (dtypes.from_name("bool").name, dtypes.from_name("bool").swap_size) == ("bool", 1)


@pytest.mark.parametrize("attribute", [{"spec": "openvino:8"}, {"negatives": False}])
def test_negative_indices_where_none_are_taken(attribute: Any) -> None:
    with pytest.raises(BoundsError) as excinfo:
        ops.gather_nd(np.zeros((2, 3)), np.array([[-1]]), **attribute)
    hint = "negative indices are not allowed here: by the spec, or by negatives=False"
    assert str(excinfo.value.hint).startswith(hint)
    assert "has size 2: valid 0..1" in str(excinfo.value)
