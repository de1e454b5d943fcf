"""A dry run raises the errors of the run, with equal status and text, and writes nothing."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, snapshot
from limits import IS_ROOT, drop_root_capabilities, limit_resources, mount_small_disk
from twoworkers import ProcessCluster

FORMATS = ["out.npy", "out.npz", "old.npz:new", "out.safetensors", "old.safetensors:new", "out.pb"]
FORMATS += ["out.arrow"] if find_spec("pyarrow") else []
FORMATS += ["out.h5"] if find_spec("h5py") else []
STORES = ["out.zarr", "old.zarr:new"]
RUNS = {
    "gather-nd": ("data", "pairs"),
    "scatter-nd": ("data", "pairs", "updates"),
    "gather-elements": ("data", "along"),
    "scatter-elements": ("data", "along", "along"),
    "gather": ("data", "rows"),
}
NBYTES = 1 << 21  # bytes of an output, on a disk of a megabyte


def command(operator: str, output: str, *options: object) -> tuple[object, ...]:
    inputs = [f"{name}.npy" for name in RUNS[operator]]
    return (operator, *inputs, "-o", output, "--no-trace", "--threads", "2", *options)


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
    with mount_small_disk(inputs / "disk") as folder:
        yield folder


def write_existing(folder: str) -> None:
    """Create archives and a store with one small array, which later outputs preserve."""
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


def skip_without(output: str) -> None:
    if ".zarr" in output:
        pytest.importorskip("zarr")


def check_refused(
    call: tuple[object, ...], status: int, message: str, folder: Path, **options: Any
) -> None:
    """Check that a dry run and a run of the same call raise equal errors, and change nothing."""
    before = snapshot(folder), sorted(os.listdir(folder))
    dry_run, run = (ndtool(*call, *flags, **options) for flags in (("--dry-run",), ()))
    assert message in run.err
    assert (dry_run.status, dry_run.out, dry_run.err) == (run.status, run.out, run.err)
    assert (dry_run.status, dry_run.out) == (status, b"")
    assert (snapshot(folder), sorted(os.listdir(folder))) == before


@pytest.mark.slow("a dry run finds a full disk for every format")
@pytest.mark.parametrize("output", [*FORMATS, *STORES])
def test_each_format_checks_the_free_space_of_the_output(output: str, disk: Path) -> None:
    skip_without(output)
    write_existing("disk")
    options = ("--codec", "none") if ".zarr" in output else ()
    call = command("gather-nd", f"disk/{output}", *options)
    check_refused(call, 6, f"disk/{output.partition(':')[0]}", disk)
    assert "bytes of disk" in ndtool(*call, "--dry-run").err


def test_a_compressed_store_may_be_larger_than_the_free_space(disk: Path) -> None:
    """Chunks at its edges that are not compressed have the bytes of complete ones."""
    pytest.importorskip("zarr")
    call = ("gather", "zeros:float32[2,120000]", "[1, 0]", "-o", "disk/out.zarr", "--no-trace")
    padded = (*call, "--codec", "none", "--chunks", "2,110000")
    check_refused(padded, 6, "needs 1760000 ", disk)
    for options in (("--dry-run",), ()):
        assert ndtool(*command("gather-elements", "disk/out.zarr", *options)).status == 0


def test_a_store_of_more_files_than_free_inodes_is_refused(disk: Path) -> None:
    """The size is known, despite compression."""
    pytest.importorskip("zarr")
    mount = ["mount", "-t", "tmpfs", "-o", "remount,nr_inodes=100", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    options = ("--chunks", "1,1024")
    message = r"disk/out.zarr: needs 256 files, the disk has inodes for 9"
    check_refused(command("gather-elements", "disk/out.zarr", *options), 6, message, disk)
    assert ndtool(*command("gather-elements", "disk/out.zarr", "--chunks", "1,8192")).status == 0


@pytest.mark.usefixtures("without_coverage")
@pytest.mark.parametrize("output", ["out.npy", "old.npz:new", "out.zarr"])
def test_limits_on_the_size_of_files_are_reported(output: str, inputs: Path) -> None:
    skip_without(output)
    write_existing(".")
    options = ("--codec", "none", "--chunks", "4,65536") if ".zarr" in output else ()
    message, set_limit = "more than the limit on file sizes", limit_resources(FSIZE=100_000)
    check_refused(command("gather-nd", output, *options), 6, message, inputs, preexec_fn=set_limit)


def test_too_few_descriptors_are_reported(inputs: Path) -> None:
    write_existing(".")
    call, message = command("gather-nd", "old.npz:new"), "Too many open files"
    check_refused(call, 6, message, inputs, preexec_fn=limit_resources(NOFILE=7))


@pytest.mark.usefixtures("without_coverage")
def test_too_little_memory_is_reported(inputs: Path) -> None:
    save(data=np.zeros((2, 1 << 23)), along=np.zeros((2, 1 << 23), "i1"))
    call, set_limit = command("gather-elements", "out.npy"), limit_resources(AS=256 << 20)
    check_refused(call, 6, "Cannot allocate memory", inputs, preexec_fn=set_limit)


@pytest.mark.parametrize("output", ["out.npy", "old.safetensors:new", "old.zarr:new"])
def test_folders_without_write_permission_are_reported(output: str, inputs: Path) -> None:
    skip_without(output)
    os.mkdir("closed")
    write_existing("closed")
    for folder in ("closed", *map(str, Path("closed").glob("*.zarr"))):
        os.chmod(folder, 0o555)
    call = command("gather-nd", f"closed/{output}")
    check_refused(call, 7, "Permission denied", inputs, preexec_fn=drop_root_capabilities)


@pytest.mark.parametrize("output", ["out.npz", "out.zarr"])
def test_missing_folders_and_those_that_cannot_be_synced_are_reported(
    output: str, inputs: Path
) -> None:
    skip_without(output)
    call = command("gather-nd", f"[red]/{output}")
    check_refused(call, 7, "there is no folder [red]\n", inputs)
    os.mkdir("unreadable", 0o333)  # fsync of a folder requires read permission
    if output != "out.zarr":
        call = command("gather-nd", f"unreadable/{output}", "--sync")
        dry, run = (
            ndtool(*call, *flags, preexec_fn=drop_root_capabilities)
            for flags in (("--dry-run",), ())
        )
        assert (dry.status, dry.err) == (run.status, run.err) == (7, run.err)


def test_outputs_to_closed_streams_are_reported(inputs: Path) -> None:
    os.mkfifo("closed", 0o444)
    os.mkfifo("open")
    check_refused(
        command("gather-nd", "closed"), 7, "Permission denied", inputs,
        preexec_fn=drop_root_capabilities,
    )  # fmt: skip
    assert ndtool(*command("gather-nd", "open", "--dry-run")).status == 0  # without a reader
    check_refused(command("gather-nd", "-"), 7, "closed", inputs, preexec_fn=lambda: os.close(1))


@pytest.fixture
def small_disk_variables(disk: Path) -> dict[str, str]:
    """Return the environment variable that puts temporary files on the small disk."""
    return {"TMPDIR": str(disk)}


def test_free_space_for_temporary_copies_is_checked(
    disk: Path, small_disk_variables: dict[str, str]
) -> None:
    large = np.zeros((2, 1 << 20))
    save(data=large, updates=large, fortran=np.asfortranarray(large), pairs=np.array([[1], [0]]))
    os.rename("data.npy", "flat.npy")
    message = "bytes of disk"
    for data, updates, output in (
        ("flat.npy", "updates.npy", "-"),
        ("flat.npy", "fortran.npy", "out.npy"),
    ):
        call = ("scatter-nd", data, "pairs.npy", updates, "-o", output, "--no-trace")
        check_refused(call, 6, message, disk, env=small_disk_variables)


def test_free_space_for_assembled_chunks_is_checked(
    disk: Path, small_disk_variables: dict[str, str]
) -> None:
    pytest.importorskip("zarr")
    save(data=np.zeros((2, 1 << 20)), rows=np.array([1, 0]))
    assert ndtool("convert", "data.npy", "data.zarr", "--chunks", "2,65536").status == 0
    call = ("gather", "data.zarr", "rows.npy", "-o", "out.npy", "--no-trace")
    message = "temporary copy of data.zarr: needs 16777216 bytes of disk"
    check_refused(call, 6, message, disk, env=small_disk_variables)
    call = ("gather", "data.npy", "rows.npy", "-o", "out.zarr", "--no-trace")
    call, message = (*call, "--chunks", "2,65536"), "temporary copy of out.zarr: needs 16777216"
    check_refused(call, 6, message, disk, env=small_disk_variables)


@pytest.mark.parametrize(
    ("name", "options"), [("out.csv", ()), ("out.parquet", ("--memory", "1MiB")), ("out.arrow", ())]
)
def test_an_output_whose_size_its_elements_decide_is_encoded(
    name: str, options: tuple[str, ...], disk: Path
) -> None:
    """Its least size fits on the disk, its largest does not."""
    pytest.importorskip("pyarrow")
    rng, count = np.random.default_rng(3), 131_060
    save(large=rng.integers(1 << 62, 1 << 63, count, dtype="u8"), small=np.zeros(count, "u8"))
    save(rows=rng.permutation(count))
    call = ("gather", "large.npy", "rows.npy", "-o", f"disk/{name}", "--no-trace", *options)
    check_refused(call, 6, f"disk/{name}: No space left on device", disk)
    if name != "out.arrow":
        call = ("gather", "small.npy", *call[2:])
        assert [ndtool(*call, *flags).status for flags in (["--dry-run"], [])] == [0, 0]


def test_a_store_and_spilled_data_on_one_disk_are_counted_together(disk: Path) -> None:
    pytest.importorskip("zarr")
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    save(data=np.zeros((1 << 15, 8)), rows=np.random.default_rng(1).permutation(1 << 15))
    call = ("gather", "data.npy", "rows.npy", "-o", "disk/out.zarr", "--codec", "none")
    options = ("--chunks", "1024,8", "--memory", "1MiB", "--no-trace")
    check_refused((*call, "--spill", "disk", *options), 6, "disk/out.zarr: needs ", disk)
    assert ndtool(*call, "--spill", ".", *options).status == 0


def test_free_space_for_spilled_data_is_checked(disk: Path) -> None:
    rng = np.random.default_rng(1)
    save(data=np.zeros((1 << 17, 8)), rows=rng.integers(0, 1 << 17, 1 << 17))
    call = ("gather", "data.npy", "rows.npy", "-o", "out.npy", "--memory", "4MiB", "--no-trace")
    check_refused((*call, "--spill", "disk"), 6, "temporary file: needs", disk)
    check_refused(call, 6, "temporary file: needs", disk, env={"TMPDIR": str(disk)})
    assert ndtool(*call, "--dry-run").status == 0


def test_a_dry_run_fetches_no_data_and_copies_no_members(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ndtool import files
    from ndtool.publish.sinks import Container
    from ndtool.runs.calls import OpenCall, Request
    from ndtool.storage import descriptors, local

    write_existing(".")
    if has_zarr():
        import_module("ndtool.formats.zarr.writer")  # imported before its functions are replaced
    outputs = ["out.npy", "old.npz:new", "old.safetensors:new"]
    for output in outputs:  # imports what takes functions by name
        files.gather_nd("data.npy", "pairs.npy", out=output)
    monkeypatch.setattr(Container, "begin", forbid_call)
    monkeypatch.setattr(local.LocalFile, "copy", forbid_call)
    monkeypatch.setattr(descriptors, "write_at", forbid_call)
    for output in outputs:
        with OpenCall(Request("gather_nd", "data.npy", "pairs.npy", output=output)) as call:
            dry_run_result(call)
    if has_zarr():
        from ndtool.formats.zarr import ZarrSource

        assert ndtool("convert", "data.npy", "data.zarr", "--chunks", "2,4096").status == 0
        monkeypatch.setattr(ZarrSource, "read_chunk", forbid_call)
        with OpenCall(Request("gather_nd", "data.zarr", "pairs.npy", output="out.npy")) as call:
            dry_run_result(call)


def dry_run_result(call: Any) -> Any:
    """Return the result of a dry run."""
    from ndtool.runs import steps

    with steps.prepare(call, steps.resolve_output(call)) as prepared:
        return steps.dry_run(prepared)


def forbid_call(*_: object, **__: object) -> None:
    raise AssertionError("a dry run neither reads data nor writes")


def test_dry_runs_leave_no_files(inputs: Path) -> None:
    from ndtool.runs.calls import OpenCall, Request

    write_existing(".")
    before = snapshot(inputs), sorted(os.listdir())
    for output in (*FORMATS, *(STORES if has_zarr() else ()), "-"):
        for operator, roles in RUNS.items():
            data, indices, updates = (*(f"{name}.npy" for name in roles), None)[:3]
            call = operator.replace("-", "_")
            with OpenCall(Request(call, str(data), str(indices), updates, output)) as opened:
                dry_run_result(opened)
        assert (snapshot(inputs), sorted(os.listdir())) == before


def mask_temporary_names(text: str) -> str:
    """Return a text with temporary names replaced by one name."""
    return re.sub(r"\.ndtool-[0-9a-f]{12}", ".ndtool", text)


@pytest.mark.slow("a dry run asks the workers for access to folders")
def test_a_folder_that_workers_cannot_access_is_reported(
    inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The folder is on another file system for the worker."""
    pytest.importorskip("distributed", exc_type=ImportError)
    unshare = shutil.which("unshare")
    if not IS_ROOT or unshare is None:
        pytest.skip("a file system of its own needs the right to mount one")
    os.mkdir("spill")
    cluster = ProcessCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start_scheduler()
        mount = 'mount -t tmpfs none spill && "$@"'
        cluster.start_worker(prefix=(unshare, "-m", "sh", "-c", mount, ""))
        call = command("gather-nd", "out.npy", "--scheduler", cluster.file, "--spill", "spill")
        dry_run, run = (ndtool(*call, *flags) for flags in (("--dry-run",), ()))
        errors = [mask_temporary_names(result.err) for result in (dry_run, run)]
        assert (dry_run.status, dry_run.out, errors[0]) == (run.status, run.out, errors[1])
        assert (run.status, "temporary file: No such file" in run.err) == (7, True)
        assert os.listdir("spill") == []
    finally:
        cluster.kill_all()
