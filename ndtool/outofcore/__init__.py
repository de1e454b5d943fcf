"""Out-of-core execution: three phases and a map that runs them, see docs/architecture.md."""
