"""Samples that gateways push: checked, kept per instance, aged, and added up.

Each gateway pushes its own share of every policy's load, and a share expires with its gateway. Absent is not zero: a
policy that no live gateway reports is Missing, and a sum that a silent gateway is part of is Stale. PURE: no I/O; time
is an argument, in seconds of Unix time, for that is what samples carry.
"""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from scaler.core.model import MISSING, Load, Quality, Reading
from scaler.errors import SampleRejected
from warmpool.seats import PolicyName

_NAME_LENGTH = 253
"""Longest name of an instance or policy: that of a Kubernetes object."""
_LARGEST = 2.0**53
"""Numbers above this are no counts: JSON's numbers are exact to here."""
_POINT_SECONDS = 0.05
"""Totals are kept this finely; samples may come a hundred times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedLimits:
    """What is believed of pushed samples, and for how long.

    Attributes:
        fresh_seconds: up to this age a share is Fresh; gateways push each second at least.
        expiry_seconds: above this age a share is gone.
        future_seconds: how far a sample's time may lie ahead (clocks differ).
        rate_seconds: span over which rates are taken; a shorter one serves until it is there.
        shortest_rate_seconds: span below which no rate is given.
        max_bytes: size of a sample.
        max_instances: gateways at once.
    """

    fresh_seconds: float = 1.5
    expiry_seconds: float = 2.5
    future_seconds: float = 1.0
    rate_seconds: float = 3.0
    shortest_rate_seconds: float = 0.2
    max_bytes: int = 64 * 1024
    max_instances: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """What one sample says of one policy."""

    queued: float
    in_flight: float
    oldest_wait: float
    peak: float
    arrived: float
    completed: float

    @property
    def demand(self) -> float:
        return self.queued + self.in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    instance: str
    sequence: int
    at: float
    policies: Mapping[PolicyName, _Numbers]


class _Totals:
    """One gateway's totals of one policy over the last seconds, as if its counters had never been reset."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float, float]] = deque()
        self._arrived = 0.0
        self._completed = 0.0
        self._last: _Numbers | None = None

    def add(self, at: float, numbers: _Numbers, keep_seconds: float) -> None:
        last = self._last
        if last is not None:
            # a counter that fell began again at zero: what it shows is what has come since
            self._arrived += numbers.arrived - (last.arrived if numbers.arrived >= last.arrived else 0.0)
            self._completed += numbers.completed - (
                last.completed if numbers.completed >= last.completed else 0.0
            )
        self._last = numbers
        if len(self._points) > 1 and at - self._points[-2][0] < _POINT_SECONDS:
            self._points.pop()
        self._points.append((at, self._arrived, self._completed))
        while len(self._points) > 1 and self._points[1][0] <= at - keep_seconds:
            self._points.popleft()

    def rates(self, shortest_seconds: float) -> tuple[float, float] | None:
        """Return (arrivals, completions) per second, or None when there is too little to tell."""
        first, last = self._points[0], self._points[-1]
        span = last[0] - first[0]
        if span < shortest_seconds:
            return None
        return (last[1] - first[1]) / span, (last[2] - first[2]) / span


@dataclass(slots=True)
class _Instance:
    """One gateway."""

    sample: _Sample
    totals: dict[PolicyName, _Totals] = field(default_factory=dict)


