"""New remote arrays, made of many objects: published when complete, else removed."""

from __future__ import annotations

import asyncio

from ndtool.errors import NdtoolError, OutputError, redact_urls
from ndtool.machine import signals
from ndtool.publish.claims import Claim, LockObject
from ndtool.storage import failures, requests, upload
from ndtool.storage.http import AT_ONCE
from ndtool.storage.localfolder import METADATA
from ndtool.storage.remote import join
from ndtool.storage.remotefolder import RemoteFolder


class NewObjects(RemoteFolder):
    """A remote store to which a run writes an array; its objects are removed on failure.

    path: the array's folder in the store, which the run claims. No object is replaced. Metadata are
    written last, from the outermost group to the array, so that an array is visible only when
    complete. pending: the pending metadata, by key.
    """

    def __init__(self, url: str, path: str) -> None:
        super().__init__(url)
        self.pending: dict[str, bytes] = {}
        self._created: list[str] = []
        self._pending: set[asyncio.Future[None]] = set()
        self._shared = False
        self._closed = False
        signals.set_published(False)
        self._path, self._claim = path, Claim(url, path)
        signals.add_cleanup(self.drop)

    def shared(self) -> tuple[dict[str, bytes], LockObject]:
        """Return the metadata and the lock object, for other processes that write chunks.

        They replace objects, as a task may be repeated; so the folder must be empty.
        """
        if self.listed(self._path):
            location = redact_urls(join(self.url, self._path))
            raise OutputError(f"{location} was created by another process during the run")
        self._shared = True
        return self.pending, self._claim.lock

    async def put(self, key: str, body: bytes | memoryview) -> None:
        if key.rpartition("/")[2] in METADATA:
            self.pending[key] = bytes(body)
            return
        if self._closed:
            raise OutputError(f"{self.path}: the run has ended")
        future = asyncio.ensure_future(self._create(key, bytes(body)))
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        await asyncio.shield(future)

    def publish(self) -> None:
        """Write the metadata, the array's last; OutputError if the claim was lost."""
        self._claim.lock.require()
        prefix = f"{self._path}/".lstrip("/")
        for key in sorted(self.pending, key=lambda key: (key.count("/"), ".zattrs" not in key)):
            try:
                requests.wait(self._create(key, self.pending[key]), self.path, OutputError)
            except OutputError:
                if key.startswith(prefix) or self.subfolder("").read(key) is None:
                    raise  # a group that others created meanwhile is accepted
        self._created.clear()
        self._claim.release()
        signals.remove_cleanup(self.drop)

    def drop(self) -> None:
        """Remove the objects written, by other writers too, unless the array is published."""
        requests.finish(upload.ABORT_TIMEOUT)
        try:
            requests.wait(self._drop(), self.path, OutputError)
        except NdtoolError:
            return  # the remaining objects are no array without metadata
        if self._shared:
            self._claim.drop()
        else:
            self._claim.release()
        signals.remove_cleanup(self.drop)

    async def _create(self, key: str, body: bytes) -> None:
        url = join(self.url, key)
        is_own = key.startswith(f"{self._path}/".lstrip("/"))  # other runs may share a group
        if is_own:
            self._created.append(key)  # before the request, as its response may be lost
        try:
            created = await upload.writer(url).put(body, {"IfNoneMatch": "*"})
        except FileExistsError:
            if is_own:
                self._created.remove(key)
            raise OutputError(
                f"{redact_urls(url)} was created by another process during the run"
            ) from None
        except Exception as exc:
            raise failures.failure(exc, redact_urls(url), OutputError) from None
        if created and not is_own:
            self._created.append(key)

    async def _drop(self) -> None:
        self._closed = True  # refuses writes from other threads
        await asyncio.gather(*self._pending, return_exceptions=True)
        self._created.reverse()  # metadata first, so that the array is no longer visible

        async def worker() -> None:
            while self._created:
                url = join(self.url, self._created.pop(0))
                await asyncio.wait_for(upload.writer(url).remove(), upload.ABORT_TIMEOUT)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
