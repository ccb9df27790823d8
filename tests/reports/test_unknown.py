"""What is not known, as others got it wrong: read as zero, as idle, as a reason to go down, or as an end of everything."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from scaler.core.model import FallbackBehavior, Load, Mode, Pace, Quality, ReasonCode
from scaler.signals.board import Board
from scaler.signals.engine_page import read_page
from scaler.signals.engine_sum import EngineSum
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.expected import expectation, signals_of
from scaler.signals.pushed import PushedSamples
from tests.reports.chain import ENGINES, GATEWAY, chain, page, policies, query, serving, vector
from tests.reports.site import Site
from tests.unit.scaler.core.world import fleet, fresh, load, policy
from warmpool.seats import FleetName, PolicyName

CHAT, SPARES = PolicyName("chat"), FleetName("spares")
HOUR = 3600.0
LONG = 1200.0
"""Seconds after which every window is over, and no part of the demand that fell silent is waited for any more."""


BY_GATEWAYS, BY_ENGINES = load(20), Load(engines=fresh(20))


def three_serve(seen: Load = BY_GATEWAYS, **options: Any) -> Site:
    """A policy that may go to zero, and serves 20 requests on three seats."""
    shape = fleet(max_seats=9, spare_target=1, scale_down=Pace(window=20.0))
    site = Site(policies=[policy("chat", **{"serving_min": 0, **options})], fleets=[shape], up={"spares": 4})
    site.hold({"chat": seen}, 30.0)
    assert (site.serving("chat"), site.total()) == (3, 4)
    return site


def kept(site: Site, seen: Load, seconds: float = LONG) -> bool:
    """Whether it still serves on three seats after so long under one load."""
    site.hold({"chat": seen}, seconds, each=2.0)
    return (site.serving("chat"), site.total()) == (3, 4)


# ------------------------------------------------------------------ an outage


async def test_an_outage_of_the_only_source_takes_nothing_away() -> None:
    """While the metrics server was down its metric read as no load, and everything was scaled to zero."""
    down = False

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503) if down else vector("20")

    async with serving(answer) as url, chain(chat=[query(url, "Requests")]) as on:
        await on.until(lambda: on.load().engines.value == 20)
        down = True
        await on.until(lambda: "503" in on.error("query"))
        seen = on.load(later=HOUR)
    assert not seen.engines.known
    site = three_serve(BY_ENGINES)
    assert kept(site, seen)
    assert site.decision.policies[CHAT].mode is Mode.HOLD


async def test_a_source_that_is_down_silences_no_other() -> None:
    """One scaler that didn't answer made all metrics of the same object unreadable."""
    refused = query("http://127.0.0.1:1", "Requests")
    async with chain(chat=[GATEWAY, refused], code=[GATEWAY]) as on:
        await on.until(lambda: "connection refused" in on.error("query"))
        on.push(inFlight=20, queued=10)
        on.push("gateway-2", policy="code", inFlight=1)
        seen, other = on.load(), on.load("code")
    assert (seen.in_flight.value, seen.in_flight.quality) == (20, Quality.FRESH)
    assert (seen.absent, other.absent) == (("query",), ())
    site = three_serve()
    site.step({"chat": seen})
    assert site.serving("chat") == 4, "30 in flight: what is heard still raises the answer"


