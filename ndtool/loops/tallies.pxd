# cython: language_level=3, wraparound=False, cdivision=True
# Tallies: what a scatter remembers of each row of its output while it applies updates. Without the
# current value the first update of a row is copied; a mean is divided by the number of summands.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memset

from ndtool.loops.arithmetic cimport (
    BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64, UINT8,
    UINT16, UINT32, UINT64, bfloat16, bfloat16_to_float, boolean, complex64, complex128, divided,
    float_to_bfloat16, float_to_half, half, half_to_float, number, signed_integer,
)
from ndtool.loops.blocks cimport LINE

cdef enum:    # kinds
    NO_TALLY = 0
    SEEN          # a byte per row: whether it was updated
    COUNTED       # an int64 per row: how often it was updated


cdef struct Tally:
    int kind
    int code              # the element type that a mean is divided in
    bint included         # whether the current value is the first summand
    bint wide             # whether sums are float32, of elements of two bytes
    int shift             # log2 of width, -1 if it is no power of 2
    Py_ssize_t width      # bytes of a row
    const uint8_t* base   # the first byte of row 0
    uint64_t rows         # rows from here on are not tallied: updates are dropped there
    uint8_t* seen
    int64_t* counts
    float* sums


cdef inline Py_ssize_t whole_lines(Py_ssize_t nbytes) noexcept nogil:
    return (nbytes + LINE - 1) // LINE * LINE


cdef inline Py_ssize_t tally_bytes(const Tally* t, Py_ssize_t nbytes) noexcept nogil:
    """Return the bytes of the tally of an output, whole cache lines."""
    cdef Py_ssize_t rows = nbytes // max(1, t.width), size = rows
    if t.kind == NO_TALLY:
        return 0
    if t.kind == COUNTED:
        size = 8 * rows + (2 * nbytes if t.wide else 0)
    return whole_lines(size)


cdef inline Py_ssize_t with_tally(const Tally* t, Py_ssize_t nbytes) noexcept nogil:
    """Return the bytes of a window of `nbytes` and the tally behind it."""
    return whole_lines(nbytes) + tally_bytes(t, nbytes) if t.kind else nbytes


cdef inline void bind_tally(
    Tally* t, const uint8_t* base, Py_ssize_t nbytes, uint8_t* state
) noexcept nogil:
    """Bind a tally to an output and to memory of `tally_bytes`."""
    t.base = base
    t.rows = nbytes // max(1, t.width)
    t.seen = state
    t.counts = <int64_t*> state
    t.sums = <float*> (state + 8 * t.rows)


cdef inline void begin_tally(
    Tally* t, const uint8_t* base, Py_ssize_t nbytes, uint8_t* state
) noexcept nogil:
    """Bind a tally, if there is one, to memory that is zeroed."""
    if t.kind:
        bind_tally(t, base, nbytes, state)
        memset(state, 0, tally_bytes(t, nbytes))


cdef inline uint64_t tallied_row(const Tally* t, const uint8_t* address) noexcept nogil:
    cdef uint64_t at = <uint64_t> (address - t.base)
    return at >> t.shift if t.shift >= 0 else at // <uint64_t> t.width


cdef inline bint is_first(const Tally* t, uint64_t row) noexcept nogil:
    """Return whether an update is the first of its row, and remember it."""
    cdef bint first
    if t.kind == COUNTED:
        first = t.counts[row] == 0
        t.counts[row] += 1
    else:
        first = t.seen[row] == 0
        t.seen[row] = 1
    return first


cdef inline float to_float(number a) noexcept nogil:
    """Return an element of two bytes as float32; no other type has wide sums."""
    if number is half:
        return half_to_float(a)
    if number is bfloat16:
        return bfloat16_to_float(a)
    return 0


cdef inline number share_of(number sum, int64_t n) noexcept nogil:
    """Return sum / n; of integers rounded down."""
    cdef number r
    cdef int64_t whole
    if number is half or number is bfloat16 or number is boolean:
        return sum    # two bytes have float32 sums, booleans no mean
    elif number is complex64:
        r.re = divided(sum.re, <float> n)
        r.im = divided(sum.im, <float> n)
    elif number is complex128:
        r.re = divided(sum.re, <double> n)
        r.im = divided(sum.im, <double> n)
    elif number is float or number is double:
        r = divided(sum, <number> n)
    elif number in signed_integer:
        whole = <int64_t> sum // n
        r = <number> (whole - (whole * n > <int64_t> sum))
    else:
        r = <number> (<uint64_t> sum // <uint64_t> n)
    return r


cdef inline void divide_rows(
    number* out, const Tally* t, int64_t first, int64_t stop
) noexcept nogil:
    """Turn the sums of rows [first, stop) into means; others keep their bits."""
    cdef Py_ssize_t c, m = t.width // <Py_ssize_t> sizeof(number)
    cdef int64_t row, n
    for row in range(first, stop):
        n = t.counts[row] + t.included
        if n <= 1:
            continue
        for c in range(row * m, row * m + m):
            if number is half:
                out[c] = float_to_half(divided(t.sums[c], <float> n))
            elif number is bfloat16:
                out[c] = float_to_bfloat16(divided(t.sums[c], <float> n))
            else:
                out[c] = share_of(out[c], n)


cdef inline void settle(const Tally* t, int64_t first, int64_t stop) noexcept nogil:
    """Divide the sums of rows [first, stop) of a mean by the number of their summands."""
    cdef uint8_t* out = <uint8_t*> t.base
    if t.kind != COUNTED:
        return
    if t.code == FLOAT32:
        divide_rows(<float*> out, t, first, stop)
    elif t.code == FLOAT64:
        divide_rows(<double*> out, t, first, stop)
    elif t.code == FLOAT16:
        divide_rows(<half*> out, t, first, stop)
    elif t.code == BFLOAT16:
        divide_rows(<bfloat16*> out, t, first, stop)
    elif t.code == INT8:
        divide_rows(<int8_t*> out, t, first, stop)
    elif t.code == INT16:
        divide_rows(<int16_t*> out, t, first, stop)
    elif t.code == INT32:
        divide_rows(<int32_t*> out, t, first, stop)
    elif t.code == INT64:
        divide_rows(<int64_t*> out, t, first, stop)
    elif t.code == UINT8:
        divide_rows(<uint8_t*> out, t, first, stop)
    elif t.code == UINT16:
        divide_rows(<uint16_t*> out, t, first, stop)
    elif t.code == UINT32:
        divide_rows(<uint32_t*> out, t, first, stop)
    elif t.code == UINT64:
        divide_rows(<uint64_t*> out, t, first, stop)
    elif t.code == COMPLEX64:
        divide_rows(<complex64*> out, t, first, stop)
    elif t.code == COMPLEX128:
        divide_rows(<complex128*> out, t, first, stop)


cdef struct Settle:
    # the rows of an output, divided among threads
    Tally tally
    int64_t parts


cdef inline uint64_t settle_part(const Settle* s, int64_t part) noexcept nogil:
    cdef int64_t rows = s.tally.rows, each = rows // s.parts
    settle(&s.tally, each * part, rows if part == s.parts - 1 else each * (part + 1))
    return 0
