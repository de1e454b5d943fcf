"""The inputs of a model: arrays read from files, and validated against its declarations."""

import os
from collections.abc import Mapping
from itertools import count, takewhile
from typing import Any

from numpy.typing import NDArray

from ndtool.analysis.values import as_array
from ndtool.arrays.source import DeclaredType, ModelInfo, whole
from ndtool.errors import DtypeError, InputError, RuleError, UsageError, printable
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.rules import dtypes

Arrays = dict[str, NDArray[Any]]
_DATA_SET = "test_data_set_0"  # of ONNX's backend tests


def read(where: str | Mapping[str, NDArray[Any]], model: ModelInfo) -> Arrays:
    """Return the inputs of a model by name; those with a default value may be missing.

    where: the arrays, an archive of them, or a folder with input_0.pb and so on. Raises
    RuleError or DtypeError for an input that differs from the model's declaration.
    """
    needed = [name for name in model.inputs if name not in model.initialized]
    if not isinstance(where, str):
        _require_names("inputs", where, needed, model)
        for name, array in where.items():
            given = DeclaredType(dtypes.from_numpy(array.dtype).name, array.shape)
            _require_as_declared(f"inputs[{name!r}]", given, name, model.inputs[name])
        return dict(where)
    if os.path.isdir(where):
        files = _tensors(where)
        taken = list(model.inputs) if len(files) == len(model.inputs) else needed
        if len(files) != len(taken):
            wanted = f"expected {len(needed)}: {_listed(needed)}"
            raise UsageError(f"{printable(where)} has {len(files)} inputs: {wanted}")
        arguments = dict(zip(taken, files, strict=True))
    else:
        arguments = {entry.member or "": entry.name for entry in locators.describe(where)}
        _require_names(where, arguments, needed, model)
    return {name: _array(arguments[name], name, model.inputs[name]) for name in arguments}


def _require_names(
    where: str, given: Mapping[str, Any], needed: list[str], model: ModelInfo
) -> None:
    """Raise UsageError or RuleError unless the names are those of the model's inputs."""
    if missing := [name for name in needed if name not in given]:
        raise UsageError(
            f"{printable(where)} has no input {_listed(missing)}: expected {_listed(needed)}"
        )
    if others := [name for name in given if name not in model.inputs]:
        raise RuleError(
            f"{printable(where)} has {_listed(others)}, which are not inputs of the model:"
            f" expected {_listed(list(model.inputs))}"
        )


def _listed(found: list[str]) -> str:
    return ", ".join(map(printable, found)) or "nothing"


def _tensors(folder: str) -> list[str]:
    """Return the files input_0.pb and so on of a folder, or of the data set in it."""
    for directory in (folder, os.path.join(folder, _DATA_SET)):
        files = (os.path.join(directory, f"input_{number}.pb") for number in count())
        if found := list(takewhile(os.path.exists, files)):
            return found
    raise InputError(
        f"{printable(folder)} has no inputs: expected input_0.pb in it or in its {_DATA_SET}"
    )


def _array(argument: str, name: str, known: DeclaredType) -> NDArray[Any]:
    """Read an input; known: the model's declaration."""
    source = locators.open_source(argument, Streams())
    try:
        metadata = source.metadata
        dtype = metadata.dtype
        if dtype.kind == "V" and known.dtype in dtypes.EXTENDED:
            dtype = dtypes.view_as(dtype, known.dtype)
        given = DeclaredType("string" if dtype.kind in "US" else dtype.name, metadata.shape)
        _require_as_declared(argument, given, name, known)
        array = as_array(whole(source).buffer, dtype, metadata.shape, metadata.order == "F")
        return array.astype(array.dtype.newbyteorder("="), order="C")
    finally:
        source.close()


def _require_as_declared(
    argument: str, given: DeclaredType, name: str, known: DeclaredType
) -> None:
    """Raise DtypeError or RuleError unless an array matches the declaration of an input."""
    prefix = f"{printable(argument)} is {given.described}: the model's input {printable(name)} is"
    if known.dtype is not None and given.dtype != known.dtype:
        raise DtypeError(f"{prefix} {known.described}")
    if known.shape is None or given.shape is None:
        return
    sizes = zip(given.shape, known.shape, strict=False)
    fixed = (isinstance(size, int) and size >= 0 and have != size for have, size in sizes)
    if len(given.shape) != len(known.shape) or any(fixed):
        raise RuleError(f"{prefix} {known.described}")