async def test_a_source_that_says_idle_takes_nothing_from_one_that_is_busy() -> None:
    """The word of one trigger that it was idle scaled to zero what another trigger kept busy."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return page(18, 2)

    async with serving(answer) as url, chain(chat=[GATEWAY, ENGINES]) as on:
        on.engine("one", url)
        await on.until(lambda: on.load().engines.value == 20)
        on.push(inFlight=0, queued=0)
        seen = on.load()
    assert (seen.queued.value, seen.in_flight.value, seen.absent) == (0, 0, ())
    assert kept(three_serve(replace(BY_GATEWAYS, engines=fresh(20))), seen)


# ------------------------------------------------------------------ a miss


ODD_PAGES: Mapping[str, Mapping[str, Any]] = {
    "an error": {"status": 500},
    "no such page": {"status": 404},
    "an empty page": {"text": ""},
    "a page without the names": {"text": "process_start_time_seconds 1\n"},
    "running but not waiting": {"text": "vllm:num_requests_running 0\n"},
    "not a number": {"text": "vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n"},
    "a negative number": {"text": "vllm:num_requests_running -1\nvllm:num_requests_waiting 0\n"},
    "a page of something else": {"text": "<html>0</html>", "content_type": "text/html"},
}


@pytest.mark.parametrize("odd", ODD_PAGES)
async def test_a_scrape_that_missed_is_never_zero_and_never_idle(odd: str) -> None:
    """A scrape that failed was stored as 0, and 0 is idle."""
    failing = False

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(**ODD_PAGES[odd]) if failing else page(18, 2)

    async with serving(answer) as url, chain(chat=[ENGINES]) as on:
        on.engine("one", url)
        await on.until(lambda: on.load().engines.value == 20)
        failing = True
        await on.until(lambda: on.error("engines") != "")
        soon, late = on.load(later=5.0), on.load(later=HOUR)
    assert (soon.engines.value, soon.engines.quality) == (20, Quality.STALE)
    assert not late.engines.known
    site = three_serve(BY_ENGINES)
    assert kept(site, soon, 30.0)
    assert kept(site, late)


@pytest.mark.parametrize(
    "values", [pytest.param((), id="no series"), ("NaN",), ("-1",), ("+Inf",), ("3", "4")]
)
async def test_an_answer_without_one_number_is_never_zero(values: tuple[str, ...]) -> None:
    """An empty answer, and one that was not a number, counted as inactive."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return vector(*values)

    async with serving(answer) as url, chain(chat=[query(url, "QueueDepth")]) as on:
        await on.until(lambda: on.error("query") != "")
        seen = on.load()
    assert not seen.queued.known
    assert kept(three_serve(Load(queued=fresh(20))), seen)


# ------------------------------------------------------------------ one of several


async def test_an_engine_that_cannot_be_reached_keeps_its_place_in_the_sum() -> None:
    """One pod that could not be reached made the sum too small, and restarted whoever asked."""
    reachable, running = True, 10

    async def lost(request: web.BaseRequest) -> web.StreamResponse:
        if not reachable:
            assert request.transport is not None
            request.transport.abort()
        return page(10)

    async def other(_: web.BaseRequest) -> web.StreamResponse:
        return page(running)

    async with serving(lost) as first, serving(other) as second, chain(chat=[ENGINES]) as on:
        on.engine("one", first)
        on.engine("two", second)
        await on.until(lambda: on.load().engines.value == 20)
        reachable = False
        await on.until(lambda: "1 of 2 engines silent: one" in on.error("engines"))
        running = 14
        await on.until(lambda: on.load().engines.value == 24)
        await on.until(lambda: on.load().engines.quality is Quality.STALE)
        seen = on.load()
    assert seen.engines.value == 24
    assert kept(three_serve(BY_ENGINES), seen)


async def test_an_engine_that_never_was_ready_spoils_no_other_and_goes_with_its_seat() -> None:
    """One pod that wasn't Ready failed the reading of all of them, and the answer stayed high for as long."""

    async def never(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503)

    async def other(_: web.BaseRequest) -> web.StreamResponse:
        return page(2)

    async with serving(never) as first, serving(other) as second, chain(chat=[ENGINES]) as on:
        unready = on.engine("one", first)
        on.engine("two", second)
        await on.until(lambda: on.load().engines.known)
        seen = on.load()
        on.cluster.objects.mark_terminating(unready)
        await on.until(lambda: on.load().engines.quality is Quality.FRESH)
        after = on.load()
    assert (seen.engines.value, seen.engines.quality) == (2, Quality.STALE)
    site = three_serve(BY_ENGINES)
    assert kept(site, seen, 60.0)
    site.hold({"chat": after}, 60.0)
    assert (site.serving("chat"), site.total()) == (1, 2)


def test_engines_that_answer_are_heard_however_long_another_is_silent() -> None:
    """The same, for longer: what the others say must go on counting as the least that there is."""
    of = policies(chat=[ENGINES])
    board, said = Board(), EngineSum(objective=1.0)
    ((key, signal),) = signals_of(of).items()
    board.expect({key: expectation(signal)})
    silent, *others = [EngineTarget(str(n), f"http://{n}") for n in range(3)]
    said.follow([silent, *others], 0.0)
    site = three_serve(BY_ENGINES)
    for second in range(120):
        for target in [*others, *([silent] if second < 10 else [])]:
            said.answered(target, read_page(_page(7 if second < 100 else 20)), float(second))
        taken = said.taken(float(second), expectation(signal).fresh_seconds)
        assert taken is not None
        board.observed(key, taken.parts, taken.at)
        site.step({"chat": board.load(CHAT, Load(), float(second))})
    assert site.decision.policies[CHAT].wanted[SPARES] >= 5, "40 requests in flight on those that answer"


