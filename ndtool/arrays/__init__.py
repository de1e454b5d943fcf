"""Interfaces to arrays outside memory: sources, sinks, readers and writers of boxes."""
