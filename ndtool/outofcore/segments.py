"""Spilled segments: in memory and unnamed files, in a shared folder, or at a URL.

A segment has the name of the task that writes it. Two attempts at a task write the same bytes, and
a name appears when its bytes are complete, so attempts never conflict. Stores are thread-safe;
`read` fills a buffer from a byte of a segment on.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from ndtool.errors import InputError, OutputError, ResourceError, UsageError, printable
from ndtool.machine import threads
from ndtool.machine.threads import AdmissionLock
from ndtool.outofcore.partitioning import MAX_SEGMENTS
from ndtool.publish import claims, cleanup
from ndtool.publish.claims import Claim
from ndtool.publish.newfolder import NewFolder, write_file
from ndtool.storage import descriptors, failures, locations, tempfiles, urls
from ndtool.storage.remotefolder import RemoteFolder

STRIPE = 1 << 20  # bytes written to one file before the next file, if there are several
FILE_BYTES = 8 << 20  # of a file or object in a shared folder; the last of a segment has fewer
_FILE = "temporary file"
_SPILL = "spill"


class Segment(NamedTuple):
    """The segment of a task: of a block ("split") or of a child ("sweep") of a group.

    path: the numbers of the group and its ancestors, none for the call. number: of the task.
    offset: of its bytes among all segments of the phase and group.
    """

    phase: str
    path: tuple[int, ...]
    number: int
    offset: int

    @property
    def name(self) -> str:
        """The name of its file: "split-7", in group 3 "split.3-7"."""
        return f"{'.'.join((self.phase, *map(str, self.path)))}-{self.number}"


Range = tuple[Segment, int, int]  # a segment, the first byte, and the number of bytes


def _parts(
    ranges: Iterable[Range], buffer: memoryview
) -> Iterator[tuple[Segment, int, memoryview]]:
    """Yield a segment, the first byte, and the part of a buffer for each range."""
    for segment, start, nbytes in ranges:
        yield segment, start, buffer[:nbytes]
        buffer = buffer[nbytes:]


class LocalStore:
    """A store of one process: each region is in memory first, then in unnamed temporary files.

    regions: the size, and the bytes in memory, by phase and depth of the group. directories: each
    has one file, and data are striped over the files; empty for TMPDIR. Reserves disk space for the
    bytes that are not in memory; ResourceError if a directory has too little.
    """

    def __init__(
        self, regions: dict[tuple[str, int], tuple[int, int]], directories: Sequence[str]
    ) -> None:
        self._files: list[_File] = []
        self._regions: dict[tuple[str, int], tuple[memoryview, int]] = {}
        nbytes = 0
        for key, (size, in_memory) in regions.items():
            self._regions[key] = _allocate(in_memory), nbytes
            nbytes += size - in_memory
        if not nbytes:
            return
        stripes = -(-nbytes // STRIPE)
        try:
            for number, directory in enumerate(directories or (None,)):
                is_striped = len(directories) > 1
                name = f"{_FILE} in {printable(directory or '')}" if is_striped else _FILE
                with descriptors.os_errors(_FILE, OutputError):
                    fd = tempfiles.unnamed_file(directory)
                    self._files.append((fd, name))
                    file_stripes = len(range(number, stripes, len(directories) or 1))
                    descriptors.reserve(fd, min(nbytes, file_stripes * STRIPE), name)
                    descriptors.advise(fd, "RANDOM")
        except BaseException:
            self.close()
            raise

    def write(self, segment: Segment, views: Iterable[memoryview]) -> None:
        start = 0
        for view in views:
            in_memory, stripes = self._locate(segment, start, len(view))
            in_memory[:] = view[: len(in_memory)]
            for (fd, name), offset, first, stop in stripes:
                with descriptors.os_errors(name, OutputError):
                    descriptors.write_at(fd, offset, view[first:stop])
            start += len(view)

    def read(self, segment: Segment, start: int, buffer: memoryview) -> None:
        in_memory, stripes = self._locate(segment, start, len(buffer))
        buffer[: len(in_memory)] = in_memory
        for (fd, name), offset, first, stop in stripes:
            with descriptors.os_errors(name, OutputError):
                descriptors.read_into(fd, offset, buffer[first:stop])

    def read_all(self, ranges: Iterator[Range], buffer: memoryview) -> None:
        """Fill a buffer with ranges; many are prefetched together: a disk can reorder them."""
        while batch := list(islice(ranges, MAX_SEGMENTS)):
            for each in batch:
                for (fd, _), offset, first, stop in self._locate(*each)[1]:
                    descriptors.advise(fd, "WILLNEED", offset, stop - first)
            for segment, start, part in _parts(batch, buffer):
                self.read(segment, start, part)
            buffer = buffer[sum(nbytes for *_, nbytes in batch) :]

    def close(self) -> None:
        """Close the files, which removes them."""
        while self._files:
            os.close(self._files.pop()[0])

    def _locate(self, segment: Segment, start: int, nbytes: int) -> tuple[memoryview, _Stripes]:
        """Return the bytes of a segment that are in memory, and the stripes of the others."""
        buffer, file_start = self._regions[segment.phase, len(segment.path)]
        first = segment.offset + start
        in_memory = buffer[first : first + nbytes]
        # The position counts as if the bytes in memory had preceded the others in the files.
        return in_memory, self._stripes(file_start + first - len(buffer), len(in_memory), nbytes)

    def _stripes(self, start: int, position: int, nbytes: int) -> _Stripes:
        """Yield the file, the offset in it, and the range in a buffer of each stripe of bytes.

        start: the position of the buffer in the files; what precedes `position` is skipped.
        """
        while position < nbytes:
            stripe, stripe_offset = divmod(start + position, STRIPE)
            row, number = divmod(stripe, len(self._files))
            size = min(STRIPE - stripe_offset, nbytes - position)
            yield self._files[number], row * STRIPE + stripe_offset, position, position + size
            position += size


_File = tuple[int, str]  # a descriptor, and a name for messages
_Stripes = Iterator[tuple[_File, int, int, int]]


def _allocate(nbytes: int) -> memoryview:
    """Return a writable buffer whose pages are allocated on first use."""
    try:
        buffer = mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise ResourceError(f"not enough memory for a buffer of {nbytes} bytes") from None
    return memoryview(buffer)[:nbytes]


class SharedStore:
    """A store that all workers share: a folder, or a folder at a URL.

    A segment is divided into files of FILE_BYTES, so that it need not fit in memory. admission: of
    writers.
    """

    def __init__(self, path: str, admission: AdmissionLock | None = None) -> None:
        self._path, self._admission = path, admission or AdmissionLock(path)
        self._remote = RemoteFolder(path) if locations.is_url(path) else None
        self._concurrency = threads.MAX_WRITERS if self._remote else 1

    def write(self, segment: Segment, views: Iterable[memoryview]) -> None:
        unsent, number = bytearray(), 0
        for view in views:
            while view:
                missing = FILE_BYTES - len(unsent)
                unsent += view[:missing]
                view = view[missing:]
                if len(unsent) == FILE_BYTES:
                    self._put(f"{segment.name}+{number}", memoryview(unsent))
                    unsent, number = bytearray(), number + 1
        if unsent:
            self._put(f"{segment.name}+{number}", memoryview(unsent))

    def _put(self, name: str, body: memoryview) -> None:
        with self._admission.admit():
            if self._remote:
                self._remote.write(name, body)
            else:
                failures.retry_call(partial(_write_file, self._path, name, body))

    def read_all(self, ranges: Iterator[Range], buffer: memoryview) -> None:
        """Fill a buffer with ranges; from a URL, several are requested concurrently."""
        parts = _parts(ranges, buffer)
        threads.run_all(lambda part: self.read(*part), parts, self._concurrency)

    def read(self, segment: Segment, start: int, buffer: memoryview) -> None:
        filled = 0
        while filled < len(buffer):
            number, first = divmod(start + filled, FILE_BYTES)
            part = buffer[filled : filled + FILE_BYTES - first]
            self._fetch(f"{segment.name}+{number}", first, part)
            filled += len(part)

    def _fetch(self, name: str, first: int, buffer: memoryview) -> None:
        if self._remote:
            try:
                buffer[:] = self._remote.read_unchecked(name, first, first + len(buffer))
            except InputError as error:
                raise OutputError(error.message) from None
            return
        path = os.path.join(self._path, name)
        with descriptors.os_errors(_FILE, OutputError), open(path, "rb", buffering=0) as file:
            count = descriptors.read_into(file.fileno(), first, buffer)
        if count < len(buffer):
            raise OutputError("a temporary file became shorter during the run")


def _write_file(folder: str, name: str, body: memoryview) -> None:
    with descriptors.os_errors(_FILE, OutputError):
        write_file(folder, name, body, 0o600)


SegmentStore = LocalStore | SharedStore
SpillFolder = NewFolder | Claim


def create_folder(location: str, run_name: str, cleans: bool = True) -> SpillFolder:
    """Create the spill folder of a run in a directory, or at a URL, that all workers share.

    run_name: the hash of the run's content. cleans: whether to remove spill folders of killed runs
    from the directory.
    """
    if not locations.is_url(location):
        path = os.path.join(os.path.abspath(location), f"{_SPILL}-{run_name}")
        try:
            return NewFolder(path, cleans=cleans)
        except OSError as exc:
            raise descriptors.failure(exc, location, OutputError) from None
    require_shared(location)
    claims.clean(location)
    return Claim(urls.join(location, f"{_SPILL}-{run_name}-{os.urandom(6).hex()}"))


def find_folder(location: str, run_name: str) -> SpillFolder | None:
    """Reopen the spill folder of a killed run with this name; None if there is none."""
    for path in abandoned_folders(location, run_name):
        with suppress(OSError, OutputError):  # another run has claimed it
            if not locations.is_url(path):
                temporary = os.path.dirname(path)
                target = os.path.join(os.path.dirname(temporary), f"{_SPILL}-{run_name}")
                return NewFolder(target, abandoned=temporary)
            return Claim(path, resumes=True)
    return None


def abandoned_folders(location: str, run_name: str = "") -> list[str]:
    """Return the spill folders of killed runs in a directory or at a URL; with a name if given."""
    pattern = f"{_SPILL}-{run_name or '[0-9a-f]+'}"
    if locations.is_url(location):
        if not locations.is_shared(location):
            return []
        return claims.abandoned_folders(location, f"{pattern}(-[0-9a-f]+)?")  # see create_folder
    try:
        folders = cleanup.abandoned_folders(os.path.abspath(location), pattern)
    except OSError:
        return []  # creating a folder reports the error
    return [os.path.join(path, cleanup.NEW_FOLDER) for path in folders]


def require_shared(url: str) -> None:
    """Raise UsageError if processes do not share the storage of a URL."""
    if not locations.is_shared(url):
        raise UsageError(
            f"{printable(url)}: workers cannot share it: expected s3://, gs://, az:// or a"
            " directory that all workers see"
        )
