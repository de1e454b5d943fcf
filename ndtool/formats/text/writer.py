"""Write an array as text: a line for each row, with numbers that are read as the same elements."""

from __future__ import annotations

from typing import Any

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import RuleError, UsageError, printable
from ndtool.publish.encoded import EncodedSink, Write, batch_size_of
from ndtool.publish.targets import Target
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": " "}
TYPES = ("bool", *dtypes.INTEGERS, "float16", "float32", "float64")


def stored_dtype(dtype: Dtype) -> Dtype:
    """Return the element type unchanged; DtypeError if text cannot represent its elements."""
    dtypes.require_one_of(dtype, TYPES, "a text file")
    return dtype


def create(target: Target, metadata: ArrayMetadata, suffix: str) -> EncodedSink:
    """Return a sink for a new file."""
    path, rank = printable(target.path), len(metadata.shape)
    if target.member is not None:
        raise UsageError(f"{path}: the file holds one array, and has no members")
    if suffix not in SEPARATORS:
        valid = ", ".join(SEPARATORS)
        raise UsageError(f"{path}: {suffix} is read, never written: expected one of {valid}")
    if rank not in (1, 2):
        raise RuleError(f"{path}: the output has rank {rank}: a text file has rank 1 or 2")
    if rank == 2 and not metadata.nbytes:
        raise RuleError(f"{path}: the output has shape {list(metadata.shape)}: text would lose it")
    target.require_replaceable()
    width = metadata.shape[1] if rank == 2 else 1
    encoder = RowEncoder(metadata.dtype, width, SEPARATORS[suffix])
    count = metadata.nbytes // metadata.dtype.itemsize
    return EncodedSink(target, metadata, encoder, batch_size_of(metadata), 2 * count)


class RowEncoder:
    """An encoder of rows as lines of text."""

    def __init__(self, dtype: Dtype, width: int, separator: str) -> None:
        self._dtype, self._width, self._separator = dtype, width, separator

    def add(self, rows: memoryview, write: Write) -> None:
        import numpy as np

        texts = list(_format_numbers(np.frombuffer(rows, self._dtype.descr)))
        if self._width > 1:
            starts = range(0, len(texts), self._width)
            texts = [self._separator.join(texts[first : first + self._width]) for first in starts]
        write("\n".join([*texts, ""]).encode())

    def finish(self, write: Write) -> None:
        """Do nothing: the last line is complete."""


def _format_numbers(array: Any) -> Any:
    """Return for each element the shortest text that is read as the same element."""
    if array.dtype.kind == "b":
        return map(str, array.view("u1").astype(bool).astype("u1").tolist())
    if array.dtype.kind != "f" or array.dtype.itemsize == 8:
        return map(repr, array.tolist())
    return array.astype(array.dtype.newbyteorder("=")).astype(str).tolist()
