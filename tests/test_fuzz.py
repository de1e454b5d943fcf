"""Files that nobody thought of: read or refused, never a crash or another exception."""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FUZZ = Path(__file__).parent / "fuzz"
sys.path.insert(0, str(FUZZ))

import recipes  # noqa: E402 # from FUZZ
import target  # noqa: E402

REGRESSIONS = sorted(path for path in (FUZZ / "regressions").iterdir() if path.name[0] != ".")


@settings(max_examples=2000, deadline=None)
@given(st.binary(max_size=300))
def test_nearly_right_files(raw: bytes) -> None:
    target.check(recipes.file(raw))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(raw: bytes) -> None:
    target.check(raw)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.name)
def test_what_was_found_before(path: Path) -> None:
    target.check(path.read_bytes())
