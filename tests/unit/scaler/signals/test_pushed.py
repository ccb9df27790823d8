import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import Load, Quality
from scaler.errors import SampleRejected
from scaler.signals.pushed import NameTaken, PushedLimits, PushedSamples, TooOften
from scaler.signals.pushers import NotAllowed, Pusher
from scaler.signals.sample import MOST_BYTES, MOST_POLICIES, Kind, TooLarge
from warmpool.seats import PolicyName

NOW = 1_796_000_000.0
CHAT = PolicyName("chat")


def numbers(**changes: object) -> dict[str, object]:
    zero: dict[str, object] = {
        "queued": 0,
        "inFlight": 0,
        "oldestWaitSeconds": 0.0,
        "peak": 0,
        "arrived": 0,
        "completed": 0,
        "refused": 0,
        "failed": 0,
    }
    return zero | changes


def sample(
    *, sequence: int = 1, at: float = NOW, instance: str = "gw-1", **changes: object
) -> dict[str, object]:
    return {
        "instance": instance,
        "kind": "Gateway",
        "sequence": sequence,
        "at": at,
        "policies": {"chat": numbers(**changes)},
    }


def jobs(
    *, instance: str = "exporter", sequence: int = 1, at: float = NOW, **said: object
) -> dict[str, object]:
    """What somebody's own queue pushes: only what it knows."""
    return {"instance": instance, "sequence": sequence, "at": at, "policies": {"chat": said}}


def encoded(body: object) -> bytes:
    return json.dumps(body).encode()


def test_a_sample_becomes_a_load() -> None:
    store = PushedSamples()
    taken = store.ingest(encoded(sample(queued=3, inFlight=8, oldestWaitSeconds=0.12, peak=12)), NOW)
    load = store.load(CHAT, NOW + 0.5)
    assert taken.policies == ("chat",)
    assert (load.queued.value, load.in_flight.value, load.oldest_wait.value, load.peak.value) == (
        3,
        8,
        0.12,
        12,
    )
    assert load.queued.quality is Quality.FRESH
    assert load.queued.age == pytest.approx(0.5)
    assert not load.engines.known
    assert not load.arrivals.known


@pytest.mark.parametrize(
    ("age", "quality"),
    [
        pytest.param(0.0, Quality.FRESH, id="now"),
        pytest.param(1.5, Quality.FRESH, id="as old as a heartbeat may be"),
        pytest.param(1.6, Quality.STALE, id="a heartbeat is late"),
        pytest.param(2.0, Quality.STALE, id="at its expiry"),
        pytest.param(2.001, Quality.MISSING, id="expired"),
    ],
)
def test_a_share_ages(age: float, quality: Quality) -> None:
    store = PushedSamples()
    store.ingest(sample(inFlight=1), NOW)
    assert store.load(CHAT, NOW + age).in_flight.quality is quality


def test_a_policy_that_nobody_reports_is_missing_and_not_zero() -> None:
    store = PushedSamples()
    store.ingest(sample(inFlight=1), NOW)
    assert store.load(PolicyName("other"), NOW) == Load()


def test_shares_add_up_and_the_oldest_wait_is_the_longest() -> None:
    store = PushedSamples()
    store.ingest(sample(queued=1, inFlight=2, oldestWaitSeconds=0.5), NOW)
    store.ingest(sample(instance="gw-2", queued=10, inFlight=20, oldestWaitSeconds=0.25), NOW)
    load = store.load(CHAT, NOW)
    assert (load.queued.value, load.in_flight.value, load.oldest_wait.value) == (11, 22, 0.5)
    assert store.gateways(NOW) == ["gw-1", "gw-2"]


def test_the_newest_live_sample_of_a_policy_has_a_time() -> None:
    store = PushedSamples()
    store.ingest(sample(at=NOW - 1), NOW)
    store.ingest(sample(instance="gw-2", at=NOW), NOW)
    assert store.sampled_at(CHAT, NOW) == NOW
    assert store.sampled_at(PolicyName("other"), NOW) is None
    assert store.sampled_at(CHAT, NOW + 3) is None


def test_a_silent_gateway_makes_the_sum_stale_until_its_share_expires() -> None:
    store = PushedSamples()
    store.ingest(sample(inFlight=5), NOW)
    store.ingest(sample(instance="gw-2", at=NOW + 2, inFlight=1), NOW + 2)
    both = store.load(CHAT, NOW + 2)
    assert (both.in_flight.value, both.in_flight.quality) == (6, Quality.STALE)
    one = store.load(CHAT, NOW + 3)
    assert (one.in_flight.value, one.in_flight.quality) == (1, Quality.FRESH)


