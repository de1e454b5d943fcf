"""An S3 server on the loopback interface, and a proxy that can stall its connections."""

import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

NAME = "bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "one",
    "AWS_SECRET_ACCESS_KEY": "two",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Bucket:
    """An S3 bucket. endpoint: the URL of the server. s3: boto3's client."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.endpoint = endpoint
        self.s3: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="one",
            aws_secret_access_key="two",
            region_name="us-east-1",
        )
        self.s3.create_bucket(Bucket=NAME)

    def put(self, key: str, body: bytes) -> str:
        self.s3.put_object(Bucket=NAME, Key=key, Body=body)
        return f"s3://{NAME}/{key}"

    def get(self, key: str) -> bytes:
        body: bytes = self.s3.get_object(Bucket=NAME, Key=key)["Body"].read()
        return body

    def keys(self) -> list[str]:
        return [entry["Key"] for entry in self.s3.list_objects_v2(Bucket=NAME).get("Contents", [])]

    def uploads(self) -> list[Any]:
        uploads: list[Any] = self.s3.list_multipart_uploads(Bucket=NAME).get("Uploads", [])
        return uploads

    def clear(self) -> None:
        for key in self.keys():
            self.s3.delete_object(Bucket=NAME, Key=key)
        for upload in self.uploads():
            self.s3.abort_multipart_upload(
                Bucket=NAME, Key=upload["Key"], UploadId=upload["UploadId"]
            )


@contextmanager
def run_server() -> Iterator[Bucket]:
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("flask_cors", reason="flask_cors is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    s3fs.S3FileSystem.clear_instance_cache()  # existing sessions use another endpoint
    try:
        yield Bucket(f"http://{host}:{port}")
    finally:
        moto.stop()


def request_kind(method: str, path: str) -> str:
    """Return the kind of a request, as plans count them."""
    if method == "GET" and re.search(r"[?&](list-type|prefix|delimiter|uploads)\b", path):
        return "list"
    if method == "DELETE" or (method == "POST" and re.search(r"[?&]delete\b", path)):
        return "delete"
    return {"POST": "put"}.get(method, method.lower())


class RequestCounts(NamedTuple):
    """The requests that the server answered, and the bytes of their objects, by kind and key."""

    requests: Counter[tuple[str, str]]
    nbytes: Counter[tuple[str, str]]


@contextmanager
def count_requests() -> Iterator[RequestCounts]:
    """Count the requests that the server answers, and the bytes of objects put meanwhile."""
    serving = pytest.importorskip("werkzeug.serving", reason="moto is not installed")
    counts, sizes = RequestCounts(Counter(), Counter()), dict[str, int]()
    lock = threading.Lock()  # each connection has a thread of the server

    def record_request(handler: Any, *_: Any) -> None:
        key = handler.path.partition("?")[0].removeprefix(f"/{NAME}").lstrip("/")
        kind, headers = request_kind(handler.command, handler.path), handler.headers
        if headers.get("Range") == "bytes=0-0":  # requests the version, like HEAD
            kind = "head"
        with lock:
            counts.requests[kind, key] += 1
            if kind == "put":
                length = headers.get("x-amz-decoded-content-length", headers.get("Content-Length"))
                sizes[key] = int(length or 0)
                counts.nbytes[kind, key] += sizes[key]
            elif kind == "get" and key in sizes:
                first, last = map(int, headers["Range"].removeprefix("bytes=").split("-"))
                counts.nbytes[kind, key] += min(last + 1, sizes[key]) - first

    with patch.object(serving.WSGIRequestHandler, "log_request", record_request):
        yield counts


SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


@contextmanager
def throttle_requests(rate: float, burst: int) -> Iterator[Counter[str]]:
    """Refuse requests beyond `rate` per second with 503 Slow Down, as S3 does; count both kinds."""
    serving = pytest.importorskip("werkzeug.serving", reason="moto is not installed")
    run_wsgi, lock, counts = serving.WSGIRequestHandler.run_wsgi, threading.Lock(), Counter[str]()
    tokens = [float(burst), time.monotonic()]

    def respond(handler: Any) -> None:
        with lock:
            now = time.monotonic()
            tokens[:] = min(float(burst), tokens[0] + rate * (now - tokens[1])), now
            is_refused = tokens[0] < 1
            tokens[0] -= not is_refused
            counts["refused" if is_refused else "served"] += 1
        if not is_refused:
            run_wsgi(handler)
            return
        handler.close_connection = True  # the body of the request is not read
        handler.send_response(503, "Slow Down")
        for name, value in (("Content-Length", str(len(SLOW_DOWN))), ("Connection", "close")):
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(b"" if handler.command == "HEAD" else SLOW_DOWN)

    with patch.object(serving.WSGIRequestHandler, "run_wsgi", respond):
        yield counts


class Proxy:
    """A proxy that forwards at most `limit` bytes of each connection until it is released.

    stalled: set when a connection has reached the limit.
    """

    def __init__(self, endpoint: str, limit: int) -> None:
        self._target = endpoint.removeprefix("http://").split(":")
        self._limit = limit
        self.stalled, self._released = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((self._target[0], int(self._target[1])))
            self._sockets += client, server
            for pair in ((client, server, self._limit), (server, client, 1 << 62)):
                self._threads.append(threading.Thread(target=self._forward, args=pair, daemon=True))
                self._threads[-1].start()

    def _forward(self, source: socket.socket, sink: socket.socket, limit: int) -> None:
        forwarded = 0
        try:
            while block := source.recv(1 << 16):
                forwarded += len(block)
                if forwarded > limit:
                    self.stalled.set()
                    self._released.wait()
                sink.sendall(block)
        except OSError:
            pass
        for connection in (source, sink):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # else a thread in accept would continue
        self._listener.close()
        self.release()
        for connection in self._sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join()
        for connection in self._sockets:
            connection.close()


def client_environment(endpoint: str, **changes: str | None) -> dict[str, str | None]:
    """Return the environment variables by which clients find the server."""
    unset = {name: None for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))}
    return {**unset, **CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, **changes}
