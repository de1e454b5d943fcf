"""Text inputs: numbers in .txt, .csv, .tsv, .json and .jsonl files, and through pipes."""

import gzip
import json
import os
import random
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save

from ndtool.errors import InputError, NdtoolError, ResourceError
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.formats.text import lines, nested, rows
from ndtool.rules import dtypes, numbers

rows._parse_by_arrow(b"1,x\n", b",", 2, (0,), "q")  # pyarrow's threads keep files open
pytestmark = pytest.mark.usefixtures("workdir", "check_files_closed")


def parsers() -> Iterator[str]:
    """Yield the name of each parser, and use it meanwhile; one reads blocks of a few bytes."""
    for name, module, attribute, value in (
        ("quick", rows, "MIN_ARROW_BLOCKS", 1 << 30),
        ("exact", rows, "_parse_block", lambda *_: None),
        ("small blocks", lines, "READ_SIZE", 7),
        ("pyarrow", rows, "MIN_ARROW_BLOCKS", 0),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "MIN_ARROW_BLOCKS", 1 << 30)
            patch.setattr(module, attribute, value)
            yield name


def read(argument: str, dtype: str | None = None, free: bool = False) -> Any:
    """Return the array of indices, of updates, or of data, in a text file."""
    expected = None if dtype is None else dtypes.from_name(dtype)
    literals = dtype is None and not free
    with closing(
        locators.open_source(argument, Streams(-1), literals=literals, dtype=expected)
    ) as opened_source:
        raw = opened_source.load()
        values = np.frombuffer(raw.tobytes(), opened_source.metadata.dtype.descr)
        return values.reshape(opened_source.metadata.shape)


def put(name: str, content: str | bytes) -> None:
    raw = content.encode() if isinstance(content, str) else content
    Path(name.partition(":")[0]).write_bytes(raw)


