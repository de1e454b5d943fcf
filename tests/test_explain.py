"""`explain`: its steps equal those of brute force, in values, order and bits."""

import json
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import NDTOOL, at_terminal, ndtool, save, state
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.lib.format import dtype_to_descr
from strategies import Array, Case, cases, mean_of, plain_axes, random_values, raw
from test_properties import call, many, note_attributes

from ndtool.analysis import explain, records, tuples, typed
from ndtool.analysis.oracle import reference
from ndtool.analysis.oracle.reductions import REDUCTIONS, native
from ndtool.analysis.running import RunningValues
from ndtool.arrays.source import ArrayMetadata, FlatSource
from ndtool.cli import explanations, reporter
from ndtool.engine.counting import ReductionOptions
from ndtool.errors import BoundsError, UsageError
from ndtool.rules import dtypes
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request
from ndtool.storage import tempfiles
from ndtool.storage.local import ByteRange

pytestmark = pytest.mark.usefixtures("workdir")


def opened(case: Case, **attributes: Any) -> OpenCall:
    """Return the call of a case, on arrays instead of files."""
    arrays = dict(zip(OPERATORS[case.operator].inputs, case.arrays, strict=True))
    names = {role: role for role in arrays}
    request = Request(case.operator, **names, attributes=Attributes(**case.arguments), **attributes)
    return OpenCall(request, {role: flat(role, array) for role, array in arrays.items()})


def flat(name: str, array: Array) -> FlatSource:
    """Return an array as a source."""
    plain = array.dtype.names is None
    dtype = dtypes.from_numpy(array.dtype) if plain else _record(array)
    metadata = ArrayMetadata(dtype, array.shape, "C", array.shape, {})
    return FlatSource(name, metadata, ByteRange(memoryview(raw(array))))


def _record(array: Array) -> dtypes.Dtype:
    return dtypes.from_descr(dtype_to_descr(array.dtype))


def numbered(case: Case) -> Array:
    """Return the position in data of each element of a gather's output, in row-major order."""
    data, indices = case.arrays
    numbers = np.arange(data.size).reshape(data.shape)
    return call(reference, Case(case.operator, (numbers, indices), case.arguments))


