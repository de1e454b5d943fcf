"""The public names, compared with those of the last release."""

import json
from importlib.util import find_spec

import public_api
import pytest

pytestmark = pytest.mark.skipif(
    find_spec("ml_dtypes") is None or find_spec("onnx") is None,
    reason="ndtool.onnx and the JSON of models need the extra test",
)


def test_public_names_are_those_of_the_baseline() -> None:
    importable = {module.__name__ for module in public_api.importable_modules()}
    missing = tuple(f"python {name}." for name in {*public_api.MODULES} - importable)
    baseline = json.loads(public_api.BASELINE.read_text("utf-8"))
    here = {name: value for name, value in baseline.items() if not name.startswith(missing)}
    assert public_api.public_names() == here, (
        "what is public changed: write in CHANGELOG.md what users must know, then `make baseline`"
    )
