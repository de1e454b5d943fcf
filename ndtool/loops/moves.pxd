# cython: language_level=3, wraparound=False, cdivision=True
# Moves: runs copied from or to the offsets of a block, short ones one by one, longer ones as one
# stream of whole lines.

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport LINE, NOWHERE
from ndtool.loops.memory cimport prefetch, prefetch_run

cdef extern from *:
    """
    #if defined(__SSE2__) && (defined(__GNUC__) || defined(__clang__))
      /* Runs of more than a line, side by side, as one stream of whole lines: what a run leaves of
         its last line waits in a register for the next one. Masked bytes are neither read nor
         written, but the lines where they stand would be waited for: loads that cross the end of
         a run are turned in a register instead */
      #define NDTOOL_BELOW(n) (((__mmask64) 1 << (n)) - 1)
      #define NDTOOL_TURN _mm512_sub_epi8(in_place, _mm512_set1_epi8((char) held))
      #define NDTOOL_LINE \\
          do { \\
              if (k < asked) ndtool_prefetch(next + k); \\
              _mm512_stream_si512((__m512i *) to, _mm512_loadu_si512(run + k)); \\
              k += 64; \\
              to += 64; \\
          } while (0)
      #define NDTOOL_TURNS __attribute__((target("avx512f,avx512bw,avx512vbmi"))) static
      NDTOOL_TURNS inline __attribute__((always_inline)) void ndtool_stream_runs_of(
          uint8_t *to, const uint8_t *from, const int64_t *offsets, Py_ssize_t n, Py_ssize_t known,
          Py_ssize_t width, Py_ssize_t ahead, Py_ssize_t asked) {
          Py_ssize_t held = (Py_ssize_t) ((uintptr_t) to & 63), foreign = held, i, j, k;
          __m512i line = _mm512_setzero_si512();
          uint8_t places[64];
          for (j = 0; j < 64; j++) places[j] = (uint8_t) j;
          const __m512i in_place = _mm512_loadu_si512(places);
          to -= held;
          for (i = 0; i < n; i++) {
              const uint8_t *run = from + offsets[i];
              const uint8_t *next = from + offsets[i + ahead < known ? i + ahead : i];
              k = 0;
              if (held) {
                  ndtool_prefetch(next);
                  if (((uintptr_t) run & 63) == (size_t) held)
                      line = _mm512_mask_loadu_epi8(line, ~NDTOOL_BELOW(held), run - held);
                  else
                      line = _mm512_mask_permutexvar_epi8(
                          line, ~NDTOOL_BELOW(held), NDTOOL_TURN, _mm512_loadu_si512(run));
                  if (foreign) _mm512_mask_storeu_epi8(to, ~NDTOOL_BELOW(foreign), line);
                  else _mm512_stream_si512((__m512i *) to, line);
                  foreign = 0;
                  k = 64 - held;
                  to += 64;
              }
              #pragma GCC unroll 8
              for (j = 1; j < width / 64; j++) NDTOOL_LINE;  /* so many are certain to be whole */
              if (k + 64 <= width) NDTOOL_LINE;
              ndtool_prefetch(next + asked - 1);
              held = width - k;
              if (held && ((uintptr_t) (run + k) & 63) == 0)  /* the line is the run's */
                  line = _mm512_maskz_loadu_epi8(NDTOOL_BELOW(held), run + k);
              else
                  line = _mm512_permutexvar_epi8(
                      NDTOOL_TURN, _mm512_loadu_si512(run + width - 64));
          }
          if (held) _mm512_mask_storeu_epi8(to, NDTOOL_BELOW(held), line);
      }
      /* loops of a constant length take two thirds of the time */
      #define NDTOOL_RUNS_OF(width, asked) \\
          ndtool_stream_runs_of(to, from, offsets, n, known, width, ahead, asked)
      NDTOOL_TURNS void ndtool_stream_runs(
          uint8_t *to, const uint8_t *from, const int64_t *offsets, Py_ssize_t n, Py_ssize_t known,
          Py_ssize_t width, Py_ssize_t ahead, Py_ssize_t asked) {
          if (width == 128) NDTOOL_RUNS_OF(128, 128);
          else if (width == 256) NDTOOL_RUNS_OF(256, 256);
          else if (width == 512) NDTOOL_RUNS_OF(512, 512);
          else if (width == 1024) NDTOOL_RUNS_OF(1024, 1024);
          else NDTOOL_RUNS_OF(width, asked);
      }
      #define ndtool_has_turns() __builtin_cpu_supports("avx512vbmi")
    #else
      #define ndtool_stream_runs(to, from, offsets, n, known, width, ahead, asked) ((void) 0)
      #define ndtool_has_turns() 0
    #endif
    """
    void stream_runs "ndtool_stream_runs"(
        uint8_t* to, const uint8_t* source, const int64_t* offsets, Py_ssize_t n, Py_ssize_t known,
        Py_ssize_t width, Py_ssize_t ahead, Py_ssize_t asked,
    ) noexcept nogil
    bint has_turns "ndtool_has_turns"() noexcept nogil


