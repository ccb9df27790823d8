"""The drill's own figures for Prometheus while it runs: what was asked, what came back, which stage it is.

Nothing is counted on a request's way. The load keeps a record of each request anyway; a scrape takes up what has been
recorded since the scrape before, and reads the rest (stage, intended rate, open requests) off the clock.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from scaler.drill.arms import ArmName
from scaler.drill.figures import Check, Status
from scaler.drill.load import Tally
from scaler.drill.ports import HOST, listen
from scaler.drill.records import Outcome, Record
from scaler.drill.schedule import StageWindow
from warmpool.metric_families import Family, Kind, Label, listed

_LAST_SCRAPE_SECONDS: Final = 35.0
"""The longest wait for a last scrape: Prometheus' usual interval is 15 or 30 s."""
_SCENARIO: Final = Label("scenario", "the scenario's name")
_ARM: Final = listed("arm", ArmName, "the arms that were asked for")
_POLICY: Final = Label("policy", "the scenario's models")
_STAGE: Final = Label("stage", "the scenario's stages")
_OUTCOME: Final = listed("outcome", Outcome, "how a request can end")
_CHECK: Final = Label("check", "the scenario's thresholds")

INFO: Final = Family(
    name="emberpool_drill_info",
    kind=Kind.GAUGE,
    help="Always 1; its labels say which scenario is drilled, and which arms.",
    unit="info",
    labels=(_SCENARIO, _ARM),
)
STAGE: Final = Family(
    name="emberpool_drill_stage",
    kind=Kind.GAUGE,
    help="1 for the arm and stage that the load is in; 0 for all others, and for all before and after the load.",
    unit="boolean",
    labels=(_ARM, _STAGE),
)
REQUESTS: Final = Family(
    name="emberpool_drill_requests_total",
    kind=Kind.COUNTER,
    help="Requests of the load that have ended, by the stage in which they were due and by how they ended.",
    unit="requests",
    labels=(_ARM, _POLICY, _STAGE, _OUTCOME),
)
TTFT: Final = Family(
    name="emberpool_drill_ttft_seconds",
    kind=Kind.HISTOGRAM,
    help="From the time at which a request was due to its first token, of ended requests that had one.",
    unit="seconds",
    labels=(_ARM, _POLICY, _STAGE),
    buckets=(0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0),
)
INTENDED_RATE: Final = Family(
    name="emberpool_drill_intended_rate",
    kind=Kind.GAUGE,
    help="Requests per second that the load sends now by its schedule, whatever is answered.",
    unit="requests per second",
    labels=(_ARM, _POLICY),
)
IN_FLIGHT: Final = Family(
    name="emberpool_drill_in_flight",
    kind=Kind.GAUGE,
    help="Requests of the load that are sent and have not ended, whether they wait or are answered.",
    unit="open requests",
    labels=(_ARM, _POLICY),
)
OBJECTIVE: Final = Family(
    name="emberpool_drill_objective_seconds",
    kind=Kind.GAUGE,
    help="Time to first token that the policy promises.",
    unit="seconds",
    labels=(_POLICY,),
)
CHECK_PASSED: Final = Family(
    name="emberpool_drill_check_passed",
    kind=Kind.GAUGE,
    help="1 for a check of the verdict that passed or only warned, 0 for one that failed; absent before the verdict.",
    unit="boolean",
    labels=(_CHECK, Label("arm", "the arm that it looks at, or both", ("warm", "cold", "both"))),
)
FAMILIES: Final = (INFO, STAGE, REQUESTS, TTFT, INTENDED_RATE, IN_FLIGHT, OBJECTIVE, CHECK_PASSED)
"""All that a drill shows."""

_BOUNDS: Final = (*map(floatToGoString, TTFT.buckets), "+Inf")

Row = tuple[tuple[str, ...], float]
"""Values of a family's labels, in order, and the number."""


@dataclass(slots=True)
class _Arm:
    """One arm's records as far as they are counted."""

    tally: Tally
    taken: int = 0
    requests: dict[tuple[str, str, str], int] = field(default_factory=dict)
    buckets: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    sums: dict[tuple[str, str], float] = field(default_factory=dict)

    def take(self) -> None:
        """Count what was recorded since the last time."""
        new = self.tally.records[self.taken :]
        self.taken += len(new)
        for record in new:
            self._count(record)

    def _count(self, record: Record) -> None:
        self.requests[record.policy, record.stage, record.outcome] += 1
        if record.ttft is not None:
            place = record.policy, record.stage
            self.buckets[place][bisect_left(TTFT.buckets, record.ttft)] += 1
            self.sums[place] += record.ttft


