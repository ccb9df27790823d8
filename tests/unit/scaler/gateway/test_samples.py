import json
from dataclasses import replace

import pytest

from scaler.gateway.queue import Counts, PolicyStats
from scaler.gateway.samples import MOST_POLICIES, Outbox, State, StateBuilder
from scaler.signals.pushed import PushedSamples
from scaler.signals.sample import MAX_BYTES
from warmpool.seats import PolicyName

NOW = 1_796_000_000.0
CHAT = PolicyName("chat")


def stats(queued: int = 0, in_flight: int = 0, policy: PolicyName = CHAT) -> dict[PolicyName, PolicyStats]:
    return {policy: PolicyStats(queued=queued, in_flight=in_flight)}


def state(queued: int = 0, in_flight: int = 0, *, policy: PolicyName = CHAT, at: float = NOW) -> State:
    return StateBuilder().build(stats(queued, in_flight, policy), at)


def outbox(started_at: float = NOW) -> Outbox:
    return Outbox("http://controller", "gw-1", "a1", started_at)


def many(count: int) -> list[PolicyName]:
    return [PolicyName(f"{'team-of-many-models-':x<58}{number:05}") for number in range(count)]


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
    builder = StateBuilder()
    builder.build(stats(*said), NOW)
    assert builder.note(CHAT, *now, NOW + 1) is material


def test_a_state_bears_the_time_of_the_first_change_that_it_reports() -> None:
    builder = StateBuilder()
    builder.note(CHAT, 1, 0, NOW + 1)
    builder.note(CHAT, 2, 0, NOW + 2)
    assert builder.build(stats(2), NOW + 3).at == NOW + 1
    assert builder.build(stats(2), NOW + 4).at == NOW + 4


def test_a_peak_between_samples_is_reported_once() -> None:
    builder = StateBuilder()
    builder.note(CHAT, 3, 4, NOW)
    builder.note(CHAT, 0, 1, NOW)
    assert builder.build(stats(0, 1), NOW).policies[CHAT].peak == 7
    assert builder.build(stats(0, 1), NOW).policies[CHAT].peak == 1


def test_a_request_that_is_refused_was_here_for_a_moment_and_the_peak_tells_of_it_at_once() -> None:
    builder = StateBuilder()
    builder.build(stats(0, 0), NOW)
    assert builder.note(CHAT, 0, 0, NOW + 1, beyond=1) is True
    said = builder.build(stats(0, 0), NOW + 1).policies[CHAT]
    assert (said.peak, said.stats.demand) == (1, 0)


# ------------------------------------------------------------------ which policies are due


def said(builder: StateBuilder, names: list[PolicyName], now: float, queued: int = 0) -> list[PolicyName]:
    """Say what is due, as the pusher does."""
    due = builder.due(names, now)
    builder.build({name: PolicyStats(queued=queued) for name in due}, now)
    return due


def test_a_policy_is_said_at_once_each_second_and_oftener_while_something_waits() -> None:
    builder, names = StateBuilder(), many(2)
    assert said(builder, names, NOW) == names
    assert said(builder, names, NOW + 0.9) == []
    assert builder.rest(NOW + 0.9) == pytest.approx(0.1)
    assert said(builder, names, NOW + 1.0, queued=3) == names
    assert builder.rest(NOW + 1.0) == pytest.approx(0.25)
    assert said(builder, names, NOW + 1.25) == names


def test_what_changed_is_said_before_what_is_due_and_alone_if_nothing_is() -> None:
    builder, names = StateBuilder(), many(3)
    said(builder, names, NOW)
    builder.note(names[2], 1, 0, NOW + 0.5)
    assert builder.rest(NOW + 0.5) == 0.0
    assert said(builder, names, NOW + 0.5) == [names[2]]
    builder.note(names[2], 9, 0, NOW + 1.1)
    assert said(builder, names, NOW + 1.1) == [names[2], names[0], names[1]]


def test_a_large_gateway_says_each_policy_each_second_a_few_at_a_time() -> None:
    builder, names = StateBuilder(), many(3 * MOST_POLICIES)
    rounds = [said(builder, names, NOW + 0.01 * turn) for turn in range(4)]
    assert [len(each) for each in rounds] == [MOST_POLICIES] * 3 + [0]
    assert sorted(name for each in rounds for name in each) == names
    assert said(builder, names, NOW + 1.0) == rounds[0]


