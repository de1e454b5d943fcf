"""Folders behind URLs that a run has for itself: until they are complete, or gone again.

Stores have neither locks nor hidden names: an object beside a folder, `.NAME.ndtool`, says whose it
is, and stays where a run is killed.
"""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import suppress
from typing import NamedTuple

from ndtool.arrays import failures, remote, upload
from ndtool.arrays.local import ZARR_METADATA
from ndtool.arrays.remote import Version
from ndtool.arrays.remotefolder import RemoteFolder, inside, parted
from ndtool.errors import NdtoolError, OutputError, UsageError, printable, redacted

_LONGEST = 1 << 16  # bytes of a mark
_MARK = re.compile(r"\..+\.ndtool", re.DOTALL)
_NOBODY = 0  # the process of a folder that was left to whoever takes it over


class Mark(NamedTuple):
    """The object that says whose a folder is; others that write there are told of it."""

    url: str
    body: bytes

    def require(self, where: str = "") -> None:
        """Raise OutputError if it is not there: the folder is another's, or not in this store.

        where: who looks, if not its maker.
        """
        if _read(self.url)[0] != self.body:
            raise OutputError(f"{redacted(self.url)} is another object, or none{where}")

    def put(self, condition: dict[str, str]) -> None:
        """Write it; FileExistsError where the condition is not met."""
        remote.wait(upload.store(self.url).put(self.body, condition), self.url, OutputError)


class Owner(NamedTuple):
    """Whose a folder is: a process of a machine. folder: its name, from where the mark is."""

    folder: str
    host: str
    machine: str
    process: int

    @property
    def is_over(self) -> bool:
        """Whether the process is known to be gone; of another machine nothing is known."""
        if self.process == _NOBODY:
            return True
        return self.machine == _machine() and not _runs(self.process)


class Claim:
    """A folder behind a URL, claimed until `release` or `drop`.

    path: of the folder in the store at the URL, "" for all of it. What a run that was killed left
    there is removed, unless it is what is wanted (takes_over). inside: the URL of the folder. mark:
    what says whose it is. Raises OutputError where another run has it.
    """

    def __init__(self, url: str, path: str = "", takes_over: bool = False) -> None:
        self.inside = inside(url, path) if path else url
        self._folder = _folder(url, path)
        self.mark = _ours(_mark_of(url, path), self._folder)
        self._held = True
        try:
            self.mark.put({"IfNoneMatch": "*"})
        except FileExistsError:
            self._succeed()
            if not takes_over:
                _clear(self.inside)

    def release(self) -> None:
        """Let go of the folder, and leave what is in it."""
        if self._held:
            self._held = False
            try:
                if _read(self.mark.url)[0] == self.mark.body:  # not another's, who was forced
                    _remove(self.mark.url)
            except NdtoolError:
                pass  # the folder is as it should be, and `ndtool clean` sees that

    def drop(self) -> None:
        """Remove all that is in the folder, and let go of it."""
        if self._held:
            try:
                if _read(self.mark.url)[0] in (None, self.mark.body):
                    _clear(self.inside)
            except NdtoolError:
                return  # the mark stays, for `ndtool clean`
            self.release()

    def leave(self) -> None:
        """Let go of the folder as it is, for another run to take over."""
        if self._held:
            self._held = False
            with suppress(NdtoolError):  # then this process must end first
                self.mark.require()
                _ours(self.mark.url, self._folder, _NOBODY).put({})

    def _succeed(self) -> None:
        """Take the folder over from a run that was killed."""
        body, version = _read(self.mark.url)
        owner = _owner(body)
        if owner is not None and owner.is_over and owner.folder == self._folder:
            if _replaced(self.mark, body, version):
                return
            owner = None
        who = f"process {owner.process} on {printable(owner.host)}" if owner else "another run"
        raise OutputError(
            f"{printable(self.inside)}: {who} writes there, or was killed",
            hint="ndtool clean, with the URL, removes what killed runs left",
        )


def is_left(url: str, path: str) -> bool:
    """Whether what is in a folder of a store was left by a run that was killed."""
    owner = _owner(_read(_mark_of(url, path))[0])
    return owner is not None and owner.is_over and owner.folder == _folder(url, path)


