"""The keyword arguments of runs and questions in Python, validated."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from ndtool.arrays import memory as buffers
from ndtool.arrays import sink
from ndtool.arrays.source import Source
from ndtool.engine import tuning
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.errors import UsageError, format_value
from ndtool.inmemory.arguments import array, index_array, integer, make_attributes, string
from ndtool.machine import memory
from ndtool.rules.operators import (
    ALL_OPERATORS,
    COMMON_ATTRIBUTES,
    LOWERED,
    LOWERED_INPUTS,
    Attributes,
    operator_of,
)
from ndtool.runs.calls import Request

if TYPE_CHECKING:
    from ndtool.analysis.engines import EngineSettings

ArrayOrFile = os.PathLike[str] | ArrayLike  # an array, or the name of a file as a str or path
Progress = bool | Callable[[float], object]


# The options of a run, keyword arguments of every operator in ndtool.files: default and type.
RUN_OPTIONS: dict[str, tuple[object, str]] = {
    "dtype": (None, "str | None"), "memory": (None, "int | str | None"),
    "spill": (None, "str | Sequence[str] | None"), "scheduler": (None, "Any"),
    "workers": (None, "int | None"), "resume": (False, "bool"), "clobber": (True, "bool"),
    "only": (False, "bool"), "sync": (False, "bool"), "chunks": (None, "tuple[int, ...] | None"),
    "shards": (None, "tuple[int, ...] | None"), "codec": (None, "str | None"),
    "text": (False, "bool"), "progress": (False, "bool | Callable[[float], object]"),
}  # fmt: skip


def validate_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options converted to the types of a Request's fields; UsageError if invalid."""
    keywords: dict[str, Any] = {**options}
    for name, convert in _CONVERTERS.items():
        if name in keywords and (keywords[name] is not None or name == "spec"):
            keywords[name] = convert(name, keywords[name])
    return keywords


def _integer(name: str, value: Any) -> int:
    return integer(name, value, UsageError)


def _memory(name: str, value: Any) -> int:
    nbytes = memory.parse_size(string(name, value)) if isinstance(value, str) else None
    if nbytes is None and isinstance(value, str):
        raise UsageError(
            f"memory is {format_value(value)}: expected bytes, or a size such as '500MB'"
        )
    nbytes = _integer(name, value) if nbytes is None else nbytes
    if nbytes < tuning.MIN_MEMORY:
        raise UsageError(
            f"memory is {format_value(value)}: it must be at least {tuning.MIN_MEMORY}"
        )
    return nbytes


