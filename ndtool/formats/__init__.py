"""File formats, one module or package each, and the arguments that refer to arrays in files."""