cdef inline void copy_run(uint8_t* to, const uint8_t* source, Py_ssize_t width) noexcept nogil:
    """memcpy, but without a call where two overlapping pieces of a power of two will do."""
    cdef Py_ssize_t i
    if width > 8 * LINE:
        memcpy(to, source, width)
    elif width > 64:
        for i in range(0, width - 64, 64):
            memcpy(to + i, source + i, 64)
        memcpy(to + width - 64, source + width - 64, 64)
    elif width > 32:
        memcpy(to, source, 32)
        memcpy(to + width - 32, source + width - 32, 32)
    elif width > 16:
        memcpy(to, source, 16)
        memcpy(to + width - 16, source + width - 16, 16)
    elif width > 8:
        memcpy(to, source, 8)
        memcpy(to + width - 8, source + width - 8, 8)
    elif width > 4:
        memcpy(to, source, 4)
        memcpy(to + width - 4, source + width - 4, 4)
    elif width > 2:
        memcpy(to, source, 2)
        memcpy(to + width - 2, source + width - 2, 2)
    elif width == 2:
        memcpy(to, source, 2)
    elif width:
        to[0] = source[0]


cdef inline void ask_runs(
    const uint8_t* source, const int64_t* offsets, Py_ssize_t n
) noexcept nogil:
    """Ask for the first bytes of n runs."""
    cdef Py_ssize_t i
    for i in range(n):
        prefetch(source + offsets[i])


cdef inline void gather_block(
    uint8_t* to, const uint8_t* source, const int64_t* offsets, Py_ssize_t n, Py_ssize_t width,
    Py_ssize_t ahead
) noexcept nogil:
    """Copy n runs of some `width` bytes from their offsets to consecutive places.

    With each one the run `ahead` further on is asked for, if that is not 0.
    """
    cdef Py_ssize_t i
    if width == 4:
        for i in range(n):
            if ahead:
                prefetch(source + offsets[i + ahead])
            memcpy(to + 4 * i, source + offsets[i], 4)
    elif width == 8:
        for i in range(n):
            if ahead:
                prefetch(source + offsets[i + ahead])
            memcpy(to + 8 * i, source + offsets[i], 8)
    elif width == 2:
        for i in range(n):
            if ahead:
                prefetch(source + offsets[i + ahead])
            memcpy(to + 2 * i, source + offsets[i], 2)
    elif width == 1:
        for i in range(n):
            if ahead:
                prefetch(source + offsets[i + ahead])
            to[i] = source[offsets[i]]
    elif width == 16:
        for i in range(n):
            if ahead:
                prefetch(source + offsets[i + ahead])
            memcpy(to + 16 * i, source + offsets[i], 16)
    else:
        for i in range(n):
            if ahead:
                prefetch_run(source + offsets[i + ahead], width)
            copy_run(to + width * i, source + offsets[i], width)


cdef inline void scatter_block(
    uint8_t* out, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n, Py_ssize_t width
) noexcept nogil:
    """Copy n consecutive runs of `width` bytes to their offsets, in order.

    Of more than a line, those to NOWHERE are left out.
    """
    cdef Py_ssize_t i
    if width == 4:
        for i in range(n):
            memcpy(out + offsets[i], updates + 4 * i, 4)
    elif width == 8:
        for i in range(n):
            memcpy(out + offsets[i], updates + 8 * i, 8)
    elif width == 2:
        for i in range(n):
            memcpy(out + offsets[i], updates + 2 * i, 2)
    elif width == 1:
        for i in range(n):
            out[offsets[i]] = updates[i]
    elif width == 16:
        for i in range(n):
            memcpy(out + offsets[i], updates + 16 * i, 16)
    else:
        for i in range(n):
            if offsets[i] != NOWHERE:
                copy_run(out + offsets[i], updates + width * i, width)
