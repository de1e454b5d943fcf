"""`explain`: its steps equal those of the reference, in values, order and bits."""

import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, snapshot
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.lib.format import dtype_to_descr
from strategies import (
    Array,
    Case,
    call,
    cases,
    many,
    mean_of,
    note_attributes,
    plain_axes,
    random_values,
    raw_bytes,
)

from ndtool.analysis import explain, tuples, typed
from ndtool.analysis.oracle import reference
from ndtool.analysis.oracle.reductions import REDUCTIONS, native
from ndtool.analysis.running import RunningValues
from ndtool.arrays.source import ArrayMetadata, ContiguousSource
from ndtool.rules import dtypes
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs.calls import OpenCall, Request

pytestmark = pytest.mark.usefixtures("workdir")


def open_case(case: Case, **attributes: Any) -> OpenCall:
    """Return the open call of a case on arrays in memory."""
    arrays = dict(zip(OPERATORS[case.operator].inputs, case.arrays, strict=True))
    names = {role: role for role in arrays}
    request = Request(case.operator, **names, attributes=Attributes(**case.arguments), **attributes)
    return OpenCall(request, {role: array_source(role, array) for role, array in arrays.items()})


def array_source(name: str, array: Array) -> ContiguousSource:
    """Return an array as a source."""
    is_plain = array.dtype.names is None
    dtype = dtypes.from_numpy(array.dtype) if is_plain else _record(array)
    metadata = ArrayMetadata(dtype, array.shape, "C", array.shape, {})
    return ContiguousSource(name, metadata, memoryview(raw_bytes(array)))


def _record(array: Array) -> dtypes.Dtype:
    return dtypes.from_descr(dtype_to_descr(array.dtype))


def gathered_positions(case: Case) -> Array:
    """Return the position in data of each element of a gather's output, in row-major order."""
    data, indices = case.arrays
    positions = np.arange(data.size).reshape(data.shape)
    return call(reference, Case(case.operator, (positions, indices), case.arguments))


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


def bits(scalar: Array | None) -> bytes:
    assert scalar is not None
    assert scalar.shape == ()
    return raw_bytes(scalar)


def running_values(
    current: Array, updates: Iterable[Array], arguments: dict[str, Any]
) -> Iterator[Array]:
    """Yield an element after each of its updates."""
    reduction, include_self = arguments["reduction"], arguments.get("include_self", True)
    for count, update in enumerate(updates, 1):
        if arguments.get("duplicates") == "first" and count > 1:
            yield current
            continue
        current = combine(current, update, reduction if include_self or count > 1 else "none")
        if reduction != "mean":
            yield current
        else:
            mean = mean_of(native(current).reshape(1), np.array([count + include_self]))
            yield mean.astype(current.dtype)[0, ...]


def combine(current: Array, update: Array, reduction: str) -> Array:
    """Return an element after an update, both as arrays of one element."""
    if reduction == "none":
        return update if update.dtype == current.dtype else update.astype(current.dtype)
    with np.errstate(all="ignore"):
        result = REDUCTIONS[reduction].apply(native(current), native(update))
        return np.asarray(result).astype(current.dtype)


