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
    "test_bad_files.py::test_a_hundred_thousand_members_are_listed_in_linear_time",
)
_setrlimit = resource.setrlimit


def _without_addresses(kind: int, limits: tuple[int, int]) -> None:
    if kind != resource.RLIMIT_AS:
        _setrlimit(kind, limits)


def pytest_configure() -> None:
    """Remove the limit, in this process and for its children."""
    resource.setrlimit = _without_addresses  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests of the limit itself."""
    out = [item for item in items if item.nodeid.endswith(ABOUT_LIMITS)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
