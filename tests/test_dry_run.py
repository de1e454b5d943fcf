"""A dry run raises the errors of the run, with equal status and text, and writes nothing."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, state
from limits import ROOT, disk_of_a_megabyte, limited, without_overrides

FORMATS = ["out.npy", "out.npz", "old.npz:new", "out.safetensors", "old.safetensors:new", "out.pb"]
STORES = ["out.zarr", "old.zarr:new"]
RUNS = {
    "gather-nd": ("data", "pairs"),
    "scatter-nd": ("data", "pairs", "updates"),
    "gather-elements": ("data", "along"),
    "scatter-elements": ("data", "along", "along"),
    "gather": ("data", "rows"),
}
NBYTES = 1 << 21  # bytes of an output, on a disk of a megabyte


def command(operator: str, output: str, *more: object) -> tuple[object, ...]:
    inputs = [f"{name}.npy" for name in RUNS[operator]]
    return (operator, *inputs, "-o", output, "--no-trace", "--threads", "2", *more)


@pytest.fixture
def inputs(workdir: Path) -> Path:
    """Save the inputs of all operators, with outputs of two megabytes."""
    data = np.arange(NBYTES // 8).reshape(4, -1)
    save(data=data, pairs=np.array([[3], [0], [1], [2]]), rows=np.array([3, 0, 1, 2]))
    save(updates=data[::-1], along=np.zeros(data.shape, "i8"))
    return workdir


@pytest.fixture
def disk(inputs: Path) -> Iterator[Path]:
    """Yield a folder on a disk of a megabyte."""
    with disk_of_a_megabyte(inputs / "disk") as folder:
        yield folder


def put_old(folder: str) -> None:
    """Create archives and a store of one small array, which other outputs preserve."""
    for name in ("old.npz:a", "old.safetensors:a"):
        assert ndtool("convert", "rows.npy", f"{folder}/{name}").status == 0
    if has_zarr():
        assert ndtool("convert", "rows.npy", f"{folder}/old.zarr:a").status == 0


def has_zarr() -> bool:
    try:
        import zarr  # noqa: F401
    except ImportError:
        return False
    return True


def needs(output: str) -> None:
    if ".zarr" in output:
        pytest.importorskip("zarr")


def refused(
    call: tuple[object, ...], status: int, message: str, folder: Path, **options: Any
) -> None:
    """Check that a dry run and a run of the same call raise equal errors, and change nothing."""
    before = state(folder), sorted(os.listdir(folder))
    dry, run = (ndtool(*call, *more, **options) for more in (("--dry-run",), ()))
    assert message in run.err
    assert (dry.status, dry.out, dry.err) == (run.status, run.out, run.err)
    assert (dry.status, dry.out) == (status, b"")
    assert (state(folder), sorted(os.listdir(folder))) == before


@pytest.mark.parametrize("operator", RUNS)
def test_each_operator_looks_for_space_on_the_disk_of_its_output(operator: str, disk: Path) -> None:
    refused(command(operator, "disk/out.npy"), 6, "disk/out.npy: needs 2097280 bytes of", disk)


@pytest.mark.slow("a dry run finds a full disk for every format")
@pytest.mark.parametrize("output", [*FORMATS, *STORES])
def test_each_format_looks_for_space_on_the_disk_of_its_output(output: str, disk: Path) -> None:
    needs(output)
    put_old("disk")
    more = ("--codec", "none") if ".zarr" in output else ()
    call = command("gather-nd", f"disk/{output}", *more)
    refused(call, 6, f"disk/{output.partition(':')[0]}", disk)
    assert "bytes of disk" in ndtool(*call, "--dry-run").err


def test_preserved_members_count_in_the_space(disk: Path) -> None:
    save(part=np.zeros(600_000, "u1"))
    for name in ("a.npz", "a.safetensors"):
        assert ndtool("convert", "part.npy", f"disk/{name}:part").status == 0
        refused(("gather", "part.npy", "[0]", "-o", f"disk/{name}:b", "--no-trace"), 6, "600", disk)
        os.unlink(f"disk/{name}")


def test_a_compressed_store_may_fit_where_its_bytes_do_not(disk: Path) -> None:
    pytest.importorskip("zarr")
    for more in (("--dry-run",), ()):
        assert ndtool(*command("gather-elements", "disk/out.zarr", *more)).status == 0


def test_a_store_of_more_files_than_the_disk_has(disk: Path) -> None:
    """The size is known, despite compression."""
    pytest.importorskip("zarr")
    mount = ["mount", "-t", "tmpfs", "-o", "remount,nr_inodes=100", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    more = ("--chunks", "1,1024")
    message = r"disk/out.zarr: needs 256 files, the disk has inodes for 9"
    refused(command("gather-elements", "disk/out.zarr", *more), 6, message, disk)
    assert ndtool(*command("gather-elements", "disk/out.zarr", "--chunks", "1,8192")).status == 0


@pytest.mark.parametrize("output", [*FORMATS, *STORES])
def test_limits_on_the_size_of_files(output: str, inputs: Path) -> None:
    needs(output)
    put_old(".")
    more = ("--codec", "none", "--chunks", "4,65536") if ".zarr" in output else ()
    message, apply = "more than the limit on file sizes", limited(FSIZE=100_000)
    refused(command("gather-nd", output, *more), 6, message, inputs, preexec_fn=apply)


@pytest.mark.parametrize("output", ["out.npy", "old.npz:new"])
def test_few_descriptors(output: str, inputs: Path) -> None:
    put_old(".")
    call, message = command("gather-nd", output), "Too many open files"
    refused(call, 6, message, inputs, preexec_fn=limited(NOFILE=7))


@pytest.mark.parametrize("output", ["out.npy", "out.npz"])
@pytest.mark.usefixtures("unmeasured")
def test_little_memory(output: str, inputs: Path) -> None:
    save(data=np.zeros((2, 1 << 23)), along=np.zeros((2, 1 << 23), "i1"))
    call, apply = command("gather-elements", output), limited(AS=256 << 20)
    refused(call, 6, "Cannot allocate memory", inputs, preexec_fn=apply)


@pytest.mark.parametrize("output", [*FORMATS, *STORES])
def test_folders_that_take_no_file(output: str, inputs: Path) -> None:
    needs(output)
    os.mkdir("closed")
    put_old("closed")
    for folder in ("closed", *map(str, Path("closed").glob("*.zarr"))):
        os.chmod(folder, 0o555)
    call = command("gather-nd", f"closed/{output}")
    refused(call, 7, "Permission denied", inputs, preexec_fn=without_overrides)


@pytest.mark.parametrize("output", ["out.npy", "out.npz", "out.zarr"])
@pytest.mark.parametrize("more", [(), ("--sync",)])
def test_folders_that_were_removed_or_cannot_be_synced(
    output: str, more: tuple[str, ...], inputs: Path
) -> None:
    needs(output)
    refused(command("gather-nd", f"no/{output}", *more), 7, "there is no folder no", inputs)
    os.mkdir("blind", 0o333)  # fsync of a folder requires read permission
    if more and output != "out.zarr":
        call = command("gather-nd", f"blind/{output}", *more)
        dry, run = (
            ndtool(*call, *dry, preexec_fn=without_overrides) for dry in (("--dry-run",), ())
        )
        assert (dry.status, dry.err) == (run.status, run.err) == (7, run.err)


def test_existing_files_that_must_be_preserved(inputs: Path) -> None:
    put_old(".")
    for output in ("data.npy", "old.npz:a", "old.safetensors:a"):
        refused(command("gather-nd", output, "--no-clobber"), 7, "exists and", inputs)
    Path("old.npz").write_bytes(Path("old.npz").read_bytes()[:-30])
    refused(command("gather-nd", "old.npz:b"), 7, "old.npz", inputs)


def test_streams(inputs: Path) -> None:
    os.mkfifo("closed", 0o444)
    os.mkfifo("open")
    refused(
        command("gather-nd", "closed"), 7, "Permission denied", inputs,
        preexec_fn=without_overrides,
    )  # fmt: skip
    assert ndtool(*command("gather-nd", "open", "--dry-run"), timeout=60).status == 0  # no reader
    refused(command("gather-nd", "-"), 7, "closed", inputs, preexec_fn=lambda: os.close(1))


@pytest.fixture
def small(disk: Path) -> dict[str, str]:
    """Yield the variable that puts temporary files on the small disk."""
    return {"TMPDIR": str(disk)}


def test_space_for_temporary_copies(disk: Path, small: dict[str, str]) -> None:
    large = np.zeros((2, 1 << 20))
    save(data=large, updates=large, fortran=np.asfortranarray(large), pairs=np.array([[1], [0]]))
    os.rename("data.npy", "flat.npy")
    message = "bytes of disk"
    for data, updates, output in (
        ("flat.npy", "updates.npy", "-"),
        ("flat.npy", "fortran.npy", "out.npy"),
    ):
        call = ("scatter-nd", data, "pairs.npy", updates, "-o", output, "--no-trace")
        refused(call, 6, message, disk, env=small)


def test_space_for_chunks_that_are_put_together(disk: Path, small: dict[str, str]) -> None:
    pytest.importorskip("zarr")
    save(data=np.zeros((2, 1 << 20)), rows=np.array([1, 0]))
    assert ndtool("convert", "data.npy", "data.zarr", "--chunks", "2,65536").status == 0
    call = ("gather", "data.zarr", "rows.npy", "-o", "out.npy", "--no-trace")
    refused(call, 6, "temporary copy of data.zarr: needs 16777216 bytes of disk", disk, env=small)
    call = ("gather", "data.npy", "rows.npy", "-o", "out.zarr", "--no-trace")
    more = ("--chunks", "2,65536")
    refused((*call, *more), 6, "temporary copy of out.zarr: needs 16777216", disk, env=small)


@pytest.mark.parametrize("given_by", ["--spill", "TMPDIR"])
def test_space_for_what_a_sweep_spills(given_by: str, disk: Path) -> None:
    rng = np.random.default_rng(1)
    save(data=np.zeros((1 << 17, 8)), rows=rng.integers(0, 1 << 17, 1 << 17))
    call = ("gather", "data.npy", "rows.npy", "-o", "out.npy", "--memory", "4MiB", "--no-trace")
    more = ("--spill", "disk") if given_by == "--spill" else ()
    env = {"TMPDIR": str(disk)} if given_by == "TMPDIR" else {}
    refused((*call, *more), 6, "temporary file: needs", disk, env=env)
    assert ndtool(*call, "--dry-run").status == 0


def test_a_dry_run_fetches_no_data_and_copies_no_members(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ndtool.publish.sinks import Frame
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.request import Request
    from ndtool.storage import descriptors, local

    put_old(".")
    if has_zarr():
        import_module("ndtool.formats.zarr.newstore")  # before its imports are replaced
    monkeypatch.setattr(Frame, "begin", forbidden)
    monkeypatch.setattr(local.LocalFile, "copy", forbidden)
    monkeypatch.setattr(descriptors, "write_at", forbidden)
    outputs = ["out.npy", "old.npz:new", "old.safetensors:new"]
    for data, output in [("data.npy", output) for output in outputs]:
        with OpenCall(Request("gather_nd", data, "pairs.npy", output=output)) as call:
            rehearsed(call)
    if has_zarr():
        from ndtool.formats.zarr import ZarrSource

        assert ndtool("convert", "data.npy", "data.zarr", "--chunks", "2,4096").status == 0
        monkeypatch.setattr(ZarrSource, "block", forbidden)
        with OpenCall(Request("gather_nd", "data.zarr", "pairs.npy", output="out.npy")) as call:
            rehearsed(call)


def rehearsed(call: Any) -> Any:
    """Return the outcome of a dry run."""
    from ndtool.runs import steps

    with steps.prepare(call, steps.resolve_output(call)) as ready:
        return steps.dry_run(ready)


def forbidden(*_: object, **__: object) -> None:
    raise AssertionError("a dry run neither reads data nor writes")


def test_a_dry_run_removes_no_files_of_killed_runs(inputs: Path) -> None:
    pytest.importorskip("zarr")
    from ndtool.publish import cleanup

    abandoned = inputs / f".x.zarr.ndtool-0123456789ab-{cleanup.boot_id()}"
    abandoned.mkdir()
    assert ndtool(*command("gather-nd", "out.zarr", "--dry-run")).status == 0
    assert abandoned.exists()
    assert not Path("out.zarr").exists()
    assert ndtool(*command("gather-nd", "out.zarr")).status == 0
    assert not abandoned.exists()


def test_nothing_is_left(inputs: Path) -> None:
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.request import Request

    put_old(".")
    before = state(inputs), sorted(os.listdir())
    for output in (*FORMATS, *(STORES if has_zarr() else ()), "-"):
        for operator, roles in RUNS.items():
            data, indices, updates = (*(f"{name}.npy" for name in roles), None)[:3]
            call = operator.replace("-", "_")
            with OpenCall(Request(call, str(data), str(indices), updates, output)) as job:
                rehearsed(job)
        assert (state(inputs), sorted(os.listdir())) == before


def named(words: str) -> str:
    """Return a text with temporary names replaced by one name."""
    return re.sub(r"\.ndtool-[0-9a-f]{12}", ".ndtool", words)


@pytest.mark.parametrize("output", ["out/out.npy", "out/out.zarr"])
@pytest.mark.parametrize("hidden", ["out", "spill"])
def test_workers_that_do_not_see_a_folder(
    hidden: str, output: str, inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The folder is on another file system for the worker."""
    pytest.importorskip("distributed", exc_type=ImportError)
    needs(output)
    unshare = shutil.which("unshare")
    if not ROOT or unshare is None:
        pytest.skip("a file system of its own needs the right to mount one")
    from test_cluster_faults import Site

    os.mkdir("out")
    os.mkdir("spill")
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.scheduler()
        site.worker(before=(unshare, "-m", "sh", "-c", f'mount -t tmpfs none {hidden} && "$@"', ""))
        where = ("--scheduler", site.file, "--spill", "spill")
        call, folder = command("gather-nd", output, *where), Path(hidden)
        message = "out.npy" if hidden == "out" else "temporary file: No such file"
        dry, run = (ndtool(*call, *more) for more in (("--dry-run",), ()))
        assert (dry.status, dry.out, named(dry.err)) == (run.status, run.out, named(run.err))
        assert (dry.status, message in dry.err or "zarr" in output) == (7, True)
        assert os.listdir(folder) == []
    finally:
        site.end()
