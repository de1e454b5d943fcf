"""The process and its host: threads, a thread pool, memory, control groups, scratch, signals."""
