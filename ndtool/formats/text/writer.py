"""Write an array as text: a line for each row, with numbers that are read as the same elements."""

from __future__ import annotations

from typing import Any

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import RuleError, UsageError, printable
from ndtool.formats.rows import EncodedSink, Write, batch_size_of
from ndtool.publish.targets import Target
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": " "}
_MIN_ARROW_BYTES = 1 << 20  # of an array for which the import of pyarrow is worthwhile


def stored_dtype(dtype: Dtype) -> Dtype:
    """Return the element type unchanged; DtypeError if text cannot represent its elements."""
    dtypes.require_one_of(dtype, dtypes.REALS, "a text file")
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
    width = metadata.shape[1] if rank == 2 else 1
    count = metadata.nbytes // metadata.dtype.itemsize
    use_arrow = metadata.nbytes >= _MIN_ARROW_BYTES
    encoder = RowEncoder(metadata.dtype, width, SEPARATORS[suffix], path, use_arrow)
    longest = 26 if metadata.dtype.kind == "f" else len(str(1 << metadata.dtype.bits)) + 2
    batch_size = batch_size_of(metadata)
    return EncodedSink(target, metadata, encoder, batch_size, 2 * count, longest * count)


class RowEncoder:
    """An encoder of rows as lines of text, with or without pyarrow: the text is the same."""

    def __init__(
        self, dtype: Dtype, width: int, separator: str, path: str, use_arrow: bool
    ) -> None:
        self._dtype, self._width, self._separator, self._path = dtype, width, separator, path
        self._use_arrow = use_arrow and dtype.kind in "iuf" and dtype.name != "float16"
        self._count = 0  # elements encoded

    def add(self, rows: memoryview, write: Write) -> None:
        import numpy as np

        array = np.frombuffer(rows, self._dtype.descr)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.kind == "f":
            self._require_canonical_nans(array)
        text = _format_by_arrow(array, self._width, self._separator) if self._use_arrow else None
        if text is None:
            self._use_arrow = False
            texts = _format_numbers(array)
            if self._width > 1:
                starts = range(0, len(texts), self._width)
                texts = [self._separator.join(texts[n : n + self._width]) for n in starts]
            text = "\n".join([*texts, ""]).encode()
        write(text)
        self._count += len(array)

    def finish(self, write: Write) -> None:
        """Do nothing: the last line is complete."""

    def _require_canonical_nans(self, array: Any) -> None:
        """Raise RuleError for a NaN whose bits are not those that "nan" or "-nan" is read as."""
        import numpy as np

        positions = np.flatnonzero(array != array)
        bits = array[positions].view(f"u{array.itemsize}")
        canonical = np.array([np.nan, -np.nan], array.dtype).view(bits.dtype)
        if len(invalid := np.flatnonzero(~np.isin(bits, canonical))):
            n = self._count + int(positions[invalid[0]])
            position = [n] if self._width == 1 else list(divmod(n, self._width))
            raise RuleError(
                f"{self._path}: element {position} is a NaN with the bits"
                f" {int(bits[invalid[0]]):#x}, which text would lose",
                hint="a .npy file keeps them",
            )


def _format_numbers(array: Any) -> list[str]:
    """Return for each element the shortest text that is read as the same element."""
    import numpy as np

    if array.dtype.kind == "b":
        return list(map(str, array.view("u1").astype(bool).astype("u1").tolist()))
    if array.dtype.kind != "f":
        return list(map(str, array.tolist()))
    if array.dtype.itemsize == 8:
        texts: list[str] = list(map(repr, array.tolist()))
    else:
        texts = array.astype(str).tolist()
    for n in ((array != array) & np.signbit(array)).nonzero()[0].tolist():
        texts[n] = "-nan"
    return texts


def _format_by_arrow(array: Any, width: int, separator: str) -> bytes | memoryview | None:
    """Return the lines of rows, in a fifth of the time; None without pyarrow.

    Numbers that pyarrow spells otherwise are written as nan, and replaced by their text.
    """
    try:
        import pyarrow as pa
        from pyarrow import csv
    except ImportError:
        return None
    import numpy as np

    texts = list[str]()
    if array.dtype.kind == "f":
        size = np.abs(array)
        is_special = ~((size > 1.001e-4) & (size < 1e6)) | (array == np.rint(array))
        texts = _format_numbers(array[is_special])
        array = np.where(is_special, array.dtype.type(np.nan), array)
    columns = [
        pa.Array.from_buffers(
            pa.type_for_alias(array.dtype.name), len(column), [None, pa.py_buffer(column)]
        )
        for column in np.ascontiguousarray(array.reshape(-1, width).T)
    ]
    stream = pa.BufferOutputStream()
    csv.write_csv(
        pa.Table.from_arrays(columns, list(map(str, range(width)))),
        stream,
        csv.WriteOptions(include_header=False, delimiter=separator, quoting_style="none"),
    )
    text = memoryview(stream.getvalue())
    if not texts:
        return text
    parts, stop = list[bytes | memoryview](), 0
    starts = np.flatnonzero(np.frombuffer(text, "u1") == ord("n"))[::2].tolist()
    for start, number in zip(starts, texts, strict=True):
        parts += (text[stop:start], number.encode())
        stop = start + len("nan")
    return b"".join([*parts, text[stop:]])
