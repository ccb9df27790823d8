"""Where bytes come from: opening checkpoints, reading ranges, telling how near the bytes are.

Belongs here: everything that touches files and their systems. Must not: torch, or any knowledge of where bytes go.
Imported by: the package's own modules; the rest of the world calls `loader.open_checkpoint`.
"""
