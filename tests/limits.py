"""Limits for a test: memory, files and permissions of a child process; failing system calls."""

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
    numbers = {getattr(resource, f"RLIMIT_{name}"): value for name, value in limits.items()}

    def apply() -> None:
        for number, value in numbers.items():
            resource.setrlimit(number, (value, value))

    return apply


@contextmanager
def mount_small_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk of a megabyte at a new folder; skip the test without the permission."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not IS_ROOT or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs the right to mount one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fail_with(number: int) -> Callable[..., NoReturn]:
    """Return a replacement of a system call that fails with errno `number`."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def drop_root_capabilities() -> None:
    """Make permissions apply to root too, from the next exec on; a preexec_fn."""
    if IS_ROOT:
        library = ctypes.CDLL(None, use_errno=True)
        for capability in _ROOT_CAPABILITIES:
            if library.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")
