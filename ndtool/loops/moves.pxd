# cython: language_level=3, wraparound=False, cdivision=True
# Moves: copies of slices from or to the offsets of a block: short slices one by one, long ones as a
# stream of full cache lines with non-temporal stores.

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport LINE, is_usual_width
from ndtool.loops.memory cimport prefetch, prefetch_slice

cdef extern from *:
    """
    #define NDTOOL_MOVE(name) static inline void ndtool_move_##name( \\
        uint8_t *, int64_t const *, uint8_t const *, int64_t const *, Py_ssize_t, Py_ssize_t, \\
        Py_ssize_t, Py_ssize_t \\
    ) ndtool_inline
    NDTOOL_MOVE(width);
    NDTOOL_MOVE(slices);
    #if defined(__SSE2__) && (defined(__GNUC__) || defined(__clang__))
      /* Writes slices longer than a line one after the other, by non-temporal stores of full lines:
         bytes of a slice that do not fill a line stay in a register (`pending` of them) until the
         next slice completes it. A masked load does not read the other bytes, but still waits for
         the second line that it spans; so the last load of a slice ends with it, and its bytes are
         rotated into position */
      #define NDTOOL_BELOW(n) (((__mmask64) 1 << (n)) - 1)
      #define NDTOOL_ROTATION _mm512_sub_epi8(identity, _mm512_set1_epi8((char) pending))
      #define NDTOOL_LINE \\
          do { \\
              if (k < prefetched) ndtool_prefetch(next + k); \\
              _mm512_stream_si512((__m512i *) to, _mm512_loadu_si512(slice + k)); \\
              k += 64; \\
              to += 64; \\
          } while (0)
      #define NDTOOL_VBMI __attribute__((target("avx512f,avx512bw,avx512vbmi"))) static
      NDTOOL_VBMI inline __attribute__((always_inline)) void ndtool_stream_slices_of(
          uint8_t *to, const uint8_t *from, const int64_t *offsets, Py_ssize_t n, Py_ssize_t total,
          Py_ssize_t width, Py_ssize_t ahead, Py_ssize_t prefetched) {
          Py_ssize_t pending = (Py_ssize_t) ((uintptr_t) to & 63), preceding = pending, i, j, k;
          __m512i line = _mm512_setzero_si512();
          uint8_t bytes[64];
          for (j = 0; j < 64; j++) bytes[j] = (uint8_t) j;
          const __m512i identity = _mm512_loadu_si512(bytes);
          to -= pending;
          for (i = 0; i < n; i++) {
              const uint8_t *slice = from + offsets[i];
              const uint8_t *next = from + offsets[i + ahead < total ? i + ahead : i];
              k = 0;
              if (pending) {
                  ndtool_prefetch(next);
                  if (((uintptr_t) slice & 63) == (size_t) pending)
                      line = _mm512_mask_loadu_epi8(line, ~NDTOOL_BELOW(pending), slice - pending);
                  else
                      line = _mm512_mask_permutexvar_epi8(
                          line, ~NDTOOL_BELOW(pending), NDTOOL_ROTATION, _mm512_loadu_si512(slice));
                  if (preceding) _mm512_mask_storeu_epi8(to, ~NDTOOL_BELOW(preceding), line);
                  else _mm512_stream_si512((__m512i *) to, line);
                  preceding = 0;
                  k = 64 - pending;
                  to += 64;
              }
              #pragma GCC unroll 8
              for (j = 1; j < width / 64; j++) NDTOOL_LINE;  /* at least as many full lines */
              if (k + 64 <= width) NDTOOL_LINE;
              if (k < prefetched) ndtool_prefetch(next + k);  /* the end may span two more lines */
              ndtool_prefetch(next + prefetched - 1);
              pending = width - k;
              if (pending && ((uintptr_t) (slice + k) & 63) == 0)  /* loads this line only */
                  line = _mm512_maskz_loadu_epi8(NDTOOL_BELOW(pending), slice + k);
              else
                  line = _mm512_permutexvar_epi8(
                      NDTOOL_ROTATION, _mm512_loadu_si512(slice + width - 64));
          }
          if (pending) _mm512_mask_storeu_epi8(to, NDTOOL_BELOW(pending), line);
      }
      /* constant trip counts take two thirds of the time */
      #define NDTOOL_SLICES_OF(width, prefetched) \\
          ndtool_stream_slices_of(to, from, offsets, n, total, width, ahead, prefetched)
      NDTOOL_VBMI void ndtool_stream_slices(
          uint8_t *to, const uint8_t *from, const int64_t *offsets, Py_ssize_t n, Py_ssize_t total,
          Py_ssize_t width, Py_ssize_t ahead, Py_ssize_t prefetched) {
          if (width == 128) NDTOOL_SLICES_OF(128, 128);
          else if (width == 256) NDTOOL_SLICES_OF(256, 256);
          else if (width == 512) NDTOOL_SLICES_OF(512, 512);
          else if (width == 1024) NDTOOL_SLICES_OF(1024, 1024);
          else NDTOOL_SLICES_OF(width, prefetched);
      }
      #define ndtool_has_vbmi() __builtin_cpu_supports("avx512vbmi")
    #else
      #define ndtool_stream_slices(to, from, offsets, n, total, width, ahead, prefetched) ((void) 0)
      #define ndtool_has_vbmi() 0
    #endif
    """
    void stream_slices "ndtool_stream_slices"(
        uint8_t* target, const uint8_t* source, const int64_t* offsets, Py_ssize_t n,
        Py_ssize_t total,
        Py_ssize_t width, Py_ssize_t ahead, Py_ssize_t prefetched,
    ) noexcept nogil
    bint has_vbmi "ndtool_has_vbmi"() noexcept nogil


