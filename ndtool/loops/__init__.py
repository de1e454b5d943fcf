"""Loops over bytes, compiled into _kernels."""
