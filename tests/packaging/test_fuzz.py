"""Generated files: read or refused, never a crash or another exception."""

import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import EXAMPLES

FUZZ = Path(__file__).parents[1] / "fuzz"

import recipes  # noqa: E402 # from FUZZ
import target  # noqa: E402

KINDS = runpy.run_path(str(FUZZ / "run.py"), run_name="fuzz")["KINDS"]

REGRESSIONS = sorted(path for path in (FUZZ / "regressions").iterdir() if path.name[0] != ".")


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(st.binary(max_size=300))
def test_almost_valid_files(raw: bytes) -> None:
    target.check(recipes.decode_file(raw))


@pytest.mark.filterwarnings("ignore")  # of Zarr
@pytest.mark.parametrize("kind", ["safetensors", "index", "onnx", "store"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(raw=st.binary(max_size=300))
def test_almost_valid_files_of_tensors(kind: str, raw: bytes) -> None:
    if kind == "store":
        pytest.importorskip("zarr", exc_type=ImportError)
    recipe, check = KINDS[kind]
    check(recipe(raw))


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.name)
def test_regressions(path: Path) -> None:
    kind, raw = path.suffix[1:], path.read_bytes()
    if kind == "store":
        target.check_store(target.unpack_store(raw))
    elif kind:
        KINDS[kind][1](raw)
    else:
        target.check(raw)
