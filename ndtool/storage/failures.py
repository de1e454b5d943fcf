"""Errors of remote storage: which are retried, and which NdtoolError each becomes.

The network libraries' exceptions are recognized by name, so that no library need be imported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from random import uniform
from typing import Any, TypeVar

from ndtool.errors import InputError, NdtoolError, OutputError, library_message, printable

T = TypeVar("T")

TIMEOUT = 60  # seconds without a byte after which a response times out
MAX_ATTEMPTS = 3  # after errors of the network or the server
MAX_PATIENT_ATTEMPTS = 8  # after errors that pass with time: a throttled request, a full disk
THROTTLING_STATUSES = (429, 503)  # HTTP statuses of throttled requests
BACKOFF = 0.2  # mean seconds before the second attempt; each later delay is twice as long
_NETWORK_LIBRARIES = ("aiohttp", "botocore", "aiobotocore", "urllib3", "requests")
_PERMANENT_ERRORS = ("ClientConnectorCertificateError", "InvalidURL", "TooManyRedirects")
_MESSAGES = {  # by the name of an exception class
    "MissingBucketError": ": there is no such bucket",
    "InvalidURL": " is not a valid URL: expected one such as https://host/x.npy",
    "TooManyRedirects": ": the server redirects too often: expected an object",
    "ClientConnectorDNSError": ": the host was not found",
    "gaierror": ": the host was not found",
    "TruncatedError": f": the connection was lost {MAX_ATTEMPTS} times",
    "ClientPayloadError": f": the connection was lost {MAX_ATTEMPTS} times",
    "ServerDisconnectedError": f": the connection was lost {MAX_ATTEMPTS} times",
}


class HttpStatusError(Exception):
    """HTTP response with a status other than success."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status


class ChangedError(Exception):
    """Object that was replaced since it was opened."""


class TruncatedError(Exception):
    """Response that ended before its last byte."""


class MissingBucketError(Exception):
    """The bucket of an object does not exist."""


async def retry(request: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await `request()`, again after errors that may pass."""
    attempt = 1
    while True:
        try:
            return await request()
        except Exception as exc:
            await asyncio.sleep(_delay(exc, attempt))
        attempt += 1


def retry_call(function: Callable[[], T]) -> T:
    """Call `function()`, again after errors that may pass."""
    attempt = 1
    while True:
        try:
            return function()
        except Exception as exc:
            time.sleep(_delay(exc, attempt))
        attempt += 1


def _delay(exc: Exception, attempt: int) -> float:
    """Return the seconds to wait after the failure of an attempt; raise it if it was the last."""
    passes = getattr(exc, "passing", False) or status_of(exc) in THROTTLING_STATUSES
    limit = MAX_PATIENT_ATTEMPTS if passes else MAX_ATTEMPTS if is_transient(exc) else 1
    if attempt >= limit:
        raise exc
    return BACKOFF * 2.0 ** (attempt - 1) * uniform(0.5, 1.5)  # not all clients at the same time


def status_of(exc: BaseException) -> int | None:
    """Return the HTTP status in an exception, None if it has none."""
    response = getattr(exc, "response", None)
    if type(response) is dict:  # botocore's
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if type(status) is int:
            return status
    names = ("status", "status_code", "code")  # aiohttp warns on access to code
    attributes = (getattr(exc, name, None) for name in names)
    return next((value for value in attributes if type(value) is int), None)


def is_missing(exc: BaseException) -> bool:
    """Whether an exception says that the object does not exist."""
    return isinstance(exc, FileNotFoundError) or status_of(exc) in (404, 410)


def is_denied(exc: BaseException) -> bool:
    """Whether an exception says that permission is denied."""
    return isinstance(exc, PermissionError) or status_of(exc) in (401, 403)


def _network_library(exc: BaseException) -> str:
    """Return the network library that defines an exception, "" if none does."""
    modules = [cls.__module__.partition(".")[0] for cls in type(exc).__mro__]
    return next((name for name in modules if name in _NETWORK_LIBRARIES), "")


def is_transient(exc: Exception) -> bool:
    """Whether a retry may succeed; False for HTTP errors that botocore has retried itself."""
    if isinstance(exc, (NdtoolError, ChangedError, FileNotFoundError, PermissionError)):
        return False
    status = status_of(exc)
    if status is not None and status >= 400:
        return _network_library(exc) != "botocore" and (status >= 500 or status in (408, 429))
    if type(exc).__name__ in _PERMANENT_ERRORS:
        return False
    return isinstance(exc, (OSError, TimeoutError, TruncatedError)) or bool(_network_library(exc))


def failure(exc: Exception, url: str, kind: type[NdtoolError] = InputError) -> NdtoolError:
    """Return the NdtoolError for an exception of a request; kind: InputError or OutputError."""
    name, status = printable(url), status_of(exc)
    if isinstance(exc, NdtoolError):
        return exc
    if isinstance(exc, ChangedError) or status == 412:
        return OutputError(f"{name} changed during the run")
    if is_missing(exc) and (kind is not OutputError or _network_library(exc) != "botocore"):
        return kind(f"{name}: there is no such {'object' if kind is InputError else 'bucket'}")
    kinds = [cls.__name__ for cls in type(exc).__mro__]
    if "Credential" in type(exc).__name__ or "RefreshError" in kinds:
        hint = "FSSPEC_S3_ANON=true reads public buckets without credentials" * url.startswith("s3")
        return kind(f"{name}: credentials are missing or incomplete", hint=hint)
    if is_denied(exc):
        return kind(f"{name}: access is denied")
    if message := next(filter(None, map(_MESSAGES.get, kinds)), ""):
        return kind(name + message)
    if isinstance(exc, TimeoutError) or any("Timeout" in cls for cls in kinds):
        return kind(f"{name}: the server did not respond in time")
    if status is not None and status >= 400:
        error = kind(f"{name}: the server answers {status}{_reason(exc)}")
        error.passing = status in THROTTLING_STATUSES
        return error
    return kind(f"{name}: {library_message(getattr(exc, 'strerror', None) or exc)}")


def _reason(exc: Exception) -> str:
    """Return the error code or reason that a server sent, in parentheses, or ""."""
    response = getattr(exc, "response", None)
    code = response.get("Error", {}).get("Code", "") if type(response) is dict else ""
    code = (code or str(exc)).removeprefix(str(status_of(exc))).strip()
    return f" ({library_message(code, 80)})" if code else ""