def test_what_a_sample_does_not_name_holds_until_it_expires() -> None:
    store = PushedSamples()
    store.ingest(sample(inFlight=5), NOW)
    other = {"code": numbers(inFlight=1)}
    store.ingest(sample(sequence=2, at=NOW + 1) | {"policies": other}, NOW + 1)
    assert store.load(CHAT, NOW + 1).in_flight.value == 5
    assert store.load(CHAT, NOW + 2).in_flight.quality is Quality.STALE
    assert store.load(PolicyName("code"), NOW + 2).in_flight.quality is Quality.FRESH
    assert store.load(CHAT, NOW + 2.6) == Load()
    assert store.policies(NOW + 2.6) == {"code"}


# ------------------------------------------------------------------ anyone's queue


def test_what_a_sample_does_not_say_is_missing_and_not_zero() -> None:
    store = PushedSamples()
    store.ingest(encoded(jobs(backlog=40, backlogAgeSeconds=12.5)), NOW)
    load = store.load(CHAT, NOW)
    assert (load.backlog.value, load.backlog_age.value) == (40, 12.5)
    assert load == Load(backlog=load.backlog, backlog_age=load.backlog_age)


def test_a_part_is_the_sum_of_those_who_say_it() -> None:
    store = PushedSamples()
    store.ingest(sample(queued=3, inFlight=2), NOW)
    store.ingest(jobs(queued=4), NOW)
    store.ingest(jobs(instance="other", at=NOW - 2, backlog=7), NOW)
    load = store.load(CHAT, NOW)
    assert (load.queued.value, load.queued.quality) == (7, Quality.FRESH)
    assert (load.in_flight.value, load.in_flight.quality) == (2, Quality.FRESH)
    assert (load.backlog.value, load.backlog.quality) == (7, Quality.STALE)


def test_only_gateways_count_as_gateways() -> None:
    store = PushedSamples()
    store.ingest(sample(), NOW)
    store.ingest(jobs(backlog=1), NOW)
    assert store.gateways(NOW) == ["gw-1"]


def test_a_gateway_that_has_no_policy_yet_is_one_all_the_same() -> None:
    store = PushedSamples()
    store.ingest(sample() | {"policies": {}}, NOW)
    assert store.gateways(NOW) == ["gw-1"]


@pytest.mark.parametrize(
    ("age", "quality"),
    [
        pytest.param(15.0, Quality.FRESH, id="one and a half intervals"),
        pytest.param(15.1, Quality.STALE, id="late"),
        pytest.param(25.0, Quality.STALE, id="at its expiry"),
        pytest.param(25.1, Quality.MISSING, id="expired"),
    ],
)
def test_a_share_holds_for_as_long_as_its_interval_lets_it(age: float, quality: Quality) -> None:
    store = PushedSamples()
    store.ingest(jobs(backlog=1) | {"intervalSeconds": 10}, NOW)
    store.ingest(sample(at=NOW + age), NOW + age)  # which sweeps out what has expired
    assert store.load(CHAT, NOW + age).backlog.quality is quality


def test_policies_that_nobody_knows_are_named_and_ignored() -> None:
    store = PushedSamples()
    store.follow([CHAT])
    body = {"instance": "x", "sequence": 1, "at": NOW}
    taken = store.ingest(body | {"policies": {"chat": {"backlog": 1}, "chatt": {"backlog": 2}}}, NOW)
    assert (taken.policies, taken.ignored) == (("chat",), ("chatt",))
    assert store.policies(NOW) == {"chat"}


def test_what_was_said_of_a_policy_that_goes_is_forgotten() -> None:
    store = PushedSamples()
    store.ingest(sample(inFlight=1), NOW)
    store.follow([])
    store.follow([CHAT])
    assert store.load(CHAT, NOW) == Load()
    assert store.gateways(NOW) == ["gw-1"]


@pytest.mark.parametrize(
    ("before", "after", "risen"),
    [
        pytest.param({"queued": 0}, {"queued": 1}, True, id="the first that waits"),
        pytest.param({"inFlight": 100}, {"inFlight": 109}, False, id="nine of a hundred"),
        pytest.param({"inFlight": 100}, {"inFlight": 110}, True, id="a tenth"),
        pytest.param({"inFlight": 100}, {"inFlight": 1}, False, id="a fall"),
        pytest.param({"inFlight": 1}, {"inFlight": 1, "peak": 30}, True, id="a peak between two samples"),
        pytest.param({"backlog": 3}, {"backlog": 5}, True, id="work"),
        pytest.param({"oldestWaitSeconds": 1}, {"oldestWaitSeconds": 9}, False, id="a wait that grows"),
    ],
)
def test_a_rise_that_may_be_a_burst_is_told(
    before: dict[str, object],
    after: dict[str, object],
    risen: bool,  # noqa: FBT001
) -> None:
    store = PushedSamples()
    store.ingest(jobs(**before), NOW)
    assert store.ingest(jobs(sequence=2, **after), NOW).risen is risen