def _sizes(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise UsageError(f"{name} is {format_value(value)}: it must be a tuple of sizes")
    sizes = tuple(integer(name, size, UsageError) for size in value)
    if min(sizes, default=1) < 1:
        raise UsageError(f"{name} is {format_value(sizes)}: sizes must be at least 1")
    return sizes


def path(name: str, value: Any) -> str:
    """Return an argument that is the name of a file."""
    try:
        return os.fsdecode(value)
    except Exception:
        raise UsageError(f"{name} is {format_value(value)}: it must be a str or a path") from None


def _directories(name: str, value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, list | tuple)
    return tuple(path(name, directory) for directory in (value if is_list else [value]))


_CONVERTERS: dict[str, Callable[[str, Any], Any]] = {
    "spec": string, "dtype": string, "codec": lambda name, value: sink.codec(string(name, value)),
    "threads": _integer, "workers": _integer, "chunks": _sizes, "shards": _sizes,
    "memory": _memory, "spill": _directories,
}  # fmt: skip


class ProgressReporter:
    """The progress callback of a run: the caller's, or one that writes a line to stderr.

    Threads call it as they complete work items, in any order.
    """

    def __init__(self, operator: str, progress: Progress) -> None:
        if not isinstance(progress, bool) and not callable(progress):
            raise UsageError(
                f"progress is {format_value(progress)}: it must be a bool or a function"
            )
        self._operator, self._progress, self._percent_written = operator, progress, 0

    def __enter__(self) -> ProgressCallback:
        if not isinstance(self._progress, bool):
            return self._progress
        return self._write_percent if self._progress and sys.stderr.isatty() else ignore_progress

    def __exit__(self, *_: object) -> None:
        if self._percent_written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _write_percent(self, fraction: float) -> None:
        percent = int(100 * fraction)
        if percent > self._percent_written or not fraction:
            self._percent_written = percent
            sys.stderr.write(f"\r{self._operator} {percent:3d} %")
            sys.stderr.flush()


def operator_name(name: str) -> str:
    """Return the name of an operator; UsageError if there is none."""
    if string("operator", name) not in ALL_OPERATORS:
        raise UsageError(
            f"{format_value(name)} is not an operator: expected one of {', '.join(ALL_OPERATORS)}"
        )
    return name


def arguments_by_role(
    operator: str,
    arguments: Sequence[Any],
    roles: tuple[str, ...] | None = None,
    optional: bool = False,
) -> dict[str, Any]:
    """Return positional arguments by role; the default roles are those of the operator's inputs.

    optional: whether the last argument may be missing. Raises UsageError for a wrong number.
    """
    roles = operator_of(operator_name(operator)).inputs if roles is None else roles
    min_count = len(roles) - (optional or roles[-1] == "write_indices")
    if not min_count <= len(arguments) <= len(roles):
        raise UsageError(f"{operator} takes {', '.join(roles)}: {len(arguments)} arguments given")
    return dict(zip(roles, arguments, strict=False))


def request_of(
    operator: str, arguments: dict[str, Any], attributes: Attributes, **settings: Any
) -> tuple[Request, dict[str, Source]]:
    """Return the Request of a call, and the sources of arguments that are arrays, by role.

    settings: options, which are validated.
    """
    files = file_names(arguments)
    names = {LOWERED_INPUTS.get(role, role): files.get(role, role) for role in arguments}
    fields: dict[str, Any] = {"indices": None, **names, **validate_options(settings)}
    arrays = {
        role: array_source(role, value, attributes.out_of_bounds)
        for role, value in arguments.items()
        if role not in files
    }
    return Request(operator, attributes=attributes, **fields), arrays


def validate_attributes(operator: str, attributes: Mapping[str, Any]) -> Attributes:
    """Return the attributes of an operator; raise UsageError for one that it does not have."""
    valid_names = operator_of(operator).attributes + (
        () if operator in LOWERED else COMMON_ATTRIBUTES
    )
    for name in attributes:
        if name not in valid_names:
            expected = ", ".join(valid_names)
            raise UsageError(
                f"{operator} has no attribute {format_value(name)}: expected {expected}"
            )
    return make_attributes(operator, attributes.items())


def array_source(role: str, value: Any, mode: str = "error") -> Source:
    """Return an array of the caller as the source of an input; mode: the out-of-bounds mode."""
    values = index_array(value, mode, role) if role.endswith("indices") else array(role, value)
    return buffers.source(role, values)


def file_name(role: str, value: Any) -> str | None:
    """Return the name of a file argument, None for an array in memory."""
    return path(role, value) if isinstance(value, str | os.PathLike) else None


def file_names(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the arguments that are files, by role."""
    names = {role: file_name(role, value) for role, value in inputs.items()}
    return {role: name for role, name in names.items() if name is not None}


def engine_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of engines from a sequence or a comma-separated str."""
    from ndtool.analysis import engines

    name_list = [names] if isinstance(names, str) or not isinstance(names, Iterable) else names
    return engines.parse_names(",".join(string("against", name) for name in name_list))


def engine_settings(within: Any, runs: Any, timeout: Any, threads: int | None) -> EngineSettings:
    """Return the settings of a comparison with other engines."""
    from ndtool.analysis.engines import EngineSettings

    minimums = {"within": 0, "runs": 1, "timeout": 1}
    settings = {}
    for name, value in (("within", within), ("runs", runs), ("timeout", timeout)):
        settings[name] = integer(name, value, UsageError)
        if settings[name] < minimums[name]:
            raise UsageError(
                f"{name} is {format_value(settings[name])}: it must be at least {minimums[name]}"
            )
    return EngineSettings(threads=threads, **settings)
