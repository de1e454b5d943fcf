"""Encoding options of chunked outputs: chunks, shards and codec."""

from typing import NamedTuple

from ndtool.arrays.source import ChunkLayout
from ndtool.errors import UsageError, format_value, option, printable

_MAX_LEVELS = {"zstd": 22, "blosc": 9, "gzip": 9}  # codecs and their highest levels
_CODECS = {
    f"{name}:{level}" for name, max_level in _MAX_LEVELS.items() for level in range(max_level + 1)
}


def codec(text: str) -> str:
    """Validate a codec such as `zstd:3` and return it; UsageError if it is unknown."""
    if text not in _CODECS and text not in (*_MAX_LEVELS, "none"):
        choice = ", ".join(f"{name}[:0..{max_level}]" for name, max_level in _MAX_LEVELS.items())
        raise UsageError(f"{format_value(text)} is not a codec: expected {choice} or none")
    return text


class Encoding(NamedTuple):
    """Encoding options of a chunked output; None: as data is encoded, else the format's default.

    codec: zstd, blosc, gzip or none, perhaps with `:level`. data_layout: the chunk layout of data,
    None for flat data. as_void: whether element types that the format lacks may be stored as void.
    """

    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: str | None = None
    data_layout: ChunkLayout | None = None
    as_void: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """The options that were passed, as users write them."""
        return tuple(option(name) for name in self._fields[:3] if getattr(self, name) is not None)

    def require_rank(self, rank: int) -> None:
        """Raise UsageError if chunks or shards have another rank."""
        for name, sizes in (("chunks", self.chunks), ("shards", self.shards)):
            if sizes is not None and len(sizes) != rank:
                raise UsageError(
                    f"{option(name)} {','.join(map(str, sizes))} has {len(sizes)} sizes: the output"
                    f" has rank {rank}"
                )

    def require_no_options(self, argument: str) -> None:
        """Raise UsageError if options were passed, as the output has no chunks."""
        if self.options:
            raise UsageError(
                f"{' and '.join(self.options)}: {printable(argument)} has no chunks:"
                " expected a Zarr store or an HDF5 file, such as out.zarr"
            )
