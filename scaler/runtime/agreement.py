"""Lets residents bear witness for each other, where nobody recorded beforehand what they have to answer.

A resident without an expectation tells its answers and waits, out of rotation. What two of them answer alike is kept for their
policy and told to all that run with the same; a resident that comes later is told what was kept. Nothing is taken from a
resident that would be its own and only witness: it goes on waiting, and its seat says so (`warmpool.expectations`).

One that answers otherwise than what was kept may be wrong, or the first with other weights, which nobody can tell: it waits
for a second that sides with it, and after a while it is told what was kept, fails by it, and is replaced.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import structlog

from scaler.cluster.agents import Witnesses
from scaler.cluster.port import Cluster
from scaler.runtime.side_by_side import side_by_side
from scaler.store.recordings import MOST, Recordings, added
from warmpool.claim import Term
from warmpool.errors import WarmpoolError
from warmpool.expectations import Ownership, Recording, Statement, agreed, difference, objection
from warmpool.seats import PolicyName, Resident, Seat

log = structlog.get_logger(__name__)

WAITS: Final = "NeedsWitness"
"""How the words begin by which an agent says that a resident waits for a witness (`warmpool.agent.proof`)."""
_DEADLINE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
"""How often one that goes on waiting is looked at again: an agent may not have answered."""
DOUBT_SECONDS: Final = 600.0
"""How long one that answers otherwise waits for a second: seats of one rollout start within minutes of each other."""
_AT_ONCE: Final = 16
"""Agents that are asked at the same time."""


_Life: TypeAlias = tuple[str, PolicyName, int, int | None]
"""What a statement belongs to: another engine in its place has to make its own."""


class _Waiting(NamedTuple):
    """A resident that waits for a witness."""

    seat: Seat
    resident: Resident

    @property
    def policy(self) -> PolicyName:
        return self.resident.policy

    @property
    def life(self) -> _Life:
        """Its seat, its policy, and which engine it is there."""
        return self.seat.uid, self.policy, self.resident.restarts, self.resident.pid


class Agreement:
    """Runs until cancelled.

    Args:
        cluster: the seats.
        witnesses: asks and tells residents.
        agreed: called when something new was agreed on, for whoever keeps it.

    Attributes:
        recordings: per policy, what its residents have agreed on.
        doubts: per seat's uid and policy, where a resident that waits answers otherwise than others did.
    """

    def __init__(self, cluster: Cluster, witnesses: Witnesses, agreed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._witnesses = witnesses
        self._agreed = agreed
        self.recordings: Recordings = {}
        self._heard: dict[_Life, Statement] = {}
        self._doubted: dict[_Life, float] = {}
        self._told: set[str] = set()
        self.doubts: Mapping[tuple[str, PolicyName], str] = {}

    def learn(self, kept: Recordings) -> None:
        """Take over what was agreed on before; what was agreed on since is newer."""
        since = {
            name: [each for each in found if each not in kept.get(name, ())]
            for name, found in self.recordings.items()
        }
        self.recordings = {
            name: (*kept.get(name, ()), *since.get(name, ()))[-MOST:] for name in kept.keys() | since.keys()
        }

    async def run(self, term: Term) -> None:
        """Look at each change of the cluster, and again after a while as long as somebody waits.

        Args:
            term: in whose name residents are told.
        """
        changed, waits = asyncio.Event(), False
        changed.set()
        unsubscribe = self._cluster.subscribe(changed.set)
        try:
            while True:
                try:
                    async with asyncio.timeout(_RETRY_SECONDS if waits else None):
                        await changed.wait()
                except TimeoutError:
                    pass
                changed.clear()
                waits = await self.look(term)
        finally:
            unsubscribe()

    async def look(self, term: Term) -> bool:
        """Ask those that wait, let them agree, and tell them; returns whether anybody waited."""
        waiting = self._waiting()
        self._forget_gone(waiting)
        if not waiting:
            return False
        await side_by_side((self._ask(each) for each in waiting if each.life not in self._heard), _AT_ONCE)
        for policy in sorted({each.policy for each in waiting}):
            lives = {each.life for each in waiting if each.policy == policy}
            self._agree(policy, [statement for life, statement in self._heard.items() if life in lives])
        await side_by_side((self._tell(each, term) for each in waiting), _AT_ONCE)
        return True

    def _waiting(self) -> Sequence[_Waiting]:
        return [
            _Waiting(seat, resident)
            for seat in self._cluster.seats()
            if seat.reachable and not seat.terminating
            for resident in seat.residents
            if resident.waiting.startswith(WAITS)
        ]

    def _forget_gone(self, waiting: Sequence[_Waiting]) -> None:
        """Forget what was said on seats that are gone; who has left its witness behind stays one in the recording."""
        if not self._heard:
            return
        there = {seat.uid for seat in self._cluster.seats()}
        self._heard = {life: said for life, said in self._heard.items() if life[0] in there}
        self._doubted = {life: since for life, since in self._doubted.items() if life in self._heard}
        places = {(each.seat.uid, each.policy) for each in waiting}
        self.doubts = {place: why for place, why in self.doubts.items() if place in places}

    async def _ask(self, waiting: _Waiting) -> None:
        try:
            told = await self._witnesses.ask(waiting.seat, waiting.policy, deadline=_DEADLINE_SECONDS)
        except WarmpoolError as error:
            self._complain(waiting, "a resident's answers can't be had", error)
            return
        if told.statement is not None:
            self._heard[waiting.life] = told.statement

    def _agree(self, policy: PolicyName, statements: Iterable[Statement]) -> None:
        """Keep what most of a policy's residents that wait answer alike, for each engine that they run with."""
        for alike in _by_engine(statements):
            found = agreed(alike)
            if found is None or any(
                not _contradiction(each, found) for each in self._known(policy, found.ownership)
            ):
                continue
            self.recordings = added(self.recordings, policy, found)
            log.info("residents agree on what they answer", policy=policy, witnesses=sorted(found.witnesses))
            self._agreed()

    def _known(self, policy: PolicyName, running: Ownership) -> Sequence[Recording]:
        """Return what residents that run with the same were found to answer, the newest first."""
        kept = self.recordings.get(policy, ())
        return [each for each in reversed(kept) if not each.ownership.differences(running)]

    async def _tell(self, waiting: _Waiting, term: Term) -> None:
        statement = self._heard.get(waiting.life)
        recording = None if statement is None else self._fitting(waiting, statement)
        if recording is None:
            return
        try:
            await self._witnesses.tell(
                waiting.seat, waiting.policy, recording, epoch=term.epoch, deadline=_DEADLINE_SECONDS
            )
        except WarmpoolError as error:
            self._complain(waiting, "a resident can't be told what it is compared with", error)

    def _fitting(self, waiting: _Waiting, statement: Statement) -> Recording | None:
        """Return what a resident is to be compared with; None while that isn't known."""
        own = Recording(ownership=statement.ownership, answers=statement.answers, witnesses=frozenset())
        known = [
            each
            for each in self._known(waiting.policy, statement.ownership)
            if not objection(each, waiting.seat.uid, statement.ownership)
        ]
        for each in known:
            if not _contradiction(each, own):
                return each
        if not known:
            return None
        now = asyncio.get_running_loop().time()
        since = self._doubted.setdefault(waiting.life, now)
        why = _contradiction(known[0], own)
        self.doubts = {**self.doubts, (waiting.seat.uid, waiting.policy): why}
        self._complain(waiting, "a resident answers otherwise than others did", why)
        return known[0] if now - since >= DOUBT_SECONDS else None

    def _complain(self, waiting: _Waiting, what: str, error: object) -> None:
        """Tell of a resident's trouble once, not every five seconds."""
        told = f"{waiting.seat.uid} {waiting.policy} {error}"
        if told not in self._told:
            self._told.add(told)
            log.warning(what, seat=waiting.seat.name, policy=waiting.policy, error=str(error))


def _by_engine(statements: Iterable[Statement]) -> Iterable[Sequence[Statement]]:
    """Group statements by what their residents run with: only those can agree."""
    groups: dict[object, list[Statement]] = {}
    for statement in statements:
        groups.setdefault(statement.ownership, []).append(statement)
    return groups.values()


def _contradiction(expected: Recording, other: Recording) -> str:
    """Say in words where another answers otherwise; nothing if it answers alike, as far as both were asked the same."""
    answers = {answer.prompt: answer for answer in other.answers}
    for answer in expected.answers:
        if answer.prompt in answers and (found := difference(answer, answers[answer.prompt])):
            return found
    return ""
