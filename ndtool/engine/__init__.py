"""Execution in memory: binds plans and buffers to the kernels, and calls them."""
