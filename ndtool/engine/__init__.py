"""From a plan and bytes to kernels."""
