"""The CUDA driver's calls that torch has none for: memory that processes share by descriptor, and page-locking without rounding.

`library` is the binding, which other packages may use as well. `port` says what this package wants of a device, `driver` is CUDA's, `shared`
makes tensors of its memory. `opening` opens devices and measures, by `nvml`, what that costs. Knows nothing of checkpoints.
"""
