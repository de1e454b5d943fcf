# cython: language_level=3, wraparound=False, cdivision=True
# Pages of mapped files, which the system is asked to read before they are waited for.

from libc.stdint cimport int64_t, uint8_t

from ndtool.loops.blocks cimport BLOCK, Cursor, Walk, block_of, next_offsets, seek

cdef enum:
    PAGE = 4096          # bytes of a page, the smallest there is
    ASKED = 131072       # bytes that one call asks for: of more, Linux may read a part only

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>
    #include <unistd.h>
    /* asks for the pages of a mapped file without waiting for them */
    static inline void ndtool_will_need(uint8_t const *from, Py_ssize_t n) {
        uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
        uintptr_t begin = (uintptr_t) from & ~(page - 1);
        (void) madvise((void *) begin, (uintptr_t) from + (uintptr_t) n - begin, MADV_WILLNEED);
    }
    """
    void ask_for "ndtool_will_need"(const uint8_t* source, Py_ssize_t n) noexcept nogil


cdef inline int64_t ask_between(
    const uint8_t* source, int64_t begin, int64_t end
) noexcept nogil:
    """Ask the system for bytes [begin, end), in as many calls as it takes; return how many."""
    cdef int64_t calls = 0
    while begin < end:
        ask_for(source + begin, min(ASKED, end - begin))
        begin += ASKED
        calls += 1
    return calls


cdef inline int64_t will_need_range(
    const Walk* walk, const uint8_t* source, int64_t count, Py_ssize_t width
) noexcept nogil:
    """Ask for every run, until an index is out of bounds; return how many calls it took.

    What follows on the same or on the next page is asked for together.
    """
    cdef int64_t offsets[BLOCK]
    cdef int64_t t = 0, take, i, calls = 0, begin = 0, end = 0
    cdef size_t page
    cdef Cursor at
    seek(&at, walk, 0)
    while t < count:
        take = min(block_of(walk.nd), count - t)
        if next_offsets(&at, walk, t, take, offsets):
            break
        for i in range(take):
            page = <size_t> (source + offsets[i]) // PAGE
            if begin <= offsets[i] and page <= <size_t> (source + end - 1) // PAGE + 1:
                end = max(end, offsets[i] + width)
            else:
                calls += ask_between(source, begin, end)
                begin = offsets[i]
                end = begin + width
        t += take
    return calls + ask_between(source, begin, end)
