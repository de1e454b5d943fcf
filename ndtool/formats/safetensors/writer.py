"""Write a tensor to a safetensors file: the header, and the preserved tensors."""

from __future__ import annotations

from collections.abc import Iterable

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, printable, refuse
from ndtool.formats.decoding import convert_stored
from ndtool.formats.safetensors import headers
from ndtool.formats.safetensors.headers import Header, Tensor
from ndtool.publish.sinks import Container, FileSink
from ndtool.publish.targets import CurrentFile, Target, exists_error
from ndtool.storage.local import File

_EMPTY_HEADER = Header((), "", 0)


def create(target: Target, name: str, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one tensor of a file."""
    dtype = headers.stored_dtype(metadata.dtype)
    new = headers.new_tensor(headers.tensor_name(name), dtype, metadata.shape)
    old_file, header = _open_existing(target)
    try:
        container = TensorContainer(new, metadata, header, old_file)
        if container.data_offset > headers.MAX_HEADER_BYTES:
            raise OutputError(
                f"{printable(target.path)}: the header would have {container.data_offset} bytes:"
                f" valid up to {headers.MAX_HEADER_BYTES}"
            )
        return FileSink(target, metadata, container)
    except BaseException:
        old_file.close()
        raise


def _open_existing(target: Target) -> tuple[CurrentFile, Header]:
    """Open the current file and parse its header; OutputError if it may not be replaced."""

    def parse(file: File) -> Header:
        if not headers.has_header(file):
            refuse(target.path, "not a safetensors file")
        header = headers.read_file_header(file, target.path)
        if not target.clobber and target.member in _names(header.tensors):
            raise exists_error(f"{target.path}:{target.member}")
        return header

    old_file = CurrentFile(target)
    return old_file, old_file.read(parse, _EMPTY_HEADER, "a file of the new tensor")


def _names(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


class TensorContainer(Container):
    """The bytes of a file other than the written tensor: the header and the preserved tensors.

    The written elements are stored in little-endian order, or packed.
    """

    def __init__(
        self, new: Tensor, metadata: ArrayMetadata, header: Header, old_file: CurrentFile
    ) -> None:
        self._dtype = metadata.dtype
        self._tensors = headers.assign_offsets(header.tensors, new)
        raw = headers.encode(self._tensors, header.metadata)
        self.data_offset = len(raw)
        preserved = tuple(name for name in _names(header.tensors) if name != new.name)
        unpacked_nbytes = metadata.nbytes - (new.stop - new.start)  # elements are packed at the end
        super().__init__(
            raw, self._tensors[-1].stop + unpacked_nbytes, current=old_file, names=preserved
        )
        old_starts = {tensor.name: header.data_offset + tensor.start for tensor in header.tensors}
        self._ranges = list[tuple[int, int, int]]()
        for tensor in self._tensors:
            if tensor.name == new.name:
                self.start = len(raw) + tensor.start
            elif tensor.stop > tensor.start:
                start, nbytes = old_starts[tensor.name], tensor.stop - tensor.start
                self._ranges.append((start, start + nbytes, len(raw) + tensor.start))
        self._stop = self.start + metadata.nbytes

    def begin(self, fd: int) -> None:
        if self.current is not None and self._ranges:
            self.current.copy(fd, self._ranges)
        super().begin(fd)

    def finish(self, fd: int, name: str) -> None:
        convert_stored(fd, name, self.start, self._stop, self._dtype)