UINT64_START = 2**63
GOOD = [
    ("i.txt", "5\n7\n-1\n", [5, 7, -1]),
    ("i.txt", "5\n7", [5, 7]),
    ("i.txt", "5\r\n7\r\n", [5, 7]),
    ("i.txt", "5\n7\r", [5, 7]),
    ("i.txt", b"\xef\xbb\xbf5\n7\n", [5, 7]),
    ("i.txt", "# ids\n\n5\n  # more\n\n7\n\n", [5, 7]),
    ("i.txt", "  5  \n\t7\n", [5, 7]),
    ("i.txt", "+5\n007\n-0\n", [5, 7, 0]),
    ("i.txt", "ids\n5\n7\n", [5, 7]),
    ("i.txt", "1 2\n3   4\n5\t6 \n", [[1, 2], [3, 4], [5, 6]]),
    ("i.txt", "1,2\n3, 4\n", [[1, 2], [3, 4]]),
    ("i.txt", "1\t2\n3\t4\n", [[1, 2], [3, 4]]),
    ("i.txt", "1;2\n3;4\n", [[1, 2], [3, 4]]),
    ("i.txt", "\n# nothing\n", []),
    ("i.txt", f"{UINT64_START - 1}\n-{UINT64_START}\n", [UINT64_START - 1, -UINT64_START]),
    ("i.txt", f"1\n{UINT64_START}\n{2 * UINT64_START - 1}\n", np.array([1, UINT64_START, 2 * UINT64_START - 1], "u8")),
    ("i.csv", "user_id\n5\n7\n", [5, 7]),
    ("i.csv:0", "5,abc\n6,def\n", [5, 6]),
    ("i.csv:1st", "1st,b\n5,6\n", [5]),
    ("i.csv:2020", "2019,2020\n5,6\n", [6]),
    ("i.csv:j", "j,e\n5,6\n", [5]),
    ("i.csv:id", "id,2024\n5,6\n", [5]),
    ("i.csv", "user id\n5\n7\n", [5, 7]),
    ("i.csv", "a,b\n5,6\n7,8\n", [[5, 6], [7, 8]]),
    ("i.csv", "a;b\n5;6\n", [[5, 6]]),
    ("i.csv", ",a\n0,5\n", [[0, 5]]),
    ("i.csv", '"a","b"\n"5","6"\n"7",8\n', [[5, 6], [7, 8]]),
    ("i.csv:b", "a,b\nx,6\n,8\n", [6, 8]),
    ("i.csv:b,a", "a,b,c\n5,6,x\n7,8,\n", [[6, 5], [8, 7]]),
    ("i.csv:a,a", "a,b\n5,x\n", [[5, 5]]),
    ("i.csv:1", "1,5\n2,6\n", [5, 6]),
    ("i.csv:1,0", "1,5\n2,6\n", [[5, 1], [6, 2]]),
    ("i.csv:a", 'a,b\n5,"x, y"\n6,"say ""no"""\n7,"#"\n# z,1\n', [5, 6, 7]),
    ("i.csv:a", b"a,b\n5,\xff\xfe\n6,\x00\n", [5, 6]),
    ("i.csv:caf\u00e9", "caf\u00e9,b\n5,1\n", [5]),
    ("i.csv:a", 'a,b\n"5",x\n 6 ,y\n007,0x1\n', [5, 6, 7]),
    ("i.csv:a", "a,b\n", []),
    ("i.csv:a,b", "a,b\n", np.empty((0, 2), int)),
    ("i.tsv:b", "a b\tb\nx y\t5\n", [5]),
    ("i.json", "[5, 7,\n -1]", [5, 7, -1]),
    ("i.json", " [[0, 1],\n [2, 3] , [4,5]] \n", [[0, 1], [2, 3], [4, 5]]),
    ("i.json", "[[[0, 1]], [[2, 3]]]", [[[0, 1]], [[2, 3]]]),
    ("i.json", "[]", []),
    ("i.json", "[[], []]", np.empty((2, 0), int)),
    ("i.json", f"[{UINT64_START}]", np.array([UINT64_START], "u8")),
    ("i.json:a", '[{"a": 5, "b": "],"}, {"b": null, "a": 6}]', [5, 6]),
    ("i.json:b,a", '[{"a": 5, "b": 1}]', [[1, 5]]),
    ("i.jsonl", "5\n\n7\n", [5, 7]),
    ("i.jsonl", "[0, 1]\r\n[2, 3]", [[0, 1], [2, 3]]),
    ("i.jsonl:u", '{"u": 5, "name": "\u00e9\\""}\n {"u": 7}\n', [5, 7]),
    ("text:ids", "5\n7\n", [5, 7]),
    ("text:ids:0", "5,1\n7,1\n", [5, 7]),
    ("text:ids", "[5, 7]", [5, 7]),
    ("text:ids:u", '{"u": 5}\n{"u": 7}', [5, 7]),
    ("text:i.csv:a", "a\n5\n", [5]),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "content", "expected"), GOOD)
def test_indices(argument: str, content: str, expected: Any) -> None:
    put(argument.removeprefix("text:"), content)
    expected_result = np.asarray(expected, getattr(expected, "dtype", np.int64))
    for parser in parsers():
        values = read(argument)
        assert (values.dtype, values.shape) == (expected_result.dtype, expected_result.shape)
        assert np.array_equal(values, expected_result), parser


