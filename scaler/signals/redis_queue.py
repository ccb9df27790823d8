"""Queues in Redis: how many entries wait, and how long the oldest has waited.

Each reading is a few commands of constant time that need read access only. A key that is not there is an empty queue:
Redis deletes lists and sorted sets with their last entry, so that it is a reading of zero and no failure. A stream stays
when it runs empty: one that was there and is gone tells nothing.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
from redis import exceptions as redis_errors

from scaler.errors import SignalError
from scaler.policy.signals import RedisList, RedisSortedSet, RedisStream
from scaler.signals.failures import one_line
from scaler.signals.port import Part, SignalKey, Sink
from scaler.signals.redis_client import Commands, RedisClient, RedisServers, merged
from scaler.signals.rounds import Observation, Rounds, failing

log = structlog.get_logger(__name__)

_FIRST_UNIX_TIME: Final = 1e9
"""September 2001. What lies before is no time at which an entry was queued: identifiers and scores may be any numbers."""
_MILLISECONDS: Final = 1e11
"""As Unix seconds this is the year 5138, as milliseconds it is 1973: a score above it is in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a queue holds.

    Attributes:
        entries: how many.
        oldest: Unix time at which the oldest was queued or fell due; None where there is none, or nothing tells.
        timed: whether its kind of queue tells ages at all.
        exists: whether the key is there.
    """

    entries: int
    oldest: float | None = None
    timed: bool = True
    exists: bool = True

    def parts(self, now: float) -> Mapping[Part, float]:
        """Return it as parts of the load; an age that nothing tells is not there.

        Args:
            now: Unix time.
        """
        parts = {Part.BACKLOG: float(self.entries)}
        if self.timed and not self.entries:
            parts[Part.BACKLOG_AGE_SECONDS] = 0.0
        elif self.oldest is not None and self.oldest >= _FIRST_UNIX_TIME:
            parts[Part.BACKLOG_AGE_SECONDS] = max(0.0, now - self.oldest)
        return parts


# ------------------------------------------------------------------ reading


async def list_backlog(signal: RedisList, commands: Commands) -> Backlog:
    """Read a list. Its entries carry no times, so that no age is known."""
    entries = await _asked(commands.llen(signal.key))
    return Backlog(entries=entries, timed=False, exists=entries > 0)


async def sorted_set_backlog(signal: RedisSortedSet, now: float, commands: Commands) -> Backlog:
    """Read a sorted set whose scores are the Unix times from which its members are due.

    Args:
        signal: which one.
        now: Unix time.
        commands: takes commands.

    Raises:
        SignalError: the scores are no Unix times.
    """
    first = await _asked(commands.zrange(signal.key, 0, 0, withscores=True))
    if not first:
        return Backlog(entries=0, exists=False)
    score = float(first[0][1])
    if score > _MILLISECONDS:
        raise SignalError(
            f"the scores of {signal.key!r} look like milliseconds ({score:.0f}), and Unix seconds are wanted"
        )
    due = await _asked(commands.zcount(signal.key, "-inf", now))
    return Backlog(entries=due, oldest=score if due else None)


async def stream_backlog(signal: RedisStream, commands: Commands) -> Backlog:
    """Read what a consumer group has not finished: its lag (not delivered yet) and its pending entries (not acknowledged).

    Raises:
        SignalError: there is no such group, or the server is too old to say its lag.
    """
    try:
        groups = await _asked(commands.xinfo_groups(signal.key))
    except redis_errors.ResponseError as error:
        if "no such key" in str(error):
            return Backlog(entries=0, exists=False)
        raise
    names = [_text(group["name"]) for group in groups]
    if signal.group not in names:
        has = f"it has {one_line(', '.join(names), 80)}" if names else "it has none"
        raise SignalError(
            f"stream {signal.key!r} has no consumer group {signal.group!r}, {has}; XGROUP CREATE makes one"
        )
    group = groups[names.index(signal.group)]
    lag, pending = await _lag(signal, group, commands), int(group["pending"])
    if pending:
        oldest = _time_of(await _first_pending(signal, commands))
    elif lag:
        oldest = _time_of(await _first_undelivered(signal, group, commands))
    else:
        oldest = None
    return Backlog(entries=lag + pending, oldest=oldest)


async def _lag(signal: RedisStream, group: Mapping[str, Any], commands: Commands) -> int:
    """Return how many entries the group has not been given yet.

    Redis says that it doesn't know (null) where entries behind the group's position were deleted, or where the group was
    created in the middle. It knows again once the group has caught up. Until then the answer may be too high: by the
    deleted entries where Redis counts what the group read, and else by those that were read and still are in the
    stream. It is never too low, and never more than there are entries.
    """
    if "lag" not in group:
        raise SignalError(
            "this Redis doesn't say how far a consumer group lags behind: Redis 7 or newer does"
        )
    if group["lag"] is not None:
        return int(group["lag"])
    stream = await _asked(commands.xinfo_stream(signal.key))
    if _id(group["last-delivered-id"]) >= _id(stream["last-generated-id"]):
        return 0
    length = int(stream["length"])
    if group.get("entries-read") is not None:
        return max(0, min(length, int(stream["entries-added"]) - int(group["entries-read"])))
    return length


async def _first_pending(signal: RedisStream, commands: Commands) -> object:
    summary = await _asked(commands.xpending(signal.key, signal.group))
    return summary["min"]


async def _first_undelivered(signal: RedisStream, group: Mapping[str, Any], commands: Commands) -> object:
    after = f"({_text(group['last-delivered-id'])}"
    entries = await _asked(commands.xrange(signal.key, min=after, count=1))
    return entries[0][0] if entries else None


async def _asked(command: Any) -> Any:  # noqa: ANN401 - the library types its commands for its blocking client too
    return await command


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _id(value: object) -> tuple[int, int]:
    """Read a stream entry's identifier, `milliseconds-number`."""
    milliseconds, _, number = _text(value).partition("-")
    return int(milliseconds), int(number or 0)


