"""The command line, the only package that uses click and rich."""
