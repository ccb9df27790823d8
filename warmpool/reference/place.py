"""Where an engine's weights are, as its control surface names it. No torch here: the listeners come up before it."""

from enum import StrEnum


class Place(StrEnum):
    """Where the weights are."""

    HELD = "Held"
    """In device memory."""
    PARKING = "Parking"
    """On their way to host memory."""
    PARKED = "Parked"
    """In host memory, and nothing of them in device memory."""
    UNPARKING = "Unparking"
    """On their way back."""
