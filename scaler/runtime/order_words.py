"""The words of people's orders, which those who give them and the controller share. PURE."""

from enum import StrEnum
from typing import Final

LONGEST_FREEZE_SECONDS: Final = 7 * 24 * 3600.0
"""A freeze that lasts longer belongs into the fleet's policy, where it is found."""


class Operation(StrEnum):
    """What a person may order."""

    PROMOTE = "Promote"
    """Bring a resident of a seat into rotation."""
    DEMOTE = "Demote"
    """Drain the resident that serves and pause it."""
    SWITCH = "Switch"
    """Drain the resident that serves, and promote another of the same seat."""
    DRAIN = "Drain"
    """Hand over whatever serves on a seat, and give it no promotion from then on."""
    FREEZE = "Freeze"
    """Leave a fleet's size as it is until a moment."""
    THAW = "Thaw"
    """End a freeze that was ordered."""
