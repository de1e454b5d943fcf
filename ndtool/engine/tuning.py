"""Every threshold that decides how work is done, and none that decides what comes out.

Read where it counts, as `tuning.NAME`, so that one place changes it. Those of the loops themselves
(blocks, distances of prefetches) stand beside them in the .pxd files.
"""

# Threads
WORTH = 1 << 20  # bytes of work that pay for waking a thread: a tenth of a millisecond

# Pieces
PIECE = 1 << 26  # bytes that one kernel call may move: a fraction of a second, even from disk
WRITTEN = 1 << 20  # bytes that are written to a file at once, from a core's cache
TURNED = 1 << 20  # bytes that are put into row-major order and written at once

# Caches
STREAMED = 1 << 24  # outputs from here on bypass the cache, which they would only flush
CACHED = 1 << 19  # bytes that stay in a core's cache while indices jump about in them
TILE = 1 << 20  # bytes of a tile: half of what a core caches, beside what streams through it

NARROWED = 1 << 24  # bytes of indices that a check copies into fewer, to be read from then on

# Scatters
WIDE = 65  # bytes of a run that is changed where it stands, without sorting: more than a line
LONG = 128  # indices of a line that is worth a copy of its own
FEW = 1 << 14  # tuples that are not worth sorting
NEAR = 0.75  # share of tuples that lead near the one before: as many are as good as sorted
SORTED = 16  # times CACHED, and twice that for one thread: outputs that are worth it
MOST_PARTS = 1024  # of an output, as far as their rows can be numbered
LARGEST_PART = 1 << 22  # bytes of a part that is finished in a buffer, one per thread
SCRATCH = 1 << 27  # bytes that sorting may take
FILE_SCRATCH = 48 << 20  # bytes that it may take in a run on files, whose memory is promised

# Files
WAITING = 8 << 20  # bytes of pages that may wait for the rest of their columns
DIRTY = 16  # a part of memory: a mapped output below it waits there; Linux lets a tenth wait
BLOCK = 32 << 20  # bytes of columns that are finished before they are written, in whole pages
BANDS = 2  # of a scatter's rows, if its tiles fit: each goes over all indices again

# Larger than memory
LEAST_MEMORY = 1 << 20  # bytes that a run can be told to keep to
COUNTED_ON = 1 << 24  # bytes of memory, however little there is at the moment
SWEPT = 1 << 30  # bytes of memory that a sweep takes at most, unless told otherwise
RANDOM = 1 << 17  # bytes that are read in order while a disk finds one page, at most
FOUND = 64  # pages that are read to tell that
ORDERED = 1 << 22  # bytes that are read in order to tell that
SORTING = 64  # bytes that are read in order while a tuple is sorted

# Arrays
ASIDE = 1 << 16  # bytes of an output that are computed aside, then copied
COPIED = 1 << 12  # bytes that NumPy puts right before the kernels would have begun
PACKED = 1 << 28  # bytes of data that are put into row-major order before rows of it are gathered
