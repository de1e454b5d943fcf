"""s3:// as inputs and outputs: moto's server on the loopback interface."""

import io
import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bucket import Bucket, Proxy, client_environment
from command import ndtool, save, start
from inputs import load, open_input
from npyfile import npy
from outputs import list_preserved_members, temporary_sink
from outputs import save as store
from webserver import serving

from ndtool.errors import InputError, OutputError
from ndtool.publish import sinks
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request
from ndtool.storage import objects

ROWS = np.arange(400_000 * 4, dtype="<f4").reshape(-1, 4)
PART = 1 << 18
PARTS = np.random.default_rng(0).integers(0, 256, 5 * PART // 2, dtype=np.uint8)  # three of them


@pytest.fixture
def small_parts(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload parts smaller than those that S3 accepts."""
    monkeypatch.setattr(objects, "MIN_PART", PART)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


def archive(raw: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(raw)) as array:
        return dict(array)


def test_as_many_connections_as_requests(s3: Bucket) -> None:
    import fsspec

    s3.put("x.npy", npy(ROWS))
    objects.current_version("s3://bucket/x.npy")
    client = fsspec.filesystem("s3").s3
    assert client.meta.config.max_pool_connections == objects.MAX_CONCURRENCY == 64


def intercept(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[str, dict[str, Any]], object]
) -> None:
    """Call `before(operation, arguments)` before each operation of the client."""
    call = objects.S3Object._call

    async def intercepted(self: Any, operation: str, *names: str, **arguments: Any) -> Any:
        before(operation, arguments)
        return await call(self, operation, *names, **arguments)

    monkeypatch.setattr(objects.S3Object, "_call", intercepted)


def record_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of operations that the client will perform, and of signed requests."""
    calls, send = list[str](), objects.S3Object._send

    async def record_send(self: Any, headers: dict[str, str]) -> Any:
        calls.append("signed")
        return await send(self, headers)

    intercept(monkeypatch, lambda operation, arguments: calls.append(operation))
    monkeypatch.setattr(objects.S3Object, "_send", record_send)
    return calls


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("x.npy", {}),
        ("a//b", {"anon": True}),
        ("a/./b", {"key": "one", "secret": "two"}),
        ("a b+c%20é", {}),
        ("a?b", {"requester_pays": True}),
        ("a?b", {"config_kwargs": {"read_timeout": 9}}),
        ("a b+c%20é", {"version_aware": True}),
    ],
    ids=str,
)
def test_ranges_are_read_by_signed_urls(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch, key: str, options: Any
) -> None:
    monkeypatch.setattr("fsspec.config.conf", {"s3": options})
    calls = record_calls(monkeypatch)
    s3.s3.put_object(Bucket="bucket", Key=key, Body=npy(ROWS), ACL="public-read")
    s3.put("a/b", npy(ROWS + 1))
    assert np.array_equal(load(f"s3://bucket/{key}"), ROWS)
    assert set(calls) == {"signed"}


