"""URLs as inputs: an HTTP server on the loopback interface with configurable behaviour."""

import errno
import gc
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from command import NDTOOL, environment, ndtool, python, save, start
from hypothesis import given
from hypothesis import strategies as st
from inputs import assert_refused, load, open_input
from later import later
from npyfile import npy, write_sparse
from webserver import Server, serving

from ndtool import redaction
from ndtool.errors import InputError, NdtoolError, OutputError, ResourceError, UsageError
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.runs import operands, steps
from ndtool.runs.calls import OpenCall, Request
from ndtool.storage import descriptors, failures, objects, ranged

later("fsspec")
later("aiohttp")

MOST = 16 << 20  # bytes of a request
ROWS = np.arange(400_000 * 4, dtype="<f4").reshape(-1, 4)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def retry_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without delay."""
    monkeypatch.setattr("ndtool.storage.failures.BACKOFF", 0.001)


def npz(compressed: bool = False, **arrays: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def run_gather(data: str, indices: str, output: str = "out.npy") -> Any:
    """Gather as the command line does."""
    with OpenCall(Request("gather_nd", data, indices, output=output)) as call:
        steps.run(call)
    return np.load(output)


def spans(server: Server, path: str) -> list[tuple[int, int] | None]:
    return [span for one, span in server.requests if one == path]


# Inputs


def test_a_member_of_an_archive_by_another_name(server: Server) -> None:
    url = server.add("/archive.zip", npz(few=ROWS[:3]))
    assert np.array_equal(load(f"{url}:few"), ROWS[:3])
    assert np.array_equal(load(f"{url}?download=1:few"), ROWS[:3])


def test_a_member_after_a_query(server: Server) -> None:
    url = server.add("/a.npz", npz(few=ROWS[:3]))
    assert np.array_equal(load(f"{url}?sig=a%3Ab:few"), ROWS[:3])


def test_models_in_several_files(server: Server, workdir: Path) -> None:
    """An index or a model at a URL refers only to files next to it on the server."""
    saved = pytest.importorskip("safetensors.numpy")
    onnx = pytest.importorskip("onnx")
    server.add("/m/one.safetensors", saved.save({"rows": ROWS}))
    weights = {"rows": "one.safetensors"}
    index = json.dumps({"weight_map": weights}).encode()
    assert np.array_equal(load(server.add("/m/m.safetensors.index.json", index) + ":rows"), ROWS)
    index = json.dumps({"weight_map": weights | {"out": "../one.safetensors"}}).encode()
    with pytest.raises(InputError, match="expected a relative path inside the model's folder"):
        load(server.add("/m/n.safetensors.index.json", index) + ":out")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=ROWS.shape, data_location=1)
    tensor.external_data.add(key="location", value="w.bin")
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    model = onnx.helper.make_model(graph).SerializeToString()
    server.add("/m/w.bin", ROWS.tobytes())
    assert np.array_equal(load(server.add("/m/m.onnx", model) + ":w"), ROWS)


def model(*tensors: Any) -> bytes:
    helper = pytest.importorskip("onnx.helper")
    onnx_model = helper.make_model(helper.make_graph([], "g", [], [], list(tensors)))
    return bytes(onnx_model.SerializeToString())


def external(location: str, **report: str) -> Any:
    onnx = pytest.importorskip("onnx")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=ROWS.shape, data_location=1)
    for key, value in {"location": location, **report}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_only_needed_bytes_of_an_initializer_are_read(server: Server, workdir: Path) -> None:
    helper = pytest.importorskip("onnx.numpy_helper")
    big = np.arange(1 << 20, dtype="<i8").reshape(-1, 16)
    raw = model(*(helper.from_array(big + i, f"w{i}") for i in range(3)))
    server.add("/m.onnx", raw)
    server.add("/m.bin", bytes(100) + ROWS.tobytes())
    model_url = server.add("/n.onnx", model(external("m.bin", offset="100")))
    save(indices=np.array([[3], [60_000]]))
    url = server.add("/m.onnx", raw) + ":w1"
    assert ndtool("gather-nd", url, "indices.npy", "-o", "out.npy").status == 0
    assert np.array_equal(np.load("out.npy"), big[[3, 60_000]] + 1)
    assert server.sent < 1 << 20 < len(raw) // 8
    server.sent = 0
    save(indices=np.array([[3], [-1]]))
    assert ndtool("gather-nd", f"{model_url}:w", "indices.npy", "-o", "out.npy").status == 0
    assert np.array_equal(np.load("out.npy"), ROWS[[3, -1]])
    assert server.sent < 1 << 19 < ROWS.nbytes // 2


def test_data_beside_a_model_behind_a_query(server: Server) -> None:
    server.add("/m/a b.bin", ROWS.tobytes())
    server.objects["/m/a%20b.bin"] = server.objects.pop("/m/a b.bin")
    url = server.add("/m/m.onnx", model(external("a b.bin")))
    assert np.array_equal(load(f"{url}?key=1"), ROWS)
    (entry,) = locators.describe(f"{url}?key=1")
    assert entry.metadata.notes["file"].endswith("/m/a%20b.bin?...")


@pytest.mark.parametrize("location", ["../w.bin", "/w.bin", "%2e%2e/w.bin", "x::file:///w.bin"])
def test_data_of_a_model_are_below_it(server: Server, location: str) -> None:
    server.add("/w.bin", ROWS.tobytes())
    with pytest.raises(InputError, match=r"expected a relative path|there is no such object"):
        load(server.add("/m/m.onnx", model(external(location))))


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_local_files_refer_to_no_remote_ones(server: Server, workdir: Path, scheme: str) -> None:
    """A local model or index must not cause requests to a server."""
    saved = pytest.importorskip("safetensors.numpy")
    Path("w").write_bytes(saved.save({"w": ROWS}))
    url = server.add("/w", saved.save({"w": ROWS})) if scheme == "http" else f"file://{workdir}/w"
    Path("m.onnx").write_bytes(model(external(url)))
    Path("m.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": url}}))
    with pytest.raises(InputError, match="expected a relative path inside the model's folder"):
        load("m.onnx")
    with pytest.raises(InputError, match="expected a relative path inside the model's folder"):
        load("m.safetensors.index.json")
    assert server.requests == []


def test_raw_bytes(server: Server, workdir: Path) -> None:
    url = server.add("/dump.bin", bytes(100) + ROWS.tobytes())
    name = f"raw:float32[{len(ROWS)},{ROWS.shape[1]}]:{url}"
    assert np.array_equal(load(f"{name}@100"), ROWS)
    assert np.array_equal(load(f"{name}?key=1@100"), ROWS)
    server.sent = 0
    save(indices=np.array([[3], [-1]]))
    assert ndtool("gather-nd", f"{name}@100", "indices.npy", "-o", "out.npy").status == 0
    assert np.array_equal(np.load("out.npy"), ROWS[[3, -1]])
    assert server.sent < 1 << 19
    result = ndtool("inspect", f"{name}?key=1@200")
    assert (result.status, "key" in result.err) == (3, False)
    assert "expected 6400000 bytes at offset 200, found 6399900" in result.err


@given(st.data())
def test_merged_ranges_contain_the_requested_ones(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, 300), max_size=20)))
    expected = list(zip(cuts[::2], cuts[1::2], strict=False))
    gap, largest = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 50))
    merged = list(ranged.merge_ranges(expected, gap, largest))
    offsets = [offset for start, stop in merged for offset in range(start, stop)]
    assert offsets == sorted(set(offsets))
    assert set(offsets) >= {offset for start, stop in expected for offset in range(start, stop)}
    assert all(0 < stop - start <= largest for start, stop in merged)
    gaps = [start - stop for (_, stop), (start, _) in pairwise(merged)]
    assert sum(distance > gap for distance in gaps) <= max(len(expected) - 1, 0)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12), st.data())
def test_missing_ranges(ranges: list[Any], data: st.DataObject) -> None:
    memory_block = ranged._SparseFile("x", 100)
    present: set[int] = set()
    for first, count in ranges:
        memory_block.record(first, first + count)
        present |= set(range(first, first + count))
    start = data.draw(st.integers(0, 80))
    stop = data.draw(st.integers(start, 100))
    missing = [
        offset for a, b in memory_block.missing_ranges([(start, stop)]) for offset in range(a, b)
    ]
    assert missing == [offset for offset in range(start, stop) if offset not in present]


def test_the_event_loop_waits_for_no_reader() -> None:
    """A signal handler that has interrupted a reader may wait for the event loop."""
    file = ranged._SparseFile("x", 100)
    with file._lock:
        file.write(0, bytes(10))
        file.record(0, 10)
    assert list(file.missing_ranges([(0, 20)])) == [(10, 20)]


# Bytes requested


def test_a_small_file_takes_one_request_and_a_final_check(server: Server) -> None:
    url = server.add("/x.npy", npy(ROWS[:10]))
    with open_input(url) as opened_source:
        assert np.array_equal(np.frombuffer(opened_source.load(), "<f4"), ROWS[:10].ravel())
        assert spans(server, "/x.npy") == [(0, 1 << 16)]
        opened_source.require_unchanged()
    assert spans(server, "/x.npy") == [(0, 1 << 16), (0, 1)]


def test_three_rows_of_a_gigabyte_are_less_than_a_megabyte(server: Server, workdir: Path) -> None:
    write_sparse("big.npy", "<f4", (1 << 24, 16))
    save(idx=np.array([[5], [1 << 23], [-1]]))
    actual = run_gather(server.add("/big.npy", workdir / "big.npy"), "idx.npy")
    assert np.array_equal(actual, np.zeros((3, 16), "<f4"))
    assert server.sent < 1 << 20
    assert len(server.requests) == 5


def test_a_thousand_nearby_rows_take_few_requests(server: Server, workdir: Path) -> None:
    rows = np.random.default_rng(0).integers(150_000, 250_000, 1000)
    save(idx=rows[:, None])
    actual = run_gather(server.add("/x.npy", npy(ROWS)), "idx.npy")
    assert np.array_equal(actual, ROWS[rows])
    assert len(server.requests) <= 4
    assert server.sent < 2 << 20


def test_a_large_file_is_read_in_pieces_many_at_a_time(server: Server, workdir: Path) -> None:
    write_sparse("big.npy", "<f4", (1 << 22, 16))
    url = server.add("/big.npy", workdir / "big.npy", before=server.gather(2))
    with open_input(url) as opened_source:
        opened_source.load()
    requested = [span for span in spans(server, "/big.npy") if span]
    assert max(stop - start for start, stop in requested) <= MOST
    assert len(requested) == 1 + 16
    assert 2 <= server.most_at_once <= 16


def test_sparse_rows_are_read_64_at_a_time(server: Server, workdir: Path) -> None:
    write_sparse("big.npy", "<f4", (1 << 22, 16))
    url = server.add("/big.npy", workdir / "big.npy", before=server.gather(32))
    save(idx=(np.arange(100) << 15)[:, None])
    run_gather(url, "idx.npy")
    assert 32 <= server.most_at_once <= 64


def test_present_ranges_are_not_requested_again(server: Server) -> None:
    with open_input(server.add("/x.npy", npy(ROWS))) as opened_source:
        opened_source.load()
        before = len(server.requests)
        assert np.array_equal(np.frombuffer(opened_source.load(), "<f4"), ROWS.ravel())
        assert len(server.requests) == before


def test_a_deflated_member_is_read_ahead(server: Server) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 20 << 20, dtype=np.uint8)
    assert np.array_equal(load(server.add("/a.npz", npz(True, noise=noise))), noise)
    assert len(server.requests) <= 8


# Behaviour of servers


def test_a_server_without_ranges_is_read_once(server: Server, workdir: Path) -> None:
    save(idx=np.array([[7], [399_999]]))
    actual = run_gather(server.add("/x.npy", npy(ROWS), ranges=False), "idx.npy")
    assert np.array_equal(actual, ROWS[[7, -1]])
    assert spans(server, "/x.npy") == [(0, 1 << 16), (1 << 16, 128 + ROWS.nbytes), (0, 1)]


@pytest.mark.parametrize("body", [{"length": False}, {"chunked": True}], ids=str)
def test_a_server_without_ranges_or_length(server: Server, workdir: Path, body: Any) -> None:
    """The end of the response is the end of the object."""
    url = server.add("/x.npy", npy(ROWS[:10]), ranges=False, **body)
    assert np.array_equal(load(url), ROWS[:10])
    save(idx=np.array([[7], [399_999]]))
    for name, content in (("y.npy", npy(ROWS)), ("y.npz", npz(True, rows=ROWS))):
        url = server.add(f"/{name}", content, ranges=False, **body)
        assert np.array_equal(run_gather(url, "idx.npy"), ROWS[[7, -1]])
    url = server.add("/ids", b"7\n" * 50_000, ranges=False, etag=None, **body)
    assert np.array_equal(load(f"text:{url}"), np.full(50_000, 7))
    url = server.add("/y.npy", npy(ROWS)[:-5], ranges=False, **body)
    assert_refused(url, "expected 6400000 bytes of data")


def test_a_response_of_unknown_length_that_is_cut(server: Server) -> None:
    """It is read again from its start, as it may have changed, then refused."""
    url = server.add("/x.npy", npy(ROWS), ranges=False, chunked=True, cut_at=1 << 19, cuts=2)
    assert np.array_equal(load(url), ROWS)
    server.objects["/x.npy"].cuts = 99
    assert_refused(url, "the connection was lost 3 times")


def test_a_response_without_end(server: Server, workdir: Path) -> None:
    """The temporary copy ends where the disk, or the limit on files, does."""
    url = server.add("/x.npy", npy(ROWS), ranges=False, chunked=True, endless=True)
    command = f"ulimit -f 20000; {shlex.join([*NDTOOL, 'gather', url, '[7]', '-o', 'out.npy'])}"
    ended = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True
    )
    assert (ended.returncode, os.listdir()) == (6, [])
    assert f"temporary copy of {url}: File too large" in ended.stderr
    assert server.sent < 40 << 20


def test_a_truncated_response_is_resumed(server: Server) -> None:
    url = server.add("/x.npy", npy(ROWS), cut_at=1 << 20)
    with open_input(url) as opened_source:
        server.objects["/x.npy"].cuts = 2
        assert np.array_equal(np.frombuffer(opened_source.load(), "<f4"), ROWS.ravel())
    requested = [span[0] for span in spans(server, "/x.npy")[1:] if span]
    first = 1 << 16  # bytes of the first response are not requested again
    assert requested == [first, first + (1 << 20), first + (2 << 20)]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_is_always_cut(server: Server, ranges: bool) -> None:
    url = server.add("/x.npy", npy(ROWS), ranges=ranges, cut_at=1 << 17)
    with open_input(url) as opened_source:
        server.objects["/x.npy"].cuts = 99
        with pytest.raises(InputError, match=r"/x.npy: the connection was lost 3 times"):
            opened_source.load()
    assert len(server.requests) == 4


def test_a_server_that_recovers_gets_a_retry(server: Server) -> None:
    url = server.add("/x.npy", npy(ROWS), refusals=[500, 503])
    assert np.array_equal(load(url), ROWS)


@pytest.mark.parametrize(
    ("status", "message", "requests"),
    [
        (500, "the server answers 500", 3),
        (503, "the server answers 503", 8),
        (429, "the server answers 429", 8),
        (404, "there is no such object", 1),
        (410, "there is no such object", 1),
        (403, "access is denied", 1),
        (401, "access is denied", 1),
        (400, "the server answers 400", 1),
    ],
)
def test_refusals_of_a_server(server: Server, status: int, message: str, requests: int) -> None:
    error = assert_refused(
        server.add("/x.npy", npy(ROWS), refusals=[status] * 99), f"/x.npy: {message}"
    )
    assert error.status == 3
    assert len(server.requests) == requests


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 8),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 8),
        (OSError(errno.EACCES, "Permission denied"), 1),
        (OSError(errno.EFBIG, "File too large"), 1),
    ],
    ids=str,
)
def test_errors_of_disks_that_may_pass_are_retried(error: OSError, attempts: int) -> None:
    failing = [error] * 9

    def write() -> None:
        raise descriptors.failure(failing.pop(), "x.npy", OutputError)

    with pytest.raises((OutputError, ResourceError)):
        failures.retry_call(write)
    assert len(failing) == 9 - attempts
    failing = [error] * (attempts - 1)
    assert failures.retry_call(lambda: write() if failing else "written") == "written"


def test_a_wrong_content_length(server: Server) -> None:
    url = server.add("/x.npy", npy(ROWS[:10]), claims=100)
    assert_refused(url, "the connection was lost")
    url = server.add("/y.npy", npy(ROWS), claims=-100, ranges=False)
    assert_refused(url, "expected 6400000 bytes of data after the header, found 6399900")


@pytest.mark.parametrize("rows", [4, 30000])
def test_a_first_range_that_is_another_than_asked_for(server: Server, rows: int) -> None:
    url = server.add("/x.bin", b"\0" * 16 * rows)
    server.objects["/x.bin"].shift = 8
    assert_refused(f"raw:float32[{rows},4]:{url}", "another byte range than the requested one")


def test_a_range_that_is_another_than_asked_for(server: Server) -> None:
    url = server.add("/x.npy", npy(ROWS))
    with open_input(url) as opened_source:
        server.objects["/x.npy"].shift = 5
        with pytest.raises(InputError, match="another byte range than the requested one"):
            opened_source.load()


DIGITS = "1" * 5000  # more than Python converts to an integer


@pytest.mark.parametrize(
    "content_range",
    [f"bytes {DIGITS}-1/10", f"bytes 0-{DIGITS}/{DIGITS}", f"bytes {DIGITS}-{DIGITS}/{DIGITS}"],
)
def test_numbers_of_too_many_digits(server: Server, content_range: str) -> None:
    url = server.add("/x.npy", npy(ROWS), content_range=content_range)
    with pytest.raises(NdtoolError) as excinfo:
        load(url)
    assert isinstance(excinfo.value, InputError)
    assert "limit" not in str(excinfo.value)
    assert DIGITS not in str(excinfo.value)


def test_a_compressed_reply(server: Server) -> None:
    url = server.add("/x.npy", npy(ROWS), headers={"Content-Encoding": "gzip"})
    assert_refused(url, "the server compresses it, which the request forbids")
    assert server.headers[0]["Accept-Encoding"] == "identity"


def test_redirects(server: Server) -> None:
    there = server.add("/there.npy", npy(ROWS))
    assert np.array_equal(load(server.add("/x.npy", b"", moved=there)), ROWS)
    assert_refused(server.add("/round.npy", b"", moved="/round.npy"), "/round.npy: ")


def test_a_server_that_does_not_respond(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndtool.storage.failures.TIMEOUT", 0.2)
    url = server.add("/x.npy", npy(ROWS), before=lambda number: server.ended.wait())
    assert_refused(url, "the server did not respond in time")


def test_an_unreachable_server(server: Server) -> None:
    assert_refused("http://127.0.0.1:9/x.npy", r"http://127.0.0.1:9/x.npy: .*127\.0\.0\.1")


@pytest.mark.parametrize("etag", ['"{}"', 'W/"{}"', None])
def test_a_file_that_changes_between_two_replies(server: Server, etag: str | None) -> None:
    """Bytes of two versions are never combined."""
    url = server.add("/x.npy", npy(ROWS))
    remote_object = server.objects["/x.npy"]

    def change(number: int) -> None:
        remote_object.etag = etag and etag.format(number)
        remote_object.headers = {"Last-Modified": f"Wed, 21 Oct 2015 07:28:0{number} GMT"}

    remote_object.before = change
    with (
        open_input(url) as opened_source,
        pytest.raises(OutputError, match=r"x.npy changed during the run"),
    ):
        opened_source.load()


def test_a_file_that_becomes_shorter(server: Server) -> None:
    url = server.add("/x.npy", npy(ROWS), etag=None)
    with open_input(url) as opened_source:
        server.objects["/x.npy"].content = npy(ROWS[:9])
        with pytest.raises(OutputError, match=r"x.npy changed during the run"):
            opened_source.load()


def test_a_file_that_changes_before_the_output_exists(server: Server, workdir: Path) -> None:
    save(idx=np.array([[3]]))
    with (
        OpenCall(
            Request("gather_nd", server.add("/x.npy", npy(ROWS)), "idx.npy", output="out.npy")
        ) as call,
        steps.prepare(call, steps.resolve_output(call)) as ready,
    ):
        operands.load_data(ready.validated)
        server.objects["/x.npy"].etag = '"2"'
        with pytest.raises(OutputError, match=r"x.npy changed during the run"):
            steps.execute(ready)
    assert not (workdir / "out.npy").exists()


def test_a_file_that_is_removed(server: Server) -> None:
    with open_input(server.add("/x.npy", npy(ROWS[:3]))) as opened_source:
        del server.objects["/x.npy"]
        with pytest.raises(OutputError, match=r"x.npy can no longer be accessed: there is no"):
            opened_source.require_unchanged()


# The command line


def test_questions_about_urls(server: Server, workdir: Path) -> None:
    x, i = server.add("/x.npy", npy(ROWS)), server.add("/i.npy", npy(np.array([[3], [9]])))
    result = ndtool("inspect", x, "--json")
    assert result.json["arrays"][0]["shape"] == [400_000, 4]
    result = ndtool("infer", "gather-nd", x, i)
    assert b"float32[2,4]" in result.out
    assert server.sent == (1 << 16) * 2 + len(npy(np.array([[3], [9]])))
    result = ndtool("gather-nd", x, i, "-o", "out.npy", "-q")
    assert (result.status, result.err) == (0, "")
    result = ndtool("verify", "gather-nd", x, i, server.add("/o.npy", npy(ROWS[[3, 9]])))
    assert result.status == 0, result.err
    result = ndtool("verify", "gather-nd", x, i, server.add("/o.npy", npy(ROWS[[3, 8]])))
    assert result.status == 8, result.err


def test_no_message_at_exit(server: Server, workdir: Path) -> None:
    """No session remains open, and no thread blocks or disturbs the interpreter's exit."""
    x, i = server.add("/x.npy", npy(ROWS)), server.add("/i.npy", npy(np.array([[3], [9]])))
    program = "import sys; from ndtool.__main__ import main; sys.exit(main())"
    for arguments in ((x, i), (x, f"{i}x"), (f"{x}?:", i)):
        result = subprocess.run(
            [sys.executable, "-X", "dev", "-c", program, "gather-nd", *arguments, "-q"],
            capture_output=True,
            env=environment(),
            check=False,
        )
        text = result.stderr.decode()
        assert text.count("\n") <= 2, text
        assert "Unclosed" not in text
        assert "Traceback" not in text