@many
@given(case=cases, chosen=st.data(), list_all=st.booleans())
def test_an_explanation_equals_the_reference(
    thresholds: pytest.MonkeyPatch, case: Case, chosen: st.DataObject, list_all: bool
) -> None:
    note_attributes(case)
    thresholds.setattr(explain, "EDGE_TUPLES", chosen.draw(st.sampled_from((1, 2, 5))))
    thresholds.setattr(tuples, "BLOCK", chosen.draw(st.sampled_from((1, 3, 1 << 17))))
    expected = call(reference, case)
    data = case.arrays[0]
    assume(expected.size and data.size)
    location = np.unravel_index(chosen.draw(st.integers(0, expected.size - 1)), expected.shape)
    origin = np.unravel_index(chosen.draw(st.integers(0, data.size - 1)), data.shape)
    coordinates, origin_coordinates = tuple(map(int, location)), tuple(map(int, origin))
    with open_case(case) as opened:
        signed_coordinates = [
            i - n if chosen.draw(st.booleans()) else i
            for i, n in zip(coordinates, expected.shape, strict=True)
        ]
        element, data_element = explain.explain(
            opened, [tuple(signed_coordinates)], [origin_coordinates], list_all
        ).explained
    assert isinstance(element, explain.ExplainedElement)
    assert isinstance(data_element, explain.ExplainedOrigin)
    assert (element.at, data_element.from_) == (coordinates, origin_coordinates)
    assert bits(element.array) == raw_bytes(expected[(*coordinates, ...)])
    assert bits(data_element.array) == raw_bytes(data[(*origin_coordinates, ...)])
    if len(case.arrays) == 2:
        check_gather(case, element, data_element, list_all)
    else:
        check_scatter(case, element, data_element, list_all)


