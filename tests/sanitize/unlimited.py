"""A pytest plugin for AddressSanitizer, whose shadow memory takes 16 TiB of address space.

Tests that limit the address space of a child run without that limit; its own tests are skipped.
"""

import resource

import pytest

ABOUT_LIMITS = (
    "test_cli_environment.py::test_resource_limits_give_errors_without_side_effects",
    "test_files.py::test_limits_on_memory_and_descriptors",
    "test_outputs.py::test_limits_on_memory_and_descriptors[AS]",
    "test_faults.py::test_private_memory[small]",
)
_setrlimit = resource.setrlimit


def _set_other_limit(kind: int, limits: tuple[int, int]) -> None:
    if kind != resource.RLIMIT_AS:
        _setrlimit(kind, limits)


def pytest_configure() -> None:
    """Replace setrlimit, in this process, by one that ignores limits on address space."""
    resource.setrlimit = _set_other_limit  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of the limit itself."""
    deselected = [item for item in items if item.nodeid.endswith(ABOUT_LIMITS)]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in deselected]