def test_user_and_password_of_a_url_are_sent(server: Server) -> None:
    load(server.add("/x.npy", npy(ROWS[:9])).replace("://", "://me:PASSWORD@"))
    assert all("Authorization" in headers for headers in server.headers)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_slow_download_can_be_interrupted(server: Server, workdir: Path, name: str) -> None:
    save(i=np.zeros((400_000, 1), int))
    url = server.add("/x.npy", npy(ROWS), stalls=True)
    with start("scatter-nd", url, "i.npy", url, "-o", "out.npy") as process:
        while len(server.requests) < 3:
            time.sleep(0.01)
            assert process.poll() is None
        process.send_signal(getattr(signal, name))
        _, err = process.communicate()  # the server stalls until the test has ended
        assert process.returncode == {"SIGINT": 130, "SIGTERM": 143}[name]
    assert err == b""
    assert [path.name for path in workdir.iterdir()] == ["i.npy"]


@pytest.mark.slow("a remote file is never in memory as a whole")
def test_private_memory_is_bounded(server: Server, workdir: Path) -> None:
    write_sparse("big.npy", "<f4", (1 << 22, 16))  # 256 MB
    save(i=np.arange(1 << 22)[::-1, None])
    url = server.add("/big.npy", workdir / "big.npy")
    program = (
        "import sys, re; from ndtool.runs import steps\n"
        "from ndtool.runs.calls import OpenCall; from ndtool.runs.calls import Request\n"
        "with OpenCall(Request('gather_nd', sys.argv[1], 'i.npy', output='out.npy')) as job:\n"
        "    steps.run(job)\n"
        "import resource\n"
        "text = open('/proc/self/status').read()\n"
        "print(int(re.search(r'RssAnon:\\s*(\\d+)', text)[1]))\n"
    )
    result = python(program, url)
    assert result.status == 0, result.err
    assert int(result.out) < 160 << 10


