"""The table of specs.py compared with the schemas in the onnx package."""

import re
from typing import Any

import pytest
from later import later

from ndtool.rules import specs

onnx = later("onnx")

NAMES = {
    "double": "float64", "float": "float32", "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}  # fmt: skip
# The inputs of TensorScatter by the names that it shares with the others.
CALLED = {"past_cache": "data", "update": "updates", "write_indices": "indices"}
ROWS = [row for row in specs.table() if row.standard == "onnx"]


def schemas() -> dict[tuple[str, int], Any]:
    """Return the schemas of the operators by name and version."""
    titles = {row.title for row in ROWS}
    return {
        (schema.name, schema.since_version): schema
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and schema.name in titles and not schema.deprecated
    }


def dtype_names(types: set[str]) -> set[str]:
    """Return ndtool's names of types such as tensor(double)."""
    inner = (t.removeprefix("tensor(").removesuffix(")") for t in types)
    return {NAMES.get(name, name) for name in inner}


def test_the_table_has_every_version_of_every_operator() -> None:
    assert {row.title for row in ROWS} == {
        "GatherND", "ScatterND", "GatherElements", "ScatterElements", "Gather", "Scatter",
        "TensorScatter",
    }  # fmt: skip
    # A later version in onnx must be reviewed and added to the table.
    assert {(row.title, row.version) for row in ROWS} == set(schemas())


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.title}-{r.version}")
def test_a_row_says_what_the_schema_says(row: Any) -> None:
    schema = schemas()[row.title, row.version]
    assert set(row.attributes) == set(schema.attributes)
    inputs = {CALLED.get(i.name, i.name): dtype_names(set(i.types)) for i in schema.inputs}
    assert set(row.data) == inputs["data"]
    assert set(row.indices) == inputs["indices"]
    assert inputs.get("updates", inputs["data"]) == inputs["data"]
    assert set(inputs) == {"data", "indices"} | (
        {"updates"} if "scatter" in row.operator else set()
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.title}-{r.version}")
def test_a_row_has_the_reductions_of_the_text(row: Any) -> None:
    schema = schemas()[row.title, row.version]
    reductions = {"none"}
    if "reduction" in schema.attributes:
        text = schema.attributes["reduction"].description
        reductions = set(re.findall(r"\w+", text)) & {"none", "add", "mul", "max", "min"}
    assert set(row.reductions) == reductions


def test_reductions_of_the_ndtool_rows_include_all() -> None:
    pairs = [
        (row, newer_row)
        for row in specs.table()
        if row.standard == "ndtool"
        for newer_row in specs.rows("onnx", row.operator)
    ]
    assert len(pairs) == len(ROWS)
    for row, newer_row in pairs:
        assert set(row.reductions) >= set(newer_row.reductions)
        assert set(row.attributes) >= set(newer_row.attributes)
        assert set(row.indices) >= set(newer_row.indices)