INTEGER = "is not an integer: expected one such as 5 or -1"
BAD = [
    ("i.txt", "5\n1.0\n", f"i.txt: line 2, column 0: '1.0' {INTEGER}"),
    ("i.txt", "5\n1e3\n", f"line 2, column 0: '1e3' {INTEGER}"),
    ("i.txt", "5\nnan\n", f"line 2, column 0: 'nan' {INTEGER}"),
    ("i.txt", "nan\n", f"line 1, column 0: 'nan' {INTEGER}"),
    ("i.txt", "5\n0x10\n", f"line 2, column 0: '0x10' {INTEGER}"),
    ("i.txt", "5\n1_000\n", f"'1_000' {INTEGER}"),
    ("i.txt", "5\n1-2\n", f"'1-2' {INTEGER}"),
    ("i.txt", "5\n-\n", f"'-' {INTEGER}"),
    ("i.txt", "5\n--5\n", f"'--5' {INTEGER}"),
    ("i.txt", "5\ntrue\n", f"'true' {INTEGER}"),
    ("i.txt", "5\n\u0665\n", f"'\u0665' {INTEGER}"),
    ("i.txt", b"5\n6\x00\n", r"line 2, column 0: '6\x00' is not an integer"),
    ("i.txt", b"5\n\xff\n", r"line 2, column 0: '\udcff' is not an integer"),
    ("i.txt", b"\xff\xfe5\x00\n\x00", "i.txt: the text is UTF-16: expected UTF-8"),
    ("i.txt", b"5\r6\r", "line 1 has a carriage return: lines end in a newline"),
    ("i.csv:1", '1,2,3\n"4,5",6\n', "line 2 has 2 fields: expected 3, as line 1 has"),
    ("i.txt", "5\n6 7\n", "i.txt: line 2 has 2 fields: expected 1, as line 1 has"),
    ("i.txt", f"5\n{2 * UINT64_START}\n", f"line 2, column 0: {2 * UINT64_START} is beyond 64 bits"),
    ("i.txt", f"{UINT64_START}\n-1\n", f"line 2, column 0: -1 is beyond 64 bits: valid 0..{2 * UINT64_START - 1}"),
    ("i.txt", f"-1\n{UINT64_START}\n", f"line 2, column 0: {UINT64_START} is beyond 64 bits: valid -{UINT64_START}"),
    ("i.txt", "5\n" + 2000 * "1", "line 2, column 0: a field of 2000 characters"),
    ("i.csv", "1,000\n2\n", "line 2 has 1 field: expected 2, as line 1 has"),
    ("i.csv", "a,b\n1,\n", "line 2, column b: the field is empty: expected an integer"),
    ("i.csv", "a,b\n1-2,\n", f"line 2, column a: '1-2' {INTEGER}"),
    ("i.csv", "a,b\n1 2,\n", f"line 2, column a: '1 2' {INTEGER}"),
    ("i.csv", "\n\na,b\n1,2\n# c\n\n3,x\n", "line 7, column b: 'x' is not"),
    ("i.csv", "a,b\n1,2\n3\n", "line 3 has 1 field: expected 2, as line 1 has"),
    ("i.txt", "[5, 7]", "line 1 has [ at its beginning: JSON is read from .json"),
    ("i.txt", "5\n.\n", f"'.' {INTEGER}"),
    ("i.txt", "5x\n6\n", f"line 1, column 0: '5x' {INTEGER}"),
    ("i.csv", "-1-,2\n3,4\n", f"line 1, column 0: '-1-' {INTEGER}"),
    ("i.csv:a", "a,b\n0x10,x\n", f"line 2, column a: '0x10' {INTEGER}"),
    ("i.csv:a", "a,b\n1,x\n,y\n", "line 3, column a: the field is empty"),
    ("i.csv:a", 'a,b\n"",y\n', "line 2, column a: the field is empty"),
    ("i.csv:a", "a,b\nNULL,y\n", f"line 2, column a: 'NULL' {INTEGER}"),
    ("i.csv:a", "a,b\n1,x\r2,y\n", "line 2 has 3 fields: expected 2"),
    ("i.csv:a", 'a,b\n"5"6,y\n', "line 2 has a quote"),
    ("i.csv:a", f"a,b\n{2 * UINT64_START},y\n", "is beyond 64 bits"),
    ("i.csv:c", "a,b\n1,2\n", "i.csv: 'c' is not a column of the file"),
    ("i.csv:a", "a,a\n1,2\n", "i.csv: 'a' names 2 columns of the file"),
    ("i.csv:2", "1,2\n", "'2' is not a column of the file: without a header, columns have num"),
    ("i.csv:a", "", "i.csv: the text is empty: expected numbers, or a header"),
    ("i.csv:a", 'a,b\n5,"x\ny"\n', "line 2 has a quote that does not end"),
    ("i.csv:a", 'a,b\n5,"x"y\n', "line 2 has a quote"),
    ("i.csv", 'a\n"5""6"\n', "line 2, column a: '5\"6' is not an integer"),
    ("i.csv", 'a\n""\n', "line 2, column a: the field is empty"),
    ("i.json", "", "i.json: line 1, column 1: not a list of numbers: it begins with nothing"),
    ("i.json", "5", "not a list of numbers: it begins with 5: expected ["),
    ("i.json", "[5, 1.5]", f"element 1: '1.5' {INTEGER}"),
    ("i.json", "[5, 1e400]", f"element 1: '1e400' {INTEGER}"),
    ("i.json", "[5, true]", f"element 1: 'true' {INTEGER}"),
    ("i.json", '[5, "6"]', "element 1: \"6\": expected a number"),
    ("i.json", "[5, null]", "element 1: null: expected a number"),
    ("i.json", "[[0, 1], [2, 0.5]]", f"element 1, number 1: '0.5' {INTEGER}"),
    ("i.json", "[[0, 1], [2]]", "element 1: a list of 1: expected a list of 2, as before"),
    ("i.json", "[[0], 1]", "element 1: 1: expected a list of 1, as before"),
    ("i.json", "[1, [0]]", "element 1: a list of 1: expected a number"),
    ("i.json", "[1, 2", "i.json: line 1, column 6: the list does not end"),
    ("i.json", "[1,\n2,]", "i.json: line 2, column 3: not JSON: expecting value"),
    ("i.json", "[1,\n 2 3]", "i.json: line 2, column 4: not JSON: expecting ',' delimiter"),
    ("i.json", "[1]\n 2", "i.json: line 2, column 2: not JSON: extra data"),
    ("i.json", b"[1,\n\xff]", "i.json: line 2: not UTF-8"),
    ("i.json", "[" * 100_000, "i.json: line 1, column 1: nested too deeply"),
    ("i.json", "[" + "9" * 5000 + "]", "element 0: a field of 5000 characters"),
    ("i.json", '[{"a": 1}]', "element 0: an object: expected a number"),
    ("i.json:b", '[{"a": 1}]', "element 0: no key 'b': expected one of a"),
    ("i.json:b", "[1]", "element 0: 1: expected an object with b"),
    ("i.jsonl", "5\n[6]\n", "line 2: a list of 1: expected a number"),
    ("i.jsonl", "5\n6 7\n", "line 2, column 3: not JSON: extra data"),
    ("i.jsonl", "5\n\nx\n", "line 3, column 1: not JSON: expecting value"),
    ("i.jsonl", "5\n" + "[" * 100_000, "line 2, nested too deeply"),
    ("i.jsonl", b"5\n\xff\n", "line 2: not UTF-8"),
    *(
        (argument, content, "line 2 has 2 fields: expected 3, as line 1 has")
        for content in ("1 2 3\n4  5\n", "1 2 3\n 4 5\n", "1 2 3\n4 5 \n", "1 2 3\n\t4\t5\n6 7 8\n")
        for argument in ("b.txt:0,2", "b.txt:1", "b.txt")
    ),
    *(
        ("i.csv", f"{first}\n6\n", f"line 1, column 0: '{first}' {INTEGER}")
        for first in ("\u22125", "$5", "NA", "null", "5x", "5%", "(5)", "N/A", "nan(5)", "-nan(ind)", "<NA>")
    ),
    ("i.json:a", '[{"a": 1, "a": 2}]', "the key 'a' 2 times"),
    ("i.jsonl:a", '{"a": 1}\n{"b": 0, "a": 1, "a": 2}\n', "the key 'a' 2 times"),
    ("i.jsonl:b,a", '{"b": 0, "a": 1, "a": 2}\n', "the key 'a' 2 times"),
    *(("i.jsonl", content, "line 1, column") for content in ("[1\n2]\n5,6\n", "5,6\n7\n", '{"a": 1},{"a": 2}\n')),
    *(
        (name, gzip.compress(content, mtime=0) if name.endswith(".gz") else content, "the text is empty")
        for name in ("i.txt", "i.csv", "i.jsonl", "i.ndjson", "i.csv.gz")
        for content in (b"", b"\n \n")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "content", "text"), BAD)
