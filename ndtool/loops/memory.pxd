# cython: language_level=3, wraparound=False, cdivision=True
# Memory: prefetches, non-temporal stores and byte swaps; macros that compile a function again for
# other SIMD instruction sets.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    PREFETCH_DISTANCE = 16384    # prefetch distance in a stream, in bytes

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
      /* compiled again for wider SIMD; the loader chooses by CPU */
      #define ndtool_clones \\
          __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
      #define ndtool_twice __attribute__((target_clones("default", "arch=x86-64-v3")))
    #else
      #define ndtool_clones
      #define ndtool_twice
    #endif
    #if defined(__GNUC__) || defined(__clang__)
      #define ndtool_inline __attribute__((always_inline))
      #define ndtool_noinline __attribute__((noinline))
      /* Into L2, which has more fill buffers than L1: on AMD three times as many. GCC would remove
         calls of functions that only prefetch; the asm prevents that */
      #define ndtool_prefetch(address)                                                         \
          do { __builtin_prefetch(address, 0, 2); __asm__ volatile(""); } while (0)
    #else
      #define ndtool_inline
      #define ndtool_noinline
      #define ndtool_prefetch(address) ((void) (address))
    #endif
    /* non-temporal stores: no line is read before it is overwritten. Those of a full line are
       the fastest, where the CPU has them */
    #if defined(__SSE2__) && (defined(__GNUC__) || defined(__clang__))
      #include <immintrin.h>
      #define NDTOOL_STREAM(bytes, vector, load, store, features)                              \\
          __attribute__((target(features))) static Py_ssize_t ndtool_stream_##bytes(           \\
              uint8_t *to, const uint8_t *from, Py_ssize_t n) {                                \\
              Py_ssize_t i;                                                                    \\
              for (i = 0; i + bytes <= n; i += bytes)                                          \\
                  store((vector *) (to + i), load((const vector *) (from + i)));               \\
              return i;                                                                        \\
          }
      NDTOOL_STREAM(16, __m128i, _mm_loadu_si128, _mm_stream_si128, "sse2")
      NDTOOL_STREAM(32, __m256i, _mm256_loadu_si256, _mm256_stream_si256, "avx")
      NDTOOL_STREAM(64, __m512i, _mm512_loadu_si512, _mm512_stream_si512, "avx512f")
      static inline Py_ssize_t ndtool_stream_lines(
          uint8_t *to, const uint8_t *from, Py_ssize_t n) {
          if (__builtin_cpu_supports("avx512f")) return ndtool_stream_64(to, from, n);
          if (__builtin_cpu_supports("avx")) return ndtool_stream_32(to, from, n);
          return ndtool_stream_16(to, from, n);
      }
      /* less than a line, up to or from a line boundary */
      static void ndtool_stream_rest(uint8_t *to, const uint8_t *from, Py_ssize_t n) {
          if ((((uintptr_t) to | (size_t) n) & 15) == 0) (void) ndtool_stream_16(to, from, n);
          else memcpy(to, from, (size_t) n); /* a line that gets both is written twice */
      }
      static inline void ndtool_stream(uint8_t *to, const uint8_t *from, Py_ssize_t n) {
          Py_ssize_t i = (Py_ssize_t) (-(uintptr_t) to & 63);
          if (i > n) i = n;
          if (i) ndtool_stream_rest(to, from, i);
          i += ndtool_stream_lines(to + i, from + i, n - i);
          if (i < n) ndtool_stream_rest(to + i, from + i, n - i);
      }
      #define ndtool_stream_end() _mm_sfence()
    #else
      #define ndtool_stream(to, from, n) memcpy(to, from, (size_t) (n))
      #define ndtool_stream_end() ((void) 0)
    #endif
    """
    void prefetch "ndtool_prefetch"(const void* address) noexcept nogil
    void stream "ndtool_stream"(uint8_t* target, const uint8_t* source, Py_ssize_t n) noexcept nogil
    void stream_end "ndtool_stream_end"() noexcept nogil


cdef inline void prefetch_lines(const uint8_t* source, Py_ssize_t n) noexcept nogil:
    """Prefetch n bytes of a stream that is read alternately with another stream.

    Hardware prefetches a single stream, but not two that are read alternately.
    """
    cdef Py_ssize_t i
    for i in range(0, n, 64):
        prefetch(source + i)


cdef inline void prefetch_slice(const uint8_t* slice, Py_ssize_t width) noexcept nogil:
    """Prefetch a slice; of a long slice, its first lines: hardware prefetches the others."""
    cdef Py_ssize_t prefetched = min(width, PREFETCH_DISTANCE // 8)
    prefetch_lines(slice, prefetched)
    prefetch(slice + prefetched - 1)    # unaligned slices span another line


cdef inline void store(
    uint8_t* target, const uint8_t* source, Py_ssize_t n, bint non_temporal
) noexcept nogil:
    """Copy n bytes; after non-temporal stores, call stream_end."""
    if non_temporal:
        stream(target, source, n)
    else:
        memcpy(target, source, n)


cdef inline void write_window(
    uint8_t* target, const uint8_t* window, Py_ssize_t length, bint non_temporal
) noexcept nogil:
    store(target, window, length, non_temporal)
    if non_temporal:
        stream_end()


cdef extern from *:
    """
    #define ndtool_swap16 __builtin_bswap16
    #define ndtool_swap32 __builtin_bswap32
    #define ndtool_swap64 __builtin_bswap64
    """
    uint16_t swap16 "ndtool_swap16"(uint16_t) noexcept nogil
    uint32_t swap32 "ndtool_swap32"(uint32_t) noexcept nogil
    uint64_t swap64 "ndtool_swap64"(uint64_t) noexcept nogil


cdef inline void swap_units(uint8_t* buffer, Py_ssize_t n, int unit) noexcept nogil:
    """Byte-swap each of n units, in place."""
    cdef Py_ssize_t i
    cdef uint8_t* first_byte
    cdef int b
    cdef uint16_t v2
    cdef uint32_t v4
    cdef uint64_t v8
    if unit == 2:
        for i in range(n):
            memcpy(&v2, buffer + 2 * i, 2)
            v2 = swap16(v2)
            memcpy(buffer + 2 * i, &v2, 2)
    elif unit == 4:
        for i in range(n):
            memcpy(&v4, buffer + 4 * i, 4)
            v4 = swap32(v4)
            memcpy(buffer + 4 * i, &v4, 4)
    elif unit == 8:
        for i in range(n):
            memcpy(&v8, buffer + 8 * i, 8)
            v8 = swap64(v8)
            memcpy(buffer + 8 * i, &v8, 8)
    else:
        for i in range(n):
            first_byte = buffer + i * unit
            for b in range(unit // 2):
                first_byte[b], first_byte[unit - 1 - b] = first_byte[unit - 1 - b], first_byte[b]
