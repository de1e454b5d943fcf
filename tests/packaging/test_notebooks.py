"""The notebooks of docs/notebooks: their cells run, with the outputs that they show.

Run as a program, it writes the actual outputs into them.
"""

import ast
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))
if not NOTEBOOKS:
    pytest.skip("the notebooks are missing", allow_module_level=True)


def outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell as Jupyter does; return what it prints and the value of its last expression."""
    code = ast.parse(source)
    last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
    printed, value = StringIO(), None
    with redirect_stdout(printed):
        exec(compile(code, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    cell_outputs = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(True)
        cell_outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(True)}
        cell_outputs.append({"data": data, "metadata": {}, "output_type": "execute_result"})
    return cell_outputs


def execute(path: Path) -> dict[str, Any]:
    """Return a notebook with the actual outputs."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    for number, cell in enumerate(cells, 1):
        cell["execution_count"] = number
        cell["outputs"] = outputs("".join(cell["source"]), names)
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_show_their_actual_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    assert any(cell.get("outputs") for cell in notebook["cells"])
    assert execute(path) == notebook


if __name__ == "__main__":
    for file in NOTEBOOKS:
        file.write_text(json.dumps(execute(file), indent=1, ensure_ascii=False) + "\n", "utf-8")
