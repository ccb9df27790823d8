"""What has become of an engine's CUDA graphs. No torch here: everybody tells of them."""

from enum import StrEnum


class Graphs(StrEnum):
    """Whether graphs are captured."""

    NONE = "None"
    """There are none and there will be none: the device can't, or nobody wants any."""
    PENDING = "Pending"
    """Some are still to be captured; what has none is computed operation by operation."""
    CAPTURED = "Captured"
    """All of them are there."""
