"""How bytes move from open files into tensors, one module per kind of destination.

Belongs here: torch memory, threads that read, CUDA streams. Must not: parsing or choosing files. Imported lazily by
`loader.loading` and `loader.torch`, so that checkpoints can be inspected where torch is not installed.
"""
