"""Claims of remote folders: exclusive use by one run until the output is complete or removed.

Object stores have neither locks nor atomic renames. A lock object next to the folder,
`.NAME.ndtool`, names the owner; it remains if the run is killed.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from ndtool.errors import NdtoolError, OutputError, UsageError, printable, redact_urls
from ndtool.machine import signals
from ndtool.storage import locations, objects
from ndtool.storage.local import ZARR_METADATA
from ndtool.storage.objects import Version, join, split_query
from ndtool.storage.remotefolder import RemoteFolder, read_small

_MAX_LOCK_SIZE = 1 << 16  # bytes of a lock object
_NO_PROCESS = 0  # process ID in the lock object of a suspended folder


class LockObject(NamedTuple):
    """The lock object of a claimed folder; all writers to the folder receive it."""

    url: str
    body: bytes

    def require(self, suffix: str = "") -> None:
        """Raise OutputError unless the stored lock object is this one.

        suffix: the end of the message, for a process other than the owner.
        """
        if _read(self.url)[0] != self.body:
            raise OutputError(f"{redact_urls(self.url)} was replaced or removed{suffix}")

    def put(self, condition: dict[str, str]) -> None:
        """Write the lock object; FileExistsError if the condition fails."""
        objects.wait(objects.open_output(self.url).put(self.body, condition), self.url, OutputError)


class Owner(NamedTuple):
    """The owner of a folder: a process on a machine. folder: path relative to the lock object."""

    folder: str
    host: str
    machine: str
    process: int

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; False if unknown, as for other machines."""
        if self.process == _NO_PROCESS:
            return True
        return self.machine == _machine_id() and not _is_running(self.process)


class Claim:
    """A remote folder, claimed until `release`, `drop` or `suspend`.

    path: the folder in the store at the URL, "" for the store itself. resumes: whether to resume
    the data of a killed run rather than remove them. working_folder: the URL of the folder. lock:
    its lock object. Raises OutputError if another run has claimed the folder.
    """

    def __init__(self, url: str, path: str = "", resumes: bool = False) -> None:
        self.working_folder = join(url, path)
        self._folder = _relative_folder(url, path)
        self.lock = _new_lock(_lock_url(url, path), self._folder)
        self._is_active, self._is_confirmed = True, False
        signals.add_cleanup(self.drop)
        try:
            try:
                self.lock.put({"IfNoneMatch": "*"})
            except FileExistsError:
                self._take_over()
                if not resumes:
                    _clear(self.working_folder)
        except BaseException:
            self._close()
            raise
        self._is_confirmed = True

    def release(self) -> None:
        """Release the folder and keep its content."""
        if self._is_active:
            try:
                if _read(self.lock.url)[0] == self.lock.body:  # `clean --force` may have removed it
                    _remove(self.lock.url)
            except NdtoolError:
                pass  # the folder is complete, which `ndtool clean` detects
            self._close()

    def drop(self) -> None:
        """Remove the content of the folder and release the folder."""
        objects.finish(objects.ABORT_TIMEOUT)
        if self._is_active:
            try:
                if self._is_confirmed and _read(self.lock.url)[0] in (None, self.lock.body):
                    _clear(self.working_folder)
            except NdtoolError:
                return  # the lock object remains, for `ndtool clean`
            self.release()

    def suspend(self) -> None:
        """Release the folder and keep its content, so that another run can resume it."""
        if self._is_active:
            self._close()
            with suppress(NdtoolError):  # on failure, the claim ends with this process
                self.lock.require()
                _new_lock(self.lock.url, self._folder, _NO_PROCESS).put({})

    def _close(self) -> None:
        self._is_active = False
        signals.remove_cleanup(self.drop)

    def _take_over(self) -> None:
        """Acquire the folder of a killed run; OutputError if its owner may be running."""
        body, version = _read(self.lock.url)
        owner = _owner(body)
        if owner is not None and owner.has_ended and owner.folder == self._folder:
            if _replace(self.lock, body, version):
                return
            owner = None
        owner_name = (
            f"process {owner.process} on {printable(owner.host)}" if owner else "another run"
        )
        raise OutputError(
            f"{printable(self.working_folder)}: {owner_name} writes there, or was killed",
            hint="`ndtool clean URL` removes the files of killed runs",
        )


def is_bucket(url: str) -> bool:
    """Whether a URL is the URL of a bucket or server, which has no parent folder."""
    path = redact_urls(split_query(url)[0]).partition("://")[2]
    return "/" not in path.rstrip("/") and locations.is_shared(url)


def is_abandoned(url: str, path: str) -> bool:
    """Whether a killed run abandoned a folder of a store."""
    owner = _owner(_read(_lock_url(url, path))[0])
    return owner is not None and owner.has_ended and owner.folder == _relative_folder(url, path)


