"""Floating-point states of this thread: rounding modes, subnormal numbers flushed to zero."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# bits of MXCSR: results flushed to zero, operands treated as zeros, rounded down, up, to zero
STATES = {
    "flush": 0x8000, "zeros": 0x40, "both": 0x8040, "down": 0x2000, "up": 0x4000, "truncate": 0x6000,
}  # fmt: skip


class _Environment(ctypes.Structure):
    _fields_ = (("x87", ctypes.c_uint8 * 28), ("mxcsr", ctypes.c_uint32))


@contextmanager
def float_state(name: str) -> Iterator[None]:
    """Set a state of this thread."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("the state is a register of x86, set by glibc")
    libm, before = ctypes.CDLL("libm.so.6"), _Environment()
    libm.fegetenv(ctypes.byref(before))
    state = _Environment.from_buffer_copy(before)
    state.mxcsr |= STATES[name]
    libm.fesetenv(ctypes.byref(state))
    try:
        yield
        libm.fegetenv(ctypes.byref(state))
        assert state.mxcsr & 0xE040 == STATES[name], "the caller's state changed"
    finally:
        libm.fesetenv(ctypes.byref(before))