def updates_of(
    case: Case, location: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the positions in indices and in updates of every update of an element."""
    data, indices, _ = case.arrays
    axis, b = plain_axes(case)
    if case.operator == "scatter_nd":
        k = indices.shape[-1]
        for i in np.ndindex(indices.shape[:-1]):
            row = tuple(int(v) % n for v, n in zip(indices[i], data.shape[b:], strict=False))
            if i[:b] + row == location[: b + k]:
                yield i, i + location[b + k :]
        return
    if case.operator == "scatter":
        for i in np.ndindex(indices.shape):
            if i[:b] == location[:b] and int(indices[i]) % data.shape[axis] == location[axis]:
                yield i, location[:axis] + i[b:] + location[axis + 1 :]
        return
    for i in np.ndindex(indices.shape):
        if (*i[:axis], int(indices[i]) % data.shape[axis], *i[axis + 1 :]) == location:
            yield i, i


def bits(one: Array | None) -> bytes:
    assert one is not None
    assert one.shape == ()
    return raw(one)


def results(old: Array, updates: Iterable[Array], arguments: dict[str, Any]) -> Iterator[Array]:
    """Yield an element after each of its updates."""
    reduction, include_self = arguments["reduction"], arguments.get("include_self", True)
    for number, update in enumerate(updates, 1):
        if arguments.get("duplicates") == "first" and number > 1:
            yield old
            continue
        old = combined(old, update, reduction if include_self or number > 1 else "none")
        if reduction != "mean":
            yield old
        else:
            mean = mean_of(native(old).reshape(1), np.array([number + include_self]))
            yield mean.astype(old.dtype)[0, ...]


def combined(old: Array, update: Array, reduction: str) -> Array:
    """Return the result of an update of an element, both as arrays of one element."""
    if reduction == "none":
        return update if update.dtype == old.dtype else update.astype(old.dtype)
    with np.errstate(all="ignore"):
        result = REDUCTIONS[reduction].apply(native(old), native(update))
        return np.asarray(result).astype(old.dtype)


@many
@given(case=cases, chosen=st.data(), every=st.booleans())
def test_an_explanation_equals_brute_force(
    limits: pytest.MonkeyPatch, case: Case, chosen: st.DataObject, every: bool
) -> None:
    note_attributes(case)
    limits.setattr(tuples, "EDGE_TUPLES", chosen.draw(st.sampled_from((1, 2, 5))))
    limits.setattr(tuples, "BLOCK", chosen.draw(st.sampled_from((1, 3, 1 << 17))))
    expected = call(reference, case)
    data = case.arrays[0]
    assume(expected.size and data.size)
    location = np.unravel_index(chosen.draw(st.integers(0, expected.size - 1)), expected.shape)
    origin = np.unravel_index(chosen.draw(st.integers(0, data.size - 1)), data.shape)
    at, came = tuple(map(int, location)), tuple(map(int, origin))
    with opened(case) as job:
        back = [
            i - n if chosen.draw(st.booleans()) else i
            for i, n in zip(at, expected.shape, strict=True)
        ]
        (element,), (gone,) = explain.explain(job, [tuple(back)], [came], every)
    assert (element.position, gone.position) == (at, came)
    assert bits(element.value) == raw(expected[(*at, ...)])
    assert bits(gone.value) == raw(data[(*came, ...)])
    if len(case.arrays) == 2:
        check_gather(case, element, gone, every)
    else:
        check_scatter(case, element, gone, every)


@pytest.fixture
def limits() -> Iterator[pytest.MonkeyPatch]:
    """Yield a function that sets thresholds."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def few(everything: list[Any], every: bool) -> list[Any]:
    """Return the items of a list."""
    n = tuples.EDGE_TUPLES
    return everything if every or len(everything) <= 2 * n else everything[:n] + everything[-n:]


def check_gather(case: Case, element: explain.Element, gone: explain.Origin, every: bool) -> None:
    data, indices = case.arrays
    numbers = numbered(case)
    (step,) = element.steps
    assert np.ravel_multi_index(step.position, data.shape) == numbers[element.position]
    assert bits(step.value) == bits(step.result) == bits(element.value)
    assert step.stored == tuple(np.atleast_1d(indices[step.indices]).tolist())
    wanted = np.ravel_multi_index(gone.position, data.shape)
    outputs = [tuple(at) for at in np.argwhere(numbers == wanted).tolist()]
    assert gone.total == len(outputs)
    assert sorted(copy.position for copy in gone.outputs) == sorted(few(outputs, every))
    for copy in gone.outputs:
        assert copy.stored == tuple(np.atleast_1d(indices[copy.indices]).tolist())


def check_scatter(case: Case, element: explain.Element, gone: explain.Origin, every: bool) -> None:
    data, indices, updates = case.arrays
    reduction = case.arguments["reduction"]
    old, found = data[(*element.position, ...)], list(updates_of(case, element.position))
    steps = [(element.position, None, (), raw(old), raw(old))]
    taken = [updates[(*at, ...)] for _, at in found]
    after = results(old, taken, case.arguments)
    for (where, at), update, result in zip(found, taken, after, strict=True):
        named = tuple(np.atleast_1d(indices[where]).tolist())
        steps.append((at, where, named, raw(update), raw(result)))
    assert [
        (s.position, s.indices, s.stored, bits(s.value), bits(s.result)) for s in element.steps
    ] == [steps[0], *few(steps[1:], every)]
    assert element.updates == len(steps) - 1
    copied = reduction == "none" or not case.arguments.get("include_self", True)
    replaced = copied and any(updates_of(case, gone.position))
    assert [copy.position for copy in gone.outputs] == [gone.position] * (not replaced)
    assert gone.total == len(gone.outputs)


def test_running_values_have_the_padding_of_records() -> None:
    records = np.dtype([("a", "i1"), ("b", "i8")], align=True)
    updates = random_values(np.random.default_rng(3), records, (50,))
    running = RunningValues(
        np.zeros(5, records), ReductionOptions.from_attributes(Attributes(reduction="none"))
    )
    running.apply(np.arange(50) % 5, updates)
    assert raw(running.values()) == raw(updates[45:])


def test_a_scatter_as_text() -> None:
    save(table=np.array([[0.5], [1.5]], "f4"), rows=np.array([[1], [0], [-1]]))
    save(upd=np.array([[2], [7], [0.25]], "f4"))
    run = ("explain", "scatter-nd", "table.npy", "rows.npy", "upd.npy")
    assert ndtool(*run, "--reduction", "add", "--at", "1,-1").out.decode() == (
        "output[1, 0] = 3.75\n"
        "  current   table.npy[1, 0]  1.5\n"
        "  + update  upd.npy[0, 0]    2.0   rows.npy[0] = (1)   3.5\n"
        "  + update  upd.npy[2, 0]    0.25  rows.npy[2] = (-1)  3.75\n"
    )
    first = ndtool(*run, "--duplicates", "first", "--at", "1,-1").out.decode().splitlines()
    assert first[2:] == [
        "  = update        upd.npy[0, 0]    2.0   rows.npy[0] = (1)   2.0",
        "  ignored update  upd.npy[2, 0]    0.25  rows.npy[2] = (-1)  2.0",
    ]
    last = ndtool(*run, "--at", "1,-1").out.decode().splitlines()
    assert [line.split()[:2] for line in last[2:]] == [["=", "update"]] * 2
    ran = ndtool(*run, "--from", "1,0", "--from", "0,0", "--at", "0,0")
    assert ran.out.decode() == (
        "output[0, 0] = 7.0\n"
        "  current   table.npy[0, 0]  0.5\n"
        "  = update  upd.npy[1, 0]    7.0  rows.npy[1] = (0)  7.0\n"
        "\n"
        "table.npy[1, 0] = 1.5 was overwritten by upd.npy[2, 0], the last of 2 updates\n"
        "\n"
        "table.npy[0, 0] = 0.5 was overwritten by upd.npy[1, 0], the last of 1 update\n"
    )
    ran = ndtool(*run, "--from", "1,0", "--reduction", "max")
    assert ran.out == b"table.npy[1, 0] = 1.5 went to output[1, 0] and got 2 updates\n"


def test_gathers_as_text() -> None:
    save(data=np.arange(12.0).reshape(4, 3))
    run = ("explain", "gather-nd", "data.npy", "[[3], [0], [-1]]")
    assert ndtool(*run, "--at", "2,1", "--from", "3,0", "--from", "1,1").out.decode() == (
        "output[2, 1] = 10.0\n"
        "  index  indices[2] = (-1), which is (3)\n"
        "  data   data.npy[3, 1]\n"
        "\n"
        "data.npy[3, 0] = 9.0 went to 2 elements of the output\n"
        "  output[0, 0]  indices[0] = (3)\n"
        "  output[2, 0]  indices[2] = (-1)\n"
        "\n"
        "data.npy[1, 1] = 4.0 went to no element of the output\n"
    )
    ran = ndtool("explain", "gather-nd", "data.npy", "[1, 2]", "--at", "")
    assert ran.out.startswith(b"output = 5.0\n  index  indices = (1, 2)\n")
    ran = ndtool("explain", "gather", "data.npy", "[[2], [-1]]", "--axis", "1", "--at", "3,1,0")
    assert ran.out.startswith(b"output[3, 1, 0] = 11.0\n  index  indices[1, 0] = -1, which is 2\n")


def test_many_updates_are_summed_up_between_the_first_and_the_last() -> None:
    save(data=np.zeros(3, "f2"), idx=np.ones((1000, 1), "u1"), upd=np.full(1000, 0.1, "f2"))
    run = ("explain", "scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")
    lines = ndtool(*run, "--at", "1").out.decode().splitlines()
    assert len(lines) == 2 + 5 + 1 + 5
    assert lines[7] == "  ... 990 more updates: --all lists them"
    total = np.cumsum(np.full(1000, 0.1, "f2"), dtype="f2")
    assert [float(line.split()[-1]) for line in lines[2:7] + lines[8:]] == [
        float(str(value)) for value in [*total[:5], *total[-5:]]
    ]
    every = ndtool(*run, "--at", "1", "--all").out.decode().splitlines()
    assert len(every) == 2 + 1000
    assert [line.split() for line in every if "upd.npy[4]" in line] == [lines[6].split()]
    one = ndtool(*run, "--at", "1", "--json").json
    assert (one["updates"], len(one["steps"])) == (1000, 11)


def test_the_keys_of_json() -> None:
    save(data=np.array([1.5, np.nan], "f4"), idx=np.array([[0], [-2]]), upd=np.ones(2, "f4"))
    run = ("explain", "scatter-nd", "data.npy", "idx.npy", "upd.npy", "--json")
    one = ndtool(*run, "--at", "0", "--reduction", "add").json
    del one["version"]
    assert one == {
        "operator": "scatter_nd",
        "at": [0],
        "value": 3.5,
        "updates": 2,
        "steps": [
            {"role": "data", "position": [0], "value": 1.5, "indices": None, "tuple": None,
             "result": 1.5},
            {"role": "updates", "position": [0], "value": 1.0, "indices": [0], "tuple": [0],
             "result": 2.5},
            {"role": "updates", "position": [1], "value": 1.0, "indices": [1], "tuple": [-2],
             "result": 3.5},
        ],
    }  # fmt: skip
    both = ndtool(*run, "--at", "1", "--from", "1").json
    assert both["explained"][0]["value"] == "nan"
    assert both["explained"][1] == {
        "from": [1], "value": "nan", "outputs": [[1]], "count": 1, "updates": 0,
    }  # fmt: skip
    gone = ndtool(*run, "--from", "0").json
    assert (gone["outputs"], gone["count"], gone["updates"]) == ([], 0, 2)


def test_a_tuple_of_numbers_that_one_signed_type_does_not_hold() -> None:
    save(data=np.arange(6.0).reshape(2, 3), idx=np.array([[2**64 - 1, 1], [0, 2]], "u8"))
    run = ("gather-nd", "data.npy", "idx.npy", "--out-of-bounds", "clip")
    (step,) = ndtool("explain", *run, "--at", "0", "--json").json["steps"]
    assert (step["position"], step["value"]) == ([1, 1], 4)
    assert step["tuple"] == [2**64 - 1, 1]
    assert ndtool("explain", *run, "--from", "1,1", "--json").json["outputs"] == [[0]]


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (np.array([2**53 + 1]), str(2**53 + 1)),
        (np.array([-(2**53)]), -(2**53)),
        (np.array([2**64 - 1], "u8"), str(2**64 - 1)),
        (np.array([0.1], "f2"), 0.0999755859375),
        (np.array([np.inf], "f8"), "inf"),
        (np.array([True]), True),
        (np.array([1 + 2j]), "(1+2j)"),
        (np.array(["2020-01-01"], "M8[D]"), "2020-01-01"),
        (np.array([b"a\x1b"]), "b'a\\x1b'"),
        (np.array([(1, 2.5)], [("a", "i1"), ("b", "f4")]), "(1, 2.5)"),
        (np.array([b"ab"], "V2"), "b'\\x61\\x62'"),
        (np.zeros(1, "V1000"), "1000 bytes"),
        (np.array([1.5], "g"), "1.5"),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")),
)
def test_values_of_all_kinds(array: Array, shown: Any) -> None:
    save(data=array)
    run = ("explain", "gather-nd", "data.npy", "[[0]]", "--at", "0")
    assert ndtool(*run, "--json").json["value"] == shown
    assert "\x1b" not in ndtool(*run).out.decode()