def test_bad_indices(argument: str, content: Any, text: str) -> None:
    put(argument, content)
    for parser in parsers():
        with pytest.raises(InputError) as excinfo:
            read(argument)
        assert text in excinfo.value.message, parser


UPDATES = [
    ("float64", "1.0\n-2e-3\n.5\n5.\n7\nnan\n-inf\n", [1.0, -2e-3, 0.5, 5.0, 7, np.nan, -np.inf]),
    ("float32", "0.1\n16777217.0\n1e-46\n", [0.1, 16777216, 0]),
    ("float32", "1.00000005960464477540\n1.00000005960464477538\n", [1.00000012, 1]),
    ("float16", "1.00048828125001\n65519.9\n2049.0\n2051.0\n", [1.001, 65504, 2048, 2052]),
    (">f4", "1.5\n2.5\n", [1.5, 2.5]),
    ("int8", "-128\n127\n", [-128, 127]),
    ("uint8", "0\n255\n", [0, 255]),
    ("uint64", f"0\n{2**64 - 1}\n", [0, 2**64 - 1]),
    (">i2", "1\n-2\n", [1, -2]),
    ("bool", "true\nFalse\n1\n0\n", [True, False, True, False]),
    ("complex64", "1\n1+2j\n", [1, 1 + 2j]),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "content", "expected"), UPDATES)