# ------------------------------------------------------------------ what is refused


REJECTED = [
    pytest.param(b"{", id="no JSON"),
    pytest.param(b"\xff\xfe", id="no text"),
    pytest.param(b"[" * 10_000, id="too deep"),
    pytest.param(b"[]", id="no object"),
    pytest.param(encoded(sample() | {"instance": 7}), id="instance no string"),
    pytest.param(encoded(sample() | {"instance": ""}), id="instance empty"),
    pytest.param(encoded(sample() | {"instance": "a\0b"}), id="instance with NUL"),
    pytest.param(encoded(sample() | {"instance": "a\nb"}), id="instance of two lines"),
    pytest.param(encoded(sample() | {"instance": "a\x1b[1mb"}), id="instance with an escape"),
    pytest.param(encoded(sample() | {"instance": "a\ud800"}), id="instance with half a character"),
    pytest.param(encoded(sample() | {"instance": "a\u202eb"}), id="instance that turns round"),
    pytest.param(encoded(sample() | {"instance": 'a"b'}), id="instance with a quote"),
    pytest.param(encoded(sample() | {"run": "a\tb"}), id="run with a tab"),
    pytest.param(encoded(sample() | {"policies": {"chat\n": numbers()}}), id="policy of two lines"),
    pytest.param(encoded(sample()).replace(b'"queued": 0', b'"queued": 0, "queued": 9'), id="a number twice"),
    pytest.param(encoded(sample()).replace(b'"sequence"', b'"sequence": 9, "sequence"'), id="a field twice"),
    pytest.param(encoded(sample() | {"sequence": True}), id="sequence a boolean"),
    pytest.param(encoded(sample() | {"sequence": 1.5}), id="sequence a fraction"),
    pytest.param(encoded(sample(sequence=-1)), id="sequence negative"),
    pytest.param(encoded(sample() | {"policies": []}), id="policies no object"),
    pytest.param(encoded(sample() | {"policies": {"chat": 3}}), id="policy no object"),
    pytest.param(encoded(sample() | {"policies": {"chat": {}}}), id="no numbers"),
    pytest.param(encoded(sample() | {"policies": {"chat": {"failed": 1}}}), id="no number that counts"),
    pytest.param(encoded(sample() | {"policies": {"": numbers()}}), id="a policy without a name"),
    pytest.param(encoded(sample() | {"kind": "gateway"}), id="a kind that there isn't"),
    pytest.param(encoded(sample() | {"kind": []}), id="a kind that is no text"),
    pytest.param(encoded(sample() | {"kind": "Queue"}), id="another kind than before"),
    pytest.param(encoded(sample() | {"intervalSeconds": 0.5}), id="too short an interval"),
    pytest.param(encoded(sample() | {"intervalSeconds": 61}), id="too long an interval"),
    pytest.param(encoded(sample() | {"intervalSeconds": None}), id="no interval"),
    pytest.param(encoded(sample(queued="3")), id="a string"),
    pytest.param(encoded(sample(queued=None)), id="null"),
    pytest.param(encoded(sample(queued=False)), id="a boolean"),
    pytest.param(encoded(sample(queued=-1)), id="negative"),
    pytest.param(encoded(sample(queued=math.nan)), id="NaN"),
    pytest.param(encoded(sample(queued=math.inf)), id="infinity"),
    pytest.param(encoded(sample(queued=10**400)), id="beyond floats"),
    pytest.param(encoded(sample(refused=-1)), id="a negative total"),
    pytest.param(encoded(sample(failed=-1)), id="a total that isn't used"),
    pytest.param(encoded(sample(at=math.nan)), id="time NaN"),
    pytest.param(encoded(sample(at=NOW + 5)), id="of the future"),
    pytest.param(encoded(sample(at=NOW - 5)), id="too old"),
    pytest.param(encoded(sample() | {"padding": "x" * 65_536}), id="too large"),
]


@pytest.mark.parametrize("body", REJECTED)
def test_a_bad_sample_is_counted_and_changes_nothing(body: bytes) -> None:
    store = PushedSamples()
    store.ingest(sample(sequence=0, at=NOW - 1, queued=2), NOW)
    before = store.load(CHAT, NOW)
    with pytest.raises(SampleRejected):
        store.ingest(body, NOW)
    assert store.load(CHAT, NOW) == before
    assert (store.accepted, store.rejected) == (1, 1)


