"""Prices of requests, bytes and machines, and estimates of the time and price of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ndtool.errors import UsageError, format_value, printable

_MAX_CHARACTERS = 1 << 20  # of a file of prices
_MAX_PRICE = 1e9  # dollars


class Prices(NamedTuple):
    """Prices in dollars. The defaults are those of S3 Standard and an m5.xlarge in us-east-1.

    get: 1,000 requests that read. put: 1,000 requests that write or list. gb: 10^9 bytes to or from
    the store. machine_hour: an hour of a worker.
    """

    get: float = 0.0004
    put: float = 0.005
    gb: float = 0.0
    machine_hour: float = 0.192


class Estimate(NamedTuple):
    """The estimated time and price of a run with a number of workers."""

    workers: int
    seconds: float
    dollars: float


def parse(fields: Any, name: str = "prices") -> Prices:
    """Return prices from a mapping with some of the fields; UsageError if it is malformed."""
    if not isinstance(fields, Mapping):
        raise UsageError(f"{name}: expected an object with {_format_keys()}")
    for key, price in fields.items():
        if key not in Prices._fields:
            raise UsageError(
                f"{name}: {format_value(key)} is not a price: expected {_format_keys()}"
            )
        is_price = type(price) in (int, float) and 0 <= price <= _MAX_PRICE
        if not is_price:
            raise UsageError(
                f"{name}: {key} is {format_value(price)}: expected a number of dollars, at least 0"
            )
    return Prices(**{key: float(price) for key, price in fields.items()})


def read(file: str) -> Prices:
    """Return the prices in a JSON file; UsageError if it is missing or malformed."""
    import json

    name = printable(file)
    try:
        with open(file, encoding="utf-8") as lines:
            fields = json.loads(lines.read(_MAX_CHARACTERS))
    except OSError as exc:
        raise UsageError(f"{name}: {exc.strerror}: expected a file of prices") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{name} is not JSON: expected an object with {_format_keys()}") from None
    return parse(fields, name)


def _format_keys() -> str:
    return f"{', '.join(Prices._fields[:-1])} or {Prices._fields[-1]}"
