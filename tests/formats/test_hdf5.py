"""HDF5 and NetCDF-4 files of the h5py package: read bit for bit, each chunk at most once."""

import errno
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, python
from inputs import assert_refused, load, open_input
from npyfile import ARRAY
from outputs import list_preserved_members, save
from outputs import open_sink as opened_output
from strategies import bits_equal

from ndtool.arrays.sink import Encoding
from ndtool.errors import InputError, NdtoolError, OutputError, ResourceError, UsageError
from ndtool.formats import locators

h5py = pytest.importorskip("h5py", exc_type=ImportError)

MODES = ("write", "items", "map")  # ways to fill a sink
RNG = np.random.default_rng(5)
TABLE = RNG.integers(0, 99, (70, 11)).astype("<f4")
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (16, 4)},
    "resizable": {"chunks": (16, 4), "maxshape": (None, None)},
    "one resizable axis": {"chunks": (16, 4), "maxshape": (None, 11)},
    "one chunk": {"chunks": (70, 11)},
    "gzip": {"chunks": (16, 4), "compression": "gzip"},
    "shuffle": {"chunks": (16, 4), "shuffle": True},
    "shuffle, gzip": {"chunks": (16, 4), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (16, 4), "compression": "lzf"},
    "fletcher32": {"chunks": (16, 4), "fletcher32": True},
    "scale and offset": {"chunks": (16, 4), "scaleoffset": 2},
    "szip": {"chunks": (16, 4), "compression": "szip"},
}


pytestmark = pytest.mark.usefixtures("workdir", "check_files_closed")


def write_dataset(
    array: Any, name: str = "a", path: str = "x.h5", mode: str = "w", **settings: Any
) -> None:
    """Write a dataset with h5py; settings: keyword arguments of `create_dataset`."""
    with h5py.File(path, mode) as file:
        file.create_dataset(name, data=array, **settings)


@pytest.mark.parametrize("version", ["earliest", "latest"])
@pytest.mark.parametrize("user_block", [0, 1024])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, version: str, user_block: int) -> None:
    with h5py.File("x.h5", "w", libver=version, userblock_size=user_block) as file:
        try:
            file.create_dataset("g/a", data=TABLE, **LAYOUTS[layout])
        except ValueError as exc:
            pytest.skip(str(exc))
        expected = file["g/a"][...]
    assert bits_equal(load("x.h5:/g/a"), expected)
    with open_input("x.h5:g/a") as source:
        assert ("chunks" in LAYOUTS[layout]) == source.metadata.is_chunked


def test_contiguous_values_are_memory_mapped() -> None:
    write_dataset(np.arange(100_000))
    with h5py.File("x.h5") as file:
        offset = file["a"].id.get_offset()
    with open_input("x.h5:/a") as source:
        assert (source.is_mapped, source.position) == (True, offset)
    (entry,) = locators.describe("x.h5")
    assert (entry.name, entry.position, entry.problem) == ("x.h5:/a", offset, "")


@pytest.mark.parametrize("settings", [{}, {"fillvalue": -3}])
def test_values_that_were_never_written(settings: dict[str, Any]) -> None:
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("flat", (1 << 50,), "<i4", **settings)
        dataset = file.create_dataset("chunks", (1 << 40,), "<i4", chunks=(1000,), **settings)
        dataset[1 << 39] = 9
        file.create_dataset("endless", (1 << 60,), "<i4", chunks=(1000,), **settings)
    np.save("i.npy", np.array([1 << 45, 0, -1]))
    fill = settings.get("fillvalue", 0)
    completed = ndtool("gather", "x.h5:flat", "i.npy", "-o", "o.npy")
    assert completed.status == 0, completed
    assert np.load("o.npy").tolist() == [fill] * 3
    np.save("i.npy", np.array([1 << 39, (1 << 39) + 1, -1]))
    completed = ndtool("gather", "x.h5:chunks", "i.npy", "-o", "o.npy")
    assert completed.status == 0, completed
    assert np.load("o.npy").tolist() == [9, fill, fill]
    assert ndtool("gather", "x.h5:endless", "i.npy", "-o", "e.npy").status == 6


