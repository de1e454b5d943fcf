"""The command line; only this wing knows click and rich."""
