"""A .npz archive, read by the standard library's zipfile after checks of what it declares."""

import struct
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from zipfile import ZipInfo

from ndtool.errors import NdtoolError, ResourceError, library_message, printable, refuse
from ndtool.formats import npy
from ndtool.formats.decoding import InputFile, inflate_limit
from ndtool.storage.descriptors import (
    BLOCK_SIZE,
    EXHAUSTION_ERRNOS,
    Read,
    failure,
    sequential_reader,
)
from ndtool.storage.local import File
from ndtool.storage.tempfiles import Spool

METHODS = {
    zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflate",
    zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma",
}  # fmt: skip
MAX_DIRECTORY_BYTES = 16 << 20  # maximum size of a central directory: some 200,000 entries
_MAX_DICTIONARY_BYTES = 64 << 20  # of LZMA, unless the member is larger
_MAX_RATIO = 1032  # maximum ratio of deflate: 258 bytes from 2 bits
_END_RECORD_SIZE = 22  # without the comment
_TAIL_SIZE = _END_RECORD_SIZE + 0xFFFF  # bytes at the end that may have the end record
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x0001, 0x0008, 0x0800
_UINT16_MAX, _UINT32_MAX = 0xFFFF, 0xFFFFFFFF


def is_archive(storage: File) -> bool:
    """Whether a file starts or ends as a ZIP archive does."""
    if storage.peek(0, 4) in (b"PK\3\4", b"PK\5\6"):
        return True
    return b"PK\5\6" in _tail(storage) and _is_zipfile(_ZipFile(storage, ""))


def _tail(storage: File) -> bytes:
    """Read the end of a file, in one request if it is remote."""
    start = max(0, storage.size - _TAIL_SIZE)
    return storage.peek(start, storage.size - start)


def array_name(info: ZipInfo) -> str:
    """Return the name of a member without `.npy`."""
    return info.orig_filename.removesuffix(".npy")


def stored_name(info: ZipInfo) -> bytes:
    """Return the bytes of a member's name in the archive."""
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")


def is_mappable(info: ZipInfo) -> bool:
    """Whether the data can be memory-mapped: uncompressed and unencrypted."""
    return info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & _ENCRYPTED


def _extra_fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the bytes of each extra field."""
    start = 0
    while start + 4 <= len(raw):
        kind, length = struct.unpack_from("<2H", raw, start)
        yield kind, raw[start : start + 4 + length]
        start += 4 + length


def without_zip64(extra: bytes) -> bytes:
    """Return extra fields without the ZIP64 field."""
    return b"".join(raw for kind, raw in _extra_fields(extra) if kind != 1)


def _is_zipfile(file: "_ZipFile") -> bool:
    """Whether a file ends as an archive; also if zipfile refuses it, as it does several disks."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:
        return True  # opening it raises the error