@pytest.mark.parametrize(
    "sequence", [pytest.param(7, id="the same again"), pytest.param(6, id="an older one")]
)
def test_a_replay_is_rejected(sequence: int) -> None:
    store = PushedSamples()
    store.ingest(sample(sequence=7, queued=1), NOW)
    with pytest.raises(SampleRejected, match="is not after"):
        store.ingest(sample(sequence=sequence, queued=9), NOW)
    assert store.load(CHAT, NOW).queued.value == 1


def test_no_more_instances_than_allowed_and_an_expired_one_makes_room() -> None:
    store = PushedSamples(PushedLimits(max_gateways=1))
    store.ingest(sample(), NOW)
    with pytest.raises(SampleRejected, match="1 instances report already"):
        store.ingest(sample(instance="gw-2"), NOW)
    store.ingest(sample(instance="gw-2", at=NOW + 3), NOW + 3)
    assert store.gateways(NOW + 3) == ["gw-2"]


def test_one_that_takes_a_new_name_for_each_sample_keeps_out_nobody_else() -> None:
    store = PushedSamples(PushedLimits(max_queues_of_policy=3))
    for number in range(3):
        store.ingest(jobs(instance=f"run-{number}", backlog=1), NOW)
    with pytest.raises(SampleRejected, match="3 instances of token report policy chat already"):
        store.ingest(jobs(instance="run-3", backlog=1), NOW)
    store.ingest(sample(inFlight=1), NOW)
    store.ingest(jobs(instance="run-1", sequence=2, backlog=2), NOW)
    body = {"instance": "other", "sequence": 1, "at": NOW, "policies": {"code": {"backlog": 1}}}
    store.ingest(body, NOW)
    assert store.load(CHAT, NOW).backlog.value == 4
    store.ingest(jobs(instance="run-3", at=NOW + 3, backlog=1), NOW + 3)


def test_one_pusher_that_takes_new_names_keeps_out_nobody_who_shows_another_token() -> None:
    store = PushedSamples(PushedLimits(max_queues_of_policy=2))
    wild, other = Pusher(name="wild"), Pusher(name="other")
    for number in range(2):
        store.ingest(jobs(instance=f"run-{number}", backlog=1), NOW, wild)
    with pytest.raises(SampleRejected, match="2 instances of wild report policy chat already"):
        store.ingest(jobs(instance="run-2", backlog=1), NOW, wild)
    store.ingest(jobs(instance="exporter", backlog=40), NOW, other)
    assert store.load(CHAT, NOW).backlog.value == 42


@pytest.mark.parametrize("kind", list(Kind))
def test_one_pusher_leaves_room_for_instances_of_others(kind: Kind) -> None:
    store = PushedSamples(PushedLimits(max_queues=4, max_gateways=4, share_of_pusher=0.5))
    wild, other = Pusher(name="wild"), Pusher(name="other")

    def push(instance: str, pusher: Pusher) -> None:
        store.ingest(jobs(instance=instance, backlog=1) | {"kind": str(kind)}, NOW, pusher)

    for number in range(2):
        push(f"run-{number}", wild)
    with pytest.raises(SampleRejected, match="2 instances of wild report already"):
        push("run-2", wild)
    push("exporter-1", other)
    push("exporter-2", other)
    with pytest.raises(SampleRejected, match="4 instances report already"):
        push("third", Pusher(name="third"))


def test_an_instance_that_floods_is_held_back_and_no_other() -> None:
    store = PushedSamples(PushedLimits(samples_per_second=10, samples_at_once=5))
    for sequence in range(5):
        store.ingest(jobs(sequence=sequence, backlog=sequence), NOW)
    with pytest.raises(TooOften):
        store.ingest(jobs(sequence=5, backlog=99), NOW)
    assert store.load(CHAT, NOW).backlog.value == 4
    store.ingest(sample(inFlight=1), NOW)
    store.ingest(jobs(sequence=6, at=NOW + 0.15, backlog=6), NOW + 0.15)
    with pytest.raises(TooOften):
        store.ingest(jobs(sequence=7, at=NOW + 0.15, backlog=7), NOW + 0.15)


def test_a_clock_that_is_set_back_gives_no_allowance_and_takes_none() -> None:
    store = PushedSamples(PushedLimits(samples_per_second=10, samples_at_once=2))
    store.ingest(jobs(sequence=1, backlog=1), NOW)
    store.ingest(jobs(sequence=2, backlog=1), NOW - 1)
    with pytest.raises(TooOften):
        store.ingest(jobs(sequence=3, backlog=1), NOW - 1)
    store.ingest(jobs(sequence=4, backlog=1), NOW - 0.85)


