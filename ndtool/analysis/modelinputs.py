"""The inputs of a model, read from files and validated against its declarations."""

import os
from collections.abc import Mapping
from itertools import count, takewhile
from typing import Any

from numpy.typing import NDArray

from ndtool.analysis.values import as_array
from ndtool.arrays.source import DeclaredType, ModelInfo
from ndtool.errors import DtypeError, InputError, RuleError, UsageError, printable
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.rules import dtypes

Arrays = dict[str, NDArray[Any]]
_DATA_SET = "test_data_set_0"  # a folder of ONNX's backend tests


def read(inputs: str | Mapping[str, NDArray[Any]], model: ModelInfo) -> Arrays:
    """Return the inputs of a model by name; those with a default value may be missing.

    inputs: arrays by name, an archive of them, or a folder with input_0.pb and so on. Raises
    RuleError or DtypeError for an input that differs from its declaration in the model.
    """
    required = [name for name in model.inputs if name not in model.initialized]
    if not isinstance(inputs, str):
        _require_names("inputs", inputs, required, model)
        for name, array in inputs.items():
            actual = DeclaredType(dtypes.from_numpy(array.dtype).name, array.shape)
            _require_declared_type(f"inputs[{name!r}]", actual, name, model.inputs[name])
        return dict(inputs)
    if os.path.isdir(inputs):
        files = _tensor_files(inputs)
        names = list(model.inputs) if len(files) == len(model.inputs) else required
        if len(files) != len(names):
            expected = f"expected {len(required)}: {_join_names(required)}"
            raise UsageError(f"{printable(inputs)} has {len(files)} inputs: {expected}")
        arguments = dict(zip(names, files, strict=True))
    else:
        arguments = {entry.member or "": entry.name for entry in locators.describe(inputs)}
        _require_names(inputs, arguments, required, model)
    return {name: _read_array(arguments[name], name, model.inputs[name]) for name in arguments}


def _require_names(
    location: str, names: Mapping[str, Any], required: list[str], model: ModelInfo
) -> None:
    """Raise UsageError for a missing input, RuleError for a name that is no input."""
    if missing := [name for name in required if name not in names]:
        raise UsageError(
            f"{printable(location)} lacks the model's input {_join_names(missing)}: expected arrays"
            f" named {_join_names(required)}"
        )
    if unknown := [name for name in names if name not in model.inputs]:
        raise RuleError(
            f"{printable(location)} has {_join_names(unknown)}, which are not inputs of the model:"
            f" expected {_join_names(list(model.inputs))}"
        )


def _join_names(names: list[str]) -> str:
    return ", ".join(map(printable, names)) or "nothing"


def _tensor_files(folder: str) -> list[str]:
    """Return the files input_0.pb and so on of a folder, or of the data set in it."""
    for directory in (folder, os.path.join(folder, _DATA_SET)):
        files = (os.path.join(directory, f"input_{number}.pb") for number in count())
        if existing := list(takewhile(os.path.exists, files)):
            return existing
    raise InputError(
        f"{printable(folder)} has no inputs: expected input_0.pb in it or in its {_DATA_SET}"
    )


def _read_array(argument: str, name: str, declared: DeclaredType) -> NDArray[Any]:
    """Read an input, and validate it against the model's declaration."""
    source = locators.open_source(argument, Streams())
    try:
        metadata = source.metadata
        dtype = metadata.dtype
        if dtype.kind == "V" and declared.dtype in dtypes.EXTENSION_DTYPES:
            dtype = dtypes.view_as(dtype, declared.dtype)
        actual = DeclaredType("string" if dtype.kind in "US" else dtype.name, metadata.shape)
        _require_declared_type(argument, actual, name, declared)
        array = as_array(source.load(), dtype, metadata.shape, metadata.strides)
        return array.astype(array.dtype.newbyteorder("="), order="C")
    finally:
        source.close()


def _require_declared_type(
    argument: str, actual: DeclaredType, name: str, declared: DeclaredType
) -> None:
    """Raise DtypeError or RuleError unless an array matches the declaration of an input."""
    prefix = (
        f"{printable(argument)} is {actual.description}: the model's input {printable(name)} is"
    )
    if declared.dtype is not None and actual.dtype != declared.dtype:
        raise DtypeError(f"{prefix} {declared.description}")
    if declared.shape is None or actual.shape is None:
        return
    sizes = zip(actual.shape, declared.shape, strict=False)
    differs = (
        isinstance(size, int) and size >= 0 and actual_size != size for actual_size, size in sizes
    )
    if len(actual.shape) != len(declared.shape) or any(differs):
        raise RuleError(f"{prefix} {declared.description}")
