"""Modules that are imported at their first use, because every worker collects the tests of all files."""

import importlib
from importlib.util import find_spec
from typing import Any

import pytest


class _Later:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(
            "_"
        ):  # pytest asks all names of a module for those of mocks and wrappers
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def later(name: str) -> Any:
    """Return a stand-in for a module; skip the tests of the file if its package is missing."""
    package = name.partition(".")[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
    return _Later(name)
