# cython: language_level=3, wraparound=False, cdivision=True
# Pages: madvise(MADV_WILLNEED) on mapped files, so that the system reads pages before they fault.
# Slices on the same or on adjacent pages share a call.

from libc.stdint cimport int64_t, uint8_t

from ndtool.loops.blocks cimport BLOCK, Cursor, Walk, block_size, next_offsets, seek

cdef enum:
    PAGE = 4096               # bytes of the smallest page
    MADVISE_BYTES = 131072    # maximum bytes of a call: Linux may read fewer of more

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>
    #include <unistd.h>
    /* prefetches pages of a mapped file, without waiting */
    static inline void ndtool_will_need(uint8_t const *from, Py_ssize_t n) {
        uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
        uintptr_t begin = (uintptr_t) from & ~(page - 1);
        (void) madvise((void *) begin, (uintptr_t) from + (uintptr_t) n - begin, MADV_WILLNEED);
    }
    """
    void advise "ndtool_will_need"(const uint8_t* source, Py_ssize_t n) noexcept nogil


cdef inline int64_t advise_range(
    const uint8_t* source, int64_t begin, int64_t end
) noexcept nogil:
    """Prefetch the pages of bytes [begin, end); return the number of system calls."""
    cdef int64_t calls = 0
    while begin < end:
        advise(source + begin, min(MADVISE_BYTES, end - begin))
        begin += MADVISE_BYTES
        calls += 1
    return calls


cdef inline int64_t will_need_range(
    const Walk* walk, const uint8_t* source, int64_t count, Py_ssize_t width
) noexcept nogil:
    """Prefetch the pages of slices, up to an index out of bounds; return the number of calls."""
    cdef int64_t offsets[BLOCK]
    cdef int64_t t = 0, n, i, calls = 0, begin = 0, end = 0
    cdef size_t page
    cdef Cursor cursor
    seek(&cursor, walk, 0)
    while t < count:
        n = min(block_size(walk.space), count - t)
        if next_offsets(&cursor, walk, t, n, offsets):
            break
        for i in range(n):
            page = <size_t> (source + offsets[i]) // PAGE
            if begin <= offsets[i] and page <= <size_t> (source + end - 1) // PAGE + 1:
                end = max(end, offsets[i] + width)
            else:
                calls += advise_range(source, begin, end)
                begin = offsets[i]
                end = begin + width
        t += n
    return calls + advise_range(source, begin, end)
