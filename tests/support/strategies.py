"""Hypothesis strategies: element types, special values, layouts, indices, complete calls."""

import os
from itertools import product
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
EXHAUSTIVE = "NDTOOL_TEST_ALL" in os.environ  # set by `make torture`

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8)]
FLOATS = [np.dtype(f"f{size}") for size in (2, 4, 8)] + [BFLOAT16]
COMPLEX = [np.dtype("c8"), np.dtype("c16")]
ORDERED = [np.dtype("?"), *INTEGERS, *FLOATS]
ARITHMETIC = ORDERED + COMPLEX
COPY_ONLY = [
    np.dtype(code)
    for code in ("g", "G", "M8[ns]", "m8[D]", "S1", "S7", "U3", "V1", "V2", "V16", "V100")
] + [
    np.dtype([("a", "i1"), ("b", "<f8"), ("c", ">u2", (3,))]),
    np.dtype([("a", "i1"), ("b", "i8")], align=True),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.int4),
    np.dtype(ml_dtypes.float4_e2m1fn),
]
ALL_DTYPES = ARITHMETIC + COPY_ONLY
EXAMPLES = settings.default.max_examples  # of a property test
UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum,
}  # fmt: skip
REDUCTIONS = ("none", *UFUNCS, "mean")
LACKING = {  # the types with arithmetic that lack a reduction
    "div": (np.dtype("?"), *INTEGERS, *COMPLEX), "max": COMPLEX, "min": COMPLEX,
    "mean": (np.dtype("?"),),
}  # fmt: skip
LAYOUTS = (
    "C", "Fortran", "reversed", "strided", "broadcast", "transposed", "read-only", "unaligned",
)  # fmt: skip


def reductions_of(dtype: np.dtype) -> tuple[str, ...]:
    """Return the reductions that an element type supports."""
    names = REDUCTIONS if dtype in ARITHMETIC else REDUCTIONS[:1]
    return tuple(name for name in names if dtype not in LACKING.get(name, ()))


def all_reduction_options(dtype: np.dtype) -> list[dict[str, Any]]:
    """Return the arguments of all reductions of an element type."""
    names = reductions_of(dtype)
    excluding_current = [name for name in names if name not in ("none", "sub", "div")]
    return [
        *({"reduction": name} for name in names),
        *({"reduction": name, "include_self": False} for name in excluding_current),
        {"reduction": "none", "duplicates": "first"},
    ]


def ufunc_of(dtype: np.dtype, reduction: str) -> np.ufunc:
    """Return NumPy's function for the updates of a reduction; for mean, the sum."""
    if dtype.kind == "b" and reduction == "sub":
        return np.logical_xor
    return UFUNCS.get(reduction, np.add)