@pytest.fixture
def thresholds() -> Iterator[pytest.MonkeyPatch]:
    """Yield a monkeypatch that sets thresholds."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def abbreviate(items: list[Any], list_all: bool) -> list[Any]:
    """Return the items that an explanation lists: all, or the first and the last ones."""
    n = explain.EDGE_TUPLES
    return items if list_all or len(items) <= 2 * n else items[:n] + items[-n:]


def check_gather(
    case: Case, element: explain.ExplainedElement, origin: explain.ExplainedOrigin, list_all: bool
) -> None:
    data, indices = case.arrays
    positions = gathered_positions(case)
    (step,) = element.steps
    assert np.ravel_multi_index(step.position, data.shape) == positions[element.at]
    assert bits(step.arrays[0]) == bits(step.arrays[1]) == bits(element.array)
    assert step.tuple == tuple(np.atleast_1d(indices[step.indices]).tolist())
    origin_position = np.ravel_multi_index(origin.from_, data.shape)
    outputs = [
        tuple(coordinates) for coordinates in np.argwhere(positions == origin_position).tolist()
    ]
    assert origin.count == len(outputs)
    assert sorted(origin.outputs) == sorted(abbreviate(outputs, list_all))
    for tuple_position, stored in origin.tuples:
        assert stored == tuple(np.atleast_1d(indices[tuple_position]).tolist())


def check_scatter(
    case: Case, element: explain.ExplainedElement, origin: explain.ExplainedOrigin, list_all: bool
) -> None:
    data, indices, updates = case.arrays
    reduction = case.arguments["reduction"]
    current, selections = data[(*element.at, ...)], list(updates_of(case, element.at))
    steps: list[Any] = [(element.at, None, None, raw_bytes(current), raw_bytes(current))]
    values = [updates[(*coordinates, ...)] for _, coordinates in selections]
    values_after = running_values(current, values, case.arguments)
    for (tuple_position, coordinates), update, result in zip(
        selections, values, values_after, strict=True
    ):
        stored_tuple = tuple(np.atleast_1d(indices[tuple_position]).tolist())
        steps.append(
            (coordinates, tuple_position, stored_tuple, raw_bytes(update), raw_bytes(result))
        )
    assert [
        (step.position, step.indices, step.tuple, *map(bits, step.arrays)) for step in element.steps
    ] == [steps[0], *abbreviate(steps[1:], list_all)]
    assert element.updates == len(steps) - 1
    is_replacing = reduction == "none" or not case.arguments.get("include_self", True)
    is_replaced = is_replacing and any(updates_of(case, origin.from_))
    assert list(origin.outputs) == [origin.from_] * (not is_replaced)
    assert origin.count == len(origin.outputs)


def test_running_values_have_the_padding_of_records() -> None:
    records = np.dtype([("a", "i1"), ("b", "i8")], align=True)
    updates = random_values(np.random.default_rng(3), records, (50,))
    running = RunningValues(np.zeros(5, records), Attributes(reduction="none"))
    running.apply(np.arange(50) % 5, updates)
    assert raw_bytes(running.values()) == raw_bytes(updates[45:])


def test_a_scatter_is_explained_as_text() -> None:
    save(table=np.array([[0.5], [1.5]], "f4"), rows=np.array([[1], [0], [-1]]))
    save(upd=np.array([[2], [7], [0.25]], "f4"))
    command = ("explain", "scatter-nd", "table.npy", "rows.npy", "upd.npy")
    assert ndtool(*command, "--reduction", "add", "--at", "1,-1").out.decode() == (
        "output[1, 0] = 3.75\n"
        "  current   table.npy[1, 0]  1.5\n"
        "  + update  upd.npy[0, 0]    2.0   rows.npy[0] = (1)   3.5\n"
        "  + update  upd.npy[2, 0]    0.25  rows.npy[2] = (-1)  3.75\n"
    )
    first = ndtool(*command, "--duplicates", "first", "--at", "1,-1").out.decode().splitlines()
    assert first[2:] == [
        "  = update        upd.npy[0, 0]    2.0   rows.npy[0] = (1)   2.0",
        "  ignored update  upd.npy[2, 0]    0.25  rows.npy[2] = (-1)  2.0",
    ]
    last = ndtool(*command, "--at", "1,-1").out.decode().splitlines()
    assert [line.split()[:2] for line in last[2:]] == [["=", "update"]] * 2
    completed = ndtool(*command, "--from", "1,0", "--from", "0,0", "--at", "0,0")
    assert completed.out.decode() == (
        "output[0, 0] = 7.0\n"
        "  current   table.npy[0, 0]  0.5\n"
        "  = update  upd.npy[1, 0]    7.0  rows.npy[1] = (0)  7.0\n"
        "\n"
        "table.npy[1, 0] = 1.5 was overwritten by upd.npy[2, 0], the last of 2 updates\n"
        "\n"
        "table.npy[0, 0] = 0.5 was overwritten by upd.npy[1, 0], the last of 1 update\n"
    )
    completed = ndtool(*command, "--from", "1,0", "--reduction", "max")
    assert completed.out == b"table.npy[1, 0] = 1.5 was copied to output[1, 0] and got 2 updates\n"


def test_gathers_are_explained_as_text() -> None:
    save(data=np.arange(12.0).reshape(4, 3))
    command = ("explain", "gather-nd", "data.npy", "[[3], [0], [-1]]")
    assert ndtool(*command, "--at", "2,1", "--from", "3,0", "--from", "1,1").out.decode() == (
        "output[2, 1] = 10.0\n"
        "  index  indices[2] = (-1), which is (3)\n"
        "  data   data.npy[3, 1]\n"
        "\n"
        "data.npy[3, 0] = 9.0 was copied to 2 elements of the output\n"
        "  output[0, 0]  indices[0] = (3)\n"
        "  output[2, 0]  indices[2] = (-1)\n"
        "\n"
        "data.npy[1, 1] = 4.0 was copied to no element of the output\n"
    )
    completed = ndtool("explain", "gather-nd", "data.npy", "[1, 2]", "--at", "")
    assert completed.out.startswith(b"output = 5.0\n  index  indices = (1, 2)\n")
    completed = ndtool(
        "explain", "gather", "data.npy", "[[2], [-1]]", "--axis", "1", "--at", "3,1,0"
    )
    assert completed.out.startswith(
        b"output[3, 1, 0] = 11.0\n  index  indices[1, 0] = -1, which is 2\n"
    )


def test_only_the_first_and_last_updates_are_listed() -> None:
    save(data=np.zeros(3, "f2"), idx=np.ones((1000, 1), "u1"), upd=np.full(1000, 0.1, "f2"))
    command = ("explain", "scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")
    *lines, advice = ndtool(*command, "--at", "1").out.decode().splitlines()
    assert advice.startswith("each update rounds to float16")
    assert len(lines) == 2 + 5 + 1 + 5
    assert lines[7] == "  ... 990 more updates: --all lists up to 10000"
    total = np.cumsum(np.full(1000, 0.1, "f2"), dtype="f2")
    assert [float(line.split()[-1]) for line in lines[2:7] + lines[8:]] == [
        float(str(value)) for value in [*total[:5], *total[-5:]]
    ]
    all_lines = ndtool(*command, "--at", "1", "--all").out.decode().splitlines()
    assert len(all_lines) == 2 + 1000 + 1
    assert [line.split() for line in all_lines if "upd.npy[4]" in line] == [lines[6].split()]
    record = ndtool(*command, "--at", "1", "--json").json
    assert (record["updates"], len(record["steps"])) == (1000, 11)
    for count in (1, 2):
        save(idx=np.ones((count, 1), "u1"), upd=np.full(count, 0.1, "f2"))
        text = ndtool(*command, "--at", "1").out.decode()
        assert ("each update rounds to float16" in text) == (count == 2)


def test_json_of_an_explanation_has_the_documented_keys() -> None:
    save(data=np.array([1.5, np.nan], "f4"), idx=np.array([[0], [-2]]), upd=np.ones(2, "f4"))
    command = ("explain", "scatter-nd", "data.npy", "idx.npy", "upd.npy", "--json")
    record = ndtool(*command, "--at", "0", "--reduction", "add").json
    del record["version"]
    assert record == {
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
    both = ndtool(*command, "--at", "1", "--from", "1").json
    assert both["explained"][0]["value"] == "nan"
    assert both["explained"][1] == {
        "from": [1], "value": "nan", "outputs": [[1]], "count": 1, "updates": 0,
    }  # fmt: skip
    origin = ndtool(*command, "--from", "0").json
    assert (origin["outputs"], origin["count"], origin["updates"]) == ([], 0, 2)


@pytest.mark.parametrize(
    ("array", "expected"),
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
def test_values_of_every_type_are_printed(array: Array, expected: Any) -> None:
    save(data=array)
    completed = ndtool("explain", "gather-nd", "data.npy", "[[0]]", "--at", "0", "--json")
    assert completed.json["value"] == expected
    assert b"\x1b" not in completed.out


def test_types_as_inputs_have_no_values() -> None:
    """With types as inputs, values of files are not printed either: they might pass for results."""
    save(data=np.full((4, 2), 4321.5, "f4"), upd=np.full((4, 2), 1234.5, "f4"))
    save(idx=np.array([[3], [1], [-1], [3]]))
    kind = "float32[4,2]"
    for reduction, inputs in (
        ("none", (kind, "upd.npy")), ("add", ("data.npy", kind)), ("mean", (kind, kind)),
    ):  # fmt: skip
        command = ("explain", "scatter-nd", inputs[0], "idx.npy", inputs[1], "--at", "3,1")
        completed = ndtool(*command, "--reduction", reduction)
        assert (completed.status, completed.err) == (0, "")
        assert b"4321.5" not in completed.out
        assert b"1234.5" not in completed.out
        record = ndtool(*command, "--reduction", reduction, "--all", "--json").json
        assert record["value"] is None
        assert {step[key] for step in record["steps"] for key in ("value", "result")} == {None}


@pytest.mark.parametrize(
    ("flags", "message"),
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
def test_an_invalid_position_is_refused(flags: Any, message: str) -> None:
    completed = ndtool("explain", "gather-nd", "float32[4,2]", "[[3], [1], [-1]]", *flags)
    assert (completed.status, completed.out) == (2, b"")
    assert message in completed.err


def test_an_index_out_of_bounds_gives_the_error_of_the_operator() -> None:
    index = np.zeros((9, 1), "i4")
    index[5] = 7
    save(data=np.zeros((7, 1)), idx=index, upd=np.zeros((9, 1)))
    files = ("data.npy", "idx.npy", "upd.npy")
    for operator, *inputs in (("gather-elements", *files[:2]), ("scatter-nd", *files)):
        completed = ndtool("explain", operator, *inputs, "--at", "0,0")
        operator_run = ndtool(operator, *inputs, "-o", "out.npy")
        assert (completed.status, completed.out, completed.err) == (5, b"", operator_run.err)
        assert "idx.npy[5, 0] = 7" in completed.err


@pytest.mark.parametrize("operator", ["scatter_nd", "gather_nd"])
def test_long_lists_have_their_first_and_last_items(
    operator: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer takes bounded time and memory, and says how much it omits."""
    count, edge = 1_000_000, 500
    monkeypatch.setattr(explain, "MAX_EDGE_TUPLES", edge)
    updates = np.random.default_rng(0).random(count, "f4")
    save(data=np.zeros(3, "f4"), idx=np.ones((count, 1), "i1"), upd=updates)
    before = snapshot(workdir)
    files = ("data.npy", "idx.npy", "upd.npy")[: len(OPERATORS[operator].inputs)]
    is_scatter = operator == "scatter_nd"
    attributes = Attributes(reduction="add" if is_scatter else "none")
    request = Request(operator, *files, attributes=attributes)
    elements, origins = ([(1,)], []) if is_scatter else ([], [(1,)])
    fractions: list[float] = []
    tracemalloc.start()
    try:
        with typed.open_typed_call(request) as call:
            explanation = explain.explain(
                call, elements, origins, list_all=True, progress=fractions.append
            )
            (item,) = explanation.explained
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
    assert (fractions, fractions[-1]) == (sorted(fractions), 1)
    (table,) = explanation.tables()
    remark = (
        f"... {count - 2 * edge} more{' updates' * is_scatter}: all=True lists up to {2 * edge}"
    )
    assert [row for row in table.rows if len(row) == 1] == [(remark,)]
    if isinstance(item, explain.ExplainedOrigin):
        assert item.count == count
        assert item.outputs == tuple((n,) for n in [*range(edge), *range(count - edge, count)])
    else:
        assert (item.updates, len(item.steps)) == (count, 1 + 2 * edge)
        sums = np.cumsum(updates, dtype="f4")
        listed = [*sums[:edge].tolist(), *sums[-edge:].tolist()]
        assert [step.result for step in item.steps[1:]] == listed
    assert snapshot(workdir) == before


