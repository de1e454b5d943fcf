"""What goes wrong on the way to an object behind a URL: what is tried again, and what is said.

The libraries in between have many exceptions; they are told apart by name, so that none of them
need be imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ndtool.errors import InputError, NdtoolError, OutputError, printable

T = TypeVar("T")

WAIT = 60  # seconds without a byte after which a server is given up
TRIES = 3
BACKOFF = 0.2  # seconds before the second try; four times as long before each further one
_NETWORK = ("aiohttp", "botocore", "aiobotocore", "urllib3", "requests")
_FINAL = ("ClientConnectorCertificateError", "InvalidURL", "TooManyRedirects")


class RefusedError(Exception):
    """A server's answer that is no success."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status


class ChangedError(Exception):
    """The object is another one now."""


class CutShortError(Exception):
    """A reply ended before all that it had to bring."""


async def persist(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what an attempt does, after up to three where a later one may do better."""
    for again in range(TRIES - 1):
        try:
            return await attempt()
        except Exception as exc:
            if not is_transient(exc):
                raise
        await asyncio.sleep(BACKOFF * 4**again)
    return await attempt()


def status_of(exc: BaseException) -> int | None:
    """Return the status that a server answered with, where that is what an exception is about."""
    reply = getattr(exc, "response", None)
    known = reply.get("ResponseMetadata", {}).get("HTTPStatusCode") if type(reply) is dict else None
    for status in (known, getattr(exc, "status", None), getattr(exc, "code", None)):
        if type(status) is int:
            return status
    return None


def is_missing(exc: BaseException) -> bool:
    """Whether an answer was that there is no such object."""
    return isinstance(exc, FileNotFoundError) or status_of(exc) in (404, 410)


def is_refused(exc: BaseException) -> bool:
    """Whether an answer was that this may not be done."""
    return isinstance(exc, PermissionError) or status_of(exc) in (401, 403)


def _library(exc: BaseException) -> str:
    """Return the library of the network that an exception is from, if any."""
    modules = [one.__module__.partition(".")[0] for one in type(exc).__mro__]
    return next((name for name in modules if name in _NETWORK), "")


def is_transient(exc: Exception) -> bool:
    """Whether another try may do better; botocore has made its own where it says no."""
    if isinstance(exc, (NdtoolError, ChangedError, FileNotFoundError, PermissionError)):
        return False
    status = status_of(exc)
    if status is not None and status >= 400:
        return _library(exc) != "botocore" and (status >= 500 or status in (408, 429))
    if type(exc).__name__ in _FINAL:
        return False
    if _library(exc) in ("botocore", "aiobotocore"):
        return "Incomplete" in type(exc).__name__ or "ReadTimeout" in type(exc).__name__
    return isinstance(exc, (OSError, TimeoutError, CutShortError)) or bool(_library(exc))


def failure(exc: Exception, url: str, kind: type[NdtoolError] = InputError) -> NdtoolError:
    """Return what went wrong at a URL as one sentence; `kind` says whether it is in or out."""
    name, status = printable(url), status_of(exc)
    if isinstance(exc, NdtoolError):
        return exc
    if isinstance(exc, ChangedError) or status == 412:
        return OutputError(f"{name} changed during the run")
    if is_missing(exc):
        return kind(f"{name}: there is no such object")
    kinds = {one.__name__ for one in type(exc).__mro__}
    if "Credential" in type(exc).__name__ or "RefreshError" in kinds:
        hint = ""
        if url.startswith("s3"):
            hint = "FSSPEC_S3_ANON=true asks without, as public buckets allow"
        return kind(f"{name}: no credentials were found, or they are not whole", hint=hint)
    if is_refused(exc):
        return kind(f"{name}: access is denied")
    if "ClientConnectorDNSError" in kinds or "gaierror" in kinds:
        return kind(f"{name}: its host cannot be found")
    if isinstance(exc, TimeoutError) or any("Timeout" in one for one in kinds):
        return kind(f"{name}: no answer in time")
    if isinstance(exc, CutShortError) or kinds & {"ClientPayloadError", "ServerDisconnectedError"}:
        return kind(f"{name}: the connection was cut, {TRIES} times")
    if status is not None and status >= 400:
        return kind(f"{name}: the server answers {status}{_reason(exc)}")
    return kind(f"{name}: {_words(exc)}")


def _reason(exc: Exception) -> str:
    """Return a server's own words about its answer, where there are some."""
    reply = getattr(exc, "response", None)
    words = reply.get("Error", {}).get("Code", "") if type(reply) is dict else ""
    words = words or str(exc).removeprefix(str(status_of(exc))).strip()
    return f" ({printable(words, 80)})" if words else ""


def _words(exc: Exception) -> str:
    text = " ".join(str(getattr(exc, "strerror", None) or exc).split())
    return printable(text or type(exc).__name__)
