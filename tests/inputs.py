"""Inputs as a run opens them: read whole, or refused."""

import time
from typing import Any

import numpy as np
import pytest

from ndtool.arrays import names
from ndtool.arrays.streams import Streams
from ndtool.errors import InputError, NdtoolError

ENOUGH = 2  # seconds of a processor; no input is refused later


def load(argument: str, stdin: Streams | None = None) -> Any:
    """Return the array of an input."""
    with names.open_source(argument, stdin or Streams()) as source:
        source.recheck()
        order = "F" if source.fortran else "C"
        flat = np.frombuffer(bytes(source.buffer), source.dtype.descr)
        return flat.reshape(source.shape, order=order)


def refused(
    argument: str, reason: str, kind: type[NdtoolError] = InputError, stdin: Streams | None = None
) -> NdtoolError:
    """Return the error with which an input is refused: in one line, and soon."""
    started = time.process_time()
    with pytest.raises(kind, match=reason) as caught:
        names.open_source(argument, stdin or Streams())
    assert time.process_time() - started < ENOUGH
    assert "\n" not in caught.value.message
    return caught.value
