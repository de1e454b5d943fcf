"""The questions of the command line, as functions of Python, and the fields of their answers."""
