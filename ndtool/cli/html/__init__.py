"""HTML reports about a call."""
