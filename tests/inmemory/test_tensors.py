"""Arrays of other libraries: inputs without a copy, results of the caller's type, refusals."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ndtool
from ndtool.errors import DtypeError, NdtoolError, RuleError, UsageError

ROWS = np.array([[2], [0]])
PLAIN = np.arange(12, dtype="f4").reshape(3, 4)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


def test_a_torch_tensor_gives_a_torch_tensor(torch: Any) -> None:
    data = torch.from_numpy(PLAIN)
    for indices in (ROWS, torch.from_numpy(ROWS), [[2], [0]]):
        rows = ndtool.gather_nd(data, indices)
        assert isinstance(rows, torch.Tensor)
        assert torch.equal(rows, data[[2, 0]])
    summed = ndtool.scatter_nd(data, ROWS, torch.ones(2, 4), "add")
    assert torch.equal(summed, data + torch.tensor([[1.0], [0.0], [1.0]]))
    assert type(ndtool.gather_nd(PLAIN, torch.from_numpy(ROWS))) is np.ndarray


@pytest.mark.parametrize(
    "name", ["bool", "int8", "float32", "complex128", "bfloat16", "float8_e5m2"]
)
def test_every_torch_type_moves_bit_for_bit(torch: Any, name: str) -> None:
    pytest.importorskip("ml_dtypes")
    bits = torch.arange(12, dtype=torch.uint8).repeat_interleave(16)
    kind = getattr(torch, name)
    data = bits.view(kind) if name != "bool" else bits % 3 == 0
    data = data[: data.numel() // 3 * 3].reshape(3, -1)
    rows = ndtool.gather_nd(data, ROWS)
    assert rows.dtype == kind
    plain = torch.uint8
    assert torch.equal(rows.contiguous().view(plain), data[[2, 0]].contiguous().view(plain))


def test_a_torch_tensor_is_not_copied(torch: Any) -> None:
    buffer = torch.zeros(3, 4)
    out = buffer.t()
    assert ndtool.gather_nd(torch.ones(4, 3), [[0], [1], [2], [3]], out=out) is out
    assert buffer.tolist() == [[1.0] * 4] * 3
    position = torch.zeros(3, 4)
    assert ndtool.scatter_nd(position, ROWS, torch.ones(2, 4), out=position) is position
    assert position.sum() == 8


def test_torch_tensors_that_are_refused(torch: Any) -> None:
    cases = [
        (torch.zeros(3, 4, device="meta"), "on the device meta, which stores no elements"),
        (torch.zeros(3, 4).to_sparse(), "sparse or quantized"),
    ]
    for data, message in cases:
        with pytest.raises(DtypeError, match=message):
            ndtool.gather_nd(data, ROWS)
    with pytest.raises(DtypeError, match=r"requires grad: pass out.detach\(\)"):
        ndtool.gather_nd(PLAIN, ROWS, out=torch.zeros(2, 4, requires_grad=True))
    turned = torch.zeros(2, 4, dtype=torch.complex64).conj()
    with pytest.raises(DtypeError, match="lazy conjugation"):
        ndtool.gather_nd(PLAIN.astype("c8"), ROWS, out=turned)
    assert ndtool.gather_nd((torch.ones(3, 4) * 1j).conj(), ROWS)[0, 0] == -1j
    position = torch.zeros(3, 4)
    with pytest.raises(RuleError, match="out overlaps"):
        ndtool.gather_nd(position, [[0], [1], [2]], out=position)


def test_64_bit_jax_arrays_keep_their_dtype_without_jax_enable_x64(jax: Any) -> None:
    with jax.enable_x64(True):
        data = jax.numpy.asarray([2**40 + 1, 2**41 + 1])
    rows = ndtool.gather(data, [1, 0])
    assert (rows.dtype, rows.tolist()) == (np.int64, [2**41 + 1, 2**40 + 1])


def test_a_jax_array_gives_a_jax_array(jax: Any) -> None:
    data = jax.numpy.asarray(PLAIN)
    rows = ndtool.gather(data, jax.numpy.asarray([2, 0]))
    assert isinstance(rows, jax.Array)
    assert rows.tolist() == PLAIN[[2, 0]].tolist()
    brain = data.astype("bfloat16")
    assert ndtool.gather(brain, [1]).dtype == brain.dtype
    with pytest.raises(DtypeError, match="out is a"):
        ndtool.gather(PLAIN, [1], out=jax.numpy.zeros((1, 4)))


def test_polars_values_that_numpy_would_change() -> None:
    polars = pytest.importorskip("polars")
    pairs = polars.Array(polars.Int64, 2)
    series = polars.Series([[1, 2], [2**60 + 1, 3]], dtype=pairs)
    assert ndtool.gather(series, [1]).tolist() == [[2**60 + 1, 3]]
    for data, message in (
        (polars.DataFrame({"a": [2**60 + 1], "b": [0.5]}), "DataFrame of Int64, Float64: cast"),
        (polars.Series([{"a": 2**60 + 1, "b": 0.5}]), "Series of Int64, Float64: cast"),
        (polars.Series([5, None, 7]), "data is a polars Series with nulls: fill them first"),
        (polars.Series([{"a": 1, "b": None}]), "with nulls"),
        (polars.Series([[1, None], [3, 4]], dtype=pairs), "with nulls"),
        (polars.Series([1], dtype=polars.Int128), "no 128-bit integer"),
    ):
        with pytest.raises(DtypeError, match=message):
            ndtool.gather(data, [0])


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("cupy._core.core", "on a GPU: pass its .get()"),
        ("zarr.core.array", "would load completely: pass a part of it"),
        ("dask.array.core", "would load completely: use ndtool.dask"),
    ],
)
def test_arrays_outside_memory_are_refused(module: str, message: str) -> None:
    foreign_array = type("Array", (), {"__module__": module, "__array__": lambda *_: PLAIN})()
    for call in (
        lambda: ndtool.gather_nd(foreign_array, ROWS),
        lambda: ndtool.gather_nd(PLAIN, foreign_array),
        lambda: ndtool.scatter_nd(PLAIN, ROWS, foreign_array),
    ):
        with pytest.raises(DtypeError, match=message):
            call()


def test_a_name_is_no_array(tmp_path: Any) -> None:
    for name in ("data.npy", tmp_path / "data.npy"):
        with pytest.raises(UsageError, match="data is a file name") as excinfo:
            ndtool.gather_nd(name, ROWS)
        assert "ndtool.files" in excinfo.value.hint
    letters = np.array(["a", "b"])
    assert ndtool.scatter_nd(letters, [1], "z").tolist() == ["a", "z"]


def test_no_library_is_loaded_that_the_caller_has_not() -> None:
    fake: Any = ModuleType("torch")
    assert "cupy" not in sys.modules
    tensor = type("Tensor", (), {"__module__": "torch"})
    fake.Tensor = type("Other", (), {})
    before = sys.modules.get("torch")
    sys.modules["torch"] = fake
    try:
        with pytest.raises(NdtoolError):  # other objects are converted by NumPy
            ndtool.gather_nd(tensor(), ROWS)
    finally:
        sys.modules.pop("torch")
        if before is not None:
            sys.modules["torch"] = before
