"""An HTTP server on the loopback interface with configurable behaviour."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BLOCK_SIZE = 1 << 18


class Object:
    """The object at one path, and the behaviour of its requests.

    content: bytes, or the path of a file. ranges: whether ranges are supported. etag: a function of
    the number of the request, or None for a server without. cuts: so many responses end after
    `cut_at` bytes. refusals: statuses of the first responses. claims: the excess of Content-Length.
    content_range: a header in place of the right one. delay: seconds between two blocks. moved: the target of a redirect. before: called with the
    number of each request. chunked: whether responses have neither a length nor an end but their last chunk, which an
    endless one never sends.
    """

    def __init__(self, content: bytes | Path, **changes: object) -> None:
        self.content = content
        self.ranges = True
        self.etag: str | None = '"1"'
        self.cuts, self.cut_at = 0, 100
        self.refusals: list[int] = []
        self.claims = 0
        self.stalls = False  # after the first block of a body
        self.moved = ""
        self.length = True
        self.chunked = self.endless = False
        self.before: Callable[[int], None] = lambda number: None
        self.headers: dict[str, str] = {}
        self.shift = 0
        self.content_range: str | None = None
        for name, value in changes.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def read(self, start: int, stop: int) -> bytes:
        if isinstance(self.content, bytes):
            return self.content[start:stop]
        with self.content.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


class Server(ThreadingHTTPServer):
    """objects: by path. requests: (path, range or None) in order; sent: bytes of bodies."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, Object] = {}
        self.requests: list[tuple[str, tuple[int, int] | None]] = []
        self.headers: list[dict[str, str]] = []
        self.sent = 0
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def gather(self, count: int) -> Callable[[int], None]:
        """Return a function that holds requests, but the first, until `count` are there at once."""
        met = threading.Event()

        def hold(number: int) -> None:
            if self.at_once >= count:
                met.set()
            assert number == 1 or met.wait(60), f"never {count} requests at once"

        return hold

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # some tests close connections early

    def add(self, path: str, content: bytes | Path, **changes: object) -> str:
        self.objects[path] = Object(content, **changes)
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        path = self.path.partition("?")[0]
        requested = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        span = (int(requested[1]), int(requested[2]) + 1) if requested else None
        with server.lock:
            server.requests.append((path, span))
            server.headers.append(dict(self.headers))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            number = sum(one == path for one, _ in server.requests)
        try:
            self.reply(server.objects.get(path), span, number)
        finally:
            with server.lock:
                server.at_once -= 1

    def reply(self, found: Object | None, span: tuple[int, int] | None, number: int) -> None:
        if found is None:
            self.plain(404)
            return
        found.before(number)
        if found.moved:
            self.plain(302, Location=found.moved)
            return
        if found.refusals:
            self.plain(found.refusals.pop(0))
            return
        start, stop = 0, found.size
        ranged = span is not None and found.ranges
        if ranged:
            start, stop = span[0], min(span[1], found.size)
            if start >= found.size:
                self.plain(416, **{"Content-Range": f"bytes */{found.size}"})
                return
        self.send_response(206 if ranged else 200)
        if ranged:
            content_range = f"bytes {start + found.shift}-{stop - 1}/{found.size}"
            self.send_header("Content-Range", found.content_range or content_range)
        if found.etag is not None:
            self.send_header("ETag", found.etag)
        for name, value in found.headers.items():
            self.send_header(name, value)
        if found.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif found.length:
            self.send_header("Content-Length", str(stop - start + found.claims))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.body(found, start, stop)

    def body(self, found: Object, start: int, stop: int) -> None:
        cut = found.cuts > 0 and stop - start > found.cut_at
        if cut:
            found.cuts -= 1
            stop = start + found.cut_at
        position = start
        while position < stop or found.endless:
            block = found.read(position, min(position + BLOCK_SIZE, stop)) or bytes(BLOCK_SIZE)
            position += BLOCK_SIZE
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if found.chunked else block)
            with self.server.lock:
                self.server.sent += len(block)
            if found.stalls and position < stop:
                self.wfile.flush()
                self.server.ended.wait()
                return
        if cut or found.claims > 0:
            self.close_connection = True
        elif found.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def plain(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
