"""KEDA's operator and the HPA that it makes, for one ScaledObject, in virtual time. Decides nothing by itself.

Written from KEDA's documentation, from how it works (kedacore/keda, pkg/scaling/executor/scale_scaledobjects.go and pkg/fallback) and
from what a real operator did (tests/data/keda):

- a poll asks `GetMetricSpec`, `GetMetrics`, `IsActive`; a `GetMetrics` that fails is made once more, and `IsActive` left out;
- a poll moves replicas between zero and one alone, and up to the minimum; an error moves none, but with `fallback.replicas` 0;
- the HPA asks at its own pace; after more than `failureThreshold` failures of its own asking it gets the fallback's number;
- a stream that ends with OK is opened again after 2 s; one that fails after 2, 4, 8 … 60 s, and only an end with OK begins anew;
- a pushed `true` activates at once what isn't paused; `false` does nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from scaler.keda.answers import Refused
from scaler.keda.objects import Fallback, Pause
from scaler.runtime.bench.law.hpa import SYNC_SECONDS, Hpa, HpaMemory, average_value, sync

FIRST_BACKOFF, LONGEST_BACKOFF = 2.0, 60.0


class Scaler(Protocol):
    """The external scaler; each call raises Refused where it fails."""

    def metric_spec(self, now: float) -> None: ...

    def metrics(self, now: float) -> float: ...

    def is_active(self, now: float) -> bool: ...


@dataclass
class Operator:
    """One ScaledObject.

    Attributes:
        scaler: who is asked.
        hpa: the HPA's rule; its minimum is the ScaledObject's.
        scale: writes the workload's replicas.
        minimum: `minReplicaCount`.
        calls: what was called, a letter each: s, m, a.
    """

    scaler: Scaler
    hpa: Hpa
    scale: Callable[[int], None]
    minimum: int = 0
    polling: float = 5.0
    cooldown: float = 300.0
    fallback: Fallback | None = None
    pause: Pause = field(default_factory=Pause)
    calls: str = ""
    failures: int = 0
    last_active: float = -math.inf
    streams_opened: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._memory = HpaMemory()
        self._polled_at = -math.inf
        self._synced_at = -SYNC_SECONDS / 2  # its clock is nobody else's
        self._backoff = FIRST_BACKOFF
        self._open_at: float | None = 0.0

    def tick(self, now: float, replicas: int) -> None:
        """Do what is due."""
        if self.pause.stopped:
            if self.pause.replicas is not None and replicas != self.pause.replicas:
                self.scale(self.pause.replicas)
            return
        if now >= self._polled_at + self.polling:
            self._polled_at = now
            replicas = self._poll(now, replicas)
        if now >= self._synced_at + SYNC_SECONDS:
            self._synced_at += SYNC_SECONDS
            self._sync(now, replicas)

    # ------------------------------------------------------------------ the scale loop

    def _poll(self, now: float, replicas: int) -> int:
        try:
            active, failed = self._asked(now), False
        except Refused:
            active, failed = False, True
        return self._request(now, replicas, active=active or self.pause.forced, failed=failed)

    def _asked(self, now: float) -> bool:
        self._call("s", self.scaler.metric_spec, now)
        try:
            self._call("m", self.scaler.metrics, now)
        except Refused:
            self._call("m", self.scaler.metrics, now)
        return bool(self._call("a", self.scaler.is_active, now))

    def _call(self, letter: str, call: Callable[[float], object], now: float) -> object:
        self.calls += letter
        return call(now)

    def _request(self, now: float, replicas: int, *, active: bool, failed: bool) -> int:
        if active:
            return self._activate(now, replicas)
        if failed and (self.fallback is None or self.fallback.replicas != 0):
            return replicas
        if replicas > 0 and self.minimum == 0:
            if now > self.last_active + self.cooldown and not self.pause.scale_in:
                self.scale(0)
                return 0
        elif replicas < self.minimum:
            self.scale(self.minimum)
            return self.minimum
        return replicas

    def _activate(self, now: float, replicas: int) -> int:
        if replicas == 0:
            if self.pause.scale_out:
                return 0
            replicas = max(1, self.minimum)
            self.scale(replicas)
        self.last_active = now
        return replicas

    # ------------------------------------------------------------------ the streams

    def pushed(self, now: float, replicas: int, *, active: bool) -> None:
        """Take a message of the stream."""
        if active and not self.pause.stopped:
            self._activate(now, replicas)

    def opens_stream(self, now: float) -> bool:
        """Whether it opens its stream now."""
        if self._open_at is None or now < self._open_at:
            return False
        self._open_at = None
        self.streams_opened.append(now)
        return True

    def stream_ended(self, now: float, *, ok: bool) -> None:
        """Its stream has ended."""
        self._backoff = FIRST_BACKOFF if ok else self._backoff
        self._open_at = now + self._backoff
        if not ok:
            self._backoff = min(LONGEST_BACKOFF, 2 * self._backoff)

    # ------------------------------------------------------------------ the HPA

    def _sync(self, now: float, replicas: int) -> None:
        value = self._value(now, replicas)
        proposal = None if value is None else average_value(self.hpa, replicas, round(value, 3), 1.0)
        after, self._memory = sync(self.hpa, replicas, [proposal], self._memory, now)
        held = (after > replicas and self.pause.scale_out) or (after < replicas and self.pause.scale_in)
        if after != replicas and not held:
            self.scale(after)

    def _value(self, now: float, replicas: int) -> float | None:
        try:
            value = self.scaler.metrics(now)
        except Refused:
            self.failures += 1
            fallback = self.fallback
            if fallback is None or self.failures <= fallback.threshold:
                return None
            return float(
                {
                    "static": fallback.replicas,
                    "currentReplicas": replicas,
                    "currentReplicasIfHigher": max(replicas, fallback.replicas),
                    "currentReplicasIfLower": min(replicas, fallback.replicas),
                }[fallback.behavior]
            )
        self.failures = 0
        return value
