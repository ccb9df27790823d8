"""Samples that others push: checked, kept per instance, aged, and added up.

Each instance (a gateway, or whoever tells of a queue) pushes its own share of policies' load, and a share expires with
it. Absent is not zero: a part that no live share speaks of is Missing, and a sum that a silent instance is part of is
Stale. docs/pushing-signals.md describes the format. PURE: no I/O; time is an argument, in seconds of Unix time, for that
is what samples carry.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from scaler.core.model import MISSING, Load, Quality, Reading
from scaler.errors import SampleRejected
from scaler.signals import pushers
from scaler.signals.lateness import Lateness, late_share
from scaler.signals.port import rises
from scaler.signals.pushers import Pusher
from scaler.signals.refusals import Refusals
from scaler.signals.sample import Kind, Numbers, Sample, parse
from warmpool.seats import PolicyName

_POINT_SECONDS = 0.05
"""Totals are kept this finely; samples may come a hundred times a second."""
_SWEEP_SECONDS = 0.5
"""What has expired is looked for this often; nothing that has expired counts meanwhile."""


class TooOften(SampleRejected):
    """An instance pushes more often than anyone needs; the sample changed nothing."""


class NameTaken(SampleRejected):
    """Another pusher pushes as this instance; the sample changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedLimits:
    """What is believed of pushed samples, and for how long.

    Attributes:
        fresh_intervals: intervals up to which a share is Fresh.
        expiry_intervals: intervals above which it is gone.
        gateway_expiry_intervals: the same of a gateway, which pushes more often than it must while it has anything to say.
        future_seconds: how far a sample's time may lie ahead (clocks differ).
        rate_seconds: span over which rates are taken; a shorter one serves until it is there.
        shortest_rate_seconds: span below which no rate is given.
        max_gateways: gateways at once.
        max_queues: other instances at once.
        share_of_pusher: share of all those of a kind that one pusher's may be, so that others' find room.
        max_queues_of_policy: one pusher's other instances that speak of one policy, so that who takes a new name for each
            sample keeps out nobody who shows another token.
        samples_per_second: of one instance; gateways push 100 times a second at most.
        samples_at_once: of one instance, after a pause.
    """

    fresh_intervals: float = 1.5
    expiry_intervals: float = 2.5
    gateway_expiry_intervals: float = 2.0
    future_seconds: float = 1.0
    rate_seconds: float = 3.0
    shortest_rate_seconds: float = 0.2
    max_gateways: int = 1024
    max_queues: int = 4096
    share_of_pusher: float = 7 / 8
    max_queues_of_policy: int = 64
    samples_per_second: float = 200.0
    samples_at_once: float = 200.0

    def expiry_seconds(self, sample: Sample) -> float:
        """Return for how long what a sample says holds."""
        gateway = sample.kind is Kind.GATEWAY
        return (self.gateway_expiry_intervals if gateway else self.expiry_intervals) * sample.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of a sample.

    Attributes:
        policies: those whose load it says.
        ignored: those that it names and nobody knows.
        changed: those whose numbers are others than they were, or are known again.
        risen: more requests or work, by enough for a burst.
    """

    policies: tuple[PolicyName, ...]
    ignored: tuple[PolicyName, ...] = ()
    changed: tuple[PolicyName, ...] = ()
    risen: bool = False


class Speaker(NamedTuple):
    """An instance that speaks of a policy.

    Attributes:
        name: its name.
        kind: what it is.
        pusher: who pushes as it.
        age: seconds since it spoke.
    """

    name: str
    kind: Kind
    pusher: str
    age: float


class _Totals:
    """One instance's totals of one policy over the last seconds, as if its counters had never been reset."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float, float]] = deque()
        self._arrived = 0.0
        self._completed = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, at: float, arrived: float, completed: float, keep_seconds: float) -> None:
        if self._last is not None:
            # a counter that fell began again at zero: what it shows is what has come since
            before, done = self._last
            self._arrived += arrived - (before if arrived >= before else 0.0)
            self._completed += completed - (done if completed >= done else 0.0)
        self._last = arrived, completed
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
class _Share:
    """What one instance says of one policy."""

    instance: "_Instance"
    at: float
    numbers: Numbers
    totals: _Totals | None = None
    refusals: Refusals | None = None
    lateness: Lateness | None = None

    @property
    def refused(self) -> float | None:
        return None if self.refusals is None else self.refusals.outside

    def age(self, now: float) -> float:
        return max(0.0, now - self.at)

    def live(self, now: float) -> bool:
        return now - self.at <= self.instance.expiry

    def fresh(self, now: float) -> bool:
        return now - self.at <= self.instance.fresh


