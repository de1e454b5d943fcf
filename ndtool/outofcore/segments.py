"""Spilled segments: in memory and unnamed files, in a shared folder, or at a URL.

A segment has the name of the task that writes it. Two attempts at a task write the same bytes, and
a name appears when its bytes are complete, so attempts never conflict. Stores are thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ndtool.errors import InputError, OutputError, UsageError, printable
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


Part = tuple[Segment, int, memoryview]  # a segment, the first byte, and a buffer to fill


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
        # The bytes of a region in memory, and its position in the files if all were there.
        self._regions: dict[tuple[str, int], tuple[memoryview, int]] = {}
        nbytes, targets = 0, directories or (None,)
        for key, (size, in_memory) in regions.items():
            self._regions[key] = np.empty(in_memory, np.uint8).data, nbytes - in_memory
            nbytes += size - in_memory
        stripes = -(-nbytes // STRIPE)
        try:
            for number, directory in enumerate(targets if nbytes else ()):
                name = f"{_FILE} in {printable(directory or '')}" if len(targets) > 1 else _FILE
                size = min(nbytes, len(range(number, stripes, len(targets))) * STRIPE)
                with descriptors.os_errors(_FILE, OutputError):
                    fd = tempfiles.unnamed_file(directory)
                    self._files.append((fd, name))
                    descriptors.reserve(fd, size, name)
                    descriptors.advise(fd, "RANDOM")
        except BaseException:
            self.close()
            raise

    def write(self, segment: Segment, views: Iterable[Any]) -> None:
        """Write the views one after another."""
        start = 0
        for view in views:
            for place, offset, part in self._extents(segment, start, view):
                if isinstance(place, memoryview):
                    place[offset : offset + len(part)] = part
                    continue
                with descriptors.os_errors(place[1], OutputError):
                    descriptors.write_at(place[0], offset, part)
            start += len(view)

    def read(self, parts: Iterable[Part]) -> None:
        """Fill buffers; many are prefetched together: a disk can reorder them."""
        remaining = iter(parts)
        while batch := list(islice(remaining, MAX_SEGMENTS)):
            extents = [extent for part in batch for extent in self._extents(*part)]
            for place, offset, part in extents:
                if not isinstance(place, memoryview):
                    descriptors.advise(place[0], "WILLNEED", offset, len(part))
            for place, offset, part in extents:
                if isinstance(place, memoryview):
                    part[:] = place[offset : offset + len(part)]
                    continue
                with descriptors.os_errors(place[1], OutputError):
                    descriptors.read_into(place[0], offset, part)

    def close(self) -> None:
        """Close the files, which removes them."""
        while self._files:
            os.close(self._files.pop()[0])

    def _extents(
        self, segment: Segment, start: int, buffer: memoryview
    ) -> Iterator[tuple[memoryview | _File, int, memoryview]]:
        """Yield where the bytes of a buffer are: memory or a file, the offset, and the part."""
        in_memory, first = self._regions[segment.phase, len(segment.path)]
        position = segment.offset + start
        while buffer:
            place: memoryview | _File = in_memory
            offset, size = position, len(in_memory) - position
            if size <= 0:
                stripe, offset = divmod(first + position, STRIPE)
                row, number = divmod(stripe, len(self._files))
                place, offset, size = self._files[number], row * STRIPE + offset, STRIPE - offset
            yield place, offset, buffer[:size]
            position, buffer = position + size, buffer[size:]


_File = tuple[int, str]  # a descriptor, and a name for messages


class SharedStore:
    """A store that all workers share: a folder, or a folder at a URL.

    A segment is divided into files of FILE_BYTES, so that it need not fit in memory. admission: of
    writers.
    """

    def __init__(self, path: str, admission: AdmissionLock | None = None) -> None:
        self._path, self._admission = path, admission or AdmissionLock(path)
        self._remote = RemoteFolder(path) if locations.is_url(path) else None
        self._concurrency = threads.MAX_WRITERS if self._remote else 1

    def write(self, segment: Segment, views: Iterable[Any]) -> None:
        """Write the views one after another."""
        unsent, number = bytearray(), 0
        for view in views:
            while view:
                missing = FILE_BYTES - len(unsent)
                unsent += view[:missing]
                view = view[missing:]
                if len(unsent) == FILE_BYTES:
                    self._put(f"{segment.name}+{number}", unsent)
                    unsent, number = bytearray(), number + 1
        if unsent:
            self._put(f"{segment.name}+{number}", unsent)

    def read(self, parts: Iterable[Part]) -> None:
        """Fill buffers; from a URL, several concurrently."""
        threads.run_all(self._read_part, parts, self._concurrency)

    def _read_part(self, part: Part) -> None:
        segment, start, buffer = part
        while buffer:
            number, first = divmod(start, FILE_BYTES)
            size = min(FILE_BYTES - first, len(buffer))
            self._fetch(f"{segment.name}+{number}", first, buffer[:size])
            start, buffer = start + size, buffer[size:]

    def _put(self, name: str, body: bytearray) -> None:
        with self._admission.admit():
            if self._remote:
                self._remote.write(name, memoryview(body))
            else:
                failures.retry_call(partial(_write_file, self._path, name, memoryview(body)))

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
    if locations.is_url(location):
        require_shared(location)
        claims.clean(location)
        return Claim(urls.join(location, f"{_SPILL}-{run_name}-{os.urandom(6).hex()}"))
    with descriptors.os_errors(location, OutputError):
        return NewFolder(_folder_path(location, run_name), cleans=cleans)


def find_folder(location: str, run_name: str) -> SpillFolder | None:
    """Reopen the spill folder of a killed run with this name; None if there is none."""
    for path in abandoned_folders(location, run_name):
        with suppress(OSError, OutputError):  # another run has claimed it
            if locations.is_url(path):
                return Claim(path, resumes=True)
            return NewFolder(_folder_path(location, run_name), abandoned=path)
    return None


def abandoned_folders(location: str, run_name: str = "") -> list[str]:
    """Return the spill folders of killed runs in a directory or at a URL; with a name if given."""
    pattern = f"{_SPILL}-{run_name or '[0-9a-f]+'}"
    if locations.is_url(location):
        is_shared = locations.is_shared(location)
        return claims.abandoned_folders(location, f"{pattern}(-[0-9a-f]+)?") if is_shared else []
    with suppress(OSError):  # creating a folder reports the error
        return cleanup.abandoned_folders(os.path.abspath(location), pattern)
    return []


def _folder_path(location: str, run_name: str) -> str:
    return os.path.join(os.path.abspath(location), f"{_SPILL}-{run_name}")


def require_shared(url: str) -> None:
    """Raise UsageError if processes do not share the storage of a URL."""
    if not locations.is_shared(url):
        raise UsageError(
            f"{printable(url)}: workers cannot share it: expected s3://, gs://, az:// or a"
            " directory that all workers see"
        )
