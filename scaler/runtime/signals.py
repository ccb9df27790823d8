"""What all signals say, as the controller's `Signals`: read by sources, pushed over HTTP and Redis, put together, shown.

A sample or a reading that may be a burst has the loop tick at once; any other lets it tick within its next moment.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from scaler.core.model import Load
from scaler.errors import SampleRejected
from scaler.policy.compile import PolicySet
from scaler.policy.signals import EngineMetrics, RedisServer, Signal
from scaler.runtime import signal_view
from scaler.runtime.clock import Clock
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.metrics.signals import Read
from scaler.runtime.sources import Factory, Sources, Wanted
from scaler.signals.board import PUSHED, Board, Change
from scaler.signals.expected import expectation, signals_of
from scaler.signals.port import Paced, Part, SignalKey
from scaler.signals.pushed import NameTaken, PushedSamples, Taken, TooOften
from scaler.signals.pushed_redis import RedisSamples
from scaler.signals.pushers import ANYONE, OVER_REDIS, NotAllowed, Pusher
from scaler.signals.sample import TooLarge, check_size
from scaler.signals.throttle import Source, Throttle, TooMuch, Weight
from warmpool.seats import PolicyName

log = structlog.get_logger(__name__)

_REJECTIONS_LOGGED_SECONDS: Final = 60.0
"""A rejected sample is logged this often at most, by the way it came; the metrics count all of them."""
_PACE: Final = frozenset(
    {"interval_milliseconds", "timeout_milliseconds", "interval_seconds", "timeout_seconds"}
)
_OUTCOMES: Final[Mapping[type[SampleRejected], str]] = {
    TooOften: "TooOften",
    TooLarge: "TooLarge",
    NotAllowed: "NotAllowed",
    NameTaken: "NameTaken",
}
"""What metrics call a refusal; any other is Rejected."""
_REDIS: Final = Source(OVER_REDIS.name)
_IMPLICIT: Final = "pushed"
"""How samples of a policy are shown that names no signal of type Pushed."""


class PolicySignals:
    """Everything that policies' signals say; `run` it inside a TaskGroup.

    Args:
        policies: the set in force.
        mailbox: woken by what is new.
        clock: what ages are taken with.
        metrics: counts samples and readings.
        factories: how each type of signal is read.
        reserved: tells what instances are called that nobody may push as who shows no token for it.
    """

    def __init__(
        self,
        policies: PolicySet,
        mailbox: Mailbox,
        clock: Clock,
        metrics: ControllerMetrics,
        factories: Mapping[str, Factory],
        reserved: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self._metrics = metrics
        self._factories = factories
        self._pushed = PushedSamples()
        self._throttle = Throttle()
        self._reserved = reserved
        self._board = Board()
        self._sources = Sources(factories, self, metrics.signals.restarted)
        self._wanted: dict[SignalKey, Wanted] = {}
        self._rejection_logged_at: dict[str, float] = {}
        metrics.signals.watch(self._read)
        self.follow(policies)

    def follow(self, policies: PolicySet) -> None:
        """Read what these policies name, and nothing else. Signals that have not changed go on as they are."""
        wanted = {
            key: Wanted(key=key, signal=signal, objective=_objective(policies, key, signal))
            for key, signal in signals_of(policies).items()
        }
        self._board.expect({key: expectation(each.signal) for key, each in wanted.items()})
        for key, each in wanted.items():
            before = self._wanted.get(key, each)
            if before != each and _meaning(before.signal) != _meaning(each.signal):
                self._board.forget(key)
            if each.signal.type not in self._factories and each.signal.type != PUSHED:
                self._board.failed(key, "nothing reads signals of this type here")
        self._pushed.follow(policies.policies.keys())
        self._wanted = wanted
        self._sources.follow(wanted)

    async def run(self) -> None:
        """Read until cancelled."""
        await self._sources.run()

    def listener(self, server: RedisServer, channel: str) -> RedisSamples:
        """Return what listens to samples over Redis; run it beside."""
        return RedisSamples(server, channel, self._hear, self._metrics.signals.listens)

    # -------------------------------------------------------------- pushed

    def weigh(self, source: Source, what: Weight, patience: float = 0.0, way: str = "Http") -> float:
        """Let so much of a sample come before it is read, and return the seconds that it has to wait.

        Args:
            source: where from.
            what: how much.
            patience: seconds that it may wait.
            way: how it comes, as metrics say it.

        Raises:
            TooMuch: it would have to wait longer; it was counted.
        """
        try:
            return self._throttle.charge(source, what, self._clock.monotonic(), patience)
        except TooMuch as error:
            self.refused(way, f"TooMuchOf{error.scope}", str(error))
            raise

    def ingest(self, body: bytes, pusher: Pusher = ANYONE, way: str = "Http") -> Taken:
        """Take a pushed sample.

        Args:
            body: its JSON.
            pusher: who pushes it.
            way: how it came, as metrics say it.

        Raises:
            SampleRejected: it was counted and changed nothing.
        """
        try:
            taken = self._pushed.ingest(body, self._clock.wall(), pusher)
        except SampleRejected as error:
            self.refused(way, _OUTCOMES.get(type(error), "Rejected"), str(error))
            raise
        self._metrics.sampled(way, "Accepted")
        if taken.changed:
            self._mailbox.wake("sample", urgent=taken.risen, policies=taken.changed)
        return taken

    def refused(self, way: str, outcome: str, problem: str) -> None:
        """Take note of a sample that came and wasn't taken."""
        self._metrics.sampled(way, outcome)
        now = self._clock.monotonic()
        if now - self._rejection_logged_at.get(way, -math.inf) >= _REJECTIONS_LOGGED_SECONDS:
            self._rejection_logged_at[way] = now
            log.warning("pushed sample refused", way=way, problem=problem)

    def _hear(self, body: bytes) -> None:
        try:
            check_size(len(body), OVER_REDIS.kinds)
        except TooLarge as error:
            self.refused("Redis", "TooLarge", str(error))
            return
        try:
            self.weigh(_REDIS, Weight(1, len(body)), way="Redis")
            self.ingest(body, replace(OVER_REDIS, others=self._reserved()), "Redis")
        except SampleRejected:
            return  # nobody waits for an answer; it is counted and logged

    # -------------------------------------------------------------- Sink

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        """See `Sink.observed`."""
        source: object = self._sources.present.get(key)
        if isinstance(source, Paced):
            self._board.pace(key, source.interval)
        change = self._board.take(key, parts, min(at, self._clock.monotonic()), lacking)
        if change is not Change.NOTHING:
            self._mailbox.wake("sample", urgent=change is Change.RISEN, policies=(key.policy,))

    def failed(self, key: SignalKey, why: str) -> None:
        """See `Sink.failed`."""
        self._board.failed(key, why)

    # -------------------------------------------------------------- Signals

    def load(self, policy: PolicyName, now: float) -> Load:
        """See `Signals.load`. Ages of samples are taken on the wall clock that they are stamped with."""
        return self._board.load(policy, self._pushed.load(policy, self._clock.wall()), now)

    def observed_at(self, policy: PolicyName) -> float | None:
        """See `Signals.observed_at`."""
        sampled, read = self._pushed.sampled_at(policy, self._clock.wall()), self._board.newest(policy)
        times = [] if sampled is None else [sampled]
        return max(times if read is None else [*times, self._wall(read)], default=None)

    def seen(self, policies: Iterable[PolicyName]) -> None:
        """See `Signals.seen`."""
        self._pushed.take_peaks(policies)

    def gateways(self) -> list[str]:
        """Return the live gateways: those whose last sample still counts."""
        return self._pushed.gateways(self._clock.wall())

    def queued(self, policy: PolicyName) -> int:
        """Return how many requests wait at the gateways, as far as they say."""
        return int(self._pushed.load(policy, self._clock.wall()).queued.value)

    def _wall(self, monotonic: float) -> float:
        return self._clock.wall() - (self._clock.monotonic() - monotonic)

    # -------------------------------------------------------------- shown

    def listed(self) -> list[dict[str, Any]]:
        """Return every signal with what it says now, as JSON, in the order of the policies."""
        wall = self._clock.wall()
        states = self._board.states(self._clock.monotonic())
        pushing = {key.policy for key, state in states.items() if state.expectation.type == PUSHED}
        unnamed = sorted(self._pushed.policies(wall) - pushing)
        return [
            *(
                self._pushed_view(key, wall)
                if state.expectation.type == PUSHED
                else signal_view.read(key, state, self._sources.present.get(key))
                for key, state in states.items()
            ),
            *(self._pushed_view(SignalKey(policy, _IMPLICIT), wall) for policy in unnamed),
        ]

    def _pushed_view(self, key: SignalKey, wall: float) -> dict[str, Any]:
        policy = key.policy
        return signal_view.pushed(key, self._pushed.load(policy, wall), self._pushed.shares(policy, wall))

    def _read(self) -> Iterator[Read]:
        """Yield what came of reading each signal, for the metrics."""
        for key, state in self._board.states(self._clock.monotonic()).items():
            if state.expectation.type != PUSHED:
                yield Read(
                    policy=key.policy,
                    signal=key.signal,
                    counts=(state.read, state.failed, state.spoilt),
                    last_at=0.0 if state.newest is None else self._wall(state.newest),
                )


def _objective(policies: PolicySet, key: SignalKey, signal: Signal) -> float | None:
    return policies.policy_specs[key.policy].ttft_objective if isinstance(signal, EngineMetrics) else None


def _meaning(signal: Signal) -> dict[str, Any]:
    """Return what a signal's number stands for, however often it is read."""
    return signal.model_dump(exclude=set(_PACE))