def test_types_that_numpy_lacks() -> None:
    pytest.importorskip("ml_dtypes")
    save(data=np.array([0x3F80], "u2").view("V2"), upd=np.array([0x3C00], "u2").view("V2"))
    run = ("explain", "scatter-nd", "data.npy", "[[0]]", "upd.npy", "--at", "0")
    one = ndtool(*run, "--dtype", "bfloat16", "--reduction", "add", "--json").json
    assert (one["value"], one["steps"][1]["value"]) == (1.0078125, 0.0078125)
    assert ndtool(*run).status == 0
    assert ndtool(*run, "--reduction", "add").status == 4


def test_types_in_place_of_files() -> None:
    save(idx=np.array([[3], [1], [-1]]))
    run = ("explain", "scatter-nd", "float32[4,2]", "idx.npy", "float32[3,2]")
    ran = ndtool(*run, "--at", "3,1", "--reduction", "add")
    assert (ran.status, ran.err) == (0, "")
    assert [line.split() for line in ran.out.decode().splitlines()] == [
        ["output[3,", "1]"],
        ["current", "data[3,", "1]"],
        ["+", "update", "updates[0,", "1]", "idx.npy[0]", "=", "(3)"],
        ["+", "update", "updates[2,", "1]", "idx.npy[2]", "=", "(-1)"],
    ]
    one = ndtool(*run, "--at", "3,1", "--json").json
    assert one["value"] is one["steps"][2]["value"] is one["steps"][2]["result"] is None
    refused = ndtool("explain", "gather-nd", "float32[4,2]", "int64[3,1]", "--at", "0,0")
    assert refused.status == 2
    assert refused.err.startswith("error: int64[3,1] is a type without values: expected a file\n")
    assert ndtool("explain", "gather-nd", "float32[4,2]", "int64[3,3]", "--at", "0").status == 4


