"""Who may lead, as a Lease shows it. PURE: time is an argument, and no two machines' clocks are compared.

A candidate watches when the lease last changed, by its own clock. What has not changed for the whole duration that its
holder wrote into it is free. A leader counts from the moment before it sent the renewal that succeeded, so it gives up
before anybody else may begin.
"""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things take, in seconds.

    Attributes:
        lease: for how long a lease that isn't renewed keeps others away.
        renew: a leader whose last successful renewal began longer ago than this gives up.
        retry: between two renewals; after one that failed, a quarter of it.
        attempt: deadline of one renewal; several must fit, so that one that hangs ends no term.
        request: the longest request that a leader makes.

    Raises:
        ValueError: a request that was sent by the last moment of a term could arrive in the next one.
    """

    lease: float = 6.0
    renew: float = 3.5
    retry: float = 1.0
    attempt: float = 1.0
    request: float = 2.0

    def __post_init__(self) -> None:
        longest = max(self.request, self.attempt)
        if self.retry <= 0 or self.retry + self.attempt >= self.renew or self.renew + longest >= self.lease:
            raise ValueError(
                f"renew ({self.renew:g} s) + the longest request ({longest:g} s) must be less than lease "
                f"({self.lease:g} s), and retry ({self.retry:g} s) + attempt ({self.attempt:g} s) less than renew"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A Lease.

    Attributes:
        holder: who has it; empty if it was released.
        epoch: its count of transitions: the number of the term.
        duration: for how long its holder keeps others away, in seconds.
        version: the object's; empty before it is written.
        address: base URL of its holder's API, for those who stand by; empty if it doesn't say.
    """

    holder: str
    epoch: int
    duration: float
    version: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Who stands for election.

    Attributes:
        identity: unique to the process, so that a term is never mistaken for an earlier one of the same name.
        address: base URL of its API.
    """

    identity: str
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A lease as a candidate has seen it.

    Attributes:
        record: the lease.
        since: when it was first seen in this version, by the candidate's clock.
    """

    record: Record
    since: float


def seen(before: Sighting | None, record: Record, now: float) -> Sighting:
    """Take note of a lease that was read."""
    if before is not None and before.record.version == record.version:
        return before
    return Sighting(record=record, since=now)


def free_in(sighting: Sighting, identity: str, now: float) -> float:
    """Return after how many seconds `identity` may take the lease; 0 at once.

    One's own lease is free: a bid has succeeded whose answer was lost.
    """
    if sighting.record.holder in {"", identity}:
        return 0.0
    return max(0.0, sighting.since + sighting.record.duration - now)


def bid(sighting: Sighting | None, candidate: Candidate, timing: Timing, *, floor: int) -> Record:
    """Return the lease as its next holder writes it.

    Args:
        sighting: the lease that is free; None where there is none.
        candidate: who bids.
        timing: how long things take.
        floor: the highest term that anybody has told of. A lease that was deleted would begin anew, and agents would
            refuse its holder's orders for ever.
    """
    known = 0 if sighting is None else sighting.record.epoch
    return Record(
        holder=candidate.identity,
        address=candidate.address,
        epoch=max(known, floor) + 1,
        duration=math.ceil(timing.lease),
        version="" if sighting is None else sighting.record.version,
    )


def released(record: Record) -> Record:
    """Return the lease as its holder leaves it; the next term still counts on from it."""
    return replace(record, holder="", address="", duration=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A lease that is ours.

    Attributes:
        record: the lease as it was last written.
        renewed: when the write was sent that last succeeded.
    """

    record: Record
    renewed: float

    def renew_by(self, timing: Timing) -> float:
        """Return when to give up."""
        return self.renewed + timing.renew

    def covers(self, timing: Timing, now: float, seconds: float) -> bool:
        """Whether what takes `seconds` from now on is over before anybody else may lead."""
        return now + seconds < self.renewed + timing.lease


def still_ours(held: Held, found: Record) -> bool:
    """Whether a lease that was read after a conflict is the one that we hold: somebody has only annotated it."""
    return (found.holder, found.epoch) == (held.record.holder, held.record.epoch)