def abandoned_folders(url: str, name: str) -> list[str]:
    """Return the URLs of the abandoned folders in a folder; name: a pattern of their names."""
    return [
        join(lock_url, owner.folder, sibling=True)
        for lock_url, _, _, owner in _locks_in(url, name)
        if owner.has_ended
    ]


def clean(url: str, force: bool = False) -> tuple[list[str], list[Owner]]:
    """Remove a folder, or folders in it, that killed runs abandoned.

    force: also folders of other machines, whose processes may be running. Returns the URLs of the
    removed folders, and the owners of the other ones.
    """
    removed, possibly_active = [], []
    for lock_url, body, version, owner in _locks_in(url, ".+", is_bucket(url)):
        folder = join(lock_url, owner.folder, sibling=True)
        if owner.has_ended or (force and owner.machine != _machine_id()):
            if not _replace(_new_lock(lock_url, owner.folder), body, version):
                continue  # another run has claimed it
            removed.append(redact_urls(folder if _clear(folder) else lock_url))
            _remove(lock_url)
        else:
            possibly_active.append(owner._replace(folder=redact_urls(folder)))
    return removed, possibly_active


def _locks_in(
    url: str, name: str, only_in: bool = True
) -> Iterator[tuple[str, bytes | None, Version | None, Owner]]:
    """Yield the URL, content, version and owner of the locks of folders in a folder.

    name: a pattern of the folders' names. only_in: whether to ignore the lock of the folder itself.
    Raises UsageError if a URL has no folder, OutputError if its store is not writable.
    """
    if not url.partition("://")[2].strip("/"):
        raise UsageError(
            f"{printable(url)} is not a folder: expected one such as s3://bucket/folder"
        )
    objects.open_output(join(url, "any"))
    pattern = re.compile(rf"\.{name}\.ndtool", re.DOTALL)
    lock_urls = [] if only_in else [_lock_url(url, "")]
    lock_urls += [
        join(url, entry)
        for entry, is_folder in objects.wait(objects.list_folder(url), url)
        if not is_folder and pattern.fullmatch(entry)
    ]
    for lock_url in lock_urls:
        body, version = _read(lock_url)
        if (owner := _owner(body)) is not None:
            yield lock_url, body, version, owner


def _relative_folder(url: str, path: str) -> str:
    """Return the path of a folder in a store, relative to its lock object."""
    folder_name = split_query(url)[0].rstrip("/").rpartition("/")[2]
    return path if is_bucket(url) else f"{folder_name}/{path}".rstrip("/")


def _new_lock(url: str, folder: str, process: int | None = None) -> LockObject:
    """Return a lock object for a folder, owned by this process or another one."""
    process = os.getpid() if process is None else process
    owner = Owner(folder, socket.gethostname(), _machine_id(), process)
    return LockObject(url, json.dumps({**owner._asdict(), "attempt": os.urandom(6).hex()}).encode())


def _replace(lock: LockObject, expected: bytes | None, version: Version | None) -> bool:
    """Replace a lock object by compare-and-set; False if it was replaced since it was read."""
    try:
        lock.put({"IfMatch": version.etag} if version and version.etag else {})
    except NdtoolError:
        if _read(lock.url)[0] == expected:
            raise
        return False
    return True


def _lock_url(url: str, path: str) -> str:
    """Return the URL of a folder's lock object: next to the store, or in its bucket."""
    name = ".".join(("", *filter(None, _relative_folder(url, path).split("/")), "ndtool"))
    if is_bucket(url):
        return join(url, name)
    base, suffix = split_query(url)
    return join(base.rstrip("/") + suffix, name, sibling=True)


def _read(url: str) -> tuple[bytes | None, Version | None]:
    """Read a lock object with its version, None if it does not exist."""
    return read_small(url, _MAX_LOCK_SIZE, OutputError)


def _owner(body: bytes | None) -> Owner | None:
    """Parse a lock object, None if it is not valid."""
    try:
        fields = json.loads(body or b"null")
        owner = Owner(*(fields[name] for name in Owner._fields))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_valid = tuple(map(type, owner)) == (str, str, str, int)
    return owner if is_valid and owner.folder.strip("/") and ".." not in owner.folder else None


def _clear(url: str) -> bool:
    """Remove the content of a folder; False if it is a Zarr array or group, which is preserved."""
    folder = RemoteFolder(url)
    if any(folder.read(name) is not None for name in ZARR_METADATA):
        return False
    objects.wait(objects.open_output(url).clear(), url, OutputError)
    return True


def _remove(url: str) -> None:
    objects.wait(objects.open_output(url).remove(), url, OutputError)


def _machine_id() -> str:
    """Return an identifier of this boot and PID namespace, in which process IDs are unique."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # the process is another user's
    return True