SCATTERED = {"data": "data.npy", "indices": "idx.npy", "updates": "upd.npy"}
TYPES = {"data": "float32[4,2]", "updates": "float32[4,2]"}


@pytest.mark.parametrize("typed", [("data",), ("updates",), ("data", "updates")], ids="+".join)
@pytest.mark.parametrize("operator", ["scatter-nd", "scatter-elements"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min", "mean"])
def test_types_as_inputs_have_no_values(
    operator: str, reduction: str, typed: tuple[str, ...]
) -> None:
    """Neither unknown values nor known ones, which could be mistaken for a result."""
    index = np.array([[3], [1], [-1], [3]])
    save(data=np.full((4, 2), 4321.5, "f4"), upd=np.full((4, 2), 1234.5, "f4"))
    save(idx=np.tile(index, 2) if operator == "scatter-elements" else index)
    named = [TYPES[role] if role in typed else name for role, name in SCATTERED.items()]
    options = [word for row in (1, 3, -1) for word in ("--at", f"{row},1")]
    run = ("explain", operator, *named, "--reduction", reduction, *options)
    ran = ndtool(*run)
    assert (ran.status, ran.err) == (0, "")
    assert b"4321.5" not in ran.out
    assert b"1234.5" not in ran.out
    for one in ndtool(*run, "--all", "--json").json["explained"]:
        assert one["value"] is None
        assert {step["value"] for step in one["steps"]} == {None}
        assert {step["result"] for step in one["steps"]} == {None}


def test_values_that_depend_on_no_type_are_known() -> None:
    save(data=np.array([5.5, 6.5], "f4"), upd=np.array([7.5], "f4"))
    run = ("explain", "scatter-nd", "data.npy", "[[1]]", "float32[1]", "--reduction", "add")
    found = ndtool(*run, "--at", "0", "--from", "1", "--json").json["explained"]
    assert [one["value"] for one in found] == [5.5, 6.5]
    run = ("explain", "scatter-nd", "float32[2]", "[[1]]", "upd.npy")
    found = ndtool(*run, "--at", "0", "--at", "1", "--from", "1", "--json").json["explained"]
    assert [one["value"] for one in found] == [None, None, None]
    run = ("explain", "gather-nd", "float32[2]", "[[7], [1]]", "--out-of-bounds", "fill")
    found = ndtool(*run, "--fill", "9", "--at", "0", "--at", "1", "--json").json["explained"]
    assert [one["value"] for one in found] == [9.0, None]


@pytest.mark.parametrize("rule", ["clip", "wrap", "drop"])
def test_unknown_updates_stay_unknown_where_thousands_meet_an_element(rule: str) -> None:
    save(data=np.full(3, 7, "i2"), idx=np.ones((1000, 1), "i2"))
    run = ("explain", "scatter-nd", "data.npy", "idx.npy", "int16[1000]", "--at", "1", "--json")
    one = ndtool(*run, "--reduction", "add", "--out-of-bounds", rule).json
    assert (one["value"], one["updates"], len(one["steps"])) == (None, 1000, 11)
    assert {step["result"] for step in one["steps"]} == {None}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "missing option: expected --at or --from"),
        (("--at", "4,0"), "--at 4,0: axis 0 of the output has size 3: valid -3..2"),
        (("--at", "-4,0"), "--at -4,0: axis 0 of the output has size 3: valid -3..2"),
        (("--at", "0"), "--at 0: the output has shape [3,2]: expected one number for each"),
        (("--from", "0,2"), "--from 0,2: axis 1 of data has size 2: valid -2..1"),
        (("--at", "1.5"), "'1.5' is not a position: expected one such as 3,0"),
        (("--at", "9" * 30), "is not a position"),
    ],
)
def test_an_invalid_position(flags: Any, words: str) -> None:
    ran = ndtool("explain", "gather-nd", "float32[4,2]", "[[3], [1], [-1]]", *flags)
    assert (ran.status, ran.out) == (2, b"")
    assert words in ran.err


