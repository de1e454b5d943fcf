"""What a new attribute, reduction or out-of-bounds mode touches: the files that name an old one."""

import ast
import re
from pathlib import Path

import pytest

import ndtool
from ndtool.rules.operators import MODES
from ndtool.rules.reductions import REDUCTIONS

PACKAGE = Path(ndtool.__file__).parent


def names_and_strings(path: Path) -> set[str]:
    """Return the names in a file's code, and its strings in quotes, without docstrings."""
    text = path.read_text()
    if path.suffix != ".py":
        code = re.sub(r'"""[\s\S]*?"""|#.*', "", text)
        return set(re.findall(r'"\w+"|\w+', code))
    tokens = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            tokens.add(f'"{node.value}"')
        for field in ("id", "attr", "arg", "name"):
            tokens.add(str(getattr(node, field, "")))
    return tokens


@pytest.fixture(scope="module")
def tokens() -> dict[str, set[str]]:
    suffixes = {".py", ".pyx", ".pxi", ".pxd"}
    files = [path for path in PACKAGE.rglob("*") if path.suffix in suffixes]
    files = [path for path in files if path.parent.name != "html"]  # div is an element there
    return {str(path.relative_to(PACKAGE)): names_and_strings(path) for path in files}


NAMES = [name for name in (*REDUCTIONS, *MODES) if name not in ("none", "error", "fill")]


@pytest.mark.parametrize("name", NAMES)
def test_few_files_name_a_reduction_or_a_mode(tokens: dict[str, set[str]], name: str) -> None:
    """Tables in rules/ say what reductions and modes are; other code asks these.

    The excluded names are words for other things, too.
    """
    files = sorted(path for path, found in tokens.items() if f'"{name}"' in found)
    assert 3 < len(files) <= 6, files


def test_few_files_name_an_attribute(tokens: dict[str, set[str]]) -> None:
    words = {"index_base", '"index_base"'}
    files = sorted(path for path, found in tokens.items() if words & found)
    assert 3 < len(files) <= 12, files
