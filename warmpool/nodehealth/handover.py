"""What becomes of whoever serves on a GPU that is Bad: handed over, or taken out of rotation at once. PURE.

Most of what makes a GPU Bad says that it shall be given up, and nothing against what it computes: an engine there that still answers
goes on until another serves in its place, for a request that is refused is lost. Where the GPU is gone, nobody there answers any more;
and where errors of its memory got through to what was computed, an answer may be wrong. Nobody waits for a replacement then.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth.records import XID, Code
from warmpool.nodehealth.verdicts import GpuVerdict
from warmpool.seats import Verdict

STOPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        Code.LOST: "the GPU is gone",
        Code.MISSING: "the GPU is gone",
        Code.RESET_REQUIRED: "the driver runs nothing there before a reset",
        f"{XID}48": "a memory error that wasn't corrected, and nobody says that it was contained",
        f"{XID}79": "the GPU is gone",
        f"{XID}95": "a memory error that wasn't contained: all that computes there may be wrong",
        f"{XID}140": "a memory error that wasn't recovered",
    }
)
"""Reasons by which whoever serves is taken out of rotation at once, and why. After all others it is handed over."""


def stops(gpu: GpuVerdict) -> bool:
    """Whether nobody on a GPU is sent any more requests, though nobody serves in its place yet."""
    return any(reason.verdict is Verdict.BAD and reason.code in STOPS for reason in gpu.reasons)