class PushedSamples:
    """All gateways' shares of all policies' load.

    Attributes:
        accepted: samples taken.
        rejected: samples refused; they changed nothing.
    """

    def __init__(self, limits: PushedLimits | None = None) -> None:
        """Make an empty store with the given or the usual limits."""
        self._limits = limits if limits is not None else PushedLimits()
        self._instances: dict[str, _Instance] = {}
        self._peaks: dict[PolicyName, float] = {}
        self.accepted = 0
        self.rejected = 0

    def ingest(self, body: bytes | Mapping[str, object], now: float) -> list[PolicyName]:
        """Take one sample.

        Args:
            body: a push's body, or the JSON object that it held.
            now: Unix time.

        Returns:
            The policies that it speaks of, those of the instance's last sample that it no longer names included.

        Raises:
            SampleRejected: it is malformed, of the future, too old to count, or not newer than the last one of its
                instance. It was counted and changed nothing.
        """
        try:
            sample = _parse(body, self._limits.max_bytes)
            self._check_time(sample, now)
            self._expire(now)
            touched = self._store(sample)
        except SampleRejected:
            self.rejected += 1
            raise
        self.accepted += 1
        for policy in sample.policies:
            self._raise_peak(policy, sample, now)
        return touched

    def load(self, policy: PolicyName, now: float) -> Load:
        """Return what live gateways say of `policy`, added up.

        The peak is the highest demand that any sample reported since `take_peaks`, the present one included.

        Args:
            policy: which policy.
            now: Unix time.
        """
        shares = list(self._shares(policy, now))
        if not shares:
            return Load()
        age = max(0.0, now - min(at for at, _ in shares))
        quality = Quality.FRESH if age <= self._limits.fresh_seconds else Quality.STALE

        def reading(value: float) -> Reading:
            return Reading(value=value, age=age, quality=quality)

        demand = sum(numbers.demand for _, numbers in shares)
        arrivals, completions = self._rates(policy, now, age, quality)
        return Load(
            queued=reading(sum(numbers.queued for _, numbers in shares)),
            in_flight=reading(sum(numbers.in_flight for _, numbers in shares)),
            oldest_wait=reading(max(numbers.oldest_wait for _, numbers in shares)),
            peak=reading(max(demand, self._peaks.get(policy, 0.0))),
            arrivals=arrivals,
            completions=completions,
        )

    def policies(self, now: float) -> set[PolicyName]:
        """Return the policies that live gateways report."""
        return {name for instance in self._live(now) for name in instance.sample.policies}

    def instances(self, now: float) -> list[str]:
        """Return the live gateways."""
        return [instance.sample.instance for instance in self._live(now)]

    def take_peaks(self) -> Mapping[PolicyName, float]:
        """Return the peaks since the last call, and begin anew; call it after a snapshot's loads."""
        peaks, self._peaks = self._peaks, {}
        return MappingProxyType(peaks)

    def sampled_at(self, policy: PolicyName, now: float) -> float | None:
        """Return the Unix time of the newest live sample that speaks of `policy`, or None."""
        return max((at for at, _ in self._shares(policy, now)), default=None)

    # -------------------------------------------------------------- how

    def _check_time(self, sample: _Sample, now: float) -> None:
        ahead = sample.at - now
        if ahead > self._limits.future_seconds:
            message = f"sample of {sample.instance}: its time lies {ahead:.1f} s ahead; check both clocks"
            raise SampleRejected(message)
        if -ahead > self._limits.expiry_seconds:
            message = (
                f"sample of {sample.instance}: it is {-ahead:.1f} s old; check the network and both clocks"
            )
            raise SampleRejected(message)

    def _expire(self, now: float) -> None:
        for name, instance in list(self._instances.items()):
            if now - instance.sample.at > self._limits.expiry_seconds:
                del self._instances[name]

    def _store(self, sample: _Sample) -> list[PolicyName]:
        instance = self._instances.get(sample.instance)
        if instance is None:
            if len(self._instances) >= self._limits.max_instances:
                message = f"sample of {sample.instance}: {len(self._instances)} instances report already"
                raise SampleRejected(message)
            instance = self._instances[sample.instance] = _Instance(sample=sample)
        elif sample.sequence <= instance.sample.sequence or sample.at < instance.sample.at:
            message = (
                f"sample of {sample.instance}: sequence {sample.sequence} at {sample.at} is not after "
                f"{instance.sample.sequence} at {instance.sample.at}; is the instance's name unique?"
            )
            raise SampleRejected(message)
        touched = list(dict.fromkeys([*sample.policies, *instance.sample.policies]))
        instance.sample = sample
        instance.totals = {name: instance.totals.get(name) or _Totals() for name in sample.policies}
        for name, numbers in sample.policies.items():
            instance.totals[name].add(sample.at, numbers, self._limits.rate_seconds)
        return touched

    def _raise_peak(self, policy: PolicyName, sample: _Sample, now: float) -> None:
        others = sum(
            instance.sample.policies[policy].demand
            for instance in self._live(now)
            if instance.sample is not sample and policy in instance.sample.policies
        )
        peak = sample.policies[policy].peak + others
        self._peaks[policy] = max(self._peaks.get(policy, 0.0), peak)

    def _live(self, now: float) -> Iterator[_Instance]:
        for instance in self._instances.values():
            if now - instance.sample.at <= self._limits.expiry_seconds:
                yield instance

    def _shares(self, policy: PolicyName, now: float) -> Iterator[tuple[float, _Numbers]]:
        for instance in self._live(now):
            numbers = instance.sample.policies.get(policy)
            if numbers is not None:
                yield instance.sample.at, numbers

    def _rates(self, policy: PolicyName, now: float, age: float, quality: Quality) -> tuple[Reading, Reading]:
        """Add up what is known; a gateway that is too new to have a rate makes the sum Stale, never lower by right."""
        totals = [instance.totals[policy] for instance in self._live(now) if policy in instance.totals]
        rates = [total.rates(self._limits.shortest_rate_seconds) for total in totals]
        known = [rate for rate in rates if rate is not None]
        if not known:
            return MISSING, MISSING
        if len(known) < len(rates):
            quality = Quality.STALE
        arrivals, completions = (sum(column) for column in zip(*known, strict=True))
        return (
            Reading(value=arrivals, age=age, quality=quality),
            Reading(value=completions, age=age, quality=quality),
        )


