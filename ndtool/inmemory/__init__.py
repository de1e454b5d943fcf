"""The operators on arrays in memory: arguments, checked calls, derivatives."""