# Names


def test_names_groups_and_links() -> None:
    with h5py.File("x.h5", "w") as file:
        file["g/h/deep"] = [1]
        file["g/member:name"] = [2]
        file["top"] = [3]
        file["hard"] = file["top"]
        file["soft"] = h5py.SoftLink("g/h")
        file["g/h/up"] = h5py.SoftLink("/top")
        file["g/h/circle"] = file["g"]
    dataset_names = [entry.name for entry in locators.describe("x.h5")]
    assert sorted(dataset_names) == [
        "x.h5:/g/h/deep",
        "x.h5:/g/member:name",
        "x.h5:/hard",
        "x.h5:/top",
    ]
    for member, value in (
        ("/g/h/deep", 1), ("g/h/deep", 1), ("/g//./h/deep/", 1), ("/g/member:name", 2), ("hard", 3),
        ("soft/deep", 1), ("soft/up", 3), ("g/h/circle/h/circle/h/deep", 1),
    ):  # fmt: skip
        assert load(f"x.h5:{member}").tolist() == [value], member


# Refused files


def test_one_of_several_datasets_must_be_named() -> None:
    write_dataset([1], name="g/only")
    assert load("x.h5").tolist() == [1]
    write_dataset([2], name="two", mode="a")
    assert_refused("x.h5:g", "^x.h5: /g is a group of 1 dataset: name one of them", UsageError)
    with h5py.File("z.h5", "w"):
        pass
    assert_refused("z.h5", "^z.h5: the file has no datasets$")


def test_links_to_other_files_are_not_followed() -> None:
    os.mkfifo("other.h5")  # opening it would block
    with h5py.File("x.h5", "w") as file:
        file["out"] = h5py.ExternalLink("other.h5", "/a")
        file["past"] = h5py.SoftLink("/out/b")
        file["circle"] = h5py.SoftLink("/circle")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["a"] = [1]
    for member in ("out", "out/b", "past"):
        assert_refused(f"x.h5:{member}", "out is a link to another file, which is not followed")
    assert_refused("x.h5:circle", "^x.h5:/circle: more than 16 soft links$")
    assert_refused("x.h5:dangling", "dangling is no dataset of the file")
    assert [entry.member for entry in locators.describe("x.h5")] == ["/a"]


