"""How long a turn lasts, where there are fewer seats than equals who want one.

A turn begins when its policy is in rotation: the drain of whoever leaves, and the promotion, are nobody's. It lasts for a
stable window, and for so many times what that change of hands has just taken that no more than a tenth of a seat's time is
lost with it: as in a processor's time slice, what a switch costs is to be small against what comes between two. Else a
short window has a seat change hands faster than its requests can be drained, and each of those who share it is about to
get it for ever.

A promotion that doesn't come to an end keeps nobody waiting for longer than the longest turn.
"""

import math
from typing import Final

from scaler.core.memory import PolicyMemory

_SWITCHES_BETWEEN: Final = 9.0
"""A turn is at least so many times as long as the change of hands before it: a tenth of both together is lost."""
_LONGEST_SECONDS: Final = 60.0
"""A turn is no longer than this for its switch's sake: the stable window of a policy that says nothing of it. A drain that takes
longer than a tenth of that costs what it costs."""


def has_turn(memory: PolicyMemory, stable_window: float, now: float) -> bool:
    """Whether a policy's turn isn't over.

    Args:
        memory: what is remembered of it.
        stable_window: seconds of its stable window.
        now: the time.
    """
    arrived = memory.arrived_at
    if arrived is not None and now >= arrived + stable_window and now >= arrived + _LONGEST_SECONDS:
        return False  # as nearly always
    return now < turn_ends(memory, stable_window)


def turn_ends(memory: PolicyMemory, stable_window: float) -> float:
    """Return until when a policy may keep its first seat, whoever has waited for one.

    Args:
        memory: what is remembered of it.
        stable_window: seconds of its stable window.
    """
    longest = max(stable_window, _LONGEST_SECONDS)
    if memory.arrived_at is None:
        return memory.fed_since + longest
    lost = memory.arrived_at - memory.fed_since
    turn = max(stable_window, min(_SWITCHES_BETWEEN * lost, longest))
    return memory.arrived_at + turn if math.isfinite(turn) else math.inf
