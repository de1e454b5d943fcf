"""Claims of remote folders: exclusive use by one run until the output is complete or removed.

Object stores have neither locks nor atomic renames. A lock object next to the folder, `NAME.ndtool`
for a folder `NAME`, names the owner; it remains if the run is killed.
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
from ndtool.storage.objects import Version
from ndtool.storage.remotefolder import RemoteFolder, read_small
from ndtool.storage.urls import join, split_query

_MAX_LOCK_SIZE = 1 << 16  # bytes of a lock object
_NO_PROCESS = 0  # process ID in the lock object of a suspended folder
_SUFFIX = ".ndtool"


class Owner(NamedTuple):
    """The owner of a folder: a process on a machine."""

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

    resumes: whether to resume the data of a killed run rather than remove them. working_folder: the
    URL of the folder. lock: the content of its lock object. Raises OutputError if another run has
    claimed the folder.
    """

    def __init__(self, url: str, resumes: bool = False) -> None:
        self.working_folder, self.lock = url, _new_lock(os.getpid())
        self._is_active, self._is_confirmed = True, False
        signals.add_cleanup(self.drop)
        try:
            try:
                _put(url, self.lock, {"IfNoneMatch": "*"})
            except FileExistsError:
                self._take_over()
                if not resumes:
                    _clear(url)
        except BaseException:
            self._close()
            raise
        self._is_confirmed = True

    def release(self, next_lock: bytes | None = None) -> None:
        """Release the folder and keep its content; next_lock: what replaces the lock, if anything.

        Errors are ignored: `ndtool clean` detects a complete folder, and a process that has ended.
        """
        if self._is_active:
            with suppress(NdtoolError):
                require(self.working_folder, self.lock)  # `clean --force` may have removed it
                if next_lock is None:
                    _remove_lock(self.working_folder)
                else:
                    _put(self.working_folder, next_lock, {})
            self._close()

    def drop(self) -> None:
        """Remove the content of the folder and release the folder."""
        objects.finish(objects.ABORT_TIMEOUT)
        if self._is_active:
            try:
                url = self.working_folder
                if self._is_confirmed and _read(url)[0] in (None, self.lock):
                    _clear(url)
            except NdtoolError:
                return  # the lock object remains, for `ndtool clean`
            self.release()

    def suspend(self) -> None:
        """Release the folder and keep its content, so that another run can resume it."""
        self.release(_new_lock(_NO_PROCESS))

    def _close(self) -> None:
        self._is_active = False
        signals.remove_cleanup(self.drop)

    def _take_over(self) -> None:
        """Acquire the folder of a killed run; OutputError if its owner may be running."""
        body, version = _read(self.working_folder)
        owner = _owner(body)
        if owner is not None and owner.has_ended:
            if _replace(self.working_folder, self.lock, body, version):
                return
            owner = None
        name = f"process {owner.process} on {printable(owner.host)}" if owner else "another run"
        raise OutputError(
            f"{printable(self.working_folder)}: {name} writes there, or was killed",
            hint="`ndtool clean URL` removes the files of killed runs",
        )


def require(url: str, lock: bytes, suffix: str = "") -> None:
    """Raise OutputError unless this is the content of a folder's lock object.

    suffix: the end of the message, for a process other than the owner.
    """
    if _read(url)[0] != lock:
        raise OutputError(f"{redact_urls(_lock_url(url))} was replaced or removed{suffix}")


def is_abandoned(url: str) -> bool:
    """Whether a killed run abandoned a folder."""
    owner = _owner(_read(url)[0])
    return owner is not None and owner.has_ended


def abandoned_folders(url: str, name: str) -> list[str]:
    """Return the URLs of the abandoned folders in a folder; name: a pattern of their names."""
    return [folder for folder, _, _, owner in _claims_in(url, name) if owner.has_ended]


