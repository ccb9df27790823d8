"""Getting going as others got it wrong: the first request after a long silence, the short one, the one nobody can see."""

import asyncio
import json

import pytest

from scaler.core.model import Load
from scaler.policy.lint import Code, Severity, lint
from scaler.signals.engine_page import read_page
from scaler.signals.pushed import PushedSamples
from tests.reports.site import Site
from tests.sim.world import world
from tests.unit.scaler.core.world import fleet, fresh, load, policy
from tests.unit.scaler.policy.lint import sets
from warmpool.seats import FleetName, PolicyName

CHAT, SPARES = PolicyName("chat"), FleetName("spares")
NOW, HOUR = 1_796_000_000.0, 3600.0


def sample(sequence: int, at: float, **numbers: float) -> bytes:
    body = {"instance": "gateway-1", "kind": "Gateway", "sequence": sequence, "at": at}
    return json.dumps({**body, "policies": {"chat": numbers}}).encode()


# ------------------------------------------------------------------ after a long silence


@pytest.mark.long
@pytest.mark.looptime
async def test_the_first_request_after_an_hour_of_silence_is_served_at_once() -> None:
    """A windowed rate had no second point after an hour of nothing: the first request timed out and nothing scaled."""
    async with world([policy("chat", serving_min=0)], [fleet(max_seats=2, spare_target=1)]) as on:
        await on.until(lambda: len(on.cluster.seats()) == 1)
        await asyncio.sleep(HOUR)
        assert on.serving("chat") == 0
        request = on.traffic.arrive(CHAT, 1.0)
        await on.until(lambda: request.finished is not None)
        assert request.waited < 0.2


def test_the_first_sample_after_an_hour_asks_for_a_seat_by_itself() -> None:
    """The same where the gateway itself had been away: one sample is no rate, and must do."""
    store = PushedSamples()
    store.ingest(sample(1, NOW, queued=0, inFlight=0, arrived=900, completed=900), NOW)
    taken = store.ingest(sample(2, NOW + HOUR, queued=1, inFlight=0, arrived=901, completed=900), NOW + HOUR)
    assert taken.risen, "the loop is woken at once"
    seen = store.load(CHAT, NOW + HOUR)
    assert not seen.arrivals.known
    site = Site(policies=[policy("chat", serving_min=0)], fleets=[fleet()], up={"spares": 1})
    site.hold({"chat": load(0)}, 60.0)
    site.hold({}, HOUR, each=2.0)
    assert site.step({"chat": seen}).policies[CHAT].serving[SPARES] == 1


# ------------------------------------------------------------------ a short one


def test_a_request_that_came_and_went_between_two_looks_is_seen() -> None:
    """A gauge was looked at every few seconds: a request in between had never been, and nothing was activated."""
    store = PushedSamples()
    store.ingest(sample(1, NOW, queued=0, inFlight=0), NOW)
    store.ingest(sample(2, NOW + 0.3, queued=0, inFlight=0, peak=1), NOW + 0.3)
    store.ingest(sample(3, NOW + 0.6, queued=0, inFlight=0, peak=0), NOW + 0.6)
    seen = store.load(CHAT, NOW + 0.9)
    assert (seen.queued.value, seen.in_flight.value, seen.peak.value) == (0, 0, 1)
    site = Site(policies=[policy("chat", serving_min=0)], fleets=[fleet()], up={"spares": 1})
    site.hold({"chat": load(0)}, 60.0)
    assert site.serving("chat") == 0
    assert site.step({"chat": seen}).policies[CHAT].serving[SPARES] == 1


# ------------------------------------------------------------------ what can't be reached


def test_a_gauge_that_stops_at_what_is_let_in_does_not_hide_what_waits() -> None:
    """The gauge ended at its cap, just below the target: however many waited, the answer stayed where it was."""
    site = Site(policies=[policy()], fleets=[fleet(max_seats=9, spare_target=8)], up={"spares": 9})
    site.hold({"a": load(8)}, 60.0)
    assert site.serving() == 1
    site.step({"a": load(8, 30)})
    assert site.serving() == 5, "8 that were let in and 30 that wait"


def test_an_engine_that_computes_fewer_at_once_than_its_target_still_shows_its_load() -> None:
    """The same inside the engine: it runs 2 at once, its target is 8, and the rest waits in it."""
    full = read_page(b"vllm:num_requests_running 2\nvllm:num_requests_waiting 30\n")
    site = Site(policies=[policy()], fleets=[fleet(max_seats=9, spare_target=8)], up={"spares": 9})
    site.hold({"a": Load(engines=fresh(2))}, 60.0)
    assert site.serving() == 1
    site.step({"a": Load(engines=fresh(full.requests))})
    assert site.serving() == 4


def test_a_threshold_that_nothing_can_reach_is_told_before_it_is_relied_on() -> None:
    """A default that no reading could ever reach was found out about in production."""
    engines = {"name": "engines", "type": "EngineMetrics"}
    found = sets.findings(Code.BURST_UNREACHABLE, sets.fleet(), sets.policy(signals=[engines]))
    assert [finding.severity for finding in found] == [Severity.WARNING]


def test_a_share_that_is_read_as_a_number_of_requests_is_told() -> None:
    """The gauge lay between 0 and 1 and the target was 2: what is no count of requests never asks for a second seat."""
    share = {
        "name": "kv",
        "type": "Prometheus",
        "server": "http://prometheus:9090",
        "query": 'max(vllm:kv_cache_usage_perc{namespace="default"})',
        "measures": "Requests",
    }
    report = lint(sets.subject(sets.fleet(), sets.policy(signals=[share])))
    (found,) = [one for one in report.findings if one.place.path[:3] == ("spec", "signals", 0)]
    assert (found.code, found.severity) == (Code.QUERY_IS_SHARE, Severity.WARNING)


# ------------------------------------------------------------------ a number that nobody takes up


def test_another_target_moves_the_total_at_the_next_look() -> None:
    """A new target never reached whoever divides by it: here the number that is published moves, and the divisor is 1."""
    site = Site(policies=[policy()], fleets=[fleet(max_seats=9)], up={"spares": 2})
    site.hold({"a": load(8)}, 60.0)
    assert site.total() == 2
    site.policies = [policy(fleets=[("spares", 2)])]
    site.step({"a": load(8)})
    assert site.total() == 5, "8 in flight at 2 a seat, and the spare one"