def test_values_in_other_files_are_not_read() -> None:
    os.mkfifo("other.h5")
    with h5py.File("x.h5", "w", libver="latest") as file:
        virtual = h5py.VirtualLayout((4,), "f4", maxshape=(None,))
        source = h5py.VirtualSource("other.h5", "a", (4,), maxshape=(None,))
        virtual[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
        file.create_virtual_dataset("virtual", virtual)
        file.create_dataset("external", (10,), "f4", external=[("other.h5", 0, 40)])
    assert_refused("x.h5:virtual", "a virtual dataset, whose values are in other datasets")
    assert_refused("x.h5:external", "its values are in external files, which are not read")
    assert len(locators.describe("x.h5")) == 2


def test_types_that_numpy_lacks_are_refused() -> None:
    with h5py.File("x.h5", "w") as file:
        file["text"] = ["a", "b"]
        file.create_dataset("lists", (2,), h5py.vlen_dtype("i4"))
        file["references"] = np.array([file["text"].ref], h5py.ref_dtype)
        file["null"] = h5py.Empty("f4")
        narrow = h5py.h5t.STD_I32LE.copy()
        narrow.set_size(3)
        h5py.h5d.create(file.id, b"narrow", narrow, h5py.h5s.create_simple((3,)))
    for member, message in (
        ("text", "elements of variable length: expected a type of fixed size"),
        ("lists", "elements of variable length: expected a type of fixed size"),
        ("references", "elements are references: expected a type of fixed size"),
        ("null", "a null dataset, without values"),
        ("narrow", "elements of a type that NumPy lacks"),
    ):
        assert_refused(f"x.h5:{member}", f"^x.h5:/{member}: {message}$")


def test_filters_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with h5py.File("x.h5", "w") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((5,))
        creation.set_filter(32004, h5py.h5z.FLAG_OPTIONAL, (3,))
        space = h5py.h5s.create_simple((5,))
        h5py.h5d.create(file.id, b"a", h5py.h5t.STD_I32LE, space, creation)
    error = assert_refused(
        "x.h5:/a", r"\(32004\) of its chunks needs the hdf5plugin package", UsageError
    )
    assert error.hint == "pip install hdf5plugin"


def test_a_missing_h5py_gives_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset([1])
    monkeypatch.setitem(sys.modules, "h5py", None)
    error = assert_refused("x.h5", "needs the h5py package", UsageError)
    assert error.hint == "pip install 'ndtool[hdf5]'"


def test_hdf5_chunks_larger_than_memory_are_refused() -> None:
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("a", (1 << 40,), "i1", chunks=((1 << 32) - 1,))
    assert_refused(
        "x.h5", "^x.h5:/a: a chunk has 4294967295 bytes: at most 2147483648", ResourceError
    )


def test_chunks_that_are_compressed_twice() -> None:
    with h5py.File("x.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((16, 4))
        properties.set_deflate(1)
        properties.set_deflate(2)
        space = h5py.h5s.create_simple(TABLE.shape)
        element = h5py.h5t.py_create(TABLE.dtype)
        h5py.Dataset(h5py.h5d.create(file.id, b"a", element, space, properties))[...] = TABLE
    np.save("i.npy", [3, 60, -1])
    assert ndtool("gather", "x.h5:a", "i.npy", "-o", "o.npy").status == 0
    assert bits_equal(np.load("o.npy"), TABLE[[3, 60, -1]])


def test_chunks_with_wrong_sizes_or_content() -> None:
    write_dataset(np.zeros(4096, "i1"), chunks=(1024,), compression="gzip")
    with h5py.File("x.h5", "r+") as file:
        bomb = zlib.compress(bytes(1 << 16))
        for offset, raw in (
            (0, bomb),
            (1024, zlib.compress(bytes(1000))),
            (2048, b"no zlib at all"),
        ):
            file["a"].id.write_direct_chunk((offset,), raw)
        file["a"].id.write_direct_chunk((3072,), bytes(40_000))
    with open_input("x.h5") as source:
        for chunk in range(3):
            with pytest.raises(InputError, match=r"^x\.h5: "):
                source.read_block(chunk, ((1024 * chunk, 1024 * chunk + 1024),))
        with pytest.raises(InputError, match=r"a chunk of 40000 bytes at byte \d+: at most"):
            source.read_block(3, ((3072, 4096),))


def test_files_that_other_processes_write() -> None:
    with h5py.File("x.h5", "w", libver="latest") as file:
        file.create_dataset("a", data=[1], chunks=(1,), maxshape=(None,))
        file.swmr_mode = True
        assert load("x.h5").tolist() == [1]
    write_dataset([1])
    with open_input("x.h5") as source:
        write_dataset([1, 2, 3])
        with pytest.raises(NdtoolError, match="changed during the run"):
            source.require_unchanged()


def test_netcdf_attributes_are_not_applied_and_the_run_warns() -> None:
    with h5py.File("x.nc", "w") as file:
        packed, plain = file.create_dataset("t", data=[1, 2]), file.create_dataset("p", data=[0.5])
        packed.attrs["scale_factor"], packed.attrs["_FillValue"] = 0.1, np.int64(-9)
        plain.attrs["_FillValue"] = [np.nan]
        plain.attrs["units"] = "m"
    completed = ndtool("gather", "x.nc:t", "[1]", "-o", "o.npy")
    assert completed.status == 0
    assert "x.nc:/t: values as stored: scale_factor, _FillValue not applied" in completed.err
    assert np.load("o.npy").tolist() == [2]
    with open_input("x.nc:p") as source:
        assert source.warning is None


def test_netcdf_3_files_are_refused_with_a_hint() -> None:
    Path("x.nc").write_bytes(b"CDF\x01" + bytes(100))
    error = assert_refused("x.nc", "^x.nc: NetCDF-3: expected NetCDF-4")
    assert error.hint == "nccopy converts it. Then: nccopy -k nc4 x.nc x-nc4.nc"
    Path("x.h5").write_bytes(b"text")
    assert_refused("x.h5", "^x.h5: not an HDF5 file: expected its signature at byte 0")


# Outputs


def dataset_names(path: str = "x.h5") -> list[str]:
    datasets: list[str] = []
    with h5py.File(path) as file:
        file.visititems(
            lambda name, node: datasets.append(name) if hasattr(node, "dtype") else None
        )
    return sorted(datasets)


def read_dataset(name: str, path: str = "x.h5") -> Any:
    with h5py.File(path) as file:
        return file[name][...]


def write_example_file() -> None:
    """Write x.h5 with several datasets, attributes and a link."""
    with h5py.File("x.h5", "w", userblock_size=512) as file:
        file["g/a"], file["b"] = np.arange(100_000, dtype="<f4"), TABLE
        file["g/a"].attrs["units"] = "m"
        file.create_dataset("c", data=TABLE, **LAYOUTS["shuffle, gzip"]).attrs["units"] = "s"
        file.create_dataset("f", data=TABLE, **LAYOUTS["fletcher32"])
        file["soft"] = h5py.SoftLink("/g")


@pytest.mark.parametrize("mode", MODES)
def test_a_dataset_is_added_or_replaced_and_the_others_are_preserved(mode: str) -> None:
    write_example_file()
    array = RNG.integers(0, 99, (30, 4)).astype("<i2")
    for name in ("new", "g/new", "p/q/r", "b", "c"):
        before = {
            dataset: read_dataset(dataset).tobytes()
            for dataset in dataset_names()
            if dataset != name
        }
        preserved = save(f"x.h5:/{name}", array, mode)
        assert sorted(preserved) == sorted(f"/{dataset}" for dataset in before)
        assert bits_equal(read_dataset(name), array)
        assert {dataset: read_dataset(dataset).tobytes() for dataset in before} == before
    with h5py.File("x.h5") as file:
        assert file["g/a"].attrs["units"] == "m"
        assert (file.userblock_size, file["b"].chunks, file["c"].chunks) == (512, None, None)


def test_values_of_the_same_type_and_shape_are_overwritten() -> None:
    write_example_file()
    size = os.path.getsize("x.h5")
    for name, array in (("g/a", np.arange(100_000, dtype="<f4")), ("c", TABLE), ("f", TABLE)):
        save(f"x.h5:{name}", array + 1, "map")
        assert bits_equal(read_dataset(name), array + 1)
    with h5py.File("x.h5") as file:
        assert (file["g/a"].attrs["units"], file["c"].attrs["units"]) == ("m", "s")
        assert (file["c"].compression, file["c"].shuffle, file["f"].fletcher32) == (
            "gzip", True, True,
        )  # fmt: skip
    assert os.path.getsize("x.h5") < size + 20_000
    with h5py.File("x.h5", "r+") as file:
        file["alias"] = file["b"]
    save("x.h5:b", TABLE + 5)
    assert bits_equal(read_dataset("b"), TABLE + 5)
    assert bits_equal(read_dataset("alias"), TABLE)


def test_equal_arrays_give_equal_files() -> None:
    for path in ("a.h5", "b.h5"):
        save(f"{path}:g/a", TABLE)
        save(f"{path}:c", TABLE, "map", encoding=Encoding(chunks=(8, 11), codec="gzip:2"))
    assert Path("a.h5").read_bytes() == Path("b.h5").read_bytes()


@pytest.mark.parametrize(
    ("options", "chunks", "codec"),
    [
        (["--chunks", "16,4"], (16, 4), None),
        (["--chunks", "100,100"], (70, 11), None),
        (["--codec", "gzip:9", "--chunks", "16,4"], (16, 4), 9),
        (["--codec", "gzip"], (70, 11), 4),
        (["--codec", "none"], None, None),
        ([], None, None),
    ],
)
def test_chunks_and_codecs(options: list[str], chunks: Any, codec: int | None) -> None:
    np.save("x.npy", TABLE)
    completed = ndtool("convert", "x.npy", "y.h5:/g/a", *options)
    assert completed.status == 0, completed
    with h5py.File("y.h5") as file:
        assert (file["g/a"].chunks, file["g/a"].compression_opts) == (chunks, codec)
    assert bits_equal(read_dataset("g/a", "y.h5"), TABLE)
    assert bits_equal(load("y.h5"), TABLE)


def test_chunks_and_filters_of_data_are_the_default() -> None:
    write_dataset(TABLE, **LAYOUTS["shuffle, gzip"])
    np.save("i.npy", RNG.integers(0, 70, 50))
    for memory in ((), ("--memory", "64M")):
        completed = ndtool("gather", "x.h5:a", "i.npy", "-o", "y.h5:b", *memory)
        assert completed.status == 0, completed
        assert bits_equal(read_dataset("b", "y.h5"), TABLE[np.load("i.npy")])
        with h5py.File("y.h5") as file:
            assert (file["b"].chunks, file["b"].shuffle, file["b"].compression_opts) == (
                (16, 4), True, 4,
            )  # fmt: skip
        os.unlink("y.h5")
    assert ndtool("gather", "x.h5:a", "i.npy", "--codec", "none", "-o", "y.h5:b").status == 0
    with h5py.File("y.h5") as file:
        assert file["b"].chunks is None


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"scale and offset", "szip"}))
def test_few_updates_leave_other_chunks_as_they_are_stored(layout: str) -> None:
    write_dataset(TABLE, **LAYOUTS[layout])
    chunks = {}
    if layout == "shuffle, gzip":  # one not as h5py encodes it, one without its filters
        chunks = {0: (0, zlib.compress(bytes(256), 0)), 4: (3, bytes(range(256)))}
        with h5py.File("x.h5", "r+") as file:
            for column, (mask, chunk) in chunks.items():
                file["a"].id.write_direct_chunk((16, column), chunk, mask)
    np.save("i.npy", [[69, 10], [3, 1]])
    np.save("u.npy", np.float32([7, 8]))
    expected = read_dataset("a")
    expected[[69, 3], [10, 1]] = 7, 8
    for path, name in (("y.h5", "g/b"), ("x.h5", "c"), ("x.h5", "a")):
        completed = ndtool("scatter-nd", "x.h5:a", "i.npy", "u.npy", "-o", f"{path}:{name}")
        assert completed.status == 0, completed
        assert bits_equal(load(f"{path}:{name}"), expected)
        with h5py.File(path) as file:
            for column, stored in chunks.items():
                assert file[name].id.read_direct_chunk((16, column)) == stored


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("x.h5:/g", "x.h5:/g: a group: expected a dataset"),
        ("x.h5:/b/c", "x.h5:/b/c: no group: nothing can be"),
        ("x.h5:/soft", "soft is a soft or external link"),
        ("x.h5:/soft/a", "soft is a soft or external link"),
        ("x.h5:/", "cannot name a dataset"),
        ("x.nc:/a", "NetCDF files are read, not written"),
    ],
)
def test_names_that_are_not_written(target: str, message: str) -> None:
    write_example_file()
    before = Path("x.h5").read_bytes()
    for refuse in (opened_output, list_preserved_members):
        with pytest.raises(NdtoolError, match=re.escape(message)):
            refuse(target)
    assert Path("x.h5").read_bytes() == before


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (Encoding(shards=(2, 3, 4)), "HDF5 has no shards"),
        (Encoding(codec="zstd"), "HDF5 has gzip or none"),
        (Encoding(chunks=(2,)), "chunks 2 has 1 sizes: the output has rank 3"),
    ],
)
def test_encodings_that_hdf5_lacks(encoding: Encoding, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opened_output("x.h5:a", encoding=encoding)


def test_a_file_that_another_process_writes_is_not_replaced() -> None:
    with h5py.File("x.h5", "w", libver="latest") as file:
        file["a"] = [1]
        file.flush()
        with pytest.raises(OutputError, match="open for writing in another process"):
            opened_output("x.h5:b")


@pytest.mark.parametrize("chunks", [None, (1, 3, 4)])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_write(
    code: int, chunks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_example_file()
    content, write, remaining = Path("x.h5").read_bytes(), os.pwrite, [0]

    def write_or_fail(fd: int, data: Any, offset: int) -> int:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise OSError(code, os.strerror(code))
        return write(fd, data, offset)

    error_type = ResourceError if code == errno.ENOSPC else OutputError
    for writes in range(100):
        remaining[0] = writes
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", write_or_fail)
            try:
                save("x.h5:new", mode="map", encoding=Encoding(chunks=chunks))
                break
            except error_type as exc:
                assert exc.message.startswith("x.h5: ")  # noqa: PT017 # how many writes varies
        assert (os.listdir(), Path("x.h5").read_bytes()) == (["x.h5"], content)
    assert writes > 3
    assert bits_equal(read_dataset("new"), ARRAY)


# Damaged files


DAMAGED_FILES_PROGRAM = """
import random, signal, sys
from contextlib import closing
from pathlib import Path
from ndtool.arrays import source
from ndtool.errors import NdtoolError
from ndtool.formats import locators
from ndtool.formats.streams import Streams
raw = Path("x.h5").read_bytes()
signal.signal(signal.SIGALRM, signal.SIG_DFL)
for seed in range(int(sys.argv[1]), int(sys.argv[1]) + 40):
    rng, damaged = random.Random(seed), bytearray(raw)
    for _ in range(rng.choice((1, 1, 3))):
        damaged[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    Path("in.h5").write_bytes(damaged)
    signal.alarm(60)
    for name in ("g/a", "b", "c", "f"):
        try:
            locators.describe("in.h5")
            with closing(locators.open_source(f"in.h5:{name}", Streams(-1))) as array:
                if array.metadata.nbytes < 1 << 22:
                    array.load()
        except NdtoolError:
            pass
"""


@pytest.mark.parametrize(
    "first", [0, pytest.param(100, marks=pytest.mark.slow("other damages of HDF5 files"))]
)
def test_damaged_files_raise_no_other_exceptions(first: int) -> None:
    """They are read in another process, because HDF5's library may crash or hang."""
    write_example_file()
    completed = python(DAMAGED_FILES_PROGRAM, first)
    assert completed.status <= 0, completed


DAMAGED_HEAP_PROGRAM = """
import signal
from pathlib import Path
from ndtool.formats import locators
raw = Path("x.nc").read_bytes()
heap = raw.index(b"GCOL")
signal.signal(signal.SIGALRM, signal.SIG_DFL)
for position in range(heap + 8, heap + 72):
    Path("in.nc").write_bytes(raw[:position] + b"\\xff" + raw[position + 1 :])
    signal.alarm(60)
    assert [entry.label for entry in locators.describe("in.nc")] == ["float32[3]", "int64[3]"]
"""


def test_a_damaged_heap_is_not_searched_for_the_dimensions_of_netcdf() -> None:
    """HDF5's library would search it without end."""
    with h5py.File("x.nc", "w") as file:
        for name, values in (("time", [1, 2, 3]), ("a", np.ones(2, "f4"))):
            file.create_dataset(name, data=values, maxshape=(None,), chunks=(2,))
        file["time"].make_scale()
        file["a"].dims[0].attach_scale(file["time"])
    completed = python(DAMAGED_HEAP_PROGRAM)
    assert completed.status == 0, completed
    with h5py.File("x.nc", "r+") as file:
        header = h5py.h5o.get_info(file["time"].id).addr
    raw = bytearray(Path("x.nc").read_bytes())
    raw[header] ^= 1
    Path("x.nc").write_bytes(raw)
    assert_refused("x.nc:a", "a dimension of unknown length")