def test_updates_are_of_the_type_of_data(dtype: str, content: str, expected: Any) -> None:
    put("u.txt", content)
    with np.errstate(all="ignore"):
        expected_result = np.array(expected, dtype)
    for _ in parsers():
        array = read("u.txt", dtype)
        assert array.dtype == np.dtype(dtype)
        assert np.array_equal(array, expected_result, equal_nan=True)
    values = [text.lower() if text[:1] in "tF" else text for text in content.split()]
    if dtype not in ("complex64",) and "." not in (values[0][:1], values[2 % len(values)][:1]):
        put("u.json", f"[{', '.join(values)}]".replace("nan", "NaN").replace("inf", "Infinity"))
        assert np.array_equal(read("u.json", dtype), array, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "content", "text"),
    [
        ("float32", "1\n1e39\n", "line 2, column 0: '1e39': data of float32 cannot hold it: it is"),
        ("float64", "1\n1e400\n", "'1e400': data of float64 cannot hold it: it is too large"),
        ("float16", "1\n65520\n", "'65520': data of float16 cannot hold it: it is too large"),
        ("float32", "1\n0x1p3\n", "'0x1p3' is not a number: expected one such as 0.5"),
        ("float32", "1\n1j\n", "'1j': data of float32 cannot hold it: expected a number"),
        ("float32", "1\ntrue\n", "'true': data of float32 cannot hold it: expected a number"),
        ("float32", "1\n1 2\n", "line 2 has 2 fields"),
        *(
            ("float32", f"1\n{text}\n", f"'{text}' is not a number")
            for text in (".", "e5", "-", "1e", "+.")
        ),
        ("float32", "1\n1.2.3\n", "'1.2.3' is not a number"),
        ("int8", "1\n128\n", "line 2, column 0: 128 is beyond int8: valid -128..127"),
        ("uint8", "1\n-1\n", "-1 is beyond uint8: valid 0..255"),
        ("int8", "1\n1.0\n", "'1.0' is not an integer"),
        ("bool", "1\n2\n", "data of bool cannot hold it"),
        ("complex64", "1\n1+j2\n", "'1+j2' is not a number"),
    ],
)
def test_bad_updates(dtype: str, content: str, text: str) -> None:
    put("u.txt", content)
    for parser in parsers():
        with pytest.raises(InputError) as excinfo:
            read("u.txt", dtype)
        assert text in excinfo.value.message, parser


@pytest.mark.parametrize("dtype", ["S3", "datetime64[s]", "V4"])
def test_types_that_are_no_numbers_are_refused(dtype: str) -> None:
    put("u.txt", "1\n")
    with pytest.raises(NdtoolError, match=r"u.txt: a text file has numbers: they cannot be"):
        read("u.txt", dtype)


def test_data_are_integers_or_else_floats() -> None:
    for name, text, expected in (
        ("d.csv", "1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("d.csv", "1,2\n3,4.5\n", [[1.0, 2.0], [3.0, 4.5]]),
        ("d.json", "[1, 0.5]", [1.0, 0.5]),
    ):
        put(name, text)
        for _ in parsers():
            assert str(read(name, free=True).tolist()) == str(expected)


def test_a_parser_that_stops_early_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(block: bytes, code: Any, sep: str) -> Any:  # as NumPy before 2.3
        warnings.warn("unmatched data", DeprecationWarning, stacklevel=1)
        return np.zeros(1, code)

    monkeypatch.setattr(np, "fromstring", stopping)
    Path("ids.txt").write_text("id\n--5\n")
    with pytest.raises(InputError, match="line 2, column id: '--5' is not an integer"):
        locators.open_source("ids.txt", Streams(), literals=True)


def test_a_line_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    put("i.txt", "5\n" + 200 * "6")
    with pytest.raises(InputError, match="line 2 has more than 100 bytes"):
        read("i.txt")


def test_a_json_list_must_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "_MIN_LIMIT", 100)
    put("i.json", "[" + "5, " * 100 + "5]")
    assert len(read("i.json")) == 101
    monkeypatch.setattr(nested.memory, "available", lambda: 1600)
    with pytest.raises(ResourceError, match="a list of more than 200 bytes does not fit in memory"):
        read("i.json")


