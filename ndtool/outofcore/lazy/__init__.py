"""Calls on chunked arrays, one chunk at a time: the pure functions of a task graph.

Axes of data are of three kinds. Rows are the axes along which index tuples select: batch axes and
indexed axes. Lanes are the axes before the indexed axis of plain indices; the other axes are those
of a slice. So a chunk of data is an array (outer axes, rows, slice), in which each tuple selects
one row.

    split           sorts the tuples of a chunk of indices stably by the chunk of data they select
    bounds_verdict, duplicates_verdict
                    raise the error about indices out of bounds, or about duplicates
    select          selects, from the results of several tasks, the entries for some chunks
    gather_rows     gathers from a chunk of data the rows that tuples select
    merge_rows      restores the order of the tuples of a chunk of indices: a chunk of the output
    split_updates   bundles a chunk of updates by chunk of data
    apply_updates   applies to a chunk of data all of its updates, in row-major order of indices
"""
