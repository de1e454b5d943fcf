"""Arrays outside memory: places, formats, what is read and what is written."""