# One grammar: the same answers from every parser, and for every kind of argument

TOKENS = ["5", "-1", "0", "007", "+3", "-0", "1.5", "2.", ".5", "1e3", "-", ".", "1-2", "1 2", "nan",
          "-inf", "1_0", "\u0665", "\uff11", "\u00a05", "0x1F", "", " 7", "8\t", '"9"', '"6" ', ' "6"', '\t"6"', '"a""b"',
          '"a, b"', '"1,2"', 'x"y', '"5"6', '"open', "NA", "j", "true", "16777217", "9007199254740993", "18446744073709551615",
          "1e400", "id", "\u22125", "$5", "# c", "\x00", "\r", "x" * 1001, '"' + "y" * 140_000 + '"']  # fmt: skip


def answer(argument: str, dtype: str | None, free: bool) -> tuple[str, Any]:
    """Return an array's type, shape and bytes, or the message of the error."""
    try:
        values = read(argument, dtype, free)
    except NdtoolError as exc:
        return type(exc).__name__, exc.message
    return str((values.dtype, values.shape)), values.tobytes()


def test_parsers_agree() -> None:
    rng, refused = random.Random(7), 0
    for _ in range(500):
        delimiter, suffix = rng.choice([(",", "csv"), (" ", "txt"), ("\t", "tsv"), (";", "csv")])
        width = rng.randint(1, 3)
        usual = rng.choice([["5", "-1", "7"], ["1.5", "2", "-3e2"]])
        texts = [rng.choice(["a", "b"]) + delimiter.join("bcd"[: width - 1])] * rng.randint(0, 1)
        for _ in range(rng.randint(1, 5)):
            count = width if rng.random() < 0.95 else rng.randint(1, 4)
            fields = [rng.choice(TOKENS if rng.random() < 0.12 else usual) for _ in range(count)]
            texts.append(delimiter.join(fields))
        texts += rng.choices(["", "  ", "# c,1"], k=rng.choice([0, 0, 0, 1]))
        rng.shuffle(texts[1:])
        put(f"t.{suffix}", rng.choice(["\n", "\r\n"]).join(texts))
        argument = f"t.{suffix}" + rng.choice(["", "", ":0", ":0,1", ":1,0"])
        dtype, free = rng.choice(
            [(None, False), (None, True), ("float64", False), ("float32", False), ("uint8", False)]
        )
        answers = [answer(argument, dtype, free) for _ in parsers()]
        refused += answers[0][0] == "InputError"
        assert len(set(answers)) == 1, (texts, argument, dtype, free, answers)
    assert 100 < refused < 430


NUMBERS = ["0", "-0", "-0.0", "1", "+1", "007", "1.5", "-2.5e3", "1E2", ".5", "5.", "nan", "-nan", "NaN", "inf", "-Infinity",
           "1.00390625", "1.00390625001", "1.0039062499", "257", "256", "257.0", "2049", "2049.0", "16777217", "16777217.0",
           "1.000000059604644775390625", "1.0000000596046447753906250001", "1.00048828125001", "9007199254740993",
           "9007199254740992", "9007199254740993.0", "1e400", "3.4e38", "3.5e38", "65519.9", "65520.0", "1e-46", "4e-8",
           "1_000", "1e", "e5", ".", "-", "+", "", " ", "\u0661", "\uff11", "1\u00a0", "\u0131nf", "0x10", "1,5", "1+2j",
           "2j", "j", "nanj", "(1-2j)", "1+j2", "true", "FALSE", "128", "-129", "1.0", "1" * 400, "x"]  # fmt: skip