@dataclass(slots=True)
class _Instance:
    """One that pushes.

    Attributes:
        pusher: whose it is for as long as it lives.
        allowance: samples that it may push now; it grows with time.
        run: which process it is; empty: it doesn't say.
    """

    name: str
    kind: Kind
    pusher: str
    allowance: float
    run: str = ""
    sequence: int = -1
    at: float = -math.inf
    seen_at: float = -math.inf
    fresh: float = 0.0
    expiry: float = 0.0

    def live(self, now: float) -> bool:
        return now - self.at <= self.expiry


class PushedSamples:
    """All instances' shares of all policies' load.

    A sample changes the policies that it names. What an instance said of others holds until it expires, so that a large
    gateway can say what changed at once and the rest in turn.

    Attributes:
        accepted: samples taken.
        rejected: samples refused; they changed nothing.
    """

    def __init__(self, limits: PushedLimits | None = None) -> None:
        """Make an empty store with the given or the usual limits, which takes samples of any policy."""
        self._limits = limits if limits is not None else PushedLimits()
        self._instances: dict[str, _Instance] = {}
        self._shares: dict[PolicyName, dict[str, _Share]] = {}
        self._peaks: dict[PolicyName, float] = {}
        self._known: Collection[PolicyName] | None = None
        self._strangers = _Instance("of unknown policies", Kind.QUEUE, "", self._limits.samples_at_once)
        self._swept_at = -math.inf
        self.accepted = 0
        self.rejected = 0

    def follow(self, policies: Collection[PolicyName]) -> None:
        """Take samples of these policies only, and forget what was said of others."""
        self._known = frozenset(policies)
        for policy in self._shares.keys() - self._known:
            del self._shares[policy]
        self._peaks = {policy: peak for policy, peak in self._peaks.items() if policy in self._known}

    def ingest(
        self, body: bytes | Mapping[str, object], now: float, pusher: Pusher = pushers.ANYONE
    ) -> Taken:
        """Take one sample.

        Args:
            body: a push's body, or the JSON object that it held.
            now: Unix time.
            pusher: who pushes it.

        Raises:
            TooLarge: it is larger than one of its kind may be.
            NotAllowed: it says what its pusher may not say.
            NameTaken: another pusher, or another process, pushes as its instance.
            TooOften: it is one too many.
            SampleRejected: it is malformed, of the future, too old to count, or not newer than the last one of its instance.
                Like all of these it was counted and changed nothing.
        """
        try:
            sample = parse(body, self._known)
            pusher.check(sample.kind, sample.instance)
            self._check_time(sample, now)
            self._sweep(now)
            instance = self._admit(sample, pusher.name, now)
            if not self._concerns_us(sample):
                self._charge(self._strangers, now)
        except SampleRejected:
            self.rejected += 1
            raise
        self.accepted += 1
        return self._store(sample, instance, now)

    def load(self, policy: PolicyName, now: float) -> Load:
        """Return what live instances say of `policy`, added up.

        The peak is the highest demand that any sample reported since `take_peaks`, the present one included.

        Args:
            policy: which policy.
            now: Unix time.
        """
        shares = [share for share in self._shares.get(policy, {}).values() if share.live(now)]
        if not shares:
            return Load()
        said = [share.numbers for share in shares]
        ages = _Ages([share.age(now) for share in shares], [share.fresh(now) for share in shares])
        queued = ages.reading([numbers.queued for numbers in said], sum)
        in_flight = ages.reading([numbers.in_flight for numbers in said], sum)
        arrivals, completions = self._rates(shares, now)
        return Load(
            queued=queued,
            in_flight=in_flight,
            oldest_wait=ages.reading([numbers.oldest_wait for numbers in said], max),
            peak=_peak(queued, in_flight, self._peaks.get(policy, 0.0)),
            arrivals=arrivals,
            completions=completions,
            refused=ages.reading([share.refused for share in shares], sum),
            late_share=_late(shares, now),
            backlog=ages.reading([numbers.backlog for numbers in said], sum),
            backlog_age=ages.reading([numbers.backlog_age for numbers in said], max),
        )

    def policies(self, now: float) -> set[PolicyName]:
        """Return the policies that live shares speak of."""
        return {
            name for name, shares in self._shares.items() if any(each.live(now) for each in shares.values())
        }

    def shares(self, policy: PolicyName, now: float) -> list[Speaker]:
        """Return who speaks of `policy`."""
        return [
            Speaker(name, share.instance.kind, share.instance.pusher, share.age(now))
            for name, share in self._shares.get(policy, {}).items()
            if share.live(now)
        ]

    def gateways(self, now: float) -> list[str]:
        """Return the live gateways."""
        return [
            name
            for name, instance in self._instances.items()
            if instance.kind is Kind.GATEWAY and instance.live(now)
        ]

    def take_peaks(self, policies: Iterable[PolicyName]) -> Mapping[PolicyName, float]:
        """Return the peaks of these policies since the last call, and begin anew; call it after a snapshot's loads."""
        taken = {name: self._peaks.pop(name) for name in policies if name in self._peaks}
        return MappingProxyType(taken)

    def sampled_at(self, policy: PolicyName, now: float) -> float | None:
        """Return the Unix time of the newest live share of `policy`, or None."""
        shares = self._shares.get(policy, {}).values()
        return max((share.at for share in shares if share.live(now)), default=None)

    # -------------------------------------------------------------- whether to take it

    def _check_time(self, sample: Sample, now: float) -> None:
        ahead = sample.at - now
        if ahead > self._limits.future_seconds:
            message = f"sample of {sample.instance}: its time lies {ahead:.1f} s ahead; check both clocks"
            raise SampleRejected(message)
        if -ahead > self._limits.expiry_seconds(sample):
            message = (
                f"sample of {sample.instance}: it is {-ahead:.1f} s old; check the network and both clocks"
            )
            raise SampleRejected(message)

    def _admit(self, sample: Sample, pusher: str, now: float) -> _Instance:
        """Return the instance that may push this sample; a new one isn't known yet.

        Raises:
            SampleRejected: it may not.
        """
        instance = self._of(sample, pusher, now)
        if instance is None:
            self._check_room(sample, pusher, now)
            allowance = self._limits.samples_at_once - 1.0
            return _Instance(sample.instance, sample.kind, pusher, allowance, sample.run, seen_at=now)
        if sample.kind is not instance.kind:
            message = f"sample of {sample.instance}: it is a {sample.kind} now and was a {instance.kind}; is the name unique?"
            raise SampleRejected(message)
        self._charge(instance, now)
        if sample.sequence <= instance.sequence or sample.at < instance.at:
            message = (
                f"sample of {sample.instance}: sequence {sample.sequence} at {sample.at} is not after "
                f"{instance.sequence} at {instance.at}; is the instance's name unique?"
            )
            raise SampleRejected(message)
        if sample.kind is Kind.QUEUE:
            self._check_crowd(sample, pusher, now)
        return instance

    def _of(self, sample: Sample, pusher: str, now: float) -> _Instance | None:
        """Return the instance as it is known; None if it isn't, or begins anew: under another pusher, as another kind or process.

        Raises:
            NameTaken: it lives, and is another pusher's or another process.
        """
        instance = self._instances.get(sample.instance)
        if instance is None:
            return None
        another = instance.run != sample.run and bool(instance.run and sample.run)
        if instance.kind is sample.kind and instance.pusher == pusher and not another:
            return instance
        if not instance.live(now):
            return None
        if instance.pusher == pusher:
            if another:
                message = (
                    f"sample of {sample.instance}: another process pushes under this name, and its numbers still count; "
                    "give each a name of its own, or wait until they have expired"
                )
                raise NameTaken(message)
            return instance
        if sample.kind is Kind.GATEWAY and instance.kind is not Kind.GATEWAY:
            return None  # who may speak as a gateway isn't kept out by those who may not
        message = (
            f"sample of {sample.instance}: who shows another token ({instance.pusher}) pushes as this instance, and its numbers "
            "still count; take another name here or there, for another token is no mend, or wait until they have expired"
        )
        raise NameTaken(message)

    @staticmethod
    def _concerns_us(sample: Sample) -> bool:
        """Whether it names a policy that there is, or none at all: nobody keeps a tally of the senders of others."""
        return bool(sample.policies) or not sample.strangers

    def _charge(self, instance: _Instance, now: float) -> None:
        earned = max(0.0, now - instance.seen_at) * self._limits.samples_per_second
        instance.allowance = min(self._limits.samples_at_once, instance.allowance + earned)
        instance.seen_at = now
        if instance.allowance < 1.0:
            message = f"sample of {instance.name}: at most {self._limits.samples_per_second:g} are taken in a second"
            raise TooOften(message)
        instance.allowance -= 1.0

    def _check_room(self, sample: Sample, pusher: str, now: float) -> None:
        if self._crowding(sample.kind, pusher):
            self._swept_at = -math.inf
            self._sweep(now)
            if said := self._crowding(sample.kind, pusher):
                raise SampleRejected(f"sample of {sample.instance}: {said}")
        if sample.kind is Kind.QUEUE:
            self._check_crowd(sample, pusher, now)

    def _crowding(self, kind: Kind, pusher: str) -> str:
        """Say why there is no room for one more instance; empty if there is."""
        most = self._limits.max_gateways if kind is Kind.GATEWAY else self._limits.max_queues
        there = [each.pusher for each in self._instances.values() if each.kind is kind]
        if len(there) >= most:
            return f"{len(there)} instances report already"
        if (own := there.count(pusher)) >= math.ceil(self._limits.share_of_pusher * most):
            return f"{own} instances of {pusher} report already; the rest of the room is other pushers'"
        return ""

    def _check_crowd(self, sample: Sample, pusher: str, now: float) -> None:
        for policy in sample.policies:
            others = [
                share
                for name, share in self._shares.get(policy, {}).items()
                if name != sample.instance
                and share.instance.kind is Kind.QUEUE
                and share.instance.pusher == pusher
                and share.live(now)
            ]
            if len(others) >= self._limits.max_queues_of_policy:
                message = (
                    f"sample of {sample.instance}: {len(others)} instances of {pusher} report policy {policy} already; "
                    "an instance keeps its name"
                )
                raise SampleRejected(message)

    def _sweep(self, now: float) -> None:
        """Forget what has expired."""
        if 0.0 <= now - self._swept_at < _SWEEP_SECONDS:
            return
        self._swept_at = now
        for policy, shares in list(self._shares.items()):
            for name in [name for name, share in shares.items() if not share.live(now)]:
                del shares[name]
            if not shares:
                del self._shares[policy]
        for name in [name for name, instance in self._instances.items() if not instance.live(now)]:
            del self._instances[name]

    # -------------------------------------------------------------- taking it

    def _store(self, sample: Sample, instance: _Instance, now: float) -> Taken:
        named = tuple(sample.policies)
        if named or (sample.kind is Kind.GATEWAY and not sample.strangers):
            self._instances[instance.name] = instance
            instance.sequence, instance.at = sample.sequence, sample.at
            instance.run = sample.run or instance.run
            instance.fresh = self._limits.fresh_intervals * sample.interval
            instance.expiry = self._limits.expiry_seconds(sample)
        risen, changed = False, []
        for name in named:
            share = self._share(name, instance, sample)
            numbers = sample.policies[name]
            if share.numbers != numbers or not share.fresh(now):
                changed.append(name)
            risen = risen or _risen(share.numbers, numbers)
            share.at, share.numbers = sample.at, numbers
            self._count(share)
            self._raise_peak(name, sample, now)
        return Taken(policies=named, ignored=sample.strangers, changed=tuple(changed), risen=risen)

    def _share(self, policy: PolicyName, instance: _Instance, sample: Sample) -> _Share:
        """Return what an instance last said of a policy; nothing if it is new."""
        shares = self._shares.setdefault(policy, {})
        share = shares.get(instance.name)
        if share is None or share.instance is not instance:
            share = shares[instance.name] = _Share(instance, sample.at, _NOTHING)
        return share

    def _count(self, share: _Share) -> None:
        numbers = share.numbers
        if numbers.refused is None:
            share.refusals = None
        elif share.refusals is None:
            share.refusals = Refusals(share.at, numbers.refused, numbers.refused_seconds)
        else:
            share.refusals.add(share.at, numbers.refused, numbers.refused_seconds)
        if numbers.answered is None or numbers.late is None:
            share.lateness = None
        else:
            share.lateness = share.lateness or Lateness()
            share.lateness.add(share.at, numbers.late, numbers.answered)
        if numbers.arrived is None or numbers.completed is None:
            share.totals = None
            return
        if share.totals is None:
            share.totals = _Totals()
        share.totals.add(share.at, numbers.arrived, numbers.completed, self._limits.rate_seconds)

    def _raise_peak(self, policy: PolicyName, sample: Sample, now: float) -> None:
        numbers = sample.policies[policy]
        mine = max(numbers.peak or 0.0, numbers.demand or 0.0)
        others = sum(
            share.numbers.demand or 0.0
            for name, share in self._shares[policy].items()
            if name != sample.instance and share.live(now)
        )
        self._peaks[policy] = max(self._peaks.get(policy, 0.0), mine + others)

    def _rates(self, shares: Iterable[_Share], now: float) -> tuple[Reading, Reading]:
        """Add up what is known; an instance that is too new to have a rate makes the sum Stale, never lower by right."""
        counting = [(share, share.totals) for share in shares if share.totals is not None]
        rates = [totals.rates(self._limits.shortest_rate_seconds) for _, totals in counting]
        known = [rate for rate in rates if rate is not None]
        if not known:
            return MISSING, MISSING
        fresh = len(known) == len(rates) and all(share.fresh(now) for share, _ in counting)
        age = max(share.age(now) for share, _ in counting)
        quality = Quality.FRESH if fresh else Quality.STALE
        arrivals, completions = (sum(column) for column in zip(*known, strict=True))
        return (
            Reading(value=arrivals, age=age, quality=quality),
            Reading(value=completions, age=age, quality=quality),
        )