def test_a_name_may_become_that_of_another_kind_once_it_has_expired() -> None:
    store = PushedSamples()
    store.ingest(sample(), NOW)
    store.ingest(jobs(instance="gw-1", at=NOW + 2.6, backlog=1), NOW + 2.6)
    assert store.gateways(NOW + 2.6) == []
    assert store.load(CHAT, NOW + 2.6).backlog.value == 1


# ------------------------------------------------------------------ whose an instance is

GATEWAYS = Pusher(name="gateway", kinds=frozenset({Kind.GATEWAY}))
JOBS = Pusher(name="queue:jobs", kinds=frozenset({Kind.QUEUE}))
OTHERS = Pusher(name="queue", kinds=frozenset({Kind.QUEUE}))


def test_another_pusher_cannot_go_on_with_an_instances_sequence_while_its_numbers_count() -> None:
    store = PushedSamples()
    store.ingest(jobs(sequence=1, backlog=40), NOW, JOBS)
    with pytest.raises(NameTaken, match=r"\(queue:jobs\) pushes as this instance"):
        store.ingest(jobs(sequence=2**50, at=NOW + 0.1, backlog=0), NOW + 0.1, OTHERS)
    store.ingest(jobs(sequence=2, at=NOW + 0.2, backlog=41), NOW + 0.2, JOBS)
    assert store.load(CHAT, NOW + 0.2).backlog.value == 41
    assert [each.pusher for each in store.shares(CHAT, NOW + 0.2)] == ["queue:jobs"]


def test_a_name_is_free_again_once_its_numbers_have_expired() -> None:
    store = PushedSamples()
    store.ingest(jobs(sequence=9, backlog=40), NOW, JOBS)
    store.ingest(jobs(sequence=1, at=NOW + 2.6, backlog=3), NOW + 2.6, OTHERS)
    assert store.load(CHAT, NOW + 2.6).backlog.value == 3


def test_two_processes_of_one_name_are_never_mixed() -> None:
    store = PushedSamples()
    store.ingest(sample(queued=3) | {"run": "a"}, NOW)
    with pytest.raises(NameTaken, match="another process pushes under this name"):
        store.ingest(sample(sequence=2**50, at=NOW + 0.1, queued=40) | {"run": "b"}, NOW + 0.1)
    store.ingest(sample(sequence=2, at=NOW + 0.2, queued=4) | {"run": "a"}, NOW + 0.2)
    assert store.load(CHAT, NOW + 0.2).queued.value == 4


def test_a_process_that_was_started_again_goes_on_once_the_earlier_one_has_expired() -> None:
    store = PushedSamples()
    store.ingest(sample(sequence=9, queued=3) | {"run": "a"}, NOW)
    store.ingest(sample(sequence=10, at=NOW + 2.1, queued=5) | {"run": "b"}, NOW + 2.1)
    assert store.load(CHAT, NOW + 2.1).queued.value == 5
    assert store.gateways(NOW + 2.1) == ["gw-1"]


def test_who_begins_to_say_which_process_it_is_is_told_apart_from_then_on() -> None:
    store = PushedSamples()
    store.ingest(sample(sequence=1, queued=3), NOW)
    store.ingest(sample(sequence=2, at=NOW + 0.1, queued=4) | {"run": "a"}, NOW + 0.1)
    with pytest.raises(NameTaken, match="another process pushes under this name"):
        store.ingest(sample(sequence=2**50, at=NOW + 0.2, queued=40) | {"run": "b"}, NOW + 0.2)


def test_who_does_not_say_which_process_it_is_is_known_by_its_name_alone() -> None:
    store = PushedSamples()
    for sequence, run in enumerate(({}, {"run": "a"}, {}), start=1):
        store.ingest(sample(sequence=sequence, queued=sequence) | run, NOW)
    assert store.load(CHAT, NOW).queued.value == 3


def test_who_may_not_speak_as_a_gateway_keeps_none_out_by_taking_its_name() -> None:
    store = PushedSamples()
    store.ingest(jobs(instance="gw-1", sequence=2**50, backlog=40), NOW, OTHERS)
    store.ingest(sample(at=NOW + 0.1, queued=3), NOW + 0.1, GATEWAYS)
    assert store.gateways(NOW + 0.1) == ["gw-1"]
    assert store.load(CHAT, NOW + 0.1).queued.value == 3
    with pytest.raises(NameTaken):
        store.ingest(jobs(instance="gw-1", sequence=2**51, at=NOW + 0.2, backlog=40), NOW + 0.2, OTHERS)


