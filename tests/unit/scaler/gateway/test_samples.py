import json

import pytest

from scaler.gateway.queue import PolicyStats
from scaler.gateway.samples import Outbox, SampleBuilder
from scaler.signals.pushed import PushedSamples
from warmpool.seats import PolicyName

NOW = 1_796_000_000.0
CHAT = PolicyName("chat")


def stats(queued: int = 0, in_flight: int = 0) -> dict[PolicyName, PolicyStats]:
    return {CHAT: PolicyStats(queued=queued, in_flight=in_flight)}


@pytest.mark.parametrize(
    ("said", "now", "material"),
    [
        pytest.param((0, 0), (0, 1), True, id="the first request"),
        pytest.param((0, 5), (1, 4), True, id="the first that waits"),
        pytest.param((1, 4), (0, 5), True, id="the queue is empty"),
        pytest.param((2, 4), (1, 5), False, id="one that waited goes"),
        pytest.param((0, 9), (0, 10), True, id="one more of nine"),
        pytest.param((0, 100), (0, 109), False, id="nine more of a hundred"),
        pytest.param((0, 100), (0, 110), True, id="ten more of a hundred"),
        pytest.param((0, 100), (0, 90), True, id="ten less of a hundred"),
        pytest.param((0, 5), (0, 5), False, id="nothing"),
    ],
)
def test_material_changes(said: tuple[int, int], now: tuple[int, int], material: bool) -> None:  # noqa: FBT001
    builder = SampleBuilder("gw-1", NOW)
    builder.build(stats(*said), NOW)
    assert builder.note(CHAT, *now, NOW + 1) is material


def test_a_sample_bears_the_time_of_the_first_change_that_it_reports() -> None:
    builder = SampleBuilder("gw-1", NOW)
    builder.note(CHAT, 1, 0, NOW + 1)
    builder.note(CHAT, 2, 0, NOW + 2)
    assert builder.build(stats(2), NOW + 3).at == NOW + 1
    assert builder.build(stats(2), NOW + 4).at == NOW + 4


def test_a_peak_between_samples_is_reported_once() -> None:
    builder = SampleBuilder("gw-1", NOW)
    builder.note(CHAT, 3, 4, NOW)
    builder.note(CHAT, 0, 1, NOW)
    assert builder.build(stats(0, 1), NOW).policies[CHAT].peak == 7
    assert builder.build(stats(0, 1), NOW).policies[CHAT].peak == 1


def test_sequences_grow_across_a_restart() -> None:
    first = SampleBuilder("gw-1", NOW)
    sequences = [first.build(stats(), NOW).sequence for _ in range(100)]
    assert sequences == sorted(set(sequences))
    assert SampleBuilder("gw-1", NOW + 1.0).build(stats(), NOW + 1.0).sequence > sequences[-1]


async def test_a_newer_sample_replaces_one_that_waits_and_keeps_its_peak() -> None:
    builder = SampleBuilder("gw-1", NOW)
    outbox = Outbox("http://controller")
    outbox.put(builder.build(stats(5, 4), NOW))
    outbox.put(builder.build(stats(0, 1), NOW))
    sample = await outbox.take()
    assert (sample.policies[CHAT].in_flight, sample.policies[CHAT].peak) == (1, 9)


async def test_a_sample_that_was_not_delivered_goes_again_under_a_newer_one() -> None:
    builder = SampleBuilder("gw-1", NOW)
    outbox = Outbox("http://controller")
    outbox.put_back(builder.build(stats(5, 4), NOW))
    assert (await outbox.take()).policies[CHAT].queued == 5
    failed = builder.build(stats(7, 7), NOW)
    outbox.put(builder.build(stats(0, 1), NOW))
    outbox.put_back(failed)
    sample = await outbox.take()
    assert (sample.policies[CHAT].queued, sample.policies[CHAT].peak) == (0, 14)


def test_the_controller_takes_what_the_gateway_sends() -> None:
    builder = SampleBuilder("gw-1", NOW)
    body = builder.build(stats(3, 8), NOW).to_json()
    store = PushedSamples()
    store.ingest(body, NOW)
    load = store.load(CHAT, NOW)
    assert (load.queued.value, load.in_flight.value, load.peak.value) == (3, 8, 11)
    assert json.loads(body)["policies"]["chat"]["oldestWaitSeconds"] == 0.0
