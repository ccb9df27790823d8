"""What an adapter knows of its engine's KV memory. Routes that release or take it twice are errors on some engines, or end them."""

from enum import Enum, auto


class Kv(Enum):
    """Where the KV memory is."""

    HELD = auto()
    RELEASED = auto()
    UNKNOWN = auto()
    """An order that released or took it was not answered, or answered with an error."""
