"""Runs: an operator on files, from opening the inputs to publishing the output."""