# Display names


@pytest.mark.parametrize(
    ("argument", "path", "member"),
    [
        ("s3://b/a.npz", "s3://b/a.npz", None),
        ("s3://b/a.npz:x", "s3://b/a.npz", "x"),
        ("s3://b/a.npz:x:y", "s3://b/a.npz", "x:y"),
        ("s3://b/a.npz/c.npy", "s3://b/a.npz/c.npy", None),
        ("https://h:80/a.npy", "https://h:80/a.npy", None),
        ("https://h:80/a.npz?k=v:x", "https://h:80/a.npz?k=v", "x"),
        ("https://h/m.safetensors:a.b", "https://h/m.safetensors", "a.b"),
        ("zip://a.npz::s3://b/c.zip", "zip://a.npz::s3://b/c.zip", None),
        ("file:///tmp/x.npy", "/tmp/x.npy", None),
        ("file:///tmp/x.npz:m", "/tmp/x.npz", "m"),
        ("file://localhost/tmp/x.npz:m", "/tmp/x.npz", "m"),
        ("FILE://LocalHost/tmp/x.npy", "/tmp/x.npy", None),
        ("HTTPS://Host/X.npz:m", "https://Host/X.npz", "m"),
        ("ZIP://X.npy::S3://Bucket/a.zip", "zip://X.npy::s3://Bucket/a.zip", None),
        ("C://x.npy", "C://x.npy", None),
        ("C://b/a.npz:x", "C://b/a.npz", "x"),
    ],
)
def test_urls_are_parsed(argument: str, path: str, member: str | None) -> None:
    assert locators.parse(argument) == (path, member)