def mean_of(sums: Array, counts: Array) -> Array:
    """Return sums divided by the counts of their summands, as documented."""
    if sums.dtype in COMPLEX:
        components = sums.view(f"f{sums.dtype.itemsize // 2}").reshape(-1, 2)
        return mean_of(components, counts[:, None]).view(sums.dtype).reshape(-1)
    if sums.dtype.kind in "iu":
        pairs = zip(sums.tolist(), np.broadcast_to(counts, sums.shape).tolist(), strict=True)
        return np.array([total // count for total, count in pairs], sums.dtype)
    dtype = np.float32 if sums.dtype.itemsize == 2 else sums.dtype
    with np.errstate(all="ignore"):
        return (sums.astype(dtype) / counts.astype(dtype)).astype(sums.dtype)


def raw_bytes(array: Array) -> bytes:
    """Return the bytes of an array in C order, with padding and bools other than 0 and 1."""
    return np.ascontiguousarray(void_view(array)).tobytes()  # NumPy 2.0 fails beyond 32 axes else


def bits_equal(left: Array, right: Array) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and raw_bytes(left) == raw_bytes(right)
    )


def _component_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def random_values(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    """Return random bits of any type; most numbers are special: NaNs, infinities, zeros."""
    component_dtype = _component_dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * (dtype.itemsize // component_dtype.itemsize)
    values = rng.integers(0, 256, size * component_dtype.itemsize, dtype=np.uint8).view(
        component_dtype
    )
    if component_dtype in FLOATS:
        patterns = values.view(f"u{component_dtype.itemsize}")
        special_values = _special_patterns(component_dtype)
        selected = rng.random(size) < rng.choice([0.0, 0.2, 0.8])
        patterns[selected] = rng.choice(special_values, int(selected.sum()))
    elif component_dtype.kind in "US" and rng.random() < 0.5:  # else invalid code points
        values = rng.choice(np.array([b"", b"a", b"zz", b"-1"]), size).astype(component_dtype)
    return values.view(dtype).reshape(shape)


def _special_patterns(dtype: np.dtype) -> Array:
    """Return the bit patterns of zeros, ones, extremes, infinities, quiet and signaling NaNs."""
    bits = 8 * dtype.itemsize
    fraction = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}[dtype.name]
    infinity = (1 << (bits - 1)) - (1 << fraction)
    one_bits = int(np.array(1, dtype).view(f"u{dtype.itemsize}"))
    quiet = 1 << (fraction - 1)
    positive = [0, 1, one_bits, one_bits + 1, infinity - 1, infinity]
    positive += [infinity | 1, infinity | 5, infinity | quiet, infinity | quiet | 3]
    patterns = positive + [pattern | 1 << (bits - 1) for pattern in positive]
    return np.array(patterns, f"u{dtype.itemsize}")


def void_view(array: Array) -> Array:
    """Return a view with void elements, whose bits are preserved by copies."""
    return array.view(np.dtype((np.void, array.dtype.itemsize)))


def to_layout(array: Array, layout: str) -> Array:
    """Return an array of the same bytes in a layout; broadcast: of its first row repeated."""
    if layout == "unaligned":
        buffer = np.zeros(array.nbytes + 1, np.uint8)
        result = buffer[1:].view(array.dtype).reshape(array.shape)
        void_view(result)[...] = void_view(array)
        return result
    result = _copy_to_layout(void_view(array), layout).view(array.dtype)
    result.setflags(write=layout not in ("read-only", "broadcast"))
    return result


def _copy_to_layout(array: Array, layout: str) -> Array:
    if layout == "Fortran":
        return np.array(array, order="F")
    if layout == "reversed":
        flip = (..., *(slice(None, None, -1),) * array.ndim)
        return array[flip].copy()[flip]
    if layout == "strided":
        spaced = np.zeros(tuple(2 * d for d in array.shape), array.dtype)
        every_other = spaced[(..., *(slice(None, None, 2),) * array.ndim)]
        every_other[...] = array
        return every_other
    if layout == "broadcast" and array.size and array.ndim:
        # Complete rows are repeated, so that index tuples remain valid.
        return np.broadcast_to(array.reshape(-1, array.shape[-1])[0], array.shape)
    if layout == "transposed" and array.ndim > 1:
        order = (1, 0, *range(2, array.ndim))
        return np.array(array.transpose(order), order="C").transpose(order)
    return array.copy()


def to_byte_order(array: Array, swapped: bool) -> Array:
    """Return the same values, byte-swapped if requested."""
    return array.astype(array.dtype.newbyteorder("S")) if swapped else array


class Case(NamedTuple):
    """One call: the operator's name, its arrays and its other arguments."""

    operator: str
    arrays: tuple[Array, ...]
    arguments: dict[str, Any]


def plain_axes(case: Case) -> tuple[int, int]:
    """Return the axis that indices select along, non-negative, and the number of batch axes."""
    b = case.arguments.get("batch_dims", 0)
    return case.arguments.get("axis", b) % case.arrays[0].ndim, b


sizes = st.sampled_from((1, 2, 3, 4, 5, 6, 7) * 5 + (0,))  # includes empty cases
seeds = st.integers(0, 2**32 - 1)
types = st.sampled_from(ARITHMETIC * 2 + COPY_ONLY)


def shapes(min_rank: int, max_rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw a shape of rank `min_rank` to `max_rank`."""
    return st.integers(min_rank, max_rank).flatmap(lambda rank: st.tuples(*[sizes] * rank))


def reduction_options(dtype: np.dtype) -> st.SearchStrategy[dict[str, Any]]:
    """Draw the arguments of a reduction of an element type."""
    return st.sampled_from(all_reduction_options(dtype))


@st.composite
def indices_for(draw: st.DrawFn, shape: tuple[int, ...], lengths: tuple[int, ...] | int) -> Array:
    """Draw valid indices; lengths: the size of the indexed axis, or one for each tuple component.

    Negative, extreme and duplicate indices are likely. The result is empty if no index is valid.
    """
    dtype = draw(st.sampled_from(INTEGERS))
    limits = np.broadcast_to(np.array(lengths, np.int64), shape)
    if not limits.size:
        return np.empty(shape, dtype)
    rng = np.random.default_rng(draw(seeds))
    lowest = draw(st.sampled_from((-1, -1, 0))) if dtype.kind == "i" else 0
    indices = rng.integers(limits * lowest, limits)
    kind = draw(st.sampled_from(("any", "any", "extreme", "same", "sorted")))
    if kind == "extreme":
        indices = np.where(rng.random(shape) < 0.5, limits * lowest, limits - 1)
    elif kind == "same":
        indices = np.minimum(indices.flat[0], limits - 1)
        indices = np.maximum(indices, limits * lowest)
    elif kind == "sorted" and indices.ndim > 1:
        indices = np.sort(indices, axis=0)
    return indices.astype(dtype)


@st.composite
def array_layouts(draw: st.DrawFn, array: Array) -> Array:
    """Draw a layout and a byte order for an array."""
    swapped = draw(st.booleans()) and array.dtype != BFLOAT16
    return to_layout(to_byte_order(array, swapped), draw(st.sampled_from(LAYOUTS)))


@st.composite
def values_of(draw: st.DrawFn, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    """Draw an array of a type and shape, with any bits."""
    return random_values(np.random.default_rng(draw(seeds)), dtype, shape)


Drawn = tuple[tuple[int, ...], Array, tuple[int, ...], dict[str, Any]]


@st.composite
def _nd_indices(draw: st.DrawFn, is_scatter: bool) -> Drawn:
    """Draw data's shape, index tuples, the shape of updates, and batch_dims."""
    shape = draw(shapes(1, 4))
    b = draw(st.sampled_from((*((0, 0) if is_scatter else ()), *range(len(shape)))))
    k = draw(st.integers(0 if is_scatter else 1, len(shape) - b))
    rows_shape = draw(shapes(0, 2))
    if 0 in shape[b : b + k]:
        rows_shape = (*rows_shape, 0)
    indices = draw(indices_for((*shape[:b], *rows_shape, k), shape[b : b + k]))
    return shape, indices, shape[:b] + rows_shape + shape[b + k :], {"batch_dims": b}


@st.composite
def _elements_indices(draw: st.DrawFn) -> Drawn:
    """Draw data's shape, indices of elements, their shape, and an axis."""
    shape = draw(shapes(1, 4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    index_shape = [min(size, draw(sizes)) for size in shape]
    index_shape[axis] = draw(sizes) if shape[axis] else 0
    indices = draw(indices_for(tuple(index_shape), shape[axis]))
    return shape, indices, indices.shape, {"axis": axis}


@st.composite
def _plain_indices(draw: st.DrawFn) -> Drawn:
    """Draw data's shape, indices along an axis, the shape of updates, axis and batch_dims."""
    shape = draw(shapes(1, 4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    a = axis % len(shape)
    b = draw(st.sampled_from((0, 0, *range(a + 1))))
    index_shape = draw(shapes(0, 3 - b)) if b < 3 else ()
    if not shape[axis]:
        index_shape = (*index_shape, 0)
    indices = draw(indices_for(shape[:b] + index_shape, shape[axis]))
    arguments: dict[str, Any] = {"batch_dims": b}
    if a != b or draw(st.booleans()):
        arguments["axis"] = axis
    return shape, indices, shape[:a] + index_shape + shape[a + 1 :], arguments


@st.composite
def cases_of(draw: st.DrawFn, operator: str) -> Case:
    """Draw a valid call of an operator."""
    is_scatter, dtype = operator.startswith("scatter"), draw(types)
    kind = operator.partition("_")[2]
    drawn = {"nd": _nd_indices(is_scatter), "elements": _elements_indices()}.get(
        kind, _plain_indices()
    )
    shape, indices, updates_shape, arguments = draw(drawn)
    arrays = [draw(values_of(dtype, shape)), indices]
    if is_scatter:
        arrays.append(draw(values_of(dtype, updates_shape)))
        arguments |= draw(reduction_options(dtype))
    data, *others = (draw(array_layouts(array)) for array in arrays)
    if is_scatter and dtype.names is not None:  # records in one byte order
        others[1] = others[1].astype(data.dtype)
    return Case(operator, (data, *others), arguments)


cases = st.one_of(
    *(
        cases_of(f"{verb}{kind}")
        for kind in ("_nd", "_elements", "")
        for verb in ("gather", "scatter")
    )
)


def sample(fraction: int, *tables: Any) -> list[tuple[Any, ...]]:
    """Return one in `fraction` rows of a product, or all of them; each value occurs as often."""
    enumerated = (list(enumerate(table)) for table in tables)
    rows = (tuple(zip(*row, strict=True)) for row in product(*enumerated))
    return [row for indices, row in rows if EXHAUSTIVE or sum(indices) % fraction == 0]


many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,  # small_thresholds does not change between examples
    ],
)
threads_used = st.integers(1, 4)


def call(module: Any, case: Case, **options: Any) -> np.ndarray:
    """Call the operator of a case."""
    return getattr(module, case.operator)(*case.arrays, **case.arguments, **options)


def note_attributes(case: Case) -> None:
    """Describe in failures the attributes that hypothesis does not print."""
    for array in case.arrays:
        note(f"{array.dtype.str} {array.shape} strides {array.strides} {array.flags.aligned=}")
    note(f"{case.operator} {case.arguments}")
