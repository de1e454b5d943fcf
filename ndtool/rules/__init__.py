"""The rules of the operators: types, shapes, standards. Pure functions, no I/O, no NumPy."""