# ------------------------------------------------------------------ parsing


def _parse(body: bytes | Mapping[str, object], max_bytes: int) -> _Sample:
    if isinstance(body, bytes):
        if len(body) > max_bytes:
            message = f"sample of {len(body)} bytes: at most {max_bytes} are taken"
            raise SampleRejected(message)
        body = _object(_decode(body), "sample")
    instance = _name(body.get("instance"), "instance")
    sequence = body.get("sequence")
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 <= sequence <= _LARGEST:
        message = f"sample of {instance}: sequence must be a whole number ≥ 0, got {_shown(sequence)}"
        raise SampleRejected(message)
    policies = _object(body.get("policies"), "policies")
    return _Sample(
        instance=instance,
        sequence=sequence,
        at=_number(body, "at", "sample"),
        policies={
            PolicyName(_name(name, "a policy's name")): _numbers(_object(numbers, f"policies.{name}"), name)
            for name, numbers in policies.items()
        },
    )


def _decode(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        message = f"sample is not JSON: {error}"
        raise SampleRejected(message) from None


def _numbers(policy: Mapping[str, object], name: str) -> _Numbers:
    where = f"policies.{name}"
    for checked in ("refused", "failed"):
        _number(policy, checked, where)
    return _Numbers(
        queued=_number(policy, "queued", where),
        in_flight=_number(policy, "inFlight", where),
        oldest_wait=_number(policy, "oldestWaitSeconds", where),
        peak=_number(policy, "peak", where),
        arrived=_number(policy, "arrived", where),
        completed=_number(policy, "completed", where),
    )


def _number(fields: Mapping[str, object], key: str, where: str) -> float:
    """Return a finite number ≥ 0; the comparison is false for NaN."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        message = f"{where}.{key} must be a finite number ≥ 0, got {_shown(value)}"
        raise SampleRejected(message)
    return float(value)


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        message = f"{where} must be an object, got {_shown(value)}"
        raise SampleRejected(message)
    return value


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_LENGTH:
        message = f"{where} must be a string of 1 to {_NAME_LENGTH} characters, got {_shown(value)}"
        raise SampleRejected(message)
    return value


def _shown(value: object) -> str:
    """Show a value for an error; a huge integer can't be shown at all."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "a number beyond 2⁵³"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "nothing" if value is None else repr(value)[:80]
