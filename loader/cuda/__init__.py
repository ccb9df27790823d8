"""The CUDA driver's calls that torch has none for: memory that processes share by descriptor, and page-locking without rounding.

Called through ctypes, so nothing is compiled. Knows nothing of checkpoints.
"""