def test_an_empty_axis_has_no_position() -> None:
    ran = ndtool("explain", "gather-nd", "float32[4,0]", "[[3]]", "--at", "0,0")
    assert ran.status == 2
    assert "axis 1 of the output has size 0: no number is valid" in ran.err


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_index_out_of_bounds_anywhere_is_the_usual_error(operator: str) -> None:
    index = np.zeros((9, 1), "i4")
    index[5] = 7
    save(data=np.zeros((7, 1)), idx=index, upd=np.zeros((9, 1)))
    names = [f"{n}.npy" for n in ("data", "idx", "upd")][: len(OPERATORS[operator].inputs)]
    command = OPERATORS[operator].command
    if operator == "scatter":
        save(upd=np.zeros((9, 1, 1)))
    ran = ndtool("explain", command, *names, "--at", "0" + ",0" * (1 + (operator == "gather")))
    usual = ndtool(command, *names, "-o", "out.npy")
    assert (ran.status, ran.out, ran.err) == (5, b"", usual.err)
    assert "idx.npy[5, 0] = 7" in ran.err


def test_a_spec_is_respected() -> None:
    run = ("explain", "gather-nd", "float32[4]", "[[-1]]", "--at", "0", "--spec", "openvino:8")
    assert ndtool(*run).status == 5
    assert ndtool(*run[:-2]).status == 0


