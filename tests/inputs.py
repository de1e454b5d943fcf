"""Inputs as a run opens them: read whole, or refused."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from ndtool.arrays import names
from ndtool.arrays.source import Source, whole
from ndtool.arrays.streams import Streams
from ndtool.errors import InputError, NdtoolError

ENOUGH = 2  # seconds of a processor; no input is refused later


@contextmanager
def opened(argument: str, stdin: Streams | None = None) -> Iterator[Source]:
    """Open an input, and close it at the end."""
    with closing(names.open_source(argument, stdin or Streams())) as source:
        yield source


def array(source: Source) -> Any:
    """Return a copy of the array of an open input."""
    facts = source.facts
    flat = np.frombuffer(bytes(whole(source).buffer), facts.dtype.descr)
    return flat.reshape(facts.shape, order=facts.order)


def load(argument: str, stdin: Streams | None = None) -> Any:
    """Return the array of an input."""
    with opened(argument, stdin) as source:
        source.recheck()
        return array(source)


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
