"""The .npz format: a ZIP archive of .npy files; uncompressed members are memory-mapped."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from functools import partial
from zipfile import ZipInfo

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, MemberInfo, trailing_bytes_warning
from ndtool.errors import InputError, NdtoolError, OutputError, printable, refuse
from ndtool.formats import members, npy
from ndtool.formats.npz import archive, writer
from ndtool.formats.npz.archive import Archive
from ndtool.formats.npz.writer import PreservedMembers
from ndtool.publish.sinks import Container, FileSink
from ndtool.publish.targets import CurrentFile, Target, exists_error
from ndtool.rules import mistakes
from ndtool.storage.descriptors import BLOCK_SIZE, read_at, write_at
from ndtool.storage.local import ZARR_METADATA, File, LocalFile

# The program that writes the tensors of an archive of torch.save, {0!r}, to {1!r}.safetensors.
_CONVERT_TORCH = (
    "import torch; from safetensors.torch import save_file; x = torch.load({0!r},"
    " weights_only=True); save_file(x if isinstance(x, dict) else {{'tensor': x}}, {1!r} +"
    " '.safetensors')"
)


def recognises(storage: LocalFile) -> bool:
    """Whether a file starts or ends as a ZIP archive does."""
    return archive.is_archive(storage)


def entries(storage: LocalFile, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all members, or of one; an invalid array has no metadata."""
    opened = Archive(storage, path)
    infos: Iterable[ZipInfo] = opened.members().values()
    if member is not None:
        infos = [_choose(opened, member)]
    return [_entry(opened, info) for info in infos]


def array_names(storage: LocalFile, path: str) -> list[str]:
    """Return the names of all members; reads only the central directory."""
    return list(Archive(storage, path).members())


def open_source(storage: LocalFile, name: str, path: str, member: str | None) -> ContiguousSource:
    """Open a member, the only one if none is named; closing the source closes the file."""
    opened = Archive(storage, path)
    info = _choose(opened, member)
    label = f"{path}:{archive.array_name(info)}"
    if archive.is_mappable(info):
        header, position = opened.read_header(info, label)
        assert position is not None, "it is mappable"
        metadata = npy.metadata_of(header)
        source = ContiguousSource.in_file(name, metadata, storage, position, label)
        source.check = partial(opened.check, info, label)
        if source.is_local:
            source.check()
    else:
        header, buffer = opened.inflate(info, label)
        metadata = npy.metadata_of(header)
        source = ContiguousSource(name, metadata, buffer, storage, position=header.offset)
    surplus = info.file_size - header.offset - header.nbytes
    source.warning = trailing_bytes_warning(label, surplus)
    return source


def _choose(opened: Archive, name: str | None) -> ZipInfo:
    """Return the member with a name, or the only array; else the error lists the members."""
    path, infos = opened.name, opened.members()

    def describe(info: ZipInfo) -> str:
        return _entry(opened, info).label

    if not infos:
        refuse(path, "the archive has no arrays")
    stem = os.path.splitext(path)[0].removesuffix(".zarr")
    if any(info.orig_filename.endswith("/data.pkl") for info in infos.values()):
        raise InputError(
            f"{printable(path)} is an archive of torch.save: its tensors are described by a pickle,"
            " which is never loaded",
            hint=mistakes.then(
                "torch reads them.", mistakes.python_command(_CONVERT_TORCH, path, stem)
            ),
        )
    if any(info.orig_filename.rpartition("/")[2] in ZARR_METADATA for info in infos.values()):
        raise InputError(
            f"{printable(path)} is a Zarr store in an archive: expected its folder",
            hint="unzip extracts it. Then:"
            f" unzip {mistakes.quote(path)} -d {mistakes.quote(f'{stem}.zarr')}",
        )
    if name is None:
        arrays = {key: info for key, info in infos.items() if info.orig_filename.endswith(".npy")}
        infos = arrays if len(arrays) == 1 else infos
    else:
        matches = {
            key: info
            for key, info in infos.items()
            if name in (key, info.orig_filename, os.fsdecode(archive.stored_name(info)))
        }
        if len(matches) > 1:
            lines = members.listing(
                ((key, describe(matches[key])) for key in matches), len(matches)
            )
            refuse(path, f"{printable(name)} is more than one member", places=lines)
        name = next(iter(matches), name)
    return members.choose(path, name, infos, "the archive", "member", describe)


def _entry(opened: Archive, info: ZipInfo) -> MemberInfo:
    name = archive.array_name(info)
    label = f"{opened.name}:{name}"
    try:
        header, position = opened.read_header(info, label)
    except NdtoolError as exc:
        return MemberInfo.invalid(label, name, exc)
    warning = trailing_bytes_warning(label, info.file_size - header.offset - header.nbytes)
    method = archive.METHODS[info.compress_type]
    problem = "" if archive.is_mappable(info) else f"compressed with {method}"
    return MemberInfo(label, name, npy.metadata_of(header), position, problem, warning)


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one member of a new archive, or of the current one with its members."""
    name = writer.member_name(target.array_name)
    current, preserved = _open_existing(target)
    try:
        header = npy.encode(metadata.dtype, metadata.shape)
        container = MemberContainer(name, header, metadata.nbytes, current, preserved)
        return FileSink(target, metadata, container)
    except BaseException:
        current.close()
        raise


def _open_existing(target: Target) -> tuple[CurrentFile, PreservedMembers]:
    """Open the current archive, and return its preserved members; OutputError if not replaceable.

    Returns a CurrentFile without a file, and no members, if none are preserved.
    """

    def parse(file: File) -> PreservedMembers:
        assert target.member is not None, "members are preserved only if one is named"
        preserved = writer.preserve(file, target.path, target.member)
        if preserved.replaced and not target.clobber:
            raise exists_error(f"{target.path}:{target.member}")
        return preserved

    current = CurrentFile(target)
    return current, current.read(parse, writer.NO_MEMBERS, "an archive of the new member")


class MemberContainer(Container):
    """The bytes of an archive before and after the written member's data."""

    def __init__(
        self,
        name: bytes,
        header: bytes,
        nbytes: int,
        current: CurrentFile,
        preserved: PreservedMembers,
    ) -> None:
        self._name, self._archive, self._preserved = name, current, preserved
        self._member_size = len(header) + nbytes
        self._member_offset = self._preserved.offset + len(self._local_header(0))
        super().__init__(header, nbytes, self._member_offset, current, preserved.names)
        self.total += len(self._central_directory(0))

    def begin(self, fd: int) -> None:
        if self._archive.file is not None:
            self._archive.copy(fd, self._preserved.ranges)
        super().begin(fd)

    def finish(self, fd: int, name: str) -> None:
        crc = self._crc(fd, name)
        write_at(fd, self._preserved.offset, self._local_header(crc))
        write_at(fd, self._member_offset + self._member_size, self._central_directory(crc))

    def _local_header(self, crc: int) -> bytes:
        return writer.local_header(self._name, self._member_size, crc, self._preserved.offset)

    def _central_directory(self, crc: int) -> bytes:
        return writer.central_directory(self._name, self._member_size, crc, self._preserved)

    def _crc(self, fd: int, name: str) -> int:
        """Return the member's CRC, computed from the file: the bytes are written in any order."""
        crc, offset, end = 0, self._member_offset, self._member_offset + self._member_size
        while offset < end:
            block = read_at(fd, offset, min(BLOCK_SIZE, end - offset))
            if not block:
                raise OutputError(f"{printable(name)}: the file became shorter")
            crc = zlib.crc32(block, crc)
            offset += len(block)
        return crc
