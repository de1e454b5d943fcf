"""The commands that answer questions, as Python functions, and the classes of their answers."""