@pytest.mark.parametrize(
    "dtype",
    ["int8", "uint64", "bool", "float16", "float32", "float64", "bfloat16", "complex64", ">f4"],
)
def test_a_number_is_the_same_element_everywhere(dtype: str) -> None:
    for text in NUMBERS:
        element: bytes | None
        try:
            element = numbers.encode(text, dtypes.from_name(dtype))
            if not numbers.is_number(text):
                raise InputError(text)
        except NdtoolError:
            element = None
        forms = {
            f"full:{text}:{dtype}[1]": None,
            "n.txt": f"x\n{text}\n",
            "n.csv": f'x\n"{text}"\n',
        }
        with suppress(ValueError):
            if type(json.loads(text)) in (int, float, bool):
                forms |= {"n.json": f"[{text}]", "n.jsonl:k": f'{{"k": {text}}}'}
        for argument, content in forms.items():
            if not text.strip() and argument != "n.csv":
                continue  # a blank line, which has no field
            if content is not None:
                put(argument, content)
            found = answer(argument, dtype, True)[1]
            assert (found if isinstance(found, bytes) else None) == element, (text, argument)


def test_headers_of_numbers() -> None:
    put("i.csv", "0,1\n5,6\n")
    with closing(locators.open_source("i.csv", Streams(-1), literals=True)) as opened_source:
        assert opened_source.warning == (
            "i.csv: line 1 is 0, 1: it is read as numbers, not as a header"
        )


def test_text_compressed_with_gzip() -> None:
    text = "id,x\n" + "".join(f"{n},a\n" for n in range(1000))
    put("i.csv.gz", gzip.compress(text[:999].encode()) + gzip.compress(text[999:].encode()))
    for _ in parsers():
        assert read("i.csv.gz:id").tolist() == list(range(1000))
    put("i.csv", Path("i.csv.gz").read_bytes())
    assert read("text:i.csv:id").tolist() == list(range(1000))
    put("i.ndjson.gz", gzip.compress(b'{"u": 5}\n{"u": 7}\n'))
    assert read("i.ndjson.gz:u").tolist() == [5, 7]
    put("i.ndjson", b"[5, 6]\n[7, 8]\n")
    assert read("i.ndjson").tolist() == [[5, 6], [7, 8]]


def test_a_column_of_text_without_a_suffix_has_a_hint() -> None:
    put("ids.log", "id\n5\n")
    with pytest.raises(InputError, match="the file has no known format") as excinfo:
        read("ids.log:id")
    assert excinfo.value.hint == "a column of text is read as text:ids.log:id"
    assert read("text:ids.log:id").tolist() == [5]