def folders(url: str, name: str) -> tuple[list[str], list[str]]:
    """Return the URLs of folders in one, of names that begin so, that runs left and that are over.

    And those that are of other machines, of which nothing is known.
    """
    _require_folder(url)
    marks = (mark for mark in _marks(url) if mark.rpartition("/")[2].startswith(f".{name}"))
    found, others = [], []
    for mark in marks:
        owner = _owner(_read(mark)[0])
        if owner is not None and owner.is_over:
            found.append(inside(mark, owner.folder, beside=True))
        elif owner is not None and owner.machine != _machine():
            others.append(inside(mark, owner.folder, beside=True))
    return found, others


def sweep(url: str, force: bool = False) -> tuple[list[str], list[Owner]]:
    """Remove what killed runs left of a folder, or in it.

    force: what runs of other machines left, too, of which nothing is known. Returns the URLs of
    what was removed, and whose the others are.
    """
    _require_folder(url)
    marks = [_mark_of(url, "")] if "/" in url.partition("://")[2].rstrip("/") else []
    marks += _marks(url)
    removed, others = [], []
    for mark in marks:
        body, version = _read(mark)
        owner = _owner(body)
        if owner is None:
            continue
        folder = inside(mark, owner.folder, beside=True)
        if owner.is_over or (force and owner.machine != _machine()):
            if not _replaced(_ours(mark, owner.folder), body, version):
                continue  # another run has it now
            removed.append(redacted(folder if _clear(folder) else mark))
            _remove(mark)
        else:
            others.append(owner._replace(folder=redacted(folder)))
    return removed, others


def _require_folder(url: str) -> None:
    """Raise UsageError for what names no folder, OutputError where nothing can be written to."""
    if not url.partition("://")[2].strip("/"):
        raise UsageError(f"{printable(url)} names no folder: expected such as s3://bucket/folder")
    upload.store(inside(url, "any"))


def _marks(url: str) -> list[str]:
    """Return the URLs of the marks in a folder."""
    listed = remote.wait(remote.listing(url), redacted(url))
    return [inside(url, name) for name, below in listed if not below and _MARK.fullmatch(name)]


def _last(url: str) -> str:
    return parted(url)[0].rstrip("/").rpartition("/")[2]


def _folder(url: str, path: str) -> str:
    """Return the name of a folder in a store, from beside the store."""
    return f"{_last(url)}/{path}".rstrip("/")


def _ours(url: str, folder: str, process: int | None = None) -> Mark:
    """Return a mark that says that a folder is this process's, or another's."""
    process = os.getpid() if process is None else process
    owner = Owner(folder, socket.gethostname(), _machine(), process)
    return Mark(url, json.dumps({**owner._asdict(), "attempt": os.urandom(6).hex()}).encode())


def _replaced(mark: Mark, old: bytes | None, version: Version | None) -> bool:
    """Put a mark in the place of the one that was read; False where that is another by now.

    Only then may a folder be cleared: two runs may find what a third one left.
    """
    try:
        mark.put({"IfMatch": version.etag} if version and version.etag else {})
    except NdtoolError:
        if _read(mark.url)[0] == old:
            raise
        return False
    return True


def _mark_of(url: str, path: str) -> str:
    """Return where the mark of a folder in a store is: beside the store."""
    name = ".".join(("", _last(url), *filter(None, path.split("/")), "ndtool"))
    whole, rest = parted(url)
    return inside(whole.rstrip("/") + rest, name, beside=True)


def _read(url: str) -> tuple[bytes | None, Version | None]:
    """Return a small object, None where there is none."""

    async def asked() -> tuple[bytes | None, Version | None]:
        requests = remote.requests(url)
        try:
            opened = await failures.persist(lambda: requests.open(_LONGEST))
            return opened.head, opened.version
        except Exception as exc:
            if failures.is_missing(exc):
                return None, None
            raise

    return remote.wait(asked(), redacted(url), OutputError)


def _owner(body: bytes | None) -> Owner | None:
    """Return what a mark says, None where it is none of ours."""
    try:
        told = json.loads(body or b"null")
        owner = Owner(*(told[name] for name in Owner._fields))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    known = tuple(map(type, owner)) == (str, str, str, int)
    return owner if known and owner.folder.strip("/") and ".." not in owner.folder else None


def _clear(url: str) -> bool:
    """Remove all that is in a folder; False where an array is, or a group, which stays."""
    folder = RemoteFolder(url)
    if any(folder.read(name) is not None for name in ZARR_METADATA):
        return False
    remote.wait(upload.store(url).clear(), redacted(url), OutputError)
    return True


def _remove(url: str) -> None:
    remote.wait(upload.store(url).remove(), redacted(url), OutputError)


def _machine() -> str:
    """Return what tells the numbers of processes here from those elsewhere, and in containers."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return True
