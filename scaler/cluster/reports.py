"""Agents' reports, read and put in order: which process wrote one, and whether it is newer than the last.

For adapters whose seats' agents tell their state over the network. PURE but for the waiting of `HighestTerm`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from warmpool.errors import BadOrder
from warmpool.seats import UNKNOWN, GpuWord, Resident
from warmpool.tiers import Budget
from warmpool.wire import budget_from_json, gpu_word_from_json, resident_from_json

_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
WORD_MAX_AGE_SECONDS = 30.0
"""What a node said of a GPU longer ago is unknown: two of its readings have passed since."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an agent said of its seat.

    Attributes:
        seat, fleet, uid: the seat as the agent's configuration calls it.
        pid: the agent's process.
        epoch: the highest term whose orders it has taken.
        sequence: grows with each change within one life of the agent.
        at: Unix time of the report, on the agent's clock.
        gpus: the seat's GPUs.
        residents: its residents.
        memory: what they take of its memory; None where it isn't told.
        gpu_words: what its node says of its GPUs; what it said too long ago is Unknown.
        agent: base URL of the agent, as it knows it: the port counts, the host may be a wildcard.
    """

    seat: str
    fleet: str
    uid: str
    pid: int
    epoch: int
    sequence: int
    at: float
    gpus: tuple[str, ...]
    residents: tuple[Resident, ...]
    memory: Budget | None = None
    gpu_words: tuple[GpuWord, ...] = ()
    agent: str = ""


class Reader(Protocol):
    """Asks agents for their states."""

    async def read(self, agent: str) -> Mapping[str, Any]:
        """Return the state that the agent at a base URL tells.

        Raises:
            Unreachable: it tells none.
        """


def parse(body: Mapping[str, Any]) -> Report:
    """Read the body of an agent's `/v1/state`.

    Raises:
        BadOrder: it is malformed.
    """
    try:
        return Report(
            seat=str(body["seat"]),
            fleet=str(body["fleet"]),
            uid=str(body["uid"]),
            pid=int(body["pid"]),
            epoch=int(body["epoch"]),
            sequence=int(body["seq"]),
            at=float(body["at"]),
            gpus=tuple(str(gpu) for gpu in body.get("gpus", ())),
            residents=tuple(resident_from_json(resident) for resident in body["residents"]),
            memory=None if body.get("memory") is None else budget_from_json(body["memory"]),
            gpu_words=words_of(body),
            agent=str(body.get("agent", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadOrder(f"not an agent's report: {error!r}") from error


def words_of(body: Mapping[str, Any]) -> tuple[GpuWord, ...]:
    """Read what an agent's report says of its seat's GPUs; agents that say nothing of them are as good as others.

    Raises:
        BadOrder, TypeError, ValueError: it is malformed.
    """
    return tuple(
        replace(word, word=UNKNOWN, reason="what its node said is too old")
        if float(said.get("ageMilliseconds", 0)) > WORD_MAX_AGE_SECONDS * 1000
        else word
        for said in body.get("gpuHealth") or ()
        for word in [gpu_word_from_json(said)]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One life of one agent, by the newest report of it.

    Attributes:
        uid: the seat's identity.
        pid: the agent's process.
        sequence: of its newest report.
        at: of its newest report.
        base: what is added to its sequence, so that numbers go on growing from life to life.
    """

    uid: str
    pid: int
    sequence: int
    at: float
    base: int = 0

    @property
    def number(self) -> int:
        """The newest report's number over all lives of the agent."""
        return self.base + self.sequence


def follow(life: Life | None, report: Report) -> tuple[Life, bool] | None:
    """Place a report after the ones before it.

    An agent that has begun anew counts from zero again. It shows by another process id, or, where that is always the
    same (a container), by a lower number at a later time.

    Returns:
        The life that it belongs to and whether that has just begun; None for one that is older than the last.
    """
    begun = Life(uid=report.uid, pid=report.pid, sequence=report.sequence, at=report.at)
    if life is None:
        return begun, True
    another = report.uid != life.uid or report.pid != life.pid
    if another or (report.sequence < life.sequence and report.at > life.at):
        return replace(begun, base=life.number + 1), True
    if report.sequence < life.sequence:
        return None
    return replace(begun, base=life.base), False


def routable(resident: Resident, host: str, seat: str) -> Resident:
    """Return the resident under the address at which gateways reach it.

    An engine that listens on all addresses can't know by which of them it is reached; whoever knows its agent's host does.

    Args:
        resident: as its agent tells of it.
        host: where the agent is reached; an address without brackets, or a name.
        seat: the seat's name, for messages.

    Raises:
        BadOrder: its address is none, or it listens on loopback and its agent is on another machine.
    """
    if not resident.address:
        return resident
    try:
        address = urlsplit(resident.address)
        engine, port = address.hostname, address.port
    except ValueError as error:
        raise BadOrder(f"seat {seat}: {resident.policy} has no address: {error}") from error
    if engine in _LOOPBACK and host not in _LOOPBACK:
        raise BadOrder(
            f"seat {seat}: {resident.policy} listens on {engine}, where no gateway reaches it; "
            'write "host": "0.0.0.0" into its agent\'s configuration'
        )
    if engine not in _WILDCARDS:
        return resident
    return replace(resident, address=f"{address.scheme}://{bracketed(host)}:{port}")


def bracketed(host: str) -> str:
    """Return a host as URLs hold it."""
    return f"[{host}]" if ":" in host else host


class HighestTerm:
    """The highest term whose orders an agent has taken, as far as agents have told."""

    def __init__(self) -> None:
        self._epoch = 0
        self._rose = asyncio.Event()

    @property
    def epoch(self) -> int:
        """Its number; 0 before any agent has told of one."""
        return self._epoch

    def told(self, epoch: int) -> None:
        """Take note of what an agent says."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._rose.set()

    async def superseded(self, epoch: int) -> int:
        """Wait until an agent tells of a later term than `epoch`, and return that."""
        while self._epoch <= epoch:
            self._rose.clear()
            await self._rose.wait()
        return self._epoch
