"""The CUDA driver's calls that torch has none for: memory that processes share by descriptor, and page-locking without rounding.

`library` is the binding, which other packages may use as well; `driver` and `shared` are what this package makes of it. Knows nothing of
checkpoints.
"""
