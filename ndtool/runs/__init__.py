"""The operators from argument to argument."""
