"""Draw every example of the standards: write an HTML report of each, as `--html` does.

python docs/gallery.py FOLDER writes FOLDER/NAME.html for each example of fixtures/examples.py.
"""

import importlib.util
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def examples() -> tuple[Any, ...]:
    """Return the table of examples."""
    spec = importlib.util.spec_from_file_location("examples", FIXTURES / "examples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table: tuple[Any, ...] = module.EXAMPLES
    return table


def command_line(example: Any) -> list[str]:
    """Return the command line that draws an example in the example's folder."""
    inputs = ["data.npy", "indices.npy", *["updates.npy"] * (example.updates is not None)]
    attributes = [
        word
        for name, value in example.attributes.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = example.operator.replace("_", "-")
    return [command, *inputs, *attributes, "-o", "output.npy", "--html", f"{example.name}.html"]


def write_reports(folder: Path) -> list[tuple[Any, Path]]:
    """Write all reports into a folder; return each example with its report."""
    from ndtool.cli import program
    from ndtool.cli.reporter import Reporter

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    reports = []
    for example in examples():
        page = folder / f"{example.name}.html"
        with TemporaryDirectory() as workdir, chdir(workdir):
            shutil.copytree(FIXTURES / example.name, workdir, dirs_exist_ok=True)
            program.run([*command_line(example), "--no-trace"], Reporter())
            shutil.move(page.name, page)
        reports.append((example, page))
    return reports


if __name__ == "__main__":
    for _, page in write_reports(Path(sys.argv[1])):
        print(page)
