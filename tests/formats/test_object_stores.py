"""az:// and gs:// as inputs and outputs: Azurite and a Google Cloud Storage emulator."""

import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from command import environment, ndtool, save
from inputs import load, open_input
from later import later
from npyfile import npy
from outputs import save as save_output
from outputs import temporary_sink

from ndtool.errors import InputError, OutputError, UsageError
from ndtool.publish import sinks
from ndtool.storage import objects

fsspec = later("fsspec")

ROWS = np.arange(30_000 * 4, dtype="<f4").reshape(-1, 4)
GCSFS_OFFLINE = (
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT",
    "false",
)  # else gcsfs sends requests to other servers
# Azurite's only account, which its documentation publishes.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Store(NamedTuple):
    """A bucket's URL, the environment variables that clients need, and the bucket's file system."""

    url: str
    variables: dict[str, str]
    fs: Any

    def put(self, name: str, body: bytes) -> str:
        self.fs.pipe_file(f"bucket/{name}", body)
        return f"{self.url}/{name}"

    def get(self, name: str) -> bytes:
        self.fs.invalidate_cache()
        body: bytes = self.fs.cat_file(f"bucket/{name}")
        return body

    def names(self) -> list[str]:
        self.fs.invalidate_cache()
        return sorted(name.removeprefix("bucket/") for name in self.fs.find("bucket"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def accepts_connections(port: int) -> bool:
    """Whether a server accepts connections, after a short wait for it."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        time.sleep(0.05)
        return False
    return True


@contextmanager
def running_server(port: int, command: list[str], **options: Any) -> Iterator[None]:
    """Run a server until it accepts connections, and end it afterwards."""
    with subprocess.Popen(command, **options) as process:
        try:
            while not accepts_connections(port):
                assert process.poll() is None
            yield
        finally:
            process.terminate()


def azure_variables(port: int, key: str = KEY) -> dict[str, str]:
    endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"
    return {
        "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;"
        f"AccountName={ACCOUNT};AccountKey={key};{endpoint};"
    }


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run Azurite, an npm package; yield its port."""
    pytest.importorskip("adlfs", reason="adlfs is not installed")
    if (command := shutil.which("azurite-blob")) is None:
        pytest.skip("azurite-blob is not installed: npm install azurite")
    port, options = free_port(), ("--inMemoryPersistence", "--disableTelemetry", "--silent")
    command_line = [command, "--blobPort", str(port), *options, "--skipApiVersionCheck"]
    folder = tmp_path_factory.mktemp("azurite")
    with running_server(port, command_line, cwd=folder, stdout=subprocess.DEVNULL):
        yield port


@pytest.fixture(scope="module")
def google() -> Iterator[int]:
    """Run gcp-storage-emulator; yield its port."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*GCSFS_OFFLINE)  # read by the import
        pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed")
    port = free_port()
    code = f"""
from gcp_storage_emulator.server import create_server
create_server("127.0.0.1", {port}, in_memory=True, default_bucket="bucket").run()
"""
    with running_server(port, [sys.executable, "-c", code], stderr=subprocess.DEVNULL):
        yield port


@pytest.fixture(params=["az", "gs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    scheme = request.param
    if scheme == "az":
        variables = azure_variables(request.getfixturevalue("azurite"))
    else:
        port = request.getfixturevalue("google")
        variables = {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            "FSSPEC_GS_TOKEN": "anon",
            GCSFS_OFFLINE[0]: GCSFS_OFFLINE[1],
        }
    for name in [name for name in os.environ if name.startswith(("AZURE_", "FSSPEC_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("fsspec.config.conf", {"gs": {"token": "anon"}})
    fs = fsspec.filesystem(scheme)
    if scheme == "az" and not fs.exists("bucket"):
        fs.mkdir("bucket")
    for name in fs.find("bucket"):
        fs.rm_file(name)
    return Store(f"{scheme}://bucket", variables, fs)


def test_inputs_and_outputs_of_the_command_line(store: Store, workdir: Path) -> None:
    url = store.put("x.npy", npy(ROWS))
    indices, output = store.put("i.npy", npy(np.array([[3], [29_999]]))), f"{store.url}/o.npz"
    env = environment(**store.variables)
    for member in ("one", "two"):
        completed = ndtool("gather-nd", url, indices, "-o", f"{output}:{member}", env=env)
        assert completed.status == 0, completed.err
    with np.load(io.BytesIO(store.get("o.npz"))) as archive:
        assert sorted(archive) == ["one", "two"]
        assert np.array_equal(archive["one"], ROWS[[3, -1]])
    assert ndtool("inspect", output, env=env).status == 0


def test_only_needed_ranges_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, read = [], objects.RemoteObject._read

    async def record_size(self: Any, start: int, stop: int) -> bytes:
        sizes.append(stop - start)
        return await read(self, start, stop)

    monkeypatch.setattr(objects.RemoteObject, "_read", record_size)
    monkeypatch.setattr(objects.RemoteObject, "max_request", 1 << 18)
    url = store.put("x.npy", npy(np.zeros((60_000, 4), "<f4")))
    with open_input(url) as array:
        assert sizes == [1 << 16]
        array.load()
        array.require_unchanged()
    assert max(sizes) <= 1 << 18
    assert sum(sizes) == len(npy(np.zeros((60_000, 4), "<f4")))


def test_a_change_during_the_run(store: Store) -> None:
    with open_input(store.put("x.npy", npy(ROWS))) as array:
        array.load()
        array.require_unchanged()
        store.put("x.npy", npy(ROWS + 1))
        with pytest.raises(OutputError, match=r"x.npy changed during the run"):
            array.require_unchanged()


def test_stores_in_chunks(store: Store, workdir: Path) -> None:
    pytest.importorskip("zarr", reason="zarr is not installed")
    env, url = environment(**store.variables), f"{store.url}/x.zarr"
    save(x=ROWS, i=np.array([[3], [-1]]))
    completed = ndtool("convert", "x.npy", url, "--chunks", "10000,4", env=env)
    assert completed.status == 0, completed.err
    completed = ndtool("gather-nd", url, "i.npy", "-o", "o.npy", env=env)
    assert completed.status == 0, completed.err
    assert np.array_equal(np.load("o.npy"), ROWS[[3, -1]])
    assert "x.zarr/zarr.json" in store.names()
    completed = ndtool("convert", "x.npy", url, env=env)
    assert completed.status == 7
    assert "x.zarr" in completed.err


def test_objects_are_not_replaced_with_no_clobber(store: Store) -> None:
    url = store.put("x.npy", b"old")
    with pytest.raises(OutputError, match="exists and may not be replaced"):
        save_output(url, ROWS[:5], clobber=False)
    save_output(url, ROWS[:5])
    assert store.get("x.npy") == npy(ROWS[:5])
    with temporary_sink(f"{store.url}/y.npy", ROWS[:5], clobber=False) as out:
        out.write(0, ROWS[:5].tobytes())
        store.put("y.npy", b"theirs")
        with pytest.raises(OutputError, match="exists and may not be replaced"):
            sinks.commit(out)
    assert store.get("y.npy") == b"theirs"


def test_azure_checks_no_clobber_itself(store: Store) -> None:
    url = store.put("x.npy", b"old")
    if url.startswith("gs"):
        pytest.skip("the emulator ignores conditions")
    with pytest.raises(FileExistsError):
        objects.wait(objects.open_output(url).put(b"new", {"IfNoneMatch": "*"}), url)
    assert store.get("x.npy") == b"old"


def test_a_failure_leaves_no_object(store: Store) -> None:
    with temporary_sink(f"{store.url}/x.npy", ROWS) as out:
        out.write(0, ROWS.tobytes())
        out.finish()
    assert store.names() == []


def test_missing_objects_and_buckets(store: Store) -> None:
    for name in ("bucket/none.npy", "no-bucket/x.npy"):
        url = f"{store.url.removesuffix('bucket')}{name}"
        with pytest.raises(InputError, match=f"{name}: there is no such object"):
            load(url)
    with pytest.raises(OutputError, match=r"no-bucket/x.npy: there is no such bucket"):
        save_output(f"{store.url.removesuffix('bucket')}no-bucket/x.npy", ROWS[:5])
    with pytest.raises(InputError, match="a directory, not an object"):
        load(store.url)


@pytest.fixture
def wrong_key(azurite: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set another account key in the environment; return it."""
    key = KEY.replace("Eby8", "AAAA")
    for name, value in azure_variables(azurite, key).items():
        monkeypatch.setenv(name, value)
    return key


def test_a_wrong_key_is_refused_and_not_printed(wrong_key: str, workdir: Path) -> None:
    save(x=ROWS[:5])
    env = environment()
    for arguments, status in (
        (("inspect", "az://bucket/x.npy"), 3),
        (("convert", "x.npy", "az://bucket/y.npy"), 7),
        (("convert", "x.npy", "az://bucket/y.npy", "--json"), 7),
    ):
        completed = ndtool(*arguments, env=env)
        assert completed.status == status
        printed = completed.err + completed.out.decode()
        assert "access is denied" in printed
        assert wrong_key[:20] not in printed


def test_a_malformed_connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adlfs", reason="adlfs is not installed")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=hidden")
    fsspec.get_filesystem_class("az").clear_instance_cache()
    with pytest.raises(UsageError, match="connection") as excinfo:
        load("az://bucket/x.npy")
    assert "hidden" not in excinfo.value.message
    assert "expected s3" not in excinfo.value.message


def test_small_ranges_are_read_64_at_a_time_and_large_ones_10() -> None:
    """Each response is in memory until it is complete."""
    max_active, active, lock = [0], [0], threading.Lock()

    class SlowStore:
        async_impl = True

        async def _cat_file(self, path: str, start: int, end: int) -> bytes:
            with lock:
                active[0] += 1
                max_active[0] = max(max_active[0], active[0])
            await objects.asyncio.sleep(0.05)
            active[0] -= 1
            return bytes(end - start)

    async def fetch(nbytes: int) -> None:
        remote_object = objects.RemoteObject("az://bucket/x", SlowStore(), "x")
        write = lambda start, block: None  # noqa: E731
        fetches = (
            remote_object.fetch(0, nbytes, objects.Version(), write)
            for _ in range(remote_object.concurrency)
        )
        await objects.asyncio.gather(*fetches)

    for nbytes, concurrency in ((1 << 16, 64), (objects.MAX_BUFFERED, 10)):
        max_active[0] = 0
        objects.wait(fetch(nbytes), "az://bucket/x")
        assert max_active[0] == concurrency