def test_more_changes_than_a_sample_holds_go_in_the_next_ones_oldest_first() -> None:
    builder, names = StateBuilder(), many(MOST_POLICIES + 1)
    for turn, name in enumerate(names):
        builder.note(name, 1, 0, NOW + turn)
    assert builder.due(names, NOW + 900) == names[:-1]
    assert builder.build({name: PolicyStats(queued=1) for name in names[:-1]}, NOW + 900).at == NOW
    assert builder.due(names, NOW + 900.1) == [names[-1]]
    assert builder.build({names[-1]: PolicyStats(queued=1)}, NOW + 900.1).at == NOW + MOST_POLICIES


def test_a_policy_that_is_gone_is_not_said_and_wakes_nobody() -> None:
    builder = StateBuilder()
    said(builder, [CHAT], NOW)
    builder.note(CHAT, 1, 0, NOW)
    assert builder.due([], NOW + 5) == []
    assert builder.rest(NOW + 5) == 1.0


def test_a_clock_that_is_set_back_delays_nothing() -> None:
    builder = StateBuilder()
    said(builder, [CHAT], NOW)
    assert builder.rest(NOW - 3600) == 0.0
    assert said(builder, [CHAT], NOW - 3600) == [CHAT]


# ------------------------------------------------------------------ on the way to one controller


async def test_sequences_grow_across_a_restart() -> None:
    first = outbox()
    sequences = []
    for _ in range(100):
        first.put(state())
        sequences.append((await first.take()).sequence)
    assert sequences == sorted(set(sequences))
    later = outbox(NOW + 1.0)
    later.put(state())
    assert (await later.take()).sequence > sequences[-1]


async def test_a_newer_state_replaces_one_that_waits_and_keeps_its_peak() -> None:
    box = outbox()
    box.put(state(5, 4))
    box.put(state(0, 1, at=NOW + 1))
    found = (await box.take()).state
    policy = found.policies[CHAT]
    assert (policy.stats.in_flight, policy.peak, found.at) == (1, 9, NOW + 1)


async def test_what_a_newer_state_does_not_say_goes_with_it() -> None:
    box = outbox()
    box.put(state(5, 4))
    box.put(state(1, 0, policy=PolicyName("code"), at=NOW + 1))
    found = (await box.take()).state
    assert {name: policy.stats.queued for name, policy in found.policies.items()} == {"chat": 5, "code": 1}


async def test_a_state_that_was_not_delivered_goes_again_under_a_newer_one() -> None:
    box = outbox()
    box.put_back(state(5, 4))
    assert (await box.take()).state.policies[CHAT].stats.queued == 5
    box.put(state(0, 1, at=NOW + 1))
    box.put_back(state(7, 7))
    found = (await box.take()).state
    policy = found.policies[CHAT]
    assert (policy.stats.queued, policy.peak, found.at) == (0, 14, NOW + 1)


async def test_what_piled_up_for_a_dead_controller_goes_in_samples_that_it_takes() -> None:
    box, store, names = outbox(), PushedSamples(), many(1000)
    largest = PolicyStats(
        queued=99_999,
        in_flight=99_999,
        oldest_wait_seconds=1234.567890123456,
        totals=Counts(
            arrived=10**12,
            completed=10**12,
            refused=10**9,
            refused_seconds=10**10,
            failed=10**9,
            abandoned=10**9,
            answered=10**12,
            late=10**12,
            first_seconds=10.0**12 + 0.123,
            gaps=10**15,
            gap_seconds=10.0**12 + 0.123,
        ),
    )
    for name in names:
        box.put(StateBuilder().build({name: largest}, NOW))
    samples = [await box.take() for _ in range(-(-len(names) // MOST_POLICIES))]
    assert all(len(sample.to_json()) < MAX_BYTES for sample in samples)
    for sample in samples:
        store.ingest(sample.to_json(), NOW)
    assert store.policies(NOW) == set(names)


async def test_the_controller_takes_what_the_gateway_sends() -> None:
    box, store = outbox(), PushedSamples()
    box.put(state(3, 8))
    body = (await box.take()).to_json()
    store.ingest(body, NOW)
    load = store.load(CHAT, NOW)
    assert (load.queued.value, load.in_flight.value, load.peak.value) == (3, 8, 11)
    assert store.gateways(NOW) == ["gw-1"]
    assert json.loads(body)["policies"]["chat"]["oldestWaitSeconds"] == 0.0


async def test_a_gateway_without_policies_is_known_all_the_same() -> None:
    box, store = outbox(), PushedSamples()
    box.put(replace(state(), policies={}))
    store.ingest((await box.take()).to_json(), NOW)
    assert store.gateways(NOW) == ["gw-1"]
