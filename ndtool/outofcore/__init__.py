"""Out-of-core execution: three pure phases, and a map that runs them.

    split(block)      validates a block of tuples, sorts it stably by partition, and spills it
    sweep(partition)  reads a partition of data once, sequentially; gathers its rows, or applies
                      the updates of all blocks in the order of the blocks and writes it once; a
                      partition that exceeds memory is swept by the same three phases
    replay(block)     of gathers: restores the order of the block's tuples, and writes the rows

A phase is a function of the call and a number. What it spills has a name that depends on nothing
else, so any worker can repeat a task. The tuples of a group are in row-major order, so results
equal those of the sequential loop.
"""
