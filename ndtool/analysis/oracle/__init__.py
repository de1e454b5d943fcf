"""The slow reference of every operator, and distances between elements."""
