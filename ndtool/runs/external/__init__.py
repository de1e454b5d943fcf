"""External (out-of-core) execution: partition the index tuples, sweep the data, replay."""
