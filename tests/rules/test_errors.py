"""Errors are values: each survives pickle, copy and deepcopy with all of its fields."""

import copy
import multiprocessing
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

import ndtool
from ndtool import errors
from ndtool.errors import NdtoolError

DATA = np.arange(12, dtype="f4").reshape(4, 3)
COPIES: dict[str, Callable[[Any], Any]] = {
    **{
        f"pickle {protocol}": lambda error, protocol=protocol: pickle.loads(
            pickle.dumps(error, protocol)
        )
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "copy of a copy": lambda error: copy.copy(copy.deepcopy(error)),
}
RAISING: dict[str, Callable[[], object]] = {
    "BoundsError": lambda: ndtool.gather_nd(DATA, [[0, 1], [0, 3]]),
    "DuplicatesError": lambda: ndtool.scatter_nd(DATA, [[1], [1]], DATA[:2], duplicates="error"),
    "DtypeError": lambda: ndtool.gather_nd(DATA, [[0.5]]),
    "RuleError": lambda: ndtool.infer("gather_nd", DATA, [[0]], batch_dims=2),
    "UsageError": lambda: ndtool.gather_nd(DATA, [[0]], spec="onnx:x"),
    "InputError": lambda: ndtool.inspect("/nowhere.npy"),
    "OutputError": lambda: ndtool.convert(DATA, "/nowhere/x.npy"),
    "DifferenceError": lambda: ndtool.verify("gather_nd", DATA, [[0]], DATA[[1]]),
}


def raised(name: str) -> NdtoolError:
    with pytest.raises(NdtoolError) as excinfo:
        RAISING[name]()
    assert type(excinfo.value).__name__ == name
    return excinfo.value


def subclasses(kind: type[NdtoolError]) -> Iterator[type[NdtoolError]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def require_equal(copied: NdtoolError, error: NdtoolError) -> None:
    assert type(copied) is type(error)
    assert copied.args == error.args
    assert str(copied) == str(error)
    assert copied.fields() == error.fields()
    assert copied.__dict__.keys() == error.__dict__.keys()
    for name, value in error.__dict__.items():
        assert text(getattr(copied, name)) == text(value), name


def text(value: object) -> str:
    """Return the repr of a value without the addresses of objects."""
    return re.sub(r" at 0x\w+", "", repr(value))


def test_every_error_has_an_example() -> None:
    kinds = {kind.__name__ for kind in subclasses(NdtoolError)}
    assert kinds == RAISING.keys() | {"ResourceError"}
    assert kinds <= set(errors.__all__)


@pytest.mark.parametrize("name", [*RAISING, "NdtoolError", "ResourceError"])
def test_an_error_survives_copies(name: str) -> None:
    if name in RAISING:
        error = raised(name)
        error.hint, error.passing = "a hint", True
        error.extra_fields["more"] = [1, {"nested": "x"}]
        error.add_note("a note")
    else:
        error = getattr(errors, name)("too large", places=("a", "b"), hint="less")
    for make_copy in COPIES.values():
        require_equal(make_copy(error), error)


def test_every_error_is_created_without_its_initializer() -> None:
    """As tblib's pickles do, which dask's workers send."""
    for kind in subclasses(NdtoolError):
        assert type(kind.__new__(kind, "too large")) is kind


def test_copies_share_nothing_that_changes() -> None:
    error = raised("DuplicatesError")
    copied = copy.deepcopy(error)
    copied.extra_fields["more"] = 1
    assert not error.extra_fields


def run(name: str) -> None:
    RAISING[name]()


def test_errors_come_back_from_another_process() -> None:
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context) as executor:
        for name in ("DuplicatesError", "BoundsError", "DifferenceError"):
            with pytest.raises(NdtoolError) as excinfo:
                executor.submit(run, name).result()
            require_equal(excinfo.value, raised(name))