def test_64_axes() -> None:
    data = np.arange(4.0).reshape((2, 2) + (1,) * 62)
    save(data=data, idx=np.zeros(data.shape, int), upd=data)
    zeros = ",".join("0" * 62)
    run = ("explain", "scatter-elements", "data.npy", "idx.npy", "upd.npy")
    one = ndtool(*run, "--at", f"0,1,{zeros}", "--json", "--reduction", "add").json
    assert [step["result"] for step in one["steps"]] == [1, 2, 5]


@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_is_as_wide_as_it_is(columns: int) -> None:
    save(**{"a-table-with-a-name": np.zeros((900, 2)), "updates-of-it": np.ones((3, 2))})
    save(**{"rows-that-change": np.array([[800], [1], [-100]])})
    names = ("a-table-with-a-name.npy", "rows-that-change.npy", "updates-of-it.npy")
    run = (*NDTOOL, "explain", "scatter-nd", *names, "--reduction", "add", "--at", "800,1")
    ran = at_terminal(*run, columns=columns)
    assert ran.status == 0
    lines = ran.screen.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) == (4 if columns == 200 else 6)
    assert ran.screen.split() == ndtool(*run[len(NDTOOL) :]).out.decode().split()


def test_memory_depends_on_no_size(workdir: Path) -> None:
    count = 3_000_000
    save(data=np.zeros(3, "i1"), idx=np.ones((count, 1), "i1"), upd=np.ones(count, "i1"))
    before = state(workdir)
    request = Request(
        "scatter_nd", "data.npy", "idx.npy", "upd.npy", attributes=Attributes(reduction="add")
    )
    shares: list[float] = []
    tracemalloc.start()
    try:
        with typed.open_typed_call(request) as call:
            (element,), _ = explain.explain(call, [(1,)], progress=shares.append)
            assert element.value is not None
            assert int(element.value) == np.int64(count).astype("i1")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert state(workdir) == before


