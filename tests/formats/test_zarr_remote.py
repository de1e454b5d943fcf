"""Zarr stores at URLs, read and written: memory, HTTP and moto's S3 server."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket import Bucket, Proxy, client_environment
from command import ndtool, save, start
from inputs import open_input
from later import later
from outputs import list_preserved_members, temporary_sink
from strategies import bits_equal, raw_bytes
from test_zarr import CODES, load, put, random_array
from test_zarr_outputs import layout_of, write
from webserver import Server

from ndtool.errors import InputError, OutputError, UsageError
from ndtool.formats import locators, outputs
from ndtool.publish import claims, sinks
from ndtool.runs import convert, steps
from ndtool.runs.calls import OpenCall, Request
from ndtool.storage import objects
from ndtool.storage.remotefolder import RemoteFolder
from ndtool.storage.urls import join

zarr = later("zarr")
fsspec = later("fsspec")
pytestmark = [
    pytest.mark.usefixtures("workdir"),
    pytest.mark.filterwarnings(
        "ignore::zarr.errors.UnstableSpecificationWarning", "ignore::zarr.errors.ZarrUserWarning"
    ),
]

DATA = np.arange(24 * 10, dtype="<i4").reshape(24, 10)
ROWS = np.array([[3], [-1], [4]])


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def files(folder: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def serve(web: Server, folder: str, at: str = "/x.zarr", **options: Any) -> str:
    """Serve the files of a store on a web server."""
    for name, body in files(folder).items():
        web.add(f"{at}/{name}", body, **options)
    return f"http://127.0.0.1:{web.server_address[1]}{at}"


def upload(s3: Bucket, folder: str, at: str = "x.zarr") -> str:
    for name, body in files(folder).items():
        s3.put(f"{at}/{name}", body)
    return f"s3://bucket/{at}"


def requested_ranges(web: Server, ending: str) -> list[Any]:
    return [span for path, span in web.requests if path.endswith(ending)]


def test_each_chunk_that_is_touched_is_read_once_and_no_other(web: Server) -> None:
    put("x.zarr", DATA, chunks=(4, 10))
    url = serve(web, "x.zarr")
    save(indices=np.array([[5], [4], [-1], [5]]))
    request = Request("gather_nd", url, "indices.npy", output="out.npy")
    with OpenCall(request) as call:
        steps.run(call)
    assert (np.load("out.npy") == DATA[[5, 4, -1, 5]]).all()
    assert requested_ranges(web, "c/0/0") == requested_ranges(web, "c/2/0") == []
    for chunk in ("c/1/0", "c/5/0"):
        first, last = requested_ranges(web, chunk)
        assert first[1] > 1
        assert last == (0, 1), "which version is there at the end"


def test_shards_are_read_in_ranges(web: Server) -> None:
    data = np.random.default_rng(0).integers(0, 1 << 30, (64, 1024), "<i4")
    put("x.zarr", data, chunks=(8, 1024), shards=(32, 1024), compressors=None)
    url = serve(web, "x.zarr")
    web.sent = 0
    with open_input(url) as opened_source:
        actual = [
            opened_source.read_block(n, ((8 * n, 8 * n + 8), (0, 1024))).tobytes() for n in (1, 2)
        ]
        opened_source.require_unchanged()
    assert actual == [data[8:16].tobytes(), data[16:24].tobytes()]
    spans = requested_ranges(web, "c/0/0")
    assert [stop - start for start, stop in spans if stop - start > 1] == [4 * 16 + 4, 32768, 32768]
    assert requested_ranges(web, "c/1/0") == []
    assert bits_equal(load(url), data)


def test_chunks_are_requested_concurrently(web: Server) -> None:
    put("x.zarr", DATA, chunks=(1, 10))
    url = serve(web, "x.zarr")
    wait = __import__("threading").Barrier(2)
    for row in (0, 1):  # neither responds before both are requested
        web.objects[f"/x.zarr/c/{row}/0"].before = lambda number: number > 1 or wait.wait()
    assert bits_equal(load(url), DATA)
    assert 1 < web.most_at_once <= 10


def test_objects_larger_than_a_request(web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndtool.storage.objects.HttpObject.max_request", 1000)
    data = np.random.default_rng(0).integers(0, 1 << 30, (1000,), "<i4")
    put("x.zarr", data, chunks=(1000,), compressors=None)
    assert bits_equal(load(serve(web, "x.zarr")), data)
    assert bits_equal(load(serve(web, "x.zarr", "/y.zarr", ranges=False)), data)
    web.objects["/x.zarr/c/0"].cuts, web.objects["/x.zarr/c/0"].cut_at = 2, 600
    assert bits_equal(load(f"http://127.0.0.1:{web.server_address[1]}/x.zarr"), data)


def test_missing_chunks_have_the_fill_value_and_refused_ones_do_not(web: Server) -> None:
    array = zarr.create_array("x.zarr", shape=(4,), dtype="i4", chunks=(2,), fill_value=7)
    array[:2] = [1, 2]
    url = serve(web, "x.zarr")
    assert load(url).tolist() == [1, 2, 7, 7]
    web.add("/x.zarr/c/1", b"", refusals=[403] * 9)
    with pytest.raises(InputError, match=r"c/1: access is denied"):
        load(url)
    web.add("/x.zarr/c/1", b"", refusals=[500] * 9)
    with pytest.raises(InputError, match=r"c/1: the server answers 500"):
        load(url)


@pytest.mark.parametrize("what", ["c/0/0", "zarr.json"])
def test_changes_during_a_run(what: str, web: Server) -> None:
    put("x.zarr", DATA, chunks=(7, 3))
    url = serve(web, "x.zarr")
    with open_input(url) as opened_source:
        opened_source.load()
        opened_source.require_unchanged()
        web.objects[f"/x.zarr/{what}"].etag = '"2"'
        with pytest.raises(OutputError, match="changed during the run"):
            opened_source.require_unchanged()


def test_members_of_a_store(web: Server, memory: Any) -> None:
    zarr.create_group("x.zarr")
    put("x.zarr:g/a", DATA)
    put("x.zarr:b", DATA + 1)
    url = serve(web, "x.zarr")
    assert bits_equal(load(f"{url}:g/a"), DATA)
    assert bits_equal(load(f"{url}/b"), DATA + 1)
    with pytest.raises(InputError, match="cannot list it: name the array"):
        load(url)
    with pytest.raises(InputError, match="cannot list it: name the array"):
        load(f"{url}:none")
    zarr.consolidate_metadata("x.zarr")
    url = serve(web, "x.zarr", "/y.zarr")
    with pytest.raises(UsageError, match="the store has 2 arrays: name one of them") as excinfo:
        load(url)
    assert [line.partition(":")[0] for line in excinfo.value.places] == ["b", "g/a"]
    assert [entry.member for entry in locators.describe(url)] == ["b", "g/a"]
    for name, body in files("x.zarr").items():
        if name != "zarr.json":
            memory.pipe_file(f"/x.zarr/{name}", body)
    memory.pipe_file("/x.zarr/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    assert [entry.member for entry in locators.describe("memory://x.zarr")] == ["b", "g/a"]


def test_a_page_at_the_url_of_a_store_is_not_in_its_way(web: Server) -> None:
    put("x.zarr", DATA)
    url = serve(web, "x.zarr", "/data")
    web.add("/data", b"<html>index of /data</html>")
    assert bits_equal(load(url), DATA)
    page_url = web.add("/page", b"<html>always the same</html>")
    for name in ("zarr.json", ".zarray", ".zgroup", ".zmetadata"):
        web.add(f"/page/{name}", b"<html>always the same</html>")
    with pytest.raises(InputError, match=r"not a .npy array"):
        load(page_url)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("code", CODES, ids=str)
def test_the_content_of_a_written_folder(code: Any, version: int, memory: Any) -> None:
    version = 2 if isinstance(code, list) else version  # 3 has no records
    array = random_array(code, (7, 5, 3))
    options = {"data_layout": layout_of(version), "chunks": (3, 5, 2)}
    write("x.zarr", array, **options)
    write("memory://x.zarr", array, **options)
    stored = {path.removeprefix("/x.zarr/"): memory.cat(path) for path in memory.find("/x.zarr")}
    assert stored == files("x.zarr")
    assert bits_equal(load("memory://x.zarr"), array)


@pytest.mark.parametrize("version", [2, 3])
def test_no_array_is_added_to_consolidated_metadata(version: int, memory: Any) -> None:
    put("x.zarr:g/a", DATA, zarr_format=version)
    zarr.consolidate_metadata("x.zarr", zarr_format=version)
    for name, body in files("x.zarr").items():
        memory.pipe_file(f"/x.zarr/{name}", body)
    before = {path: memory.cat(path) for path in memory.find("/")}
    with pytest.raises(
        OutputError, match=r"^memory://x.zarr has consolidated metadata, to which no"
    ):
        write("memory://x.zarr:g/b", DATA + 1)
    assert {path: memory.cat(path) for path in memory.find("/")} == before


def test_an_array_of_a_store_that_is_a_whole_bucket(s3: Bucket) -> None:
    put("x.zarr:a", DATA)
    for name, body in files("x.zarr").items():
        s3.put(name, body)
    assert write("s3://bucket/b.zarr", DATA + 1) == ("a",)
    out = create_output("s3://bucket/c.zarr")
    keys = s3.keys()
    assert "c.zarr.ndtool" in keys
    with pytest.raises(OutputError, match="writes there, or was killed"):
        write("s3://bucket/c.zarr", DATA)
    out.abort()
    assert [entry.member for entry in locators.describe("s3://bucket")] == ["a", "b.zarr"]
    assert bits_equal(load("s3://bucket:b.zarr"), DATA + 1)
    keys = s3.keys()
    assert not [name for name in keys if "ndtool" in name]


@pytest.mark.parametrize(
    ("url", "lock"),
    [
        ("s3://KEY:SEC/RET@bucket/x.zarr/", "s3://KEY:SEC/RET@bucket/x.zarr.ndtool"),
        ("memory://x.zarr/g?k=v", "memory://x.zarr/g.ndtool?k=v"),
    ],
)
def test_a_lock_object_is_next_to_its_folder(url: str, lock: str) -> None:
    assert claims._lock_url(url) == lock


def test_a_bucket_is_no_store(s3: Bucket) -> None:
    for attempt in (write, list_preserved_members):
        with pytest.raises(OutputError, match=r"^s3://x.zarr is a bucket: expected a folder"):
            attempt("s3://x.zarr", DATA)
    assert s3.keys() == []


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("x.zarr/zarr.json", "memory://x.zarr", "cannot be replaced atomically"),
        ("x.zarr/c/0/0", "memory://x.zarr", "cannot be replaced atomically"),
        ("x.zarr/a/c/0/0", "memory://x.zarr:a", "cannot be replaced atomically"),
    ],
)
def test_nothing_is_replaced(name: str, target: str, message: str, memory: Any) -> None:
    memory.pipe_file(f"/{name}", b'{"zarr_format": 3, "node_type": "group"}')
    before = {path: memory.cat(path) for path in memory.find("/")}
    for only in (False, True):
        with pytest.raises(OutputError, match=message):
            list_preserved_members(target, DATA, only=only)
        with pytest.raises(OutputError, match=message):
            write(target, DATA, only=only)
    assert {path: memory.cat(path) for path in memory.find("/")} == before


def test_an_array_is_no_group(memory: Any) -> None:
    write("memory://x.zarr", DATA)
    with pytest.raises(OutputError, match=r"memory://x.zarr is not a group: no array can be in it"):
        write("memory://x.zarr:a", DATA)


def test_locations_that_are_not_writable(web: Server) -> None:
    with pytest.raises(OutputError, match="cannot be written to"):
        write(f"http://127.0.0.1:{web.server_address[1]}/x.zarr", DATA)
    with pytest.raises(UsageError, match="has no chunks"):
        write("memory://x.npy", DATA, chunks=(1, 1))


def create_output(target: str) -> Any:
    from ndtool.arrays.source import ArrayMetadata
    from ndtool.rules import dtypes

    metadata = ArrayMetadata(dtypes.from_descr("<i4"), DATA.shape, "C", DATA.shape, {})
    encoding = outputs.Encoding(chunks=(4, 10))
    return outputs.create(outputs.resolve(target, metadata, encoding=encoding))


def test_it_is_visible_only_when_complete(memory: Any) -> None:
    out = create_output("memory://x.zarr:g/a")
    for block in range(6):
        out.write(0, memoryview(raw_bytes(DATA[4 * block : 4 * block + 4])), block)
    assert len(memory.find("/x.zarr/g/a")) == 6
    with pytest.raises(InputError, match=r"memory://x.zarr: a directory, not an object"):
        load("memory://x.zarr")
    sinks.commit(out)
    out.abort()
    assert bits_equal(load("memory://x.zarr:g/a"), DATA)


def test_a_failed_run_removes_what_it_wrote(memory: Any) -> None:
    out = create_output("memory://x.zarr")
    out.write(0, memoryview(raw_bytes(DATA[:4])), 0)
    memory.pipe_file("/x.zarr/c/1/0", b"another's")
    with pytest.raises(OutputError, match=r"c/1/0 was created by another process during the run"):
        out.write(0, memoryview(raw_bytes(DATA[4:8])), 1)
    out.abort()
    assert memory.find("/x.zarr") == ["/x.zarr/c/1/0"]


def test_from_s3_to_s3(s3: Bucket) -> None:
    put("x.zarr", DATA, chunks=(7, 3))
    url = upload(s3, "x.zarr", "deep/x.zarr")
    assert bits_equal(load(url), DATA)
    result = ndtool(
        "convert", url, "s3://bucket/y.zarr:g/a", "--shards", "12,10", "--chunks", "4,5"
    )
    assert result.status == 0, result.err
    save(indices=ROWS)
    result = ndtool(
        "gather-nd", "s3://bucket/y.zarr:g/a", "indices.npy", "-o", "s3://bucket/z.zarr"
    )
    assert result.status == 0, result.err
    assert bits_equal(load("s3://bucket/z.zarr"), DATA[ROWS[:, 0]])
    result = ndtool("inspect", "s3://bucket/y.zarr")
    assert b"y.zarr:g/a" in result.out
    result = ndtool("convert", url, "s3://bucket/z.zarr")
    assert (result.status, "cannot be replaced atomically" in result.err) == (7, True)
    store = zarr.storage.FsspecStore.from_url(
        "s3://bucket/z.zarr", storage_options={"endpoint_url": s3.endpoint}
    )
    assert (zarr.open_array(store, mode="r")[...] == DATA[ROWS[:, 0]]).all()


def test_an_s3_chunk_that_changes(s3: Bucket) -> None:
    put("x.zarr", DATA, chunks=(7, 3))
    url = upload(s3, "x.zarr")
    with open_input(url) as opened_source:
        opened_source.load()
        s3.put("x.zarr/c/0/0", b"other")
        with pytest.raises(OutputError, match="a chunk that was read is modified"):
            opened_source.require_unchanged()


def test_an_s3_chunk_that_others_wrote(s3: Bucket) -> None:
    out = create_output("s3://bucket/x.zarr")
    out.write(0, memoryview(raw_bytes(DATA[:4])), 0)
    s3.put("x.zarr/c/1/0", b"another's")
    with pytest.raises(OutputError, match=r"c/1/0 was created by another process during the run"):
        out.write(0, memoryview(raw_bytes(DATA[4:8])), 1)
    out.abort()
    assert s3.keys() == ["x.zarr/c/1/0"]


def test_a_lost_response_about_a_chunk_or_lock_object(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then botocore repeats the request, which finds the object of the first one."""
    call = objects.S3Object._call

    async def twice(self: Any, operation: str, *names: str, **arguments: Any) -> Any:
        if operation == "put_object":
            await call(self, operation, *names, **arguments)
        return await call(self, operation, *names, **arguments)

    monkeypatch.setattr(objects.S3Object, "_call", twice)
    np.save("x.npy", DATA)
    for target in ("x.zarr", "y.zarr:g/a"):
        with convert.Conversion("x.npy", f"s3://bucket/{target}") as conversion:
            conversion.run(lambda share: None)
        assert bits_equal(load(f"s3://bucket/{target}"), DATA)
    remaining_keys = s3.keys()
    assert not [key for key in remaining_keys if key.endswith(".ndtool")]
    with temporary_sink("s3://bucket/z.zarr", DATA) as out:
        out.write(0, memoryview(raw_bytes(DATA)))
    assert s3.keys() == remaining_keys


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow("SIGTERM aborts requests")),
    ],
)
def test_interrupted_while_chunks_are_sent(number: int, s3: Bucket) -> None:
    np.save("in.npy", np.random.default_rng(0).integers(0, 1 << 30, (32, 131072), "<i4"))
    proxy = Proxy(s3.endpoint, 1 << 18)
    try:
        words = ("convert", "in.npy", "s3://bucket/x.zarr", "--chunks", "1,131072")
        process = start(*words, env=client_environment(proxy.endpoint))
        proxy.stalled.wait()
        process.send_signal(number)
        proxy.release()
        err = process.communicate()[1]
    finally:
        proxy.close()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], err
    assert s3.keys() == []


def test_queries_stay_at_the_end_of_a_url() -> None:
    folder = RemoteFolder("https://host/x.zarr?secret=1")
    assert folder.path == "https://host/x.zarr?..."
    assert join(folder.url, "a b") == "https://host/x.zarr/a%20b?secret=1"
