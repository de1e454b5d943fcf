# cython: language_level=3, wraparound=False, cdivision=True
# Neutral elements replace current values that are excluded from the result: reduced with one, the
# first update is unchanged, to the bit, unless it is a NaN. So updates are searched for NaNs.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from ndtool.loops.arithmetic cimport BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64

ctypedef fused signed_bits:
    int16_t
    int32_t
    int64_t


cdef inline bint any_magnitude_above(
    const signed_bits* bits, Py_ssize_t nbytes, int64_t infinity
) noexcept nogil:
    """Return whether any float, as bits, has a magnitude above infinity."""
    cdef Py_ssize_t i
    cdef signed_bits is_above = 0, infinity_bits = <signed_bits> infinity
    cdef signed_bits magnitude = <signed_bits> (
        <uint64_t> 0x7FFFFFFFFFFFFFFF >> (64 - 8 * sizeof(signed_bits))
    )
    for i in range(nbytes // <Py_ssize_t> sizeof(signed_bits)):
        is_above |= <signed_bits> ((bits[i] & magnitude) > infinity_bits)
    return is_above != 0


cdef inline bint has_nan(int code, const uint8_t* updates, Py_ssize_t nbytes) noexcept nogil:
    """Return whether any update, of the type `code`, is a NaN."""
    if code == FLOAT32 or code == COMPLEX64:
        return any_magnitude_above(<const int32_t*> updates, nbytes, 0x7F800000)
    if code == FLOAT64 or code == COMPLEX128:
        return any_magnitude_above(<const int64_t*> updates, nbytes, <int64_t> 0x7FF << 52)
    if code == FLOAT16:
        return any_magnitude_above(<const int16_t*> updates, nbytes, 0x7C00)
    if code == BFLOAT16:
        return any_magnitude_above(<const int16_t*> updates, nbytes, 0x7F80)
    return False