@pytest.mark.slow("an explanation takes memory by its answer")
@pytest.mark.parametrize("form", ["JSON", "words"])
@pytest.mark.parametrize("operator", ["scatter_nd", "gather_nd"])
def test_memory_of_an_answer_depends_on_no_length(
    operator: str, form: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfiles, "MAX_IN_MEMORY", 1 << 16)  # beyond it, a file is used
    count = 15_000
    updates = np.random.default_rng(0).random(count, "f4")
    save(data=np.zeros(3, "f4"), idx=np.ones((count, 1), "i1"), upd=updates)
    before = state(workdir)
    files = ("data.npy", "idx.npy", "upd.npy")[: len(OPERATORS[operator].inputs)]
    scatters = operator == "scatter_nd"
    attributes = Attributes(reduction="add" if scatters else "none")
    request = Request(operator, *files, attributes=attributes)
    at, origins = ([(1,)], []) if scatters else ([], [(1,)])
    size = 0
    tracemalloc.start()
    try:
        with typed.open_typed_call(request) as call:
            found = explain.explain(call, at, origins, list_all=True)
            if form == "JSON":
                parts = reporter._json_fragments(records.explanation_record(call, *found, True))
            else:
                parts = explanations.explanation_lines(call, *found)
            for part in parts:
                size += len(part)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert size > 5 * count
    assert state(workdir) == before


def test_a_long_answer_is_one_object_with_the_results_of_a_run(workdir: Path) -> None:
    count = 3000
    updates = np.random.default_rng(0).standard_normal(count).astype("f2")
    updates[[7, 2000]] = [-0.0, np.inf]
    save(data=np.zeros(3, "f2"), idx=np.ones((count, 1), "i1"), upd=updates)
    run = ("explain", "scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")
    ran = ndtool(*run, "--at", "1", "--all", "--json")
    one = ran.json
    assert ran.out.decode() == json.dumps(one) + "\n"
    assert list(one) == ["version", "operator", "at", "value", "updates", "steps"]
    sums = np.cumsum(np.append(np.float16(0), updates), dtype="f2")
    assert [float(step["result"]) for step in one["steps"]] == sums.tolist()
    assert (one["updates"], float(one["value"])) == (count, float(sums[-1]))
    gather = ("explain", "gather-nd", "data.npy", "idx.npy", "--all", "--json")
    ran = ndtool(*gather, "--from", "1", "--from", "0")
    assert ran.out.decode() == json.dumps(ran.json) + "\n"
    everywhere, nowhere = ran.json["explained"]
    assert everywhere["outputs"] == [[n] for n in range(count)]
    assert (everywhere["count"], nowhere["outputs"]) == (count, [])


def test_an_input_that_changes_while_a_long_answer_is_printed(workdir: Path) -> None:
    save(data=np.zeros(3), idx=np.zeros((5000, 1), "i8"), upd=np.zeros(5000))
    request = Request("scatter_nd", "data.npy", "idx.npy", "upd.npy")
    with typed.open_typed_call(request) as call:
        (element,), _ = explain.explain(call, [(0,)], list_all=True)
        with open("idx.npy", "r+b") as file:
            file.seek(-8, 2)
            file.write(b"\x09")

        def read() -> None:
            assert len(list(element.steps)) == 5001  # if a small file was read completely
            call.recheck()

        with pytest.raises(OSError, match=r"idx\.npy changed"):
            read()


def test_indices_that_change_meanwhile() -> None:
    save(data=np.zeros(3), idx=np.zeros((5, 1), "i8"))

    def corrupt(share: float) -> None:
        with open("idx.npy", "r+b") as file:
            file.seek(-40, 2)
            file.write(b"\x09")

    request = Request("gather_nd", "data.npy", "idx.npy")
    with typed.open_typed_call(request) as call, pytest.raises(OSError, match=r"idx\.npy changed"):
        explain.explain(call, [(0,)], progress=corrupt)


def test_positions_that_python_gives() -> None:
    with opened(Case("gather_nd", (np.zeros(3), np.array([[5]])), {})) as call:
        with pytest.raises(UsageError):
            explain.explain(call, [(0, 0)])
        with pytest.raises(BoundsError):
            explain.explain(call, [(0,)])
