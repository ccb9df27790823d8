"""Policies that change while they are in force: read by a process of its own, judged as a whole, put in force between two ticks.

The files, or the ConfigMap in their place, are looked at each second; a signal or a request has them read at once. A set that can't be used changes nothing:
the last good one stays in force, and everybody who can be told is told: the log, the events, the metrics, whoever asked,
and `emberpool policy status`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import structlog

from scaler.errors import PolicyFault
from scaler.policy.compile import PolicySet
from scaler.policy.reading import Reading
from scaler.runtime.clock import Clock
from scaler.runtime.events import EventLog
from scaler.runtime.metrics.reloads import ReloadMetrics
from scaler.runtime.policy_exchange import Answer, Changes, changes
from scaler.runtime.policy_process import ReaderFailed, Verb

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
"""How often the files are looked at."""
_LONGEST_PAUSE_SECONDS = 30.0
"""How long a reader that fails again and again is left alone at most."""
_MOST_LOGGED = 10
"""Faults, and names of changed documents, of one attempt that are logged; `emberpool policy status` has them all."""


class Outcome(StrEnum):
    """How an attempt to reload ended."""

    LOADED = "Loaded"
    """Another set is in force."""
    UNCHANGED = "Unchanged"
    """The files mean what is in force already."""
    REJECTED = "Rejected"
    """The files can't be used; the last good set stays in force."""
    FAILED = "Failed"
    """The files couldn't be read at all; the last good set stays in force."""


class Cause(StrEnum):
    """Why the files were read."""

    CHANGE = "change"
    """They had changed."""
    SIGNAL = "signal"
    """SIGHUP."""
    REQUEST = "request"
    """`POST /-/reload`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt to reload.

    Attributes:
        at: Unix time of its end.
        cause: why it was made.
        outcome: how it ended.
        hash: the set in force afterwards, as people see it.
        changes: what is new, if another set is in force.
        faults: why the files can't be used.
        more_faults: how many there are beyond those.
        problem: why they couldn't be read.
    """

    at: float
    cause: Cause
    outcome: Outcome
    hash: str
    changes: Changes = field(default_factory=Changes)
    faults: Sequence[PolicyFault] = ()
    more_faults: int = 0
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Write it as it is answered and recorded."""
        return {
            "at": self.at,
            "cause": str(self.cause),
            "outcome": str(self.outcome),
            "hash": self.hash,
            "added": list(self.changes.added),
            "changed": list(self.changes.changed),
            "removed": list(self.changes.removed),
            "faults": [fault.as_json() for fault in self.faults],
            "moreFaults": self.more_faults,
            "problem": self.problem,
        }


class Reader(Protocol):
    """Reads policies where they are."""

    @property
    def paths(self) -> Sequence[str]:
        """Where they are, before anything was read."""

    async def ask(self, verb: Verb, in_force: PolicySet) -> tuple[Answer, PolicySet | None]:
        """Look whether they have changed, or read them whether they have or not.

        Args:
            verb: `look` reads only what has changed since the last look, and is whole; `read` reads now.
            in_force: the set in force.

        Returns:
            The answer, and the new set if there is one.

        Raises:
            ReaderFailed: there is no answer.
        """

    async def close(self) -> int | None:
        """End what it has running; return what that ended with, if there is anything to say."""


class Force(Protocol):
    """Where sets are put in force."""

    async def refuse(self, reading: Reading) -> Sequence[PolicyFault]:
        """Say what this process can't do of a set that is right by itself; nothing if it can be put in force."""

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        """Put a set in force, from the next tick on.

        Returns:
            What of it can't take effect while this process runs, as sentences.
        """