def test_what_a_pusher_may_not_say_is_counted_and_changes_nothing() -> None:
    store = PushedSamples()
    with pytest.raises(NotAllowed):
        store.ingest(sample(queued=3), NOW, JOBS)
    assert store.gateways(NOW) == []
    assert (store.accepted, store.rejected) == (0, 1)


# ------------------------------------------------------------------ what a sample may cost


@pytest.mark.parametrize("kind", list(Kind))
def test_a_sample_is_as_large_as_its_kind_needs(kind: Kind) -> None:
    store = PushedSamples()
    body = jobs(backlog=1) | {"kind": str(kind), "padding": ""}
    room = MOST_BYTES[kind] - len(encoded(body))
    store.ingest(encoded(body | {"padding": "x" * room}), NOW)
    with pytest.raises(
        TooLarge,
        match=f"at most {MOST_BYTES[kind] // 1024} KiB of a {kind}( or 16 KiB of a Queue)? are taken",
    ):
        store.ingest(encoded(body | {"sequence": 2, "padding": "x" * (room + 1)}), NOW)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_sample_names_as_many_policies_as_its_kind_needs(kind: Kind) -> None:
    store, most = PushedSamples(), MOST_POLICIES[kind]
    store.follow([CHAT])
    many = {f"p{number}": {"backlog": 1} for number in range(most - 1)}
    body = jobs(backlog=1) | {"kind": str(kind)}
    taken = store.ingest(body | {"policies": {**body["policies"], **many}}, NOW)  # type: ignore[dict-item]
    assert (taken.policies, len(taken.ignored)) == (("chat",), most - 1)
    more = {**body["policies"], **many, "one": {"backlog": 1}}  # type: ignore[dict-item]
    with pytest.raises(TooLarge, match=f"names {most + 1} policies"):
        store.ingest(body | {"sequence": 2, "policies": more}, NOW)


def test_a_name_that_is_none_is_shown_so_that_it_can_be_read() -> None:
    with pytest.raises(
        SampleRejected,
        match=re.escape(r"instance must have no control characters, quotes or backslashes, got 'a\n\ud800'"),
    ):
        PushedSamples().ingest(encoded(jobs(instance="a\n\ud800", backlog=1)), NOW)


def test_a_field_that_stands_twice_is_named() -> None:
    with pytest.raises(SampleRejected, match="'backlog' stands twice in one object"):
        PushedSamples().ingest(
            encoded(jobs(backlog=1)).replace(b'"backlog"', b'"backlog": 7, "backlog"'), NOW
        )


def test_a_number_that_nobody_knows_is_passed_over() -> None:
    store = PushedSamples()
    store.ingest(encoded(jobs(backlog=1, ofALaterVersion="?")), NOW)
    assert store.load(CHAT, NOW).backlog.value == 1


def test_what_is_said_of_policies_that_there_are_not_is_not_read() -> None:
    store = PushedSamples()
    store.follow([CHAT])
    body = jobs(backlog=1)
    policies = {"chat": {"backlog": 1}, "chatt": ["no", "numbers"]}
    assert store.ingest(body | {"policies": policies}, NOW).ignored == ("chatt",)


# ------------------------------------------------------------------ rates and peaks


def test_rates_come_from_totals_over_the_last_seconds() -> None:
    store = PushedSamples()
    for second in range(10):
        base = 10 * min(second, 6) + 40 * max(0, second - 6)  # the last three seconds are faster
        at = NOW + second
        store.ingest(sample(sequence=second + 1, at=at, arrived=base, completed=base / 2), at)
    load = store.load(CHAT, NOW + 9)
    assert load.arrivals.value == pytest.approx(40)
    assert load.completions.value == pytest.approx(20)
    assert load.arrivals.quality is Quality.FRESH


def test_a_reset_counter_counts_from_zero() -> None:
    store = PushedSamples()
    for sequence, (at, arrived) in enumerate([(0, 1000), (1, 1010), (2, 5), (3, 15)]):
        store.ingest(sample(sequence=sequence, at=NOW + at, arrived=arrived), NOW + at)
    assert store.load(CHAT, NOW + 3).arrivals.value == pytest.approx((10 + 5 + 10) / 3)


def test_no_rate_from_one_sample_and_zero_from_an_idle_gateway() -> None:
    store = PushedSamples()
    store.ingest(sample(sequence=1, arrived=5), NOW)
    assert not store.load(CHAT, NOW).arrivals.known
    store.ingest(sample(sequence=2, at=NOW + 1, arrived=5), NOW + 1)
    idle = store.load(CHAT, NOW + 1).arrivals
    assert (idle.value, idle.quality) == (0.0, Quality.FRESH)


