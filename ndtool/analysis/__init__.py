"""Questions about a call: inferred, recomputed, shown."""