class Archive:
    """An open archive.

    name: of the file, for messages. start: the offset of the central directory, which all data must
    precede. infos: the members in its order; names may be duplicates. Raises InputError if the
    central directory is inconsistent.
    """

    def __init__(self, storage: File, name: str) -> None:
        self.read, self.name, self._storage = storage.peek, name, storage
        file, size = _ZipFile(storage, name), storage.size
        _tail(storage)
        truncated = "the archive is truncated: it has no end of central directory record"
        if not _is_zipfile(file):
            refuse(name, truncated)
        with _damage(name, "the central directory is damaged"):
            self._zip = zipfile.ZipFile(file)
        self.start: int = self._zip.start_dir
        self.infos: list[ZipInfo] = self._zip.infolist()
        self.comment: bytes = self._zip.comment
        end = self.read(size - len(self.comment) - _END_RECORD_SIZE, _END_RECORD_SIZE)
        *counts, _, _, comment_size = struct.unpack("<2H2LH", end[8:])
        if end[:4] != b"PK\5\6" or comment_size != len(self.comment):
            refuse(name, truncated)
        if any(info.volume for info in self.infos) or counts[0] != counts[1]:
            refuse(name, "the archive is split into volumes: expected a single file")
        if counts[0] not in (len(self.infos), _UINT16_MAX):
            expected = f"expected {counts[0]} entries in the central directory"
            refuse(name, f"{expected}, found {len(self.infos)}")

    def members(self) -> dict[str, ZipInfo]:
        """Return the members other than folders, by name; InputError if two have one name."""
        members: dict[str, ZipInfo] = {}
        for info in self.infos:
            if info.orig_filename.endswith("/"):
                continue
            name = array_name(info)
            if name in members:
                refuse(self.name, f"two members have the name {name!r}: expected one")
            members[name] = info
        return members

    def locate_data(self, info: ZipInfo, label: str) -> int:
        """Validate a member's local file header and sizes; return the offset of its data."""
        offset = info.header_offset
        raw = self.read(offset, _LOCAL_HEADER.size) if offset >= 0 else b""
        if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\3\4":
            refuse(label, f"expected a local file header at byte {offset}")
        fields = _LOCAL_HEADER.unpack(raw)
        flags, method, crc, compressed, size, name_length, extra_length = *fields[2:4], *fields[6:]
        name_start, length = offset + _LOCAL_HEADER.size, name_length + extra_length
        name_and_extra = self.read(name_start, length)
        if len(name_and_extra) < length:
            found = f"found {len(name_and_extra)}"
            refuse(label, f"expected {length} bytes at offset {name_start}, {found}")
        if name_and_extra[:name_length] != stored_name(info):
            refuse(label, f"byte {offset} has another member: {name_and_extra[:name_length]!r}")
        if flags & _ENCRYPTED or info.flag_bits & _ENCRYPTED:
            refuse(label, "the member is encrypted: expected an unencrypted one")
        zip64 = dict(_extra_fields(name_and_extra[name_length:])).get(1, b"")[4:]
        values = [value for (value,) in struct.iter_unpack("<Q", zip64[: len(zip64) // 8 * 8])]
        size = values.pop(0) if size == _UINT32_MAX and values else size
        compressed = values.pop(0) if compressed == _UINT32_MAX and values else compressed
        # With a data descriptor, the local file header lacks the CRC and the sizes.
        agree = (crc, compressed, size) == (info.CRC, info.compress_size, info.file_size)
        if method != info.compress_type or not (agree or flags & _DESCRIPTOR):
            refuse(label, "its local file header and the central directory disagree")
        start: int = name_start + length
        self._check_sizes(start, info, label)
        return start

    def _check_sizes(self, start: int, info: ZipInfo, label: str) -> None:
        """Raise InputError if a member's sizes contradict each other or its method."""
        method, compressed, size = info.compress_type, info.compress_size, info.file_size
        if method not in METHODS:
            refuse(label, f"compression method {method}: valid {', '.join(METHODS.values())}")
        if start + compressed > self.start:
            available = max(self.start - start, 0)
            refuse(label, f"the member claims {compressed} bytes, only {available} remain")
        if method == zipfile.ZIP_STORED and size != compressed:
            refuse(label, f"stored in {compressed} bytes, but its size is {size}")
        if method == zipfile.ZIP_DEFLATED and size > compressed * _MAX_RATIO:
            refuse(label, f"{compressed} deflated bytes cannot expand to {size}")
        if method == zipfile.ZIP_LZMA:
            dictionary = int.from_bytes(self.read(start + 5, 4), "little")
            if dictionary > max(size, _MAX_DICTIONARY_BYTES):
                refuse(label, f"a dictionary of {dictionary} bytes for {size} bytes")

    def blocks(self, info: ZipInfo, label: str, block_size: int = BLOCK_SIZE) -> Iterator[bytes]:
        """Decompress a member and yield its bytes; InputError at the end if its CRC is wrong."""
        self.locate_data(info, label)
        size = 0
        with _damage(label, "the compressed bytes are damaged"), closing(self._zip.open(info)) as f:
            while block := f.read(block_size):
                size += len(block)
                yield block
        if size != info.file_size:
            refuse(label, f"expected {info.file_size} bytes, found {size}")

    def check(self, info: ZipInfo, label: str) -> None:
        """Read and decompress a complete member; InputError if its size or CRC is wrong."""
        for _ in self.blocks(info, label):
            pass

    def read_header(self, info: ZipInfo, label: str) -> tuple[npy.Header, int | None]:
        """Return the .npy header of a member, and the offset of its data, None if compressed.

        Reads only the beginning of the member.
        """
        start, size = self.locate_data(info, label), info.file_size
        if is_mappable(info):
            header = _parse_header(
                lambda offset, n: self.read(start + offset, min(n, size - offset)), size, label
            )
            return header, start + header.offset
        beginning = next(self.blocks(info, label, npy.MAX_HEADER_BYTES + 12), b"")
        return _parse_header(lambda offset, n: beginning[offset : offset + n], size, label), None

    def inflate(self, info: ZipInfo, label: str) -> tuple[npy.Header, memoryview]:
        """Decompress a member; return its header and data. ResourceError above the limit."""
        start = self.locate_data(info, label)  # first, as it reports a wrong size
        limit = inflate_limit()
        if info.file_size > limit:
            raise ResourceError(
                f"{printable(label)}: {info.file_size} bytes decompressed: valid up to {limit}",
                hint=f"NDTOOL_MAX_INFLATE={info.file_size} allows it; a stored member has no limit",
            )
        self._storage.download([(start, start + info.compress_size)])
        spool = Spool()
        for block in self.blocks(info, label):
            spool.write(block)
        raw = spool.finish()
        header = _parse_header(
            lambda offset, n: bytes(raw[offset : offset + n]), info.file_size, label
        )
        return header, raw[header.offset : header.offset + header.nbytes]


class _ZipFile(InputFile):
    """A file that zipfile reads, with few bytes at a time but for the central directory."""

    def read(self, count: int = -1) -> bytes:
        count = max(0, self.storage.size - self.position) if count < 0 else count
        if count > MAX_DIRECTORY_BYTES:  # of a member, zipfile reads less
            refuse(
                self.label,
                f"the central directory has {count} bytes: valid up to {MAX_DIRECTORY_BYTES}",
            )
        data = self.storage.peek(self.position, count)
        self.position += len(data)
        return data


@contextmanager
def _damage(label: str, problem: str) -> Iterator[None]:
    """Raise any exception of zipfile and its decompressors as an InputError."""
    try:
        yield
    except NdtoolError:
        raise
    except MemoryError:
        raise ResourceError(f"{printable(label)}: not enough memory to decompress it") from None
    except RuntimeError as exc:  # a module such as lzma is missing
        refuse(label, library_message(exc))
    except Exception as exc:
        if isinstance(exc, OSError) and exc.errno in EXHAUSTION_ERRNOS:
            raise failure(exc, label) from None
        refuse(label, f"{problem}: {library_message(exc)}")


def _parse_header(read: Read, size: int, label: str) -> npy.Header:
    return npy.read_header(sequential_reader(read, 0), size, label)
