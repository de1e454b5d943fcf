"""Calls on chunked arrays, one chunk at a time: pure functions that a task graph is made of.

Axes of data are of three kinds. Index tuples select along the rows: batch axes and indexed ones.
The lanes before the indexed axis (of plain indices) and the axes of a slice, the run, are not
selected. So a chunk of data is an array (lanes, rows, run), in which each tuple has one row.

    split   sorts the tuples of a chunk of indices, stably, by the chunk of data they select from
    verdict raises the error about indices out of bounds, or about duplicates
    select  hands parts on, for some chunks, from the results of several tasks
    pick    gathers from a chunk of data what tuples select
    merge   restores the order of the tuples of a chunk of indices: a chunk of the output
    deal    bundles a chunk of updates by the chunks of data that they are for
    update  applies to a chunk of data all of its updates, in row-major order of indices
"""
