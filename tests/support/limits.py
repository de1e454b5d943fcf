"""Limits on the resources and permissions of child processes, and failing system calls."""

import ctypes
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

IS_ROOT = os.geteuid() == 0
ADDRESS_SPACE = 4 << 30
_DROP_FROM_BOUNDING_SET = 24  # prctl's PR_CAPBSET_DROP
_ROOT_CAPABILITIES = (1, 2, 3)  # capabilities of root: DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER


def limit_resources(**limits: int) -> Callable[[], None]:
    """Return a preexec_fn that sets limits by their names, such as NOFILE=10."""
    resources = {getattr(resource, f"RLIMIT_{name}"): value for name, value in limits.items()}

    def set_limits() -> None:
        for resource_id, value in resources.items():
            resource.setrlimit(resource_id, (value, value))

    return set_limits


@contextmanager
def mount_small_disk(folder: Path) -> Iterator[Path]:
    """Mount a tmpfs of 1 MiB at a new folder; skip the test without permission to mount."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not IS_ROOT or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk requires permission")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fail_with(error_number: int) -> Callable[..., NoReturn]:
    """Return a replacement of a system call that fails with errno `error_number`."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(error_number, os.strerror(error_number))

    return fail


def drop_root_capabilities() -> None:
    """Make permissions apply to root, too, from the next exec; a preexec_fn."""
    if IS_ROOT:
        library = ctypes.CDLL(None, use_errno=True)
        for capability in _ROOT_CAPABILITIES:
            if library.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")
