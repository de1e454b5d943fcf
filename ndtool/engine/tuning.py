"""Thresholds: they select algorithms and sizes of work items, but never change results.

Modules read them as `tuning.NAME` at run time, so that tests can change them here. Those of the
loops themselves (block sizes, prefetch distances) are in the .pxd files.
"""

# Work items
WORK_ITEM = 1 << 26  # bytes that one kernel call moves: a fraction of a second, even from disk
WRITE_SIZE = 1 << 20  # bytes of one write to a file, from a core's cache
NORMALIZED_BOX = 1 << 20  # bytes of a box that is normalized in cache and then written

# Caches
NON_TEMPORAL = 1 << 24  # bytes of an output, from which non-temporal stores are used
CACHE_SIZE = 1 << 19  # bytes that fit in a core's cache under random access
TILE = 1 << 20  # bytes of a tile: half of a core's cache; indices and updates use the other half

# Scatters
WIDE_SLICE = 65  # bytes of a slice, from which tuples are not sorted: more than a cache line
LONG_BATCH = 128  # tuples of a batch, from which it is updated in a window: a copy in cache
MIN_SORTED = 1 << 14  # number of tuples, from which sorting them by destination is faster
LOCAL_FRACTION = 0.75  # fraction of spatially local tuples, from which sorting is slower
SORTED_OUTPUT = (
    16  # size of an output, in CACHE_SIZE, from which tuples are sorted; 32 on one thread
)
MAX_PARTITIONS = 1024  # partitions of an output, if 32 bits can number their rows
MAX_PARTITION = 1 << 22  # bytes of a partition that is updated in a buffer, one per thread
SPARSE_UPDATES = 16  # slices per update, from which a table numbers those with updates
UPDATES_PER_SLICE = 16  # updates per slice, after which often all slices have some
SCRATCH = 1 << 27  # scratch bytes for sorting
FILE_SCRATCH = 48 << 20  # scratch bytes for sorting in a run on files; part of its planned memory

# Larger than memory
MIN_MEMORY = 1 << 20  # bytes: the minimum of the option --memory
ASSUMED_MEMORY = 1 << 24  # bytes of memory that a plan assumes, even if less is available
MAX_SWEEP_MEMORY = 1 << 30  # maximum bytes of memory of a sweep
UNUSED_CHUNKS = 1 << 26  # bytes of unused chunks, from which a sweep may be faster
RANDOM_READ_COST = 1 << 17  # maximum cost of a random page read, in bytes read sequentially
SEGMENT_BYTES = 1 << 11  # mean bytes of spilled segments, below which they are made larger
REQUEST_BYTES = 1 << 20  # the same on a cluster, where a server is requested for each
SAMPLED_PAGES = 64  # random pages read to measure the cost of a page read
SAMPLED_BYTES = 1 << 22  # bytes read sequentially, to compare that cost with
SORT_COST = 64  # cost of sorting a tuple, in bytes read sequentially

# Chunks
FEW_TUPLES = 1 << 9  # whose blocks are found by a loop: the import of NumPy would take longer
BLOCK_TUPLE_COST = 32  # cost of a tuple gathered from a block, in bytes of assembled blocks
MAX_BLOCK_TUPLES = 1 << 20  # maximum number of tuples that are gathered so

# Arrays
COMPILED_CALL = 1 << 26  # bytes that a scatter planned by compiled code may move
RELEASING = 1 << 15  # bytes that a call moves, from which it releases the GIL and may use threads
TEMPORARY_OUTPUT = 1 << 16  # bytes of an output, up to which a temporary array is faster
PACKED_IN_CACHE = 1 << 22  # bytes of data that are packed before short slices of them are gathered
MAX_PACKED = 1 << 28  # maximum bytes of data that are packed before strided slices are gathered