def test_a_gateway_without_a_rate_makes_the_sum_stale() -> None:
    store = PushedSamples()
    store.ingest(sample(sequence=1, arrived=0), NOW)
    store.ingest(sample(sequence=2, at=NOW + 1, arrived=7), NOW + 1)
    store.ingest(sample(instance="gw-2", at=NOW + 1, arrived=3), NOW + 1)
    arrivals = store.load(CHAT, NOW + 1).arrivals
    assert (arrivals.value, arrivals.quality) == (7.0, Quality.STALE)


def test_what_gateways_refused_adds_up_and_goes_with_them() -> None:
    store = PushedSamples()
    for instance, first in (("gw-1", 100), ("gw-2", 0)):
        store.ingest(sample(instance=instance, refused=first), NOW)
    assert not store.load(CHAT, NOW).refused.known, "of one total nobody knows what is of late"
    store.ingest(sample(sequence=2, at=NOW + 0.5, refused=104), NOW + 0.5)
    store.ingest(sample(instance="gw-2", sequence=2, at=NOW + 0.5, refused=3), NOW + 0.5)
    refused = store.load(CHAT, NOW + 0.75).refused
    assert (refused.value, refused.quality) == (7, Quality.FRESH)
    assert refused.age == pytest.approx(0.25)
    store.ingest(sample(sequence=3, at=NOW + 2.25, refused=104), NOW + 2.25)
    late = store.load(CHAT, NOW + 2.25).refused
    assert (late.value, late.quality) == (3, Quality.STALE), "one is silent, and what it said still counts"
    assert store.load(CHAT, NOW + 2.6).refused.value == 0
    assert store.load(CHAT, NOW + 9.0) == Load()


def test_a_refused_request_is_outside_for_as_long_as_it_was_told_to_stay_away() -> None:
    store = PushedSamples()
    store.ingest(sample(refused=10, refusedSeconds=300), NOW)
    store.ingest(sample(sequence=2, at=NOW + 1, refused=13, refusedSeconds=390), NOW + 1)
    outside = {}
    for half in range(3, 65):
        at = NOW + half / 2
        store.ingest(sample(sequence=half, at=at, refused=13, refusedSeconds=390), at)
        outside[half / 2] = store.load(CHAT, at).refused.value
    assert (outside[30.0], outside[30.5], outside[31.0]) == (3, 1.5, 0)


def test_the_share_of_late_first_tokens_is_that_of_all_gateways_together() -> None:
    store = PushedSamples()
    for instance in ("gw-1", "gw-2"):
        store.ingest(sample(instance=instance, answered=1000, late=900), NOW)
    assert not store.load(CHAT, NOW).late_share.known, "of one total nobody knows what is of late"
    store.ingest(sample(sequence=2, at=NOW + 1, answered=1004, late=902), NOW + 1)
    assert not store.load(CHAT, NOW + 1).late_share.known, "four first tokens are too few to tell"
    store.ingest(sample(instance="gw-2", sequence=2, at=NOW + 1, answered=1016, late=903), NOW + 1)
    share = store.load(CHAT, NOW + 1).late_share
    assert (share.value, share.quality) == (0.25, Quality.FRESH)
    store.ingest(sample(sequence=3, at=NOW + 2.7, answered=1004, late=902), NOW + 2.7)
    assert store.load(CHAT, NOW + 2.7).late_share.quality is Quality.STALE, "one is silent"
    assert not store.load(CHAT, NOW + 3.1).late_share.known, "it has expired"


def test_late_first_tokens_of_a_gateway_that_began_again_count_from_zero() -> None:
    store = PushedSamples()
    for sequence, (answered, late) in enumerate([(500, 400), (10, 1)]):
        at = NOW + sequence
        store.ingest(sample(sequence=sequence, at=at, answered=answered, late=late), at)
    assert store.load(CHAT, NOW + 1).late_share.value == 0.1


def test_late_first_tokens_are_forgotten_after_a_while() -> None:
    store = PushedSamples()
    for second in range(31):
        late, answered = min(second, 10), 10 * second
        at = NOW + second
        store.ingest(sample(sequence=second, at=at, answered=answered, late=late), at)
        if second in {10, 15, 25}:
            expected = {10: 0.1, 15: 0.05, 25: 0.0}[second]
            assert store.load(CHAT, at).late_share.value == pytest.approx(expected)