class Followed:
    """Puts sets in force as another `Force` does, and for one more who follows what is adopted.

    Args:
        force: puts them in force for everything else.
        follow: takes each set that was adopted.
    """

    def __init__(self, force: Force, follow: Callable[[PolicySet], None]) -> None:
        self._force = force
        self._follow = follow

    async def refuse(self, reading: Reading) -> Sequence[PolicyFault]:
        """See `Force.refuse`."""
        return await self._force.refuse(reading)

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        """See `Force.adopt`."""
        notes = self._force.adopt(policies)
        self._follow(policies)
        return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Who is told of attempts.

    Attributes:
        metrics: count them.
        clock: says when they ended.
        events: record them; None where nothing is recorded.
    """

    metrics: ReloadMetrics
    clock: Clock
    events: EventLog | None = None


class Reloader:
    """Reloads one process's policies; `run` it inside a TaskGroup.

    Args:
        reader: reads them.
        force: where sets are put in force.
        policies: the set in force.
        told: who is told.
    """

    def __init__(self, reader: Reader, force: Force, policies: PolicySet, told: Told) -> None:
        self._reader = reader
        self._force = force
        self._policies = policies
        self._told = told
        self._since = told.clock.wall()
        self._files: Sequence[str] = reader.paths
        self._notes: Sequence[str] = ()
        self._last: Attempt | None = None
        self._wish = _Wish()
        self._failures = 0
        self._begun = False  # the reader has to read everything once, which is no attempt at a reload

    def status(self) -> Mapping[str, Any]:
        """Return what is in force, since when, and what came of the last attempt, as JSON."""
        return {
            "hash": self._policies.short_hash,
            "since": self._since,
            "fleets": len(self._policies.fleets),
            "policies": len(self._policies.policies),
            "files": list(self._files),
            "notChangedLive": list(self._notes),
            "lastAttempt": None if self._last is None else self._last.as_json(),
        }

    def request(self, cause: Cause) -> asyncio.Future[Attempt]:
        """Ask for the files to be read now.

        Returns:
            What will have come of it, for all who ask before that reading begins. Shield it from being cancelled.
        """
        self._wish.cause = cause
        self._wish.made.set()
        return self._wish.granted

    async def follow(self, asked: asyncio.Event) -> None:
        """Have the files read whenever an event is set, until cancelled."""
        while True:
            await asked.wait()
            asked.clear()
            self.request(Cause.SIGNAL)

    async def run(self) -> None:
        """Look at the files until cancelled, and reload what has changed."""
        await self._attempt(None)
        while True:
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wish.made.wait()
            except TimeoutError:
                await self._attempt(None)
            else:
                wish, self._wish = self._wish, _Wish()
                attempt = await self._attempt(wish.cause)
                assert attempt is not None
                if not wish.granted.done():
                    wish.granted.set_result(attempt)

    def _pause(self) -> float:
        return min(LOOK_SECONDS * 2.0 ** min(self._failures, 10), _LONGEST_PAUSE_SECONDS)

    async def _attempt(self, cause: Cause | None) -> Attempt | None:
        """Have the files looked at, or read if there is a cause, and do what follows; None if nothing had changed."""
        try:
            answer, new = await self._reader.ask("look" if cause is None else "read", self._policies)
        except ReaderFailed as error:
            self._failures += 1
            again = cause is None and self._failures > 1  # the same as a second ago
            return None if again else self._end(cause, Outcome.FAILED, problem=str(error))
        self._failures = 0
        if not answer.read:
            return None
        self._files = answer.files or self._files
        first, self._begun = not self._begun, True
        if answer.faults:
            return self._end(cause, Outcome.REJECTED, faults=answer.faults, more_faults=answer.more_faults)
        if new is None:
            return None if first and cause is None else self._end(cause, Outcome.UNCHANGED)
        faults = await self._force.refuse(Reading(set=new, files=answer.files, places=answer.places))
        if faults:
            return self._end(cause, Outcome.REJECTED, faults=faults)
        self._notes = self._force.adopt(new)
        before, self._policies, self._since = self._policies, new, self._told.clock.wall()
        return self._end(cause, Outcome.LOADED, changes=changes(before, new))

    def _end(self, cause: Cause | None, outcome: Outcome, **facts: Any) -> Attempt:  # noqa: ANN401 - Attempt's fields
        attempt = Attempt(
            at=self._told.clock.wall(),
            cause=cause or Cause.CHANGE,
            outcome=outcome,
            hash=self._policies.short_hash,
            **facts,
        )
        self._last = attempt
        self._told.metrics.reloaded(outcome, attempt.at)
        if self._told.events is not None:
            self._told.events.record("policies", **{k: v for k, v in attempt.as_json().items() if k != "at"})
        _log(attempt, self._notes)
        return attempt


class _Wish:
    """A reading that somebody asked for, and has not begun."""

    def __init__(self) -> None:
        self.cause = Cause.REQUEST
        self.made = asyncio.Event()
        self.granted: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()


def _log(attempt: Attempt, notes: Sequence[str]) -> None:
    facts = {"cause": str(attempt.cause), "policies": attempt.hash}
    match attempt.outcome:
        case Outcome.LOADED:
            changes = attempt.changes
            names = {"added": changes.added, "changed": changes.changed, "removed": changes.removed}
            log.info(
                "policies reloaded", **facts, **{key: _few(found) for key, found in names.items() if found}
            )
            for note in notes:
                log.warning("not changed while this process runs", what=note)
        case Outcome.UNCHANGED:
            log.info("policies read again, nothing has changed", **facts)
        case Outcome.FAILED:
            log.error(
                "policy files can't be read; policies stay as they are", **facts, problem=attempt.problem
            )
        case Outcome.REJECTED:
            for fault in attempt.faults[:_MOST_LOGGED]:
                place = f"{fault.file}:{fault.line}:{fault.column}"
                log.error("policy fault", at=place, path=fault.path, problem=fault.message, hint=fault.hint)
            log.error(
                "policies refused; the last good ones stay",
                **facts,
                faults=len(attempt.faults) + attempt.more_faults,
            )


def _few(names: Sequence[str]) -> Sequence[str]:
    more = len(names) - _MOST_LOGGED
    return names if more <= 0 else [*names[:_MOST_LOGGED], f"and {more} more"]