cdef inline void copy_bytes(
    uint8_t* target, const uint8_t* source, Py_ssize_t width
) noexcept nogil:
    """memcpy, but inline where two overlapping copies of a power of two suffice."""
    cdef Py_ssize_t i
    if width > 8 * LINE:
        memcpy(target, source, width)
    elif width > 64:
        for i in range(0, width - 64, 64):
            memcpy(target + i, source + i, 64)
        memcpy(target + width - 64, source + width - 64, 64)
    elif width > 32:
        memcpy(target, source, 32)
        memcpy(target + width - 32, source + width - 32, 32)
    elif width > 16:
        memcpy(target, source, 16)
        memcpy(target + width - 16, source + width - 16, 16)
    elif width > 8:
        memcpy(target, source, 8)
        memcpy(target + width - 8, source + width - 8, 8)
    elif width > 4:
        memcpy(target, source, 4)
        memcpy(target + width - 4, source + width - 4, 4)
    elif width > 2:
        memcpy(target, source, 2)
        memcpy(target + width - 2, source + width - 2, 2)
    elif width == 2:
        memcpy(target, source, 2)
    elif width:
        target[0] = source[0]


cdef inline void move_block(
    uint8_t* target, const int64_t* target_offsets, const uint8_t* source,
    const int64_t* source_offsets, Py_ssize_t n, Py_ssize_t width, Py_ssize_t pitch,
    Py_ssize_t ahead
) noexcept nogil:
    """Copy n slices of `width` bytes, in order, from and to their offsets.

    One of the offsets may be NULL: then these slices are every `pitch` bytes. ahead: if not 0, each
    copy also prefetches the source of the slice that many positions later.
    """
    if width == 4:
        move_width(target, target_offsets, source, source_offsets, n, 4, pitch, ahead)
    elif width == 8:
        move_width(target, target_offsets, source, source_offsets, n, 8, pitch, ahead)
    elif width == 2:
        move_width(target, target_offsets, source, source_offsets, n, 2, pitch, ahead)
    elif width == 1:
        move_width(target, target_offsets, source, source_offsets, n, 1, pitch, ahead)
    elif width == 16:
        move_width(target, target_offsets, source, source_offsets, n, 16, pitch, ahead)
    else:
        move_width(target, target_offsets, source, source_offsets, n, width, pitch, ahead)


cdef inline void move_width "ndtool_move_width"(
    uint8_t* target, const int64_t* target_offsets, const uint8_t* source,
    const int64_t* source_offsets, Py_ssize_t n, Py_ssize_t width, Py_ssize_t pitch,
    Py_ssize_t ahead
) noexcept nogil:
    """move_block, in a loop for the offsets that are given; a constant width, if it is usual."""
    if target_offsets == NULL and ahead:
        move_slices(target, NULL, source, source_offsets, n, width, pitch, ahead)
    elif target_offsets == NULL:
        move_slices(target, NULL, source, source_offsets, n, width, pitch, 0)
    elif source_offsets == NULL:
        move_slices(target, target_offsets, source, NULL, n, width, pitch, 0)
    else:
        move_slices(target, target_offsets, source, source_offsets, n, width, pitch, 0)


cdef inline void move_slices "ndtool_move_slices"(
    uint8_t* target, const int64_t* target_offsets, const uint8_t* source,
    const int64_t* source_offsets, Py_ssize_t n, Py_ssize_t width, Py_ssize_t pitch,
    Py_ssize_t ahead
) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint is_usual = is_usual_width(width)
    cdef uint8_t* to
    cdef const uint8_t* slice
    for i in range(n):
        to = target + (pitch * i if target_offsets == NULL else target_offsets[i])
        slice = source + (pitch * i if source_offsets == NULL else source_offsets[i])
        if ahead and is_usual:
            prefetch(source + source_offsets[i + ahead])
        elif ahead:
            prefetch_slice(source + source_offsets[i + ahead], width)
        if is_usual:
            memcpy(to, slice, width)
        else:
            copy_bytes(to, slice, width)
