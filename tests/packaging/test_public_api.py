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
    baseline, current = (
        json.loads(public_api.BASELINE.read_text("utf-8")),
        public_api.public_names(),
    )
    for name in public_api.MODULES:
        if public_api.import_public(name) is None:  # its library is missing here
            baseline = {
                key: value
                for key, value in baseline.items()
                if not key.startswith(f"python {name}.")
            }
    entries = public_api.entries_for_changelog(baseline, current)
    assert not entries, (
        "what is public changed. If it was meant, write in CHANGELOG.md what users must know, "
        f"then `make baseline`:\n\n{entries}\n"
    )