@pytest.mark.parametrize("url", ["file://other/x.npy", "file://x.npy", "FILE://h:1/x", "file://"])
def test_a_file_of_another_host_is_refused(url: str, workdir: Path) -> None:
    save(x=ROWS[:9], other=ROWS[:3])
    for command in (("inspect", url), ("convert", "x.npy", url), ("clean", url)):
        result = ndtool(*command)
        assert (result.status, f"{url} is on another host: expected file:///" in result.err) == (
            2,
            True,
        )
    assert sorted(os.listdir()) == ["other.npy", "x.npy"]


def test_an_existing_file_takes_precedence_over_a_url(workdir: Path) -> None:
    (workdir / "memory:").mkdir()
    np.save("memory:/x.npy", ROWS[:3])
    assert np.array_equal(load("memory://x.npy"), ROWS[:3])


def test_memory_urls(workdir: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/t/x.npy", npy(ROWS))
    save(i=np.array([[3]]))
    with OpenCall(
        Request("gather_nd", "memory://t/x.npy", "i.npy", output="memory://t/o.npy")
    ) as call:
        steps.run(call)
    assert np.array_equal(load("memory://t/o.npy"), ROWS[[3]])
    error = assert_refused("memory://t/none.npy", "memory://t/none.npy: there is no such object")
    assert error.status == 3
    request = Request("gather_nd", "memory://t/x.npy", "i.npy", output="memory://t/o.npy")
    with (
        OpenCall(request._replace(clobber=False)) as call,
        pytest.raises(OutputError, match="exists"),
    ):
        steps.run(call)
    memory.rm("/t", recursive=True)


def test_chained_urls(workdir: Path) -> None:
    (workdir / "a.zip").write_bytes(npz(x=ROWS))
    assert np.array_equal(load(f"zip://x.npy::file://{workdir}/a.zip"), ROWS)


@pytest.mark.parametrize("kind", ["http", "https", "ftp", "github"])
def test_unwritable_targets(workdir: Path, kind: str) -> None:
    save(x=ROWS[:9], i=np.array([[3]]))
    request = Request("gather_nd", "x.npy", "i.npy", output=f"{kind}://h/o.npy")
    refused = pytest.raises(OutputError, match=f"{kind}:// cannot be written to")
    with OpenCall(request) as call, refused:
        steps.resolve_output(call)


@pytest.mark.parametrize(
    ("missing", "url", "hint"),
    [
        ("fsspec", "memory://x.npy", "pip install 'ndtool[remote]'"),
        ("s3fs", "s3://b/x.npy", "pip install 'ndtool[remote]' s3fs"),
        ("gcsfs", "gs://b/x.npy", "pip install 'ndtool[remote]' gcsfs"),
        ("aiohttp", "https://h/x.npy", "pip install 'ndtool[remote]' aiohttp"),
        ("fsspec", "s3://b/x.zarr", "pip install 'ndtool[remote]'"),
    ],
)
def test_a_package_that_is_missing(workdir: Path, missing: str, url: str, hint: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from ndtool.__main__ import main; sys.exit(main())"
    )
    result = python(program, "inspect", url, "--json")
    assert result.status == 2, result.err
    error = json.loads(result.out)
    assert missing in error["message"]
    assert error["hint"] == hint


def test_a_scheme_in_capital_letters(server: Server) -> None:
    url = server.add("/x.npy", npy(ROWS[:9]))
    assert np.array_equal(load(url.replace("http", "HTTP")), ROWS[:9])


def test_a_redirection_without_an_end(server: Server) -> None:
    url = server.add("/x.npy", b"")
    server.objects["/x.npy"].moved = url
    assert_refused(url, "x.npy: the server redirects too often: expected an object")


@pytest.mark.parametrize("url", ["http://", "http:///x.npy", "https://:80/x.npy"])
def test_a_url_without_a_host(url: str) -> None:
    assert_refused(url, f"{url} is not a valid URL: expected one such as https://host/x.npy")


def test_an_unknown_url_scheme() -> None:
    assert_refused("nonsense://h/x.npy", "nonsense://h/x.npy: Protocol not known", UsageError)


def test_files_need_nothing_of_urls(workdir: Path) -> None:
    save(x=ROWS[:9], i=np.array([[3]]))
    program = (
        "import sys; from ndtool.__main__ import main; main()\n"
        "print({'asyncio', 'fsspec', 'ndtool.storage.objects', 'ndtool.storage.ranged'}"
        " & set(sys.modules))"
    )
    assert python(program, "gather-nd", "x.npy", "i.npy", "-o", "o.npy").out == b"set()\n"


def test_no_descriptor_stays_open(server: Server) -> None:
    load(server.add("/warm.npy", npy(ROWS[:1])))
    before = open_files()
    with pytest.raises(NdtoolError):
        locators.open_source(server.add("/x.npz", npz(a=ROWS)) + ":none", Streams())
    with open_input(server.add("/x.npy", npy(ROWS))) as opened_source:
        opened_source.load()
    assert open_files() == before


def open_files() -> int:
    """Return the number of open files, except idle connections in a pool."""
    gc.collect()
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(link.is_symlink() and "socket:" not in os.readlink(link) for link in links)


def test_headers_need_no_temporary_file(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_if_called(*_: object) -> None:
        raise AssertionError("there is none")

    monkeypatch.setattr(ranged, "_SparseFile", fail_if_called)
    (entry,) = locators.describe(server.add("/x.npy", npy(ROWS)))
    assert entry.metadata is not None
    assert entry.metadata.shape == ROWS.shape


def test_chunks_of_hdf5_are_downloaded_together(server: Server, workdir: Path) -> None:
    h5py = pytest.importorskip("h5py", exc_type=ImportError)
    array = np.random.default_rng(0).random((4000, 500))
    with h5py.File("x.h5", "w") as file:
        for name, filters in (("gzip", {"compression": "gzip"}), ("lzf", {"compression": "lzf"})):
            file.create_dataset(f"g/{name}", data=array, chunks=(100, 500), **filters)
        file["flat"] = array
        file["small"] = [5]
    url = server.add("/x.h5", (workdir / "x.h5").read_bytes())
    rows = np.array([[7], [3999], [1234], [0]])
    save(idx=rows)
    for name in ("g/gzip", "g/lzf", "flat"):
        server.requests.clear()
        server.sent = 0
        assert np.array_equal(run_gather(f"{url}:/{name}", "idx.npy"), array[rows[:, 0]])
        assert server.sent < 8 << 20
    assert load(f"{url}:small").tolist() == [5]
    listed = ndtool("inspect", url, "--json").json["arrays"]
    assert [item["member"] for item in listed] == ["/flat", "/small", "/g/gzip", "/g/lzf"]


def test_a_thread_that_waits_for_a_request_holds_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a signal handler in this thread could not wait for another request."""
    asyncio, states = objects.asyncio, []

    def get_lock_elsewhere() -> bool:
        (future,) = objects._awaited
        acquired = future._condition.acquire(blocking=False)
        if acquired:
            future._condition.release()
        return acquired

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        """Called wherever a signal handler could be."""
        if objects._awaited:
            states.append(pool.submit(get_lock_elsewhere).result())
        return trace

    previous = sys.gettrace()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        sys.settrace(trace)
        try:
            objects.wait(asyncio.sleep(0.01), "memory://x")
        finally:
            sys.settrace(previous)
    assert states
    assert all(states)


def test_a_signal_handler_may_register_a_url_during_a_registration() -> None:
    with redaction._lock:
        assert redaction._lock.acquire(blocking=False)
        redaction._lock.release()