def test_a_gateway_that_says_nothing_of_refusals_makes_them_unknown_and_nothing_else() -> None:
    store = PushedSamples()
    for sequence in (1, 2):
        at = NOW + sequence / 2
        store.ingest(jobs(sequence=sequence, at=at, queued=2, inFlight=1), at)
    older = store.load(CHAT, NOW + 1)
    assert (older.queued.value, older.queued.quality) == (2, Quality.FRESH)
    assert not older.refused.known
    for sequence in (1, 2):
        store.ingest(sample(sequence=sequence, at=NOW + sequence / 2, refused=sequence), NOW + 1)
    both = store.load(CHAT, NOW + 1).refused
    assert (both.value, both.quality) == (1, Quality.FRESH)


def test_refusals_alone_say_nothing_of_what_is_here() -> None:
    store = PushedSamples()
    for sequence in (1, 2):
        at = NOW + sequence / 2
        store.ingest(jobs(sequence=sequence, at=at, refused=9 * sequence), at)
    load = store.load(CHAT, NOW + 1)
    assert load == Load(refused=load.refused)
    assert load.refused.value == 9


def test_what_was_refused_is_neither_peak_nor_rise() -> None:
    store = PushedSamples()
    store.ingest(sample(inFlight=2), NOW)
    assert not store.ingest(sample(sequence=2, inFlight=2, refused=50), NOW).risen
    assert store.load(CHAT, NOW).peak.value == 2


def test_a_peak_between_two_snapshots_is_seen_once() -> None:
    store = PushedSamples()
    store.ingest(sample(sequence=1, inFlight=1, peak=9), NOW)
    store.ingest(sample(sequence=2, inFlight=2, peak=3), NOW)
    assert store.load(CHAT, NOW).peak.value == 9
    assert store.take_peaks([CHAT]) == {"chat": 9}
    assert store.load(CHAT, NOW).peak.value == 2


def test_a_peak_stands_on_what_the_other_gateways_hold() -> None:
    store = PushedSamples()
    store.ingest(sample(inFlight=4, peak=4), NOW)
    store.ingest(sample(instance="gw-2", inFlight=1, peak=6), NOW)
    assert store.load(CHAT, NOW).peak.value == 10


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.integers(0, 50),
            st.integers(0, 50),
            st.floats(0, 1.2, allow_nan=False),
        ),
        max_size=30,
    )
)
def test_the_sum_is_that_of_each_live_gateways_last_sample(
    pushes: list[tuple[str, int, int, float]],
) -> None:
    store = PushedSamples()
    last: dict[str, tuple[float, int, int]] = {}
    now = NOW
    for sequence, (instance, queued, in_flight, pause) in enumerate(pushes):
        now += pause
        store.ingest(
            sample(sequence=sequence, at=now, instance=instance, queued=queued, inFlight=in_flight), now
        )
        last[instance] = (now, queued, in_flight)
    live = [share for share in last.values() if now - share[0] <= 2.0]
    load = store.load(CHAT, now)
    assert load.queued.known == bool(live)
    assert load.queued.value == sum(share[1] for share in live)
    assert load.in_flight.value == sum(share[2] for share in live)
    assert load.peak.value >= load.queued.value + load.in_flight.value


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_whatever_json_comes_it_is_taken_or_rejected(body: object) -> None:
    store = PushedSamples()
    if not isinstance(body, dict):
        with pytest.raises(SampleRejected):
            store.ingest(encoded(body), NOW)
        return
    with pytest.raises(SampleRejected):
        store.ingest(sample() | {"policies": {"chat": body}}, NOW)


# ------------------------------------------------------------------ of policies that nobody knows


def test_samples_of_unknown_policies_are_limited_together_and_make_nobody_a_gateway() -> None:
    store = PushedSamples()
    store.follow([CHAT])
    taken = refused = 0
    for number in range(1000):
        body = {
            **sample(sequence=1, inFlight=1),
            "instance": f"stranger-{number}",
            "policies": {"other": {"queued": 1}},
        }
        try:
            store.ingest(body, NOW)
            taken += 1
        except TooOften:
            refused += 1
    assert (taken, refused) == (200, 800)
    assert store.gateways(NOW) == []
    store.ingest(sample(sequence=2, inFlight=1), NOW)
    assert len(store.gateways(NOW)) == 1


def test_a_number_that_no_queue_ever_has_is_refused() -> None:
    store = PushedSamples()
    with pytest.raises(SampleRejected, match=r"queued must be 1,000,000,000 at most"):
        store.ingest(sample(sequence=1, queued=9e15), NOW)
    store.ingest(sample(sequence=1, inFlight=1, arrived=2**52, completed=2**52), NOW)
