"""Synchronous calls of coroutines in fsspec's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent import futures
from typing import Any, TypeVar

from ndtool.errors import InputError, NdtoolError, ResourceError, printable
from ndtool.storage.failures import failure

T = TypeVar("T")
_awaited: set[futures.Future[Any]] = set()  # requests for which a thread waits


def wait(coroutine: Coroutine[Any, Any, T], url: str, kind: type[NdtoolError] = InputError) -> T:
    """Run a coroutine in fsspec's event loop, cancelled on interrupt; raise errors as `kind`."""
    try:
        from fsspec import asyn
    except ImportError:
        return asyncio.run(coroutine)  # raises the error about the missing package

    future = asyncio.run_coroutine_threadsafe(coroutine, asyn.get_loop())
    _awaited.add(future)
    try:
        while not futures.wait((future,), 1).done:  # never done if the loop's thread has died
            if not asyn.iothread[0].is_alive():
                raise ResourceError(f"{printable(url)}: not enough memory for requests")
        return future.result()
    except (NdtoolError, FileExistsError):
        raise
    except Exception as exc:
        raise failure(exc, url, kind) from None
    finally:
        _awaited.discard(future)
        future.cancel()


def finish(timeout: float) -> None:
    """Wait for requests that a signal interrupted, as the server may still execute them."""
    futures.wait(list(_awaited), timeout)