def _time_of(identifier: object) -> float | None:
    """Return the Unix time in an entry's identifier; None where there is no entry any more."""
    return None if identifier is None else _id(identifier)[0] / 1000


# ------------------------------------------------------------------ the source


class RedisQueueSource:
    """Reads one signal of type `RedisList`, `RedisStream` or `RedisSortedSet`.

    Args:
        key: whose readings they are.
        signal: which queue, and how often.
        servers: where connections are shared.
    """

    def __init__(
        self, key: SignalKey, signal: RedisList | RedisStream | RedisSortedSet, servers: RedisServers
    ) -> None:
        self._key = key
        self._signal = signal
        self._servers = servers
        self._rounds = Rounds(key, signal.interval_milliseconds / 1000)
        self._read_before = False
        self._was_there = False

    async def run(self, sink: Sink) -> None:
        """See `Source.run`."""
        try:
            server = merged(self._signal.server, self._servers.default)
        except SignalError as error:
            await self._rounds.run(failing(error), sink)
            return
        async with self._servers.lease(server) as client:
            await self._rounds.run(partial(self._read, client), sink)

    async def _read(self, client: RedisClient) -> Observation:
        asked, now = time.monotonic(), time.time()
        backlog = await client.ask(partial(self._backlog, now), self._signal.timeout_milliseconds / 1000)
        if not backlog.exists and not self._read_before:
            log.info(
                "no such key in Redis: an empty queue",
                policy=self._key.policy,
                signal=self._key.signal,
                key=self._signal.key,
            )
        self._read_before = True
        return Observation(backlog.parts(now), asked)

    async def _stream_backlog(self, signal: RedisStream, commands: Commands) -> Backlog:
        """Read a stream, as `stream_backlog` does.

        Raises:
            SignalError: it can't be read, or has vanished with all that waited in it: a stream stays when it runs empty.
        """
        try:
            backlog = await stream_backlog(signal, commands)
        except SignalError:
            self._was_there = True  # what it lacks is its group, or a number
            raise
        self._was_there = self._was_there or backlog.exists
        if self._was_there and not backlog.exists:
            raise SignalError(
                f"stream {signal.key!r} was there and is gone: was it deleted, or has Redis come back empty? "
                "It is unknown what waits until the stream is there again (XGROUP CREATE … MKSTREAM makes one)"
            )
        return backlog

    async def _backlog(self, now: float, commands: Commands) -> Backlog:
        signal = self._signal
        try:
            match signal:
                case RedisList():
                    return await list_backlog(signal, commands)
                case RedisSortedSet():
                    return await sorted_set_backlog(signal, now, commands)
                case RedisStream():
                    return await self._stream_backlog(signal, commands)
        except redis_errors.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            kind = _text(await _asked(commands.type(signal.key)))
            raise SignalError(
                f"key {signal.key!r} is a {kind}, and the signal's type is {signal.type}{_mend(kind)}"
            ) from error


def _mend(kind: str) -> str:
    """Say which type of signal reads a kind of key."""
    types = {"list": "RedisList", "stream": "RedisStream", "zset": "RedisSortedSet"}
    return f": set type: {types[kind]}" if kind in types else "; is it the right key?"
