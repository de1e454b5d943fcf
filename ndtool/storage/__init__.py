"""Storage: reads and writes of local files and remote objects."""