def clean(url: str, force: bool = False) -> tuple[list[str], list[tuple[str, Owner]]]:
    """Remove a folder, or folders in it, that killed runs abandoned.

    force: also folders of other machines, whose processes may be running. Returns the URLs of the
    removed folders, and the other ones with their owners.
    """
    removed, possibly_active = [], []
    for folder, body, version, owner in _claims_in(url, ".+", not locations.is_bucket(url)):
        if owner.has_ended or (force and owner.machine != _machine_id()):
            if not _replace(folder, _new_lock(os.getpid()), body, version):
                continue  # another run has claimed it
            removed.append(redact_urls(folder if _clear(folder) else _lock_url(folder)))
            _remove_lock(folder)
        else:
            possibly_active.append((redact_urls(folder), owner))
    return removed, possibly_active


def _claims_in(
    url: str, name: str, itself: bool = False
) -> Iterator[tuple[str, bytes | None, Version | None, Owner]]:
    """Yield the URL of each claimed folder in a folder, the content and version of its lock object,
    and its owner.

    name: a pattern of the folders' names. itself: whether to yield the folder itself, too. Raises
    UsageError if a URL has no folder, OutputError if its store is not writable.
    """
    if not url.partition("://")[2].strip("/"):
        raise UsageError(
            f"{printable(url)} is not a folder: expected one such as s3://bucket/folder"
        )
    objects.open_output(join(url, "any"))
    pattern = re.compile(f"({name}){re.escape(_SUFFIX)}", re.DOTALL)
    folders = [url.rstrip("/")] if itself else []
    folders += [
        join(url, match[1])
        for entry in objects.wait(objects.list_folder(url), url)
        if (match := pattern.fullmatch(entry))
    ]
    for folder in folders:
        body, version = _read(folder)
        if (owner := _owner(body)) is not None:
            yield folder, body, version, owner


def _new_lock(process: int) -> bytes:
    """Return the content of a new lock object, whose owner is a process on this machine."""
    owner = Owner(socket.gethostname(), _machine_id(), process)
    return json.dumps({**owner._asdict(), "attempt": os.urandom(6).hex()}).encode()


def _lock_url(url: str) -> str:
    """Return the URL of a folder's lock object."""
    path, suffix = split_query(url)
    return path.rstrip("/") + _SUFFIX + suffix


def _read(url: str) -> tuple[bytes | None, Version | None]:
    """Read a folder's lock object with its version, None if it does not exist."""
    return read_small(_lock_url(url), _MAX_LOCK_SIZE, OutputError)


def _put(url: str, lock: bytes, condition: dict[str, str]) -> None:
    """Write a folder's lock object; FileExistsError if the condition fails."""
    lock_url = _lock_url(url)
    objects.wait(objects.open_output(lock_url).put(lock, condition), lock_url, OutputError)


def _replace(url: str, lock: bytes, expected: bytes | None, version: Version | None) -> bool:
    """Replace a lock object by compare-and-set; False if it was replaced since it was read."""
    try:
        _put(url, lock, {"IfMatch": version.etag} if version and version.etag else {})
    except NdtoolError:
        if _read(url)[0] == expected:
            raise
        return False
    return True


def _remove_lock(url: str) -> None:
    objects.wait(objects.remove([_lock_url(url)]), url, OutputError)


def _owner(body: bytes | None) -> Owner | None:
    """Parse a lock object, None if it is not valid."""
    try:
        fields = json.loads(body or b"null")
        owner = Owner(*(fields[name] for name in Owner._fields))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return owner if tuple(map(type, owner)) == (str, str, int) else None


def _clear(url: str) -> bool:
    """Remove the content of a folder; False if it is a Zarr array or group, which is preserved."""
    keys = RemoteFolder(url).contents()
    if not keys.keys().isdisjoint(ZARR_METADATA):
        return False
    objects.wait(objects.remove(join(url, key) for key in keys), url, OutputError)
    return True


def _machine_id() -> str:
    """Return an identifier of this boot and PID namespace, in which process IDs are unique."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # all of it: machines are many
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