def _page(running: int) -> bytes:
    return f"vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\n".encode()


def test_a_gateway_that_is_not_heard_counts_for_so_long_as_its_share_holds() -> None:
    """The last that was known of a source that fell silent was dropped at once, or believed for ever."""
    store = PushedSamples()

    def push(instance: str, at: float, sequence: int) -> None:
        share = {"chat": {"inFlight": 10, "queued": 0}}
        body = {"instance": instance, "kind": "Gateway", "sequence": sequence, "at": at, "policies": share}
        store.ingest(body, at)

    push("one", 1000.0, 1)
    seen = []
    for second in range(5):
        push("two", 1000.0 + second, second + 1)
        reading = store.load(CHAT, 1000.0 + second).in_flight
        seen.append((reading.value, reading.quality))
    both, late, gone = (20, Quality.FRESH), (20, Quality.STALE), (10, Quality.FRESH)
    assert seen == [both, both, late, gone, gone]


# ------------------------------------------------------------------ nothing divided by nothing


@pytest.mark.parametrize("measures", ["TtftShareOverObjective", "QueueAgeSeconds"])
async def test_a_quotient_of_nothing_is_idle_where_nothing_arrived(measures: str) -> None:
    """Without traffic a latency was 0/0; that it was no number kept everything up for good."""
    asked = 0

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return vector("NaN")

    async with serving(answer) as url, chain(chat=[GATEWAY, query(url, measures)]) as on:
        await on.until(lambda: asked >= 2)
        on.push(inFlight=0, queued=0, arrived=100, completed=100)
        seen = on.load()
    assert seen.in_flight.quality is Quality.FRESH
    site = three_serve()
    site.hold({"chat": seen}, 60.0)
    assert (site.serving("chat"), site.total()) == (0, 1)


# ------------------------------------------------------------------ bounds


@pytest.mark.parametrize("fallback", FallbackBehavior)
@pytest.mark.parametrize("seen", [pytest.param(Load(), id="missing"), pytest.param(load(0), id="idle")])
def test_the_floor_holds_on_every_path(seen: Load, fallback: FallbackBehavior) -> None:
    """During an outage the answer came from a path on which nobody had looked at the minimum."""
    site = three_serve(serving_min=2, fallback=fallback, fallback_serving=0)
    for _ in range(600):
        site.step({"chat": seen})
        assert site.serving("chat") >= 2
        assert site.total() >= 2


@pytest.mark.parametrize("fallback", FallbackBehavior)
def test_a_floor_that_does_not_exist_yet_is_ordered_on_every_path(fallback: FallbackBehavior) -> None:
    """The same, where the seats for it have still to be made."""
    least = policy("chat", serving_min=2, fallback=fallback, fallback_serving=0)
    site = Site(policies=[least], fleets=[fleet(spare_target=0)])
    for _ in range(10):
        site.step({})
        assert site.total() == 2


# ------------------------------------------------------------------ a way out


def test_a_burst_that_hears_nothing_more_ends_in_a_hold_and_then_in_calm() -> None:
    """With no data in panic nothing ever ended it: its pods stayed for good."""
    site = three_serve()
    site.step({"chat": load(60)})
    assert site.decision.policies[CHAT].mode is Mode.BURST
    site.hold({}, 10.0)
    assert site.decision.policies[CHAT].mode is Mode.HOLD
    assert ReasonCode.SIGNALS_MISSING in [one.code for one in site.decision.policies[CHAT].reasons]
    site.hold({"chat": load(0)}, 60.0)
    assert (site.serving("chat"), site.total()) == (0, 1)


def test_whoever_wants_no_data_to_mean_few_says_so_by_name() -> None:
    """What shall happen without data is written in the policy, and is nothing that somebody has to guess."""
    site = three_serve(fallback=FallbackBehavior.STATIC, fallback_serving=1)
    site.hold({}, 60.0)
    assert (site.serving("chat"), site.total()) == (1, 2)