def test_a_bucket_of_another_region(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client learns the region of a bucket by a request of its own."""
    calls, get_s3 = record_calls(monkeypatch), pytest.importorskip("s3fs").S3FileSystem.get_s3
    url = s3.put("x.npy", npy(ROWS))

    async def redirect(self: Any, bucket: str) -> Any:
        client = await get_s3(self, bucket)
        if "head_object" in calls:
            return client
        response = SimpleNamespace(status=301, close=lambda: None)

        async def send(request: Any) -> Any:
            return SimpleNamespace(raw=response)

        endpoint = SimpleNamespace(http_session=SimpleNamespace(send=send))
        return SimpleNamespace(
            _endpoint=endpoint,
            head_object=client.head_object,
            get_object=client.get_object,
            generate_presigned_url=client.generate_presigned_url,
        )

    monkeypatch.setattr("s3fs.S3FileSystem.get_s3", redirect)
    assert np.array_equal(load(url), ROWS)
    assert calls == ["signed", "head_object", *["signed"] * (len(calls) - 2)]


def test_an_s3_server_without_ranges_is_read_once(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch, workdir: Path
) -> None:
    with serving() as server:
        url = server.add("/bucket/x.npy", npy(ROWS), ranges=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", url.removesuffix("/bucket/x.npy"))
        s3fs = pytest.importorskip("s3fs").S3FileSystem
        s3fs.clear_instance_cache()  # existing sessions use another endpoint
        calls = record_calls(monkeypatch)
        try:
            with open_input("s3://bucket/x.npy") as opened_source:
                assert opened_source.load() == ROWS.tobytes()
        finally:
            s3fs.clear_instance_cache()
    assert calls == ["signed", "signed"]


def test_urls_are_signed_again_before_they_expire(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(1)
    monkeypatch.setattr(objects, "monotonic", lambda: 3600 * next(times))
    urls = list[str]()
    record_urls = pytest.importorskip("aiobotocore.httpsession").AIOHTTPSession
    send = record_urls.send

    async def record(self: Any, request: Any) -> Any:
        urls.append(request.url)
        return await send(self, request)

    monkeypatch.setattr(record_urls, "send", record)
    load(s3.put("x.npy", npy(np.zeros(5 << 20))))
    assert len(set(urls)) == len(urls) > 2 or "Expires" in urls[0]


def test_errors_of_signed_requests_contain_no_signature(s3: Bucket) -> None:
    env = client_environment("http://127.0.0.1:9")
    result = ndtool("inspect", "s3://bucket/x.npy", "--json", env=env)
    assert result.status == 3
    assert b"Could not connect" in result.out
    assert b"Signature" not in result.out + result.err.encode()


def test_content_encodings_are_bytes(s3: Bucket) -> None:
    """An object is read as stored, whatever its Content-Encoding."""
    s3.s3.put_object(Bucket="bucket", Key="x.npy", Body=npy(ROWS), ContentEncoding="zip")
    assert np.array_equal(load("s3://bucket/x.npy"), ROWS)


def test_an_empty_object(s3: Bucket) -> None:
    with pytest.raises(InputError, match=r"no data: expected a \.npy array"):
        load(s3.put("x.npy", b""))


def test_an_object_that_changes_between_two_replies(s3: Bucket) -> None:
    url = s3.put("x.npy", npy(ROWS))
    with open_input(url) as opened_source:
        s3.put("x.npy", npy(ROWS + 1))
        with pytest.raises(OutputError, match=r"x.npy changed during the run"):
            opened_source.load()


def test_an_object_that_changes_before_the_end(s3: Bucket) -> None:
    url = s3.put("x.npy", npy(ROWS))
    with open_input(url) as opened_source:
        opened_source.load()
        opened_source.require_unchanged()
        s3.put("x.npy", npy(ROWS + 1))
        with pytest.raises(OutputError, match=r"x.npy changed during the run"):
            opened_source.require_unchanged()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/none.npy", "s3://bucket/none.npy: there is no such object"),
        ("s3://no-such-bucket/x.npy", "s3://no-such-bucket/x.npy: there is no such bucket"),
        ("s3://bucket", "s3://bucket: a bucket, not an object"),
    ],
)
def test_missing_files(s3: Bucket, url: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(url)


def test_a_name_that_a_server_does_not_take(s3: Bucket) -> None:
    """The 404 refers to a write, and does not mean a missing object."""
    with pytest.raises(OutputError, match=r"s3://bucket/a\\nb.npy: the server answers 404$"):
        store("s3://bucket/a\nb.npy", ROWS[:5])


def test_no_credentials(s3: Bucket) -> None:
    url = s3.put("x.npy", npy(ROWS))
    none = client_environment(s3.endpoint, AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
    result = ndtool("inspect", url, env={**none, "HOME": "/nonexistent"})
    assert result.status == 3
    assert result.err.startswith("error: s3://bucket/x.npy: credentials are missing")
    assert "Traceback" not in result.err


@pytest.mark.parametrize("array", [ROWS[:5], PARTS, np.zeros((0, 3))], ids=["few", "parts", "none"])
@pytest.mark.usefixtures("small_parts")
def test_outputs_are_what_they_are_in_files(s3: Bucket, workdir: Path, array: Any) -> None:
    for name in ("x.npy", "x.npz", "x.safetensors", "x.pb"):
        store(f"s3://bucket/{name}", array)
        store(name, array)
        assert s3.get(name) == (workdir / name).read_bytes()
    assert s3.uploads() == []


def test_nothing_is_visible_before_the_end(s3: Bucket, small_parts: None) -> None:
    with temporary_sink("s3://bucket/x.npy", PARTS) as out:
        out.write(0, PARTS.tobytes())
        assert s3.keys() == []
        file = out.finish()
        assert s3.keys() == []
        assert len(s3.uploads()) == 1
        file.publish()
        assert s3.keys() == ["x.npy"]
    assert s3.get("x.npy") == npy(PARTS)
    assert s3.uploads() == []


@pytest.mark.usefixtures("small_parts")
def test_a_part_that_fails_leaves_nothing(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(operation: str, arguments: dict[str, Any]) -> None:
        if arguments.get("PartNumber") == 2:
            raise OSError(5, "Input/output error")

    intercept(monkeypatch, fail)
    with pytest.raises(OutputError, match=r"s3://bucket/x.npy: Input/output error"):
        store("s3://bucket/x.npy", PARTS)
    assert s3.keys() == s3.uploads() == []


def test_no_clobber(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    url, message = s3.put("x.npy", b"old"), "exists and may not be replaced"
    with pytest.raises(OutputError, match=message):
        store(url, ROWS, clobber=False)
    url = "s3://bucket/y.npy"
    with temporary_sink(url, ROWS, clobber=False) as out:
        s3.put("y.npy", b"theirs")
        with pytest.raises(OutputError, match=message):
            sinks.commit(out)
    monkeypatch.setattr(objects, "current_version", lambda *_, **__: None)  # listed after a delay
    with pytest.raises(OutputError, match=message):
        store(url, ROWS, clobber=False)
    assert (s3.get("x.npy"), s3.get("y.npy")) == (b"old", b"theirs")


def test_other_tensors_are_preserved(s3: Bucket, small_parts: None) -> None:
    assert store("s3://bucket/a.npz:one", ROWS[:5]) is None
    assert store("s3://bucket/a.npz:two", PARTS) == ("one",)
    members = archive(s3.get("a.npz"))
    assert np.array_equal(members["one"], ROWS[:5])
    assert np.array_equal(members["two"], PARTS)
    store("s3://bucket/m.safetensors:one", ROWS[:5])
    assert store("s3://bucket/m.safetensors:two", ROWS) == ("one",)
    assert np.array_equal(load("s3://bucket/m.safetensors:one"), ROWS[:5])
    store("s3://bucket/a.npz:two", ROWS, only=True)
    assert list(archive(s3.get("a.npz"))) == ["two"]


@pytest.mark.parametrize("looks", [True, False])
def test_changes_of_others_are_not_lost(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """A concurrent write to an archive is preserved, even at the last moment."""
    store("s3://bucket/a.npz:one", ROWS[:5])
    with temporary_sink("s3://bucket/a.npz:two", ROWS[:5]) as out:
        out.write(0, ROWS[:5].tobytes())
        file = out.finish()
        before = objects.current_version("s3://bucket/a.npz")
        store("s3://bucket/a.npz:three", ROWS[:5])
        if not looks:
            monkeypatch.setattr(objects, "current_version", lambda *_, **__: before)
        with pytest.raises(OutputError, match=r"a.npz changed during the run"):
            file.publish()
    assert list(archive(s3.get("a.npz"))) == ["one", "three"]


@pytest.mark.usefixtures("small_parts")
def test_parts_become_an_object_on_the_same_condition(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test server ignores it, S3 does not."""
    conditions = []

    def record(operation: str, arguments: dict[str, Any]) -> None:
        if operation == "complete_multipart_upload":
            conditions.append({key: arguments[key] for key in arguments if key.startswith("If")})

    intercept(monkeypatch, record)
    store("s3://bucket/a.npz:one", PARTS)
    version = objects.current_version("s3://bucket/a.npz")
    store("s3://bucket/a.npz:two", PARTS)
    store("s3://bucket/x.npy", PARTS, clobber=False)
    matches = {"IfMatch": version.etag if version else None}
    assert conditions == [{"IfNoneMatch": "*"}, matches, {"IfNoneMatch": "*"}]


def test_an_object_of_several_arrays_is_replaced_with_only_alone(s3: Bucket, workdir: Path) -> None:
    for name in ("a.npz", "m.safetensors"):
        url = f"s3://bucket/{name}"
        store(url, ROWS[:5])
        store(url, ROWS[:4])  # one array replaces another
        store(f"{url}:two", ROWS[:5])
        before = s3.get(name)
        with pytest.raises(OutputError, match=f"{name} has 2 arrays: which is to be written"):
            store(url, ROWS[:3])
        with pytest.raises(OutputError, match=f"{name} has 2 arrays: which is to be written"):
            list_preserved_members(url)
        assert s3.get(name) == before
        store(url, ROWS[:3], only=True)
        assert np.array_equal(load(url), ROWS[:3])


@pytest.mark.parametrize("exists", [True, False])
def test_an_archive_that_others_write_is_not_replaced(s3: Bucket, exists: bool) -> None:
    url = "s3://bucket/a.npz"
    if exists:
        store(url, ROWS[:5])
    with temporary_sink(url, ROWS[:5]) as out:
        out.write(0, ROWS[:5].tobytes())
        store(f"{url}:two", ROWS[:5])
        with pytest.raises(
            OutputError, match=r"a.npz (changed|was created by another process) during"
        ):
            sinks.commit(out)
    assert "two" in archive(s3.get("a.npz"))


def test_archives_without_read_permission(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "current_version", lambda *_, **__: None)
    store("s3://bucket/a.npz", ROWS[:5])
    before = s3.get("a.npz")
    with pytest.raises(OutputError, match=r"a.npz was created by another process") as refused:
        store("s3://bucket/a.npz", ROWS[:4])
    assert refused.value.hint == "only=True replaces it in any case"
    assert s3.get("a.npz") == before
    store("s3://bucket/a.npz", ROWS[:4], only=True)
    assert np.array_equal(archive(s3.get("a.npz"))["output"], ROWS[:4])


@pytest.fixture
def lossy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that create an object are repeated, as botocore does if a response is lost."""
    call = objects.S3Object._call

    async def twice(self: Any, operation: str, *names: str, **arguments: Any) -> Any:
        if operation in ("put_object", "complete_multipart_upload"):
            await call(self, operation, *names, **arguments)
        return await call(self, operation, *names, **arguments)

    monkeypatch.setattr(objects.S3Object, "_call", twice)


@pytest.mark.parametrize("array", [ROWS[:4], PARTS], ids=["whole", "parts"])
@pytest.mark.usefixtures("small_parts")
def test_a_lost_response_is_not_another_writer(s3: Bucket, lossy_server: None, array: Any) -> None:
    store("s3://bucket/x.npy", array, clobber=False)
    assert s3.get("x.npy") == npy(array)
    for member in ("one", "two", "one"):
        store(f"s3://bucket/a.npz:{member}", array)
    assert archive(s3.get("a.npz")).keys() == {"one", "two"}
    assert s3.uploads() == []


def test_after_a_lost_reply_other_writers_are_still_told(s3: Bucket, lossy_server: None) -> None:
    store("s3://bucket/a.npz:one", ROWS[:4])
    with temporary_sink("s3://bucket/a.npz:two", ROWS[:4]) as out:
        out.write(0, ROWS[:4].tobytes())
        s3.put("a.npz", b"theirs")
        with pytest.raises(OutputError, match=r"a.npz changed during the run"):
            sinks.commit(out)
    assert s3.get("a.npz") == b"theirs"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://none-here/x.npy", r"s3://none-here/x.npy: there is no such bucket"),
        ("s3://none-here/x.zarr", r"s3://none-here/.*: there is no such bucket"),
        ("s3://bucket", r"s3://bucket: a bucket, not an object"),
    ],
)
def test_a_missing_bucket(s3: Bucket, url: str, message: str) -> None:
    with pytest.raises(OutputError, match=message):
        store(url, ROWS)


def run_step(act: Any, call: OpenCall) -> Any:
    """Return the outcome of a step that ends a run."""
    with steps.prepare(call, steps.resolve_output(call)) as prepared_run:
        return act(prepared_run)


def test_a_dry_run_looks_at_the_output(s3: Bucket, workdir: Path) -> None:
    save(x=ROWS[:9], i=np.array([[3]]))
    s3.put("x.npy", b"old")
    request = Request("gather_nd", "x.npy", "i.npy", output="s3://bucket/x.npy", clobber=False)
    with OpenCall(request) as call, pytest.raises(OutputError, match="exists"):
        run_step(steps.dry_run, call)
    with OpenCall(request._replace(clobber=True)) as call:
        assert run_step(steps.dry_run, call).preserved is None
    assert s3.get("x.npy") == b"old"


@pytest.mark.parametrize("output", ["x.npy", "a.npz:x", "x.zarr"])
def test_a_dry_run_checks_write_permission_without_effects(
    s3: Bucket, workdir: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    if ".zarr" in output:
        pytest.importorskip("zarr")
    save(x=ROWS[:9], i=np.array([[3]]))
    requested: list[str] = []

    def record(operation: str, arguments: dict[str, Any]) -> None:
        requested.append(operation)
        if operation == "complete_multipart_upload":  # moto responds with an internal error
            raise FileNotFoundError(2, "NoSuchUpload")

    def refuse(operation: str, arguments: dict[str, Any]) -> None:
        if operation in ("complete_multipart_upload", "put_object"):
            raise PermissionError(13, "AccessDenied")

    request = Request("gather_nd", "x.npy", "i.npy", output=f"s3://bucket/{output}")
    intercept(monkeypatch, record)
    with OpenCall(request) as job:
        run_step(steps.dry_run, job)
    assert "complete_multipart_upload" in requested
    assert not {"put_object", "create_multipart_upload", "delete_object"} & set(requested)
    assert (s3.keys(), s3.uploads()) == ([], [])
    intercept(monkeypatch, refuse)
    message = []
    for step in (steps.dry_run, steps.execute):
        with (
            OpenCall(request) as job,
            pytest.raises(OutputError, match="access is denied") as excinfo,
        ):
            run_step(step, job)
        message.append(excinfo.value.message)
    assert message[0] == message[1] or ".zarr" in output  # a run is denied its lock object


def test_an_object_may_be_input_and_output(s3: Bucket, workdir: Path) -> None:
    url = s3.put("x.npy", npy(ROWS))
    save(i=np.array([[3], [5]]))
    with OpenCall(Request("gather_nd", url, "i.npy", output=url)) as call:
        steps.run(call)
    assert s3.get("x.npy") == npy(ROWS[[3, 5]])


@pytest.mark.parametrize(
    "name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow("SIGINT aborts an upload"))]
)
def test_an_interrupted_upload_leaves_nothing(s3: Bucket, workdir: Path, name: str) -> None:
    parts = np.resize(PARTS, (2 * objects.MIN_PART // 1024 + 1, 1024))
    save(x=parts, i=np.arange(len(parts))[:, None])
    proxy = Proxy(s3.endpoint, objects.MIN_PART // 2)
    try:
        words = ("gather-nd", "x.npy", "i.npy", "-o", "s3://bucket/x.npy")
        with start(*words, env=client_environment(proxy.endpoint)) as process:
            while not proxy.stalled.wait(0.05):
                assert process.poll() is None, process.stderr.read()
            assert len(s3.uploads()) == 1
            process.send_signal(getattr(signal, name))
            _, err = process.communicate()
            assert process.returncode == {"SIGINT": 130, "SIGTERM": 143}[name]
        assert err == b""
        assert s3.keys() == s3.uploads() == []
    finally:
        proxy.close()


def test_the_command_line(s3: Bucket, workdir: Path) -> None:
    x, i = s3.put("x.npy", npy(ROWS)), s3.put("i.npy", npy(np.array([[3], [9]])))
    env = client_environment(s3.endpoint)
    result = ndtool("gather-nd", x, i, "-o", "s3://bucket/o.npz:rows", "-q", env=env)
    assert (result.status, result.err) == (0, "")
    result = ndtool("gather-nd", x, i, "-o", "s3://bucket/o.npz:more", env=env)
    assert (result.status, result.err) == (0, "preserved rows\n")
    result = ndtool("verify", "gather-nd", x, i, "s3://bucket/o.npz:more", env=env)
    assert result.status == 0, result.err


def test_a_cut_archive_at_an_output(s3: Bucket) -> None:
    s3.put("a.npz", b"no archive")
    with pytest.raises(OutputError, match=r"a.npz is not a ZIP archive") as excinfo:
        store("s3://bucket/a.npz:one", ROWS[:5])
    assert not isinstance(excinfo.value, InputError)
