"""Objects in S3 buckets: reads by signed URLs over HTTP, everything else through s3fs's client.

A request through s3fs's client takes 0.9 ms of processor time, and its import and set-up 0.25 s; a
range request over HTTP takes 0.2 ms. Requests that a server refuses are repeated through the
client, which handles regions, other signatures and retries, and whose errors are reported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from ndtool.errors import InputError, OutputError, ResourceError, printable
from ndtool.storage import failures, http, signing
from ndtool.storage.http import AT_ONCE, LARGEST, Http, Opened, Requests, Version, Write

_CONNECT_TIMEOUT = 5  # timeout in seconds of a connection, as s3fs's client has it
_RENEWAL_SECONDS = 600  # seconds after which a URL is signed again
_client_only: set[str] = set()  # buckets whose objects only the client could read


class S3(Requests):
    """An object in an S3 bucket."""

    largest, at_once = LARGEST, AT_ONCE

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        # botocore opens 10 by default
        fs.config_kwargs = {"max_pool_connections": AT_ONCE, **fs.config_kwargs}
        bucket, key, version = fs.split_path(path)
        if not key:
            raise InputError(f"s3://{printable(path)}: a bucket, not an object")
        self.key = key
        self._name = {"Bucket": bucket, "Key": key}
        if version:
            self._name["VersionId"] = version

    async def open(self, count: int) -> Opened:
        try:
            response = await self.call("get_object", Range=f"bytes=0-{count - 1}")
        except Exception as exc:
            if failures.status_of(exc) != 416:
                raise
            return Opened(await self.version(), b"", True)
        async with response["Body"] as body:
            head = await http.read_up_to(body.read, count)
        content_range = response.get("ContentRange", "bytes 0-")
        if not content_range.startswith("bytes 0-"):
            raise failures.HttpStatusError(206, "another byte range than the requested one")
        size = http.object_size(content_range) or response["ContentLength"]
        return Opened(self._version(response)._replace(size=size), head, True)

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        condition = {"IfMatch": version.etag} if version.etag else {}
        response = await self.call("get_object", Range=f"bytes={start}-{stop - 1}", **condition)
        async with response["Body"] as body:
            if self._version(response)._replace(size=None).differs(version):
                raise failures.ChangedError
            await http.copy_response(body.read, start, stop, write)

    async def version(self) -> Version:
        response = await self.call("head_object")
        return self._version(response)._replace(size=response["ContentLength"])

    @property
    def bucket(self) -> str:
        """The bucket, with the endpoint that it is reached by."""
        return f"{self._fs.endpoint_url} {self._name['Bucket']}"

    async def sign(self) -> str:
        """Return a signed URL with the client's settings; ValueError if it needs other requests."""
        fs, bucket = self._fs, self._name["Bucket"]
        await fs.set_session()
        meta = (await fs.get_s3(bucket)).meta
        endpoint = None if meta.endpoint_url.endswith(".amazonaws.com") else meta.endpoint_url
        base = signing.base_of(bucket, meta.region_name, endpoint)
        special = fs.config_kwargs.keys() - {"max_pool_connections"} or meta.config.s3
        special = special or fs.client_kwargs or fs.s3_additional_kwargs or fs.req_kw
        if base is None or special or len(self._name) > 2 or not signing.is_plain(bucket, self.key):
            raise ValueError
        credentials = (fs.key, fs.secret, fs.token) if fs.key else None
        if not credentials and not fs.anon:
            frozen = await (await fs.session.get_credentials()).get_frozen_credentials()
            credentials = (frozen.access_key, frozen.secret_key, frozen.token)
        region = meta.region_name
        return signing.signed(signing.Settings(base, self.key, region, credentials))

    async def call(self, operation: str, *names: str, **arguments: Any) -> Any:
        """Call an S3 operation on the object as s3fs does, without its retries.

        names: the fields of the object's name to pass, all by default.
        """
        fs = self._fs
        await fs.set_session()
        method = getattr(await fs.get_s3(self._name["Bucket"]), operation)
        name = {key: value for key, value in self._name.items() if key in names or not names}
        return await method(**fs._get_s3_method_kwargs(method, **name, **arguments))

    @staticmethod
    def _version(response: dict[str, Any]) -> Version:
        modified = response.get("LastModified")
        return Version(response.get("ETag"), str(modified) if modified else None)


class Signed(Requests):
    """Reader of an S3 object by signed URLs.

    bucket: the URL of its bucket. sign: returns a signed URL. make_client: makes the reader that
    repeats failed requests.
    """

    largest, at_once = LARGEST, AT_ONCE

    def __init__(
        self, bucket: str, sign: Callable[[], Awaitable[str]], make_client: Callable[[], S3]
    ) -> None:
        self._bucket, self._sign, self._make_client = bucket, sign, make_client
        self._http: Http | None = None
        self._expires = 0.0

    async def open(self, count: int) -> Opened:
        opened: Opened = await self._request("open", count)
        return opened

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        await self._request("fetch", start, stop, version, write)

    async def version(self) -> Version:
        version: Version = await self._request("version")
        return version

    async def _request(self, name: str, *arguments: Any) -> Any:
        is_permanent = True
        if self._bucket not in _client_only:
            try:
                result = await getattr(await self._reader(), name)(*arguments)
                if name != "open" or result.ranged:
                    return result
            except (failures.ChangedError, OutputError, ResourceError):
                raise
            except Exception as exc:
                if failures.is_missing(exc):
                    raise
                is_permanent = not failures.is_transient(exc)
        result = await getattr(self._make_client(), name)(*arguments)
        if is_permanent:
            _client_only.add(self._bucket)
        return result

    async def _reader(self) -> Http:
        if self._http is None or monotonic() > self._expires:
            import fsspec

            url, fs = await self._sign(), fsspec.filesystem("http")
            self._http = Http(fs, url, _CONNECT_TIMEOUT, allow_redirects=False)
            self._expires = monotonic() + _RENEWAL_SECONDS
        return self._http
