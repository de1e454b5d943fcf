"""The options of runs on files, as Python callers give them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypedDict

from ndtool.arguments import integer, word
from ndtool.engine import tuning
from ndtool.engine.gathers import ProgressCallback, silent
from ndtool.errors import UsageError, shown
from ndtool.literals import Duplicates, Mode
from ndtool.publish import targets

Progress = bool | Callable[[float], object]


class Options(TypedDict, total=False):
    """The options of a run, keyword arguments of every operator here.

    dtype: the actual dtype of void-typed data, such as "bfloat16". threads: 1..1024. spec: the
    standard to validate against. out_of_bounds, fill, pad, negatives, include_self, duplicates: as
    in ndtool.gather_nd and ndtool.scatter_nd. memory: the limit in bytes, including mapped files.
    spill: the directory of temporary files, or a sequence of several; with a cluster one, or a URL.
    scheduler: the client of a dask cluster, the address of its scheduler, or another executor.
    workers: the number of processes to start as a cluster. resume: whether to reuse what a killed
    run wrote to `spill`.
    clobber: whether `out` may replace an existing file. only: whether the output archive drops its
    other members. sync: whether to fsync the output. chunks, shards, codec: the encoding of a Zarr
    output, or without shards of an HDF5 output. text: whether indices and updates in no known
    format are text. progress: True for a progress line on a terminal, or a callback for the
    fraction done.
    """

    dtype: str | None
    threads: int | None
    spec: str
    out_of_bounds: Mode
    fill: object
    pad: SupportsIndex | None
    negatives: bool
    include_self: bool
    duplicates: Duplicates
    memory: int | None
    spill: str | Sequence[str] | None
    scheduler: Any
    workers: int | None
    resume: bool
    clobber: bool
    only: bool
    sync: bool
    chunks: tuple[int, ...]
    shards: tuple[int, ...]
    codec: str
    text: bool
    progress: Progress


def checked(options: Options) -> tuple[dict[str, Any], Progress]:
    """Return validated options as a run takes them, and the progress argument."""
    how: dict[str, Any] = {**options}
    progress = how.pop("progress", False)
    if not isinstance(progress, bool) and not callable(progress):
        raise UsageError(f"progress is {shown(progress)}: it must be a bool or a function")
    for name, take in _TAKEN.items():
        if name in how and (how[name] is not None or name == "spec"):
            how[name] = take(name, how[name])
    return how, progress


def _whole(name: str, value: Any) -> int:
    return integer(name, value, UsageError)


def _memory(name: str, value: Any) -> int:
    if (nbytes := _whole(name, value)) < tuning.LEAST_MEMORY:
        raise UsageError(f"memory is {nbytes}: it must be at least {tuning.LEAST_MEMORY}")
    return nbytes


def _codec(name: str, value: Any) -> str:
    return targets.codec(word(name, value))


def _sizes(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise UsageError(f"{name} is {shown(value)}: it must be a tuple of sizes")
    sizes = tuple(integer(name, size, UsageError) for size in value)
    if min(sizes, default=1) < 1:
        raise UsageError(f"{name} is {shown(sizes)}: sizes must be at least 1")
    return sizes


def path(name: str, value: Any) -> str:
    """Return an argument that is the name of a file."""
    try:
        return os.fsdecode(value)
    except Exception:
        raise UsageError(f"{name} is {shown(value)}: it must be a str or a path") from None


def _directories(name: str, value: Any) -> tuple[str, ...]:
    many = isinstance(value, list | tuple)
    return tuple(path(name, one) for one in (value if many else [value]))


_TAKEN: dict[str, Callable[[str, Any], Any]] = {
    "spec": word, "dtype": word, "codec": _codec, "threads": _whole, "workers": _whole,
    "chunks": _sizes, "shards": _sizes, "memory": _memory, "spill": _directories,
}  # fmt: skip


class ProgressReporter:
    """The progress callback of a run: the caller's, or one that shows a line on stderr.

    Threads call it as they complete work items, in any order.
    """

    def __init__(self, operator: str, progress: Progress) -> None:
        self._operator, self._progress, self._shown = operator, progress, 0

    def __enter__(self) -> ProgressCallback:
        if not isinstance(self._progress, bool):
            return self._progress
        return self._show if self._progress and sys.stderr.isatty() else silent

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _show(self, share: float) -> None:
        percent = int(100 * share)
        if percent > self._shown or not share:
            self._shown = percent
            sys.stderr.write(f"\r{self._operator} {percent:3d} %")
            sys.stderr.flush()
