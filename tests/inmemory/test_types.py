"""Types for editors: Literals equal the tables' names; each front end returns its arrays."""

import importlib
import inspect
import pickle
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from ndtool import signatures
from ndtool.rules.operators import ALL_OPERATORS, MODES, OPERATORS, mode_names
from ndtool.rules.reductions import ALIASES, REDUCTIONS

VALID_CALLS = """
import numpy as np, torch
import ndtool
tensor = torch.zeros(3)
ids = np.array([0])
reveal_type(ndtool.torch.gather(tensor, ids, fill=1, out_of_bounds="fill"))
reveal_type(ndtool.torch.scatter(tensor, ids, tensor, 0, "add", pad=-1, batch_dims=0))
reveal_type(ndtool.gather_nd(np.zeros(3), ids))
reveal_type(ndtool.scatter_nd([1.0], [[0]], [2.0], "max", out=np.zeros(1), negatives=False))
ndtool.torch.gather(tensor, ids).data_ptr()
sizes: list[int] = [component.size for component in ndtool.stats("gather", "f4[3]", ids, pad=-1).components]
ndtool.explain("gather", np.zeros(3), "ids.npy", at=[(0,)], from_=0, all=True).explained[0].value
ndtool.verify("gather", np.zeros(3), ids, [0.0], within=1, against="auto").verified
ndtool.infer("gather", "float32[N]", ids).output.shape
ndtool.inspect("x.npz").arrays[0].dtype
ndtool.model("m.onnx", {"ids": ids}, save="tensors").nodes[0].saved
ndtool.convert(np.zeros(3), "x.zarr", chunks=(2,)).output.bytes
ndtool.files.gather("x.npy", ids, memory="500MB").shape
"""
TORCH_STUB = """
class Tensor:
    def data_ptr(self) -> int: ...
def zeros(n: int) -> Tensor: ...
"""
INVALID_CALLS = (
    'ndtool.scatter(np.zeros(3), [0], [1.0], 0, "plus")',
    'ndtool.gather(np.zeros(3), [0], out_of_bounds="drop")',
    'ndtool.scatter(np.zeros(3), [0], [1.0], out_of_bounds="fill")',
    "ndtool.gather(np.zeros(3), [0], nothing=1)",
    'ndtool.gather(np.zeros(3), [0], memory="1GB")',
    "ndtool.torch.gather(tensor, ids, out=tensor)",
    "ndtool.torch.gather(np.zeros(3), ids)",
    "ndtool.gather_nd(np.zeros(3))",
    "ndtool.files.gather('x.npy', ids, axis='0')",
    'ndtool.files.scatter("a", "b", "c", 0, "plus")',
    'ndtool.infer("gather_all", "a", "b")',
    'ndtool.stats("gather", "a", "b", axes=1)',
    'ndtool.explain("gather", "a", "b", at="0")',
    'ndtool.torch.gather(tensor, ids, out_of_bounds="drop")',
    'ndtool.stats("gather", "a", "b").duplicates',
)


def test_the_literals_are_the_words_of_the_tables() -> None:
    assert get_args(signatures.Reduction) == (*REDUCTIONS, *ALIASES)
    assert get_args(signatures.Mode) == tuple(MODES)
    assert get_args(signatures.GatherMode) == mode_names(scatters=False)
    assert get_args(signatures.ScatterMode) == mode_names(scatters=True)
    assert get_args(signatures.OperatorName) == tuple(ALL_OPERATORS)


@pytest.mark.parametrize("module", ["ndtool", "ndtool.files", "ndtool.torch", "ndtool.dask"])
def test_every_front_end_has_the_full_signatures(module: str) -> None:
    if module.endswith(("torch", "dask")):
        pytest.importorskip(module.partition(".")[2])
    front_end = importlib.import_module(module)
    for name in OPERATORS:
        function = getattr(front_end, name)
        protocol = getattr(signatures, signatures.Operators.__annotations__[name].partition("[")[0])
        expected = inspect.signature(protocol.__call__).parameters
        actual = inspect.signature(function).parameters
        missing = set(expected) - set(actual) - {"self", "options"}
        assert missing == {"ndtool.torch": {"out"}, "ndtool.dask": {"out", "threads"}}.get(
            module, set()
        )
        assert [p for p in actual if p in expected] == [p for p in expected if p in actual]
        for parameter in actual.keys() & expected.keys():
            assert (actual[parameter].default, actual[parameter].kind) == (
                expected[parameter].default, expected[parameter].kind,
            )  # fmt: skip
        text = pydoc.plain(pydoc.render_doc(function))
        assert f"{name}(data: " in text
        assert protocol.__call__.__doc__.partition("\n")[0] in text
        assert pickle.loads(pickle.dumps(function)) is function
    with pytest.raises(TypeError, match=r"gather\(\) got an unexpected keyword argument 'nothing'"):
        front_end.gather([1], [0], nothing=1)


@pytest.mark.slow("mypy completes and refuses arguments in a program of a user")
def test_mypy_accepts_them(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "torch").mkdir()  # mypy on the package takes minutes
    (tmp_path / "torch" / "__init__.pyi").write_text(TORCH_STUB)
    lines = [*VALID_CALLS.strip().splitlines(), *INVALID_CALLS]
    (tmp_path / "case.py").write_text("\n".join(lines) + "\n")
    run = (sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(tmp_path / "c"))
    result = subprocess.run([*run, "case.py"], cwd=tmp_path, capture_output=True, text=True)
    message = result.stdout.splitlines()
    notes = [line.partition("Revealed type is ")[2] for line in message if "Revealed" in line]
    assert [("Tensor" in note, "ndarray" in note) for note in notes] == [
        (True, False), (True, False), (False, True), (False, True),
    ]  # fmt: skip
    first = len(lines) - len(INVALID_CALLS) + 1
    wrong = {int(line.split(":")[1]) for line in message if ": error:" in line}
    assert wrong == set(range(first, len(lines) + 1)), result.stdout
