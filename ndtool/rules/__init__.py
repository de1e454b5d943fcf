"""What is allowed and what follows from it: pure, no I/O, no NumPy."""
