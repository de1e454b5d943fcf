"""New objects behind a URL, which together are an array: there when it is complete, else gone."""

from __future__ import annotations

import asyncio

from ndtool import endings
from ndtool.arrays import failures, remote, upload
from ndtool.arrays.claims import Claim, Mark
from ndtool.arrays.remotefolder import METADATA, RemoteFolder, Span, inside
from ndtool.errors import NdtoolError, OutputError, redacted


class NewObjects(RemoteFolder):
    """A store behind a URL to which a run writes an array: what it made goes again if it fails.

    path: of the array in the store; the run has that folder for itself. Nothing is replaced.
    Metadata are kept back until everything else is there, and come from the outermost to the
    innermost, so that an array is seen only when it is complete.
    """

    def __init__(self, url: str, path: str) -> None:
        super().__init__(url)
        self._held: dict[str, bytes] = {}
        self._made: list[str] = []
        self._going: set[asyncio.Future[None]] = set()
        self._shared = False
        endings.settle(False)
        endings.unwind()
        self._path, self._claim = path, Claim(url, path)

    def shared(self) -> tuple[dict[str, bytes], Mark]:
        """Return what others need who write chunks: the metadata, and what says whose it is.

        They replace what is there, as a task may be done again; so nothing must be.
        """
        if self.listed(self._path):
            where = redacted(inside(self.url, self._path) if self._path else self.url)
            raise OutputError(f"{where} was made by others during the run")
        self._shared = True
        return self._held, self._claim.mark

    async def get(self, key: str, span: Span | None = None) -> bytes | None:
        return self._held[key] if key in self._held else await super().get(key, span)

    async def put(self, key: str, body: bytes) -> None:
        if key.rpartition("/")[2] in METADATA:
            self._held[key] = body
            return
        going = asyncio.ensure_future(self._create(key, body))
        self._going.add(going)
        going.add_done_callback(self._going.discard)
        await asyncio.shield(going)

    def publish(self) -> None:
        """Write the metadata, those of the array last, where the folder still is this run's."""
        self._claim.mark.require()
        last = f"{self._path}/".lstrip("/")
        for key in sorted(self._held, key=lambda key: (key.count("/"), ".zattrs" not in key)):
            try:
                remote.wait(self._create(key, self._held[key]), self.path, OutputError)
            except OutputError:
                if key.startswith(last) or remote.wait(self._whole(key), self.path)[0] is None:
                    raise  # but a group that others made meanwhile will do
        self._made.clear()
        self._claim.release()

    def drop(self) -> None:
        """Remove what was made, by others too who share it, if it was not published."""
        try:
            remote.wait(self._drop(), self.path, OutputError)
        except NdtoolError:
            return  # nothing more can be done: they are no array without metadata
        if self._shared:
            self._claim.drop()
        else:
            self._claim.release()

    async def _create(self, key: str, body: bytes) -> None:
        url = inside(self.url, key)
        try:
            await upload.store(url).put(body, {"IfNoneMatch": "*"})
        except FileExistsError:
            raise OutputError(f"{redacted(url)} was made by others during the run") from None
        except Exception as exc:
            raise failures.failure(exc, redacted(url), OutputError) from None
        self._made.append(key)

    async def _drop(self) -> None:
        await asyncio.gather(*self._going, return_exceptions=True)
        self._made.reverse()  # what is seen goes first

        async def one_by_one() -> None:
            while self._made:
                url = inside(self.url, self._made.pop(0))
                await asyncio.wait_for(upload.store(url).remove(), upload.PATIENCE)

        await asyncio.gather(*(one_by_one() for _ in range(remote.AT_ONCE)))