def test_damaged_compressed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = gzip.compress("".join(f"{n}\n" for n in range(100_000)).encode())
    for content, problem in (
        (raw[:-9], "truncated"),
        (raw[:5000] + b"xxxx" + raw[5004:], "damaged"),
    ):
        put("i.csv.gz", content)
        with pytest.raises(InputError, match=f"i.csv.gz: the compressed text is {problem}"):
            read("i.csv.gz")
    put("i.csv.gz", raw)
    monkeypatch.setenv("NDTOOL_MAX_INFLATE", "500000")
    with pytest.raises(ResourceError, match="more than 500000 bytes decompressed"):
        read("i.csv.gz")


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("i.csv", lambda n: "1" + " " * n + ",2\n"),
        ("i.csv:1", lambda n: "x" + " " * n + "y,2\n" + " " * n + ",3\n"),
        ("i.csv:1", lambda n: '"' + '""' * n + '",2\n'),
        ("i.txt", lambda n: "1" + " \t" * n + "2\n"),
        ("i.json", lambda n: "[" + " " * n + "[" + "1," * n + "2]" + " " * n + "]"),
        ("i.json", lambda n: "[[" + ",".join(["[" + "1," * 50 + "2]"] * (n // 100)) + "]]"),
        ("i.jsonl", lambda n: "[" + "1," * n + "2]"),
        ("i.json:a", lambda n: "[{" + ", ".join(f'"{i}": 1' for i in range(n // 8)) + "}]"),
    ],
)
def test_time_grows_with_the_text(argument: str, text: Any) -> None:
    """A time that grows with the square of the text would exceed pytest's limit."""
    put(argument, text(1 << 21))
    with suppress(InputError):
        read(argument)


@pytest.mark.parametrize("suffix", ["txt", "csv", "jsonl"])
def test_a_long_number_is_read_wherever_it_stands(suffix: str) -> None:
    digits = "0." + "1" * 2000
    for texts in ([digits, "0.5"], ["0.5", digits], ["2", digits]):
        put(f"i.{suffix}", "\n".join(texts))
        for _ in parsers():
            assert read(f"i.{suffix}", free=True).tolist() == list(map(float, texts))


def test_a_line_of_many_fields_is_refused() -> None:
    put("i.csv", "1," * (8 << 20))
    tracemalloc.start()
    with pytest.raises(InputError, match="line 1 has more than 1048576 fields"):
        read("i.csv")
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()


# The command line


def test_commands_take_text_where_they_take_arrays() -> None:
    save(data=np.arange(20, dtype="f4").reshape(10, 2))
    put("ids.csv", "name,user_id\nx,3\ny,5\n")
    put("new.csv", "a,b\n1,2.5\n3,4\n")
    assert ndtool("gather", "data.npy", "ids.csv:user_id", "-o", "a.npy").status == 0
    assert np.load("a.npy").tolist() == [[6, 7], [10, 11]]
    result = ndtool("scatter", "data.npy", "ids.csv:user_id", "new.csv", "-o", "b.npy")
    assert (result.status, np.load("b.npy")[[3, 5]].tolist()) == (0, [[1, 2.5], [3, 4]])
    question = ("verify", "scatter", "data.npy", "ids.csv:user_id", "new.csv", "b.npy")
    assert ndtool(*question).status == 0
    entries = ndtool("inspect", "ids.csv", "--json").json
    assert "ids.csv:user_id" in json.dumps(entries)
    result = ndtool("gather", "data.npy", "ids.csv:user", "-o", "x.npy")
    assert result.status == 3
    assert "'user' is not a column of the file" in result.err


def test_standard_input_as_text() -> None:
    save(data=np.arange(10.0))
    for arguments in (("-", "--text"), ("text:-",)):
        result = ndtool("gather", "data.npy", *arguments, "-o", "a.npy", stdin=b"3\n5\n")
        assert (result.status, np.load("a.npy").tolist()) == (0, [3, 5]), result.err
    result = ndtool("gather", "data.npy", "text:-:id", "-o", "a.npy", stdin=b'{"id": 3}\n')
    assert np.load("a.npy").tolist() == [3]
    result = ndtool("gather", "data.npy", "-", "--text", stdin=b"3\nx\n")
    assert (result.status, "standard input: line 2, column 0: 'x'" in result.err) == (3, True)
    result = ndtool("convert", "text:-", "b.npy", stdin=b"3\n1.5\n")
    assert np.load("b.npy").tolist() == [3, 1.5]
    raw = Path("data.npy").read_bytes() + b"3\n5\n"
    result = ndtool("gather", "-", "-", "--text", "-o", "a.npy", stdin=raw)
    assert (result.status, np.load("a.npy").tolist()) == (0, [3, 5]), result.err


def test_files_of_other_names_as_text() -> None:
    save(data=np.arange(10.0))
    put("ids", "3\n5\n")
    result = ndtool("gather", "data.npy", "ids", "-o", "a.npy")
    assert result.status == 3
    assert "text:FILE" in result.err
    for arguments in (("ids", "--text"), ("text:ids",)):
        result = ndtool("gather", "data.npy", *arguments, "-o", "a.npy")
        assert (result.status, np.load("a.npy").tolist()) == (0, [3, 5]), result.err
    os.rename("ids", "ids.npy")  # content decides, not the name
    np.save("real.txt.npy", np.array([3, 5]))
    os.rename("real.txt.npy", "real.txt")
    assert ndtool("gather", "data.npy", "real.txt", "-o", "b.npy").status == 0


def test_integers_beside_floats_are_not_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", exc_type=ImportError)
    numbers_read = np.random.default_rng(0).integers(0, 1 << 40, 60_000)
    put("x.csv", "i,v\n" + "".join(f"{n},0.25\n" for n in numbers_read))
    monkeypatch.delattr(rows, "_add_rows")
    assert np.array_equal(read("x.csv:i"), numbers_read)