_NOTHING: Final = Numbers(*[None] * len(Numbers._fields))


def _risen(before: Numbers, after: Numbers) -> bool:
    """Whether there are more requests or work than before, by enough for a burst."""
    return rises(before.demand or 0.0, max(after.peak or 0.0, after.demand or 0.0)) or rises(
        before.backlog or 0.0, after.backlog or 0.0
    )


def _late(shares: Iterable[_Share], now: float) -> Reading:
    """Return the share of late first tokens over those who tell of any."""
    telling = [share for share in shares if share.lateness is not None]
    value = late_share(share.lateness for share in telling if share.lateness is not None)
    if value is None:
        return MISSING
    fresh = all(share.fresh(now) for share in telling)
    age = max(share.age(now) for share in telling)
    return Reading(value=value, age=age, quality=Quality.FRESH if fresh else Quality.STALE)


class _Ages:
    """How old several shares are, for readings that are made of them.

    Args:
        ages: seconds, per share.
        fresh: whether each is fresh.
    """

    def __init__(self, ages: Sequence[float], fresh: Sequence[bool]) -> None:
        self._ages = ages
        self._fresh = fresh
        self._oldest = max(ages)
        self._quality = Quality.FRESH if all(fresh) else Quality.STALE

    def reading(self, values: Sequence[float | None], combine: Callable[[Iterable[float]], float]) -> Reading:
        """Combine what the shares say of one part: as old as the oldest that speaks of it, and Stale if any is late."""
        known = [value for value in values if value is not None]
        if not known:
            return MISSING
        if len(known) == len(values):
            return Reading(value=float(combine(known)), age=self._oldest, quality=self._quality)
        places = [place for place, value in enumerate(values) if value is not None]
        fresh = all(self._fresh[place] for place in places)
        return Reading(
            value=float(combine(known)),
            age=max(self._ages[place] for place in places),
            quality=Quality.FRESH if fresh else Quality.STALE,
        )


def _peak(queued: Reading, in_flight: Reading, reported: float) -> Reading:
    """Return the highest demand since the last look: the present one, or what was reported."""
    known = [reading for reading in (queued, in_flight) if reading.known]
    if not known:
        return MISSING
    return Reading(
        value=float(max(sum(reading.value for reading in known), reported)),
        age=max(reading.age for reading in known),
        quality=Quality.FRESH
        if all(reading.quality is Quality.FRESH for reading in known)
        else Quality.STALE,
    )
