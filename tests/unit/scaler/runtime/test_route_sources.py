"""Which routes count when pods and controllers say different things."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.routes import Endpoint, PolicyRoutes
from scaler.runtime.published_routes import PublishedTable
from scaler.runtime.route_sources import HEAD_START_SECONDS, SILENT_SECONDS, Routes, RouteSources
from warmpool.seats import PolicyName, SeatName

CHAT, CODE = PolicyName("chat"), PolicyName("code")


def routes(policy: PolicyName, numbers: Iterable[int], coming: float | None = None) -> PolicyRoutes:
    endpoints = tuple(
        Endpoint(seat=SeatName(f"s{n}"), uid=f"u{n}", policy=policy, url=f"http://h:{n}", slots=8)
        for n in numbers
    )
    return PolicyRoutes(models=(policy,), endpoints=endpoints, coming_seconds=coming)


def table(
    version: int, numbers: Mapping[PolicyName, Iterable[int]], *, blind: bool = False
) -> PublishedTable:
    policies = {name: routes(name, listed) for name, listed in numbers.items()}
    return PublishedTable(term=1, version=version, gateways=None, policies=policies, blind=blind)


class Told:
    """Sources that are told one thing after the other, and the routes that a gateway has made of them."""

    def __init__(self) -> None:
        self.sources = RouteSources()
        self.known: dict[PolicyName, PolicyRoutes] = {}
        self.labels: Routes = {}
        self.now = 0.0
        self.watched_at = 0.0
        self.version = 0

    def take(self, after: RouteSources, names: set[PolicyName]) -> None:
        self.sources = after
        for name in names:
            found = after.routes(name, self.now)
            if found is None:
                self.known.pop(name, None)
            else:
                self.known[name] = found

    def table(self, numbers: Mapping[PolicyName, Iterable[int]], *, blind: bool = False) -> None:
        self.version += 1
        self.take(*self.sources.with_table(table(self.version, numbers, blind=blind), None, self.now))

    def pods(self, numbers: Mapping[PolicyName, Iterable[int]]) -> None:
        self.watched_at, before = self.now, self.labels
        self.labels = {name: routes(name, labelled) for name, labelled in numbers.items()}
        changed = {
            name for name in before.keys() | self.labels.keys() if before.get(name) != self.labels.get(name)
        }
        self.take(*self.sources.with_pods(self.labels, changed, self.now, self.now))

    def passed(self, seconds: float, *, watched: bool, heard: bool = True) -> None:
        self.now += seconds
        self.watched_at = self.now if watched else self.watched_at
        self.take(*self.sources.with_time(heard=heard, watched_at=self.watched_at, now=self.now))

    def seats(self, policy: PolicyName = CHAT) -> str:
        return " ".join(sorted(each.seat for each in self.known[policy].endpoints))


@pytest.fixture
def told() -> Told:
    made = Told()
    made.pods({CHAT: [1]})
    made.table({CHAT: [1]})
    return made


def test_controllers_alone_are_believed_before_any_pod_was_seen() -> None:
    told = Told()
    told.table({CHAT: [1, 2]})
    assert told.seats() == "s1 s2"
    told.pods({CHAT: [1]})
    assert told.seats() == "s1 s2", "a controller has a head start"
    told.passed(HEAD_START_SECONDS, watched=True)
    assert told.seats() == "s1"


def test_a_controller_s_word_counts_until_the_watch_would_have_told_of_a_label(told: Told) -> None:
    told.table({CHAT: [1, 2]})
    told.passed(HEAD_START_SECONDS - 0.1, watched=True)
    assert told.seats() == "s1 s2"
    told.passed(60.0, watched=False)
    assert told.seats() == "s1 s2", "the watch has said nothing since"
    told.passed(0.0, watched=True)
    assert told.seats() == "s1"
    told.table({CHAT: [1, 2, 3]})
    assert told.seats() == "s1 s3", "what is said again is nothing new"


def test_a_label_that_was_seen_rules_from_then_on(told: Told) -> None:
    told.table({CHAT: [1, 2]})
    told.pods({CHAT: [1, 2]})
    told.pods({CHAT: [1]})
    assert told.seats() == "s1"


def test_a_controller_takes_back_what_it_said_early_and_says_it_anew(told: Told) -> None:
    told.table({CHAT: [1, 2]})
    told.table({CHAT: [1]})
    assert told.seats() == "s1"
    told.passed(HEAD_START_SECONDS, watched=True)
    told.table({CHAT: [1, 2]})
    assert told.seats() == "s1 s2"


def test_a_controller_takes_no_label_away(told: Told) -> None:
    told.table({CHAT: []})
    assert told.seats() == "s1"
    told.table({})
    assert told.seats() == "s1"


def test_which_policies_there_are_is_what_the_gateway_s_own_files_say(told: Told) -> None:
    told.table({CHAT: [1], CODE: [7]})
    assert list(told.known) == [CHAT]
    told.pods({CODE: [7]})
    assert (list(told.known), told.seats(CODE)) == ([CODE], "s7")


def test_a_controller_that_is_heard_counts_alone_once_the_watch_is_silent(told: Told) -> None:
    told.table({CHAT: [2]})
    told.passed(SILENT_SECONDS, watched=False)
    assert told.seats() == "s1 s2"
    told.passed(0.1, watched=False)
    assert told.seats() == "s2"
    told.passed(0.1, watched=False, heard=False)
    assert told.seats() == "s1 s2", "nobody is heard, so everything that was said last holds"
    told.passed(0.1, watched=False)
    told.passed(0.1, watched=True)
    assert told.seats() == "s1"


def test_a_controller_that_hears_no_agent_never_counts_alone(told: Told) -> None:
    told.table({CHAT: []}, blind=True)
    told.passed(SILENT_SECONDS + 1, watched=False)
    assert told.seats() == "s1"


def test_what_is_coming_is_the_controller_s_and_counts_from_when_it_said_so(told: Told) -> None:
    said = replace(table(9, {}), policies={CHAT: routes(CHAT, [1], coming=5.0)})
    told.take(*told.sources.with_table(said, {CHAT}, told.now))
    told.now += 2.0
    told.pods({CHAT: [1, 2]})
    assert told.known[CHAT].coming_seconds == pytest.approx(3.0)
    told.table({CHAT: [1, 2]})
    assert told.known[CHAT].coming_seconds is None


def test_gateways_are_counted_by_their_pods_while_no_controller_is_heard() -> None:
    told = RouteSources(pods={CHAT: routes(CHAT, [1])}, gateways=("a", "b", "c"))
    lone, names = told.with_time(heard=False, peers=("a", "b"), watched_at=0.0, now=0.0)
    assert (lone.crowd, names) == (("a", "b"), {CHAT})
    beside, names = lone.with_time(heard=True, peers=("a", "b"), watched_at=0.0, now=0.0)
    assert (beside.crowd, names) == (("a", "b", "c"), {CHAT})
    assert beside.with_time(heard=True, peers=("a",), watched_at=0.0, now=0.0)[1] == set()


NUMBERS = st.dictionaries(st.sampled_from([CHAT, CODE]), st.sets(st.integers(1, 4)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("table"), NUMBERS, st.booleans()),
        st.tuples(st.just("pods"), NUMBERS, st.just(False)),
        st.tuples(st.just("time"), st.sampled_from([0.1, 1.0, 2.5, 60.0, 101.0]), st.booleans()),
    ),
    max_size=12,
)


@given(STEPS)
def test_what_is_worked_out_from_changes_is_what_follows_from_everything(steps: list[tuple]) -> None:
    told = Told()
    for kind, what, flag in steps:
        match kind:
            case "table":
                told.table(what, blind=flag)
            case "pods":
                told.pods(what)
            case _:
                told.passed(what, watched=flag)
        sources = told.sources
        expected = {name: found for name in (CHAT, CODE) if (found := sources.routes(name, told.now))}
        assert {n: r.endpoints for n, r in told.known.items()} == {
            n: r.endpoints for n, r in expected.items()
        }
        if sources.pods is None or sources.alone:
            continue
        assert expected.keys() == sources.pods.keys()
        for name, found in expected.items():
            labelled = set(sources.pods[name].endpoints)
            assert labelled <= set(found.endpoints)
            assert len({each.uid for each in found.endpoints}) == len(found.endpoints)
            beyond = set(found.endpoints) - labelled
            assert sources.table is not None or not beyond
            assert all(
                told.watched_at < sources.early[name][each.uid] + HEAD_START_SECONDS for each in beyond
            )