def test_sums_of_short_floats_name_the_commands_that_sum_in_float32() -> None:
    """131,072 ones in four cells end at 2048; the commands in the advice give the sums."""
    count = 1 << 17
    save(data=np.zeros(4, "f2"), idx=(np.arange(count) % 4)[:, None], upd=np.ones(count, "f2"))
    command = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")
    assert ndtool("explain", *command, "--at", "0", "--json").json["value"] == 2048
    advice = "each update rounds to float16: a sum of ones ends at 2048. In float32: ndtool "
    for question in (("explain", *command, "--at", "0"), ("stats", *command[:3], *command[4:])):
        words = " ".join(ndtool(*question).out.decode().split()).partition(advice)[2]
        convert, _, scatter = words.partition(", then ndtool ")
        convert, scatter = convert.replace("UPDATES", "upd.npy"), scatter.partition(" slices ")[0]
        assert ndtool(*convert.split()).status == 0
        scattered = ndtool(*scatter.replace("INDICES", "idx.npy").split(), "-o", "sum.npy")
        assert scattered.status == 0, scattered.err
        assert np.load("sum.npy").tolist() == [count / 4] * 4
        assert np.load("sum.npy").dtype == np.float32


def test_indices_that_change_during_the_run_are_an_error() -> None:
    save(data=np.zeros(3), idx=np.zeros((5, 1), "i8"))

    def corrupt(fraction: float) -> None:
        with open("idx.npy", "r+b") as file:
            file.seek(-40, 2)
            file.write(b"\x09")

    request = Request("gather_nd", "data.npy", "idx.npy")
    with typed.open_typed_call(request) as call, pytest.raises(OSError, match=r"idx\.npy changed"):
        explain.explain(call, [(0,)], progress=corrupt)
