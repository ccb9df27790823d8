"""What a measurement says of a change: whether an engine holds what it should, and has given back what it said. No I/O.

The first measurement at a depth is what later ones are compared with. Before there is one, what an engine says of its own size is:
at least half of it has to move. Host memory is no device memory: where there is no device, only the first release is judged, for the
resident memory of a process tree also moves with what else it does.
"""

from dataclasses import dataclass
from typing import Final

from warmpool.engines.capabilities import Change, Verdict

TELLING_BYTES: Final = 64 * 2**20
"""Less drowns in what else a process allocates and frees."""
SLACK_BYTES: Final = 512 * 2**20
"""How much a resting engine's device memory may differ from its first measurement: workspaces and graphs that come late."""
SLACK_PERCENT: Final = 5
"""The same as a part of that measurement, where that is more."""
_MIB: Final = 2**20
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What is known of an engine's memory around a change. None where it isn't.

    Attributes:
        change: what it was told.
        held: bytes held afterwards.
        before: bytes held before.
        usual: bytes that it held when it was first measured where it is now.
        moved: bytes that the change should have moved, as the engine tells its own sizes.
        most: bytes that it may hold while it computes; only a resume needs it.
        device: device memory was measured, not a process tree's resident memory.
        reason: why something isn't known.
    """

    change: Change
    held: int | None
    before: int | None = None
    usual: int | None = None
    moved: int | None = None
    most: int | None = None
    device: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a measurement says of a change.

    Attributes:
        verdict: whether the memory is where it should be.
        line: the same in words, with its figures.
    """

    verdict: Verdict
    line: str


def slack(usual: int) -> int:
    """Return how much a later measurement may differ from the first one."""
    return max(SLACK_BYTES, usual * SLACK_PERCENT // _PERCENT)


def judge(holding: Holding) -> Judgement:
    """Judge a change by what was measured."""
    if holding.held is None:
        return _open(holding.reason or "its memory wasn't measured")
    if holding.change is Change.RESUME:
        return _judge_compute(holding.held, holding.most)
    if not holding.device and (holding.change is not Change.RELEASE or holding.usual is not None):
        return _open(f"{_mib(holding.held)} of host memory held, which says little of the change")
    if holding.usual is not None:
        return _judge_usual(holding.change, holding.held, holding.usual)
    return _judge_first(holding, holding.held)


def _judge_compute(held: int, most: int | None) -> Judgement:
    if most is None:
        return _open(f"{_mib(held)} held; how much it may hold while it computes isn't known")
    if held > most + slack(most):
        return _wrong(f"{_mib(held)} held, and computing takes {_mib(most)} at most")
    return _right(f"{_mib(held)} held of {_mib(most)} that computing may take")


def _judge_usual(change: Change, held: int, usual: int) -> Judgement:
    more = held - usual
    if more > slack(usual):
        return _wrong(f"{_mib(held)} held, {_mib(more)} more than the usual {_mib(usual)}: memory leaks")
    if change is Change.UNPARK and -more > slack(usual):
        return _wrong(
            f"{_mib(held)} held, {_mib(-more)} less than the usual {_mib(usual)}: its weights aren't there"
        )
    return _right(f"{_mib(held)} held, usual are {_mib(usual)}")


def _judge_first(holding: Holding, held: int) -> Judgement:
    if holding.change is Change.PAUSE:
        return _open(f"{_mib(held)} held; from now on it is compared with that")
    before, moved = holding.before, holding.moved
    if before is None or moved is None or moved < TELLING_BYTES:
        return _open(f"{_mib(held)} held; how much should have moved isn't known")
    found = held - before if holding.change is Change.UNPARK else before - held
    what, verb = _MOVED[holding.change]
    if found < moved / 2:
        return _wrong(
            f"it answered that {_mib(moved)} of {what} were {verb}, "
            f"and the memory that it holds went from {_mib(before)} to {_mib(held)}"
        )
    return _right(f"{_mib(before)} held before, {_mib(held)} after {_mib(moved)} of {what} were {verb}")


_MOVED: Final = {
    Change.RELEASE: ("KV memory", "released"),
    Change.PARK: ("weights", "moved to host memory"),
    Change.UNPARK: ("weights", "moved back"),
}


def _mib(value: int) -> str:
    return f"{value // _MIB} MiB"


def _right(line: str) -> Judgement:
    return Judgement(verdict=Verdict.VERIFIED, line=line)


def _open(line: str) -> Judgement:
    return Judgement(verdict=Verdict.UNVERIFIED, line=line)


def _wrong(line: str) -> Judgement:
    return Judgement(verdict=Verdict.CONTRADICTED, line=line)
