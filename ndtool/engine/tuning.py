"""Thresholds: they select algorithms and sizes of work items, and never affect results.

Modules read them as `tuning.NAME` at run time, so that tests can change them here. Those of the
loops themselves (block sizes, prefetch distances) are in the .pxd files.
"""

# Work items
PIECE = 1 << 26  # bytes that one kernel call moves: a fraction of a second, even from disk
WRITTEN = 1 << 20  # bytes of one write to a file, from a core's cache
TURNED = 1 << 20  # bytes of a box that is normalized in cache, then written

# Caches
STREAMED = 1 << 24  # bytes of output from which non-temporal stores are used
CACHED = 1 << 19  # bytes that fit in a core's cache under random access
TILE = 1 << 20  # bytes of a tile: half of a core's cache; indices and updates use the other half

NARROWED = 1 << 24  # bytes of indices from which validation stores them as narrower row indices

# Scatters
WIDE = 65  # bytes of a slice that is updated without sorting: more than a cache line
LONG = 128  # tuples of a batch from which it is updated in a window, a copy in cache
FEW = 1 << 14  # tuples from which sorting them by destination is faster
LOCAL_SHARE = 0.75  # fraction of spatially local tuples from which sorting is slower
SORTED = 16  # outputs of more than this times CACHED are sorted; twice that on one thread
MOST_PARTS = 1024  # partitions of an output, if 32 bits can number their rows
LARGEST_PART = 1 << 22  # bytes of a partition that is updated in a buffer, one per thread
REPEATED = 16  # updates per slice from which no first pass writes neutral elements
SCRATCH = 1 << 27  # scratch bytes for sorting
FILE_SCRATCH = 48 << 20  # scratch bytes for sorting in a run on files; the plan counts it

# Files
WAITING = 8 << 20  # bytes of incomplete dirty pages from which blocks of columns are faster
DIRTY = 16  # 1/16 of memory may be dirty pages of a mapped output; Linux allows 1/10
BLOCK = 32 << 20  # bytes of a block of columns, written in complete pages
BANDS = 2  # bands of a scatter's rows, more if tiles do not fit; each reads all indices

# Larger than memory
LEAST_MEMORY = 1 << 20  # bytes: the lowest value of the option --memory
COUNTED_ON = 1 << 24  # bytes of memory that a plan assumes even if less is available
SWEPT = 1 << 30  # bytes of memory that a sweep takes at most
SPARED = 1 << 26  # bytes of chunks that a sweep need not assemble, from which it may be faster
RANDOM = 1 << 17  # cost of a random page read, at most, in bytes of sequential reading
SEGMENT = 1 << 14  # cost of a prefetched spilled segment, in bytes of sequential reading
REQUEST = 1 << 22  # cost of a spilled segment that workers request from a server, in such bytes
FOUND = 64  # pages read to measure the cost of one
ORDERED = 1 << 22  # bytes read sequentially, which that cost is compared with
SORTING = 64  # cost of sorting a tuple, in bytes of sequential reading


# Arrays
SMALL = 1 << 16  # bytes that a small call on plain arrays may move (BoundCalls)
ASIDE = 1 << 16  # bytes of an output up to which it is computed in a temporary, then copied
COPIED = 1 << 12  # bytes of an array up to which NumPy normalizes it faster than the kernels
PACKED = 1 << 28  # bytes of data, at most, that are packed before strided slices are gathered