class DrillMetrics(Collector):
    """What a scrape shows.

    Every series that an arm can have is there from its start, at 0; not sooner, for a scrape takes its time from the
    load: some 7 ms for each arm of two models and nine stages.

    Args:
        scenario: name of the scenario.
        arms: names of the arms that will run.
        plan: the stages.
        objectives: per policy, the TTFT objective in seconds.
    """

    def __init__(
        self,
        scenario: str,
        arms: Sequence[str],
        plan: Sequence[StageWindow],
        objectives: Mapping[str, float],
    ) -> None:
        self._scenario = scenario
        self._plan = plan
        self._objectives = objectives
        self._names = arms
        self._arms: dict[str, _Arm] = {}
        self._now: str | None = None
        self._checks: dict[tuple[str, str], bool] = {}

    def _empty(self, tally: Tally) -> _Arm:
        places = list(product(self._objectives, (window.stage.name for window in self._plan)))
        return _Arm(
            tally=tally,
            requests={(*place, str(outcome)): 0 for place in places for outcome in Outcome},
            buckets={place: [0] * (len(TTFT.buckets) + 1) for place in places},
            sums=dict.fromkeys(places, 0.0),
        )

    def begin(self, arm: str, tally: Tally) -> None:
        """Follow an arm's load, whose clock has begun."""
        self._now = arm
        self._arms[arm] = self._empty(tally)

    def end(self) -> None:
        """Say that the arm's load is over; what it came to stays."""
        self._now = None

    def judge(self, checks: Iterable[Check]) -> None:
        """Show the verdict. Of checks that share a name and an arm, all must hold."""
        for check in checks:
            place = check.name, check.arm
            self._checks[place] = self._checks.get(place, True) and check.status is not Status.FAIL

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry would else collect everything to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Work the families out."""
        for arm in self._arms.values():
            arm.take()
        yield _filled(INFO, (((self._scenario, arm), 1.0) for arm in self._names))
        yield _filled(STAGE, self._stages())
        yield _filled(REQUESTS, self._requests())
        yield self._ttft()
        yield _filled(INTENDED_RATE, self._by_policy(self._rate))
        yield _filled(IN_FLIGHT, self._by_policy(self._open))
        yield _filled(OBJECTIVE, (((policy,), seconds) for policy, seconds in self._objectives.items()))
        yield _filled(CHECK_PASSED, ((place, float(good)) for place, good in self._checks.items()))

    def _stages(self) -> Iterator[Row]:
        for arm in self._names:
            current = self._window(arm)
            for window in self._plan:
                yield (arm, window.stage.name), float(window is current)

    def _requests(self) -> Iterator[Row]:
        for name, arm in self._arms.items():
            for place, count in arm.requests.items():
                yield (name, *place), float(count)

    def _ttft(self) -> Metric:
        metric = HistogramMetricFamily(TTFT.name, TTFT.help, labels=TTFT.label_names)
        for name, arm in self._arms.items():
            for place, counts in arm.buckets.items():
                buckets = list(zip(_BOUNDS, accumulate(counts), strict=True))
                metric.add_metric((name, *place), buckets, arm.sums[place])
        return metric

    def _by_policy(self, value: Callable[[str, str], float]) -> Iterator[Row]:
        for arm, policy in product(self._names, self._objectives):
            yield (arm, policy), value(arm, policy)

    def _rate(self, arm: str, policy: str) -> float:
        window = self._window(arm)
        return 0.0 if window is None else window.rate(policy, self._clock(arm))

    def _open(self, arm: str, policy: str) -> float:
        found = self._arms.get(arm)
        return 0.0 if found is None else float(found.tally.open.get(policy, 0))

    def _window(self, arm: str) -> StageWindow | None:
        """The stage that the arm's load is in; None before and after."""
        now = self._clock(arm)
        return next((window for window in self._plan if window.start <= now < window.end), None)

    def _clock(self, arm: str) -> float:
        """Seconds after the start of the arm's load; negative while it has none."""
        return self._arms[arm].tally.now() if arm == self._now else -1.0


def _filled(family: Family, found: Iterable[Row]) -> Metric:
    metric = Metric(family.stem, family.help, str(family.kind))
    for values, number in found:
        metric.add_sample(family.name, dict(zip(family.label_names, values, strict=True)), number)
    return metric


@asynccontextmanager
async def exposing(
    metrics: DrillMetrics, port: int | None, say: Callable[[str], None]
) -> AsyncIterator[str | None]:
    """Answer scrapes on `/metrics` while the context is open; an orderly end waits until the last figures have been seen.

    Args:
        metrics: what is shown.
        port: where; 0 takes a free one, None answers nobody.
        say: called with the address.

    Yields:
        The page's URL; None where nobody is answered.

    Raises:
        UserError: the port can't be had.
    """
    if port is None:
        yield None
        return
    listener = listen(port, "--metrics-port")
    registry = CollectorRegistry()
    registry.register(metrics)
    app = web.Application()
    scrapes = _Scrapes()
    page = make_aiohttp_handler(registry)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await page(request)
        scrapes.note(time.monotonic())
        return response

    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        url = f"http://{HOST}:{listener.getsockname()[1]}/metrics"
        say(f"metrics: {url}")
        yield url
        await scrapes.one_more()
    finally:
        await runner.cleanup()


class _Scrapes:
    """How often somebody scrapes, so that the verdict isn't gone before the next time."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._interval: float | None = None
        self._next = asyncio.Event()

    def note(self, now: float) -> None:
        """Take note of a scrape."""
        if self._last is not None:
            self._interval = now - self._last
        self._last = now
        self._next.set()

    async def one_more(self) -> None:
        """Wait for the next scrape, for as long as it should take by the last interval; nobody scrapes: don't wait."""
        if self._interval is None:
            return
        self._next.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(1.5 * self._interval + 1.0, _LAST_SCRAPE_SECONDS)):
                await self._next.wait()
