"""Numbers of others, as others got it wrong: added twice, taken from a neighbour, read under another name, or all at once."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.model import Quality
from scaler.errors import PolicyError, SampleRejected
from scaler.policy.compile import PolicySet
from scaler.policy.lint import Code, Severity
from scaler.policy.signals import Prometheus
from scaler.signals.engine_page import PageUnreadable, read_page
from scaler.signals.engine_sum import EngineSum
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.expected import signals_of
from scaler.signals.port import Part, SignalKey
from scaler.signals.prometheus import PrometheusServers, PrometheusSource
from scaler.signals.pushed import PushedSamples
from scaler.signals.rounds import Observation, Rounds
from tests.integration.signals.rig import running
from tests.reports.chain import ENGINES, GATEWAY, chain, page, policies, query, serving, vector
from tests.reports.site import Site
from tests.unit.scaler.core.world import fleet, load, policy
from tests.unit.scaler.policy.lint import sets
from warmpool.seats import PolicyName

PAGES = Path(__file__).parents[1] / "data" / "engine-pages"

# ------------------------------------------------------------------ counted once


async def test_what_three_sources_say_of_the_same_requests_counts_once() -> None:
    """The values of all metrics were added up, so that two of them that said the same asked for twice as much."""

    async def engine(_: web.BaseRequest) -> web.StreamResponse:
        return page(5, 1)

    async def prometheus(_: web.BaseRequest) -> web.StreamResponse:
        return vector("6")

    async with (
        serving(engine) as first,
        serving(prometheus) as url,
        chain(chat=[GATEWAY, ENGINES, query(url, "Requests")]) as on,
    ):
        on.engine("one", first)
        await on.until(lambda: on.load().engines.value == 6 and on.load().absent == ("gateway",))
        on.push(inFlight=6, queued=2)
        seen = on.load()
    site = Site(policies=[policy("chat")], fleets=[fleet()], up={"spares": 2})
    assert site.step({"chat": seen}).policies[PolicyName("chat")].demand == 8


async def test_several_series_of_one_name_are_told_and_not_added_up() -> None:
    """A metric without a namespace was the sum of everybody's who had a queue of that name."""

    async def two(_: web.BaseRequest) -> web.StreamResponse:
        return vector("3", "40")

    async with serving(two) as url, chain(chat=[query(url, "QueueDepth")]) as on:
        await on.until(lambda: "2 series and one is wanted" in on.error("query"))
        assert not on.load().queued.known


def test_a_query_that_adds_up_everybody_s_queues_is_told_before_it_is_relied_on() -> None:
    """The same where the sum stood in the query itself: nobody could see by the number that it was everybody's."""
    queues = {
        "name": "queues",
        "type": "Prometheus",
        "server": "http://prometheus:9090",
        "query": "sum(queue_messages_ready)",
        "measures": "QueueDepth",
    }
    (found,) = sets.findings(Code.QUERY_COUNTS_OTHERS, sets.fleet(), sets.policy(signals=[queues]))
    assert found.severity is Severity.INFO
    ours = {**queues, "query": 'sum(queue_messages_ready{namespace="default"})'}
    assert sets.findings(Code.QUERY_COUNTS_OTHERS, sets.fleet(), sets.policy(signals=[ours])) == []


async def test_kv_memory_and_engines_of_another_policy_are_in_no_sum() -> None:
    """KV use was added up over prefill and decode pods alike, to a number that stood for neither."""

    async def full(_: web.BaseRequest) -> web.StreamResponse:
        kv = "vllm:kv_cache_usage_perc 0.97\n"
        return web.Response(text=f"vllm:num_requests_running 3\nvllm:num_requests_waiting 0\n{kv}")

    async def other(_: web.BaseRequest) -> web.StreamResponse:
        return page(40, 2)

    async with serving(full) as first, serving(other) as second, chain(chat=[ENGINES], code=[ENGINES]) as on:
        on.engine("one", first)
        on.engine("two", second, policy="code")
        await on.until(lambda: on.load().engines.known and on.load("code").engines.known)
        assert (on.load().engines.value, on.load("code").engines.value) == (3, 42)


# ------------------------------------------------------------------ whose it is


def life(started: int, late: int, every: int) -> bytes:
    """The page of a process that began then, and had so many first tokens, so many of them late."""
    return (
        f"vllm:num_requests_running 2\nvllm:num_requests_waiting 0\nprocess_start_time_seconds {started}\n"
        f'vllm:time_to_first_token_seconds_bucket{{le="1.0"}} {every - late}\n'
        f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {every}\n'
    ).encode()


def test_counters_from_before_a_promotion_say_nothing_of_it() -> None:
    """A worker that came out of a snapshot carried the counters of an earlier life on, and was judged by them."""
    said, one = EngineSum(objective=1.0), EngineTarget("uid", "http://one")
    said.follow([one], 0.0)
    shares = []
    for second, content in enumerate([life(1, 900, 1000), life(2, 950, 1100), life(2, 960, 1120)]):
        said.answered(one, read_page(content), float(second))
        taken = said.taken(float(second), 2.0)
        assert taken is not None
        shares.append(taken.parts.get(Part.LATE_SHARE))
    assert shares == [None, None, 0.5], "only what the second process has had since its first page"


async def test_an_engine_whose_address_is_not_known_is_told_and_not_left_out() -> None:
    """A restored worker reported an empty id; its numbers were thrown away, and nobody heard of it."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return page(5)

    async with serving(answer) as url, chain(chat=[ENGINES]) as on:
        on.engine("one", url)
        on.engine("two", "")
        await on.until(lambda: on.load().engines.known)
        assert (on.load().engines.value, on.load().engines.quality) == (5, Quality.STALE)
        assert "two: its address isn't known yet" in on.error("engines")


def test_a_sample_without_an_instance_is_refused_with_a_word_and_costs_nobody_else() -> None:
    """The same of what is pushed."""
    store = PushedSamples()
    body = {"instance": "one", "sequence": 1, "at": 1000.0, "policies": {"chat": {"queued": 3}}}
    store.ingest(body, 1000.0)
    with pytest.raises(SampleRejected, match="instance must be a string"):
        store.ingest({**body, "instance": ""}, 1000.0)
    assert (store.accepted, store.rejected) == (1, 1)
    assert store.load(PolicyName("chat"), 1000.0).queued.value == 3


demands = st.lists(st.floats(0, 60), min_size=1, max_size=30)


@settings(max_examples=30, deadline=None)
@given(mine=demands, theirs=demands, names=st.permutations(["a", "b"]))
def test_what_one_policy_is_told_changes_nothing_of_another(
    mine: list[float], theirs: list[float], names: list[str]
) -> None:
    """Two autoscalers of one name shared their windows: the load of the one scaled the other."""

    def answers(others: list[float]) -> list[tuple[int, int]]:
        both = [policy(name, fleets=[(name, 8)]) for name in names]
        shapes = [fleet(name, max_seats=9) for name in names]
        site = Site(policies=both, fleets=shapes, up={"a": 2, "b": 2}, start=2.0)
        found = []
        for step, demand in enumerate(mine):
            site.step({"a": load(demand), "b": load(others[step % len(others)])})
            found.append((site.serving("a"), site.total("a")))
        return found

    assert answers(theirs) == answers([0.0])


def test_two_policies_of_one_name_are_refused_wherever_they_live() -> None:
    """The same, from the other side: a name in two namespaces stood for one thing."""
    with pytest.raises(PolicyError, match="the ScalingPolicy chat is already defined"):
        policies(**{"chat": [GATEWAY], "chat, namespace: other": [GATEWAY]})


# ------------------------------------------------------------------ under another name


NAMES: Mapping[str, tuple[str, bytes, bytes]] = {
    "SGLang": ("sglang.txt", b"sglang:", b"sglang_"),
    "vLLM": ("vllm-0.32-under-load.txt", b"vllm:", b"vllm_"),
}


@pytest.mark.parametrize("engine", NAMES)
def test_names_are_read_with_a_colon_and_with_an_underscore(engine: str) -> None:
    """After an update all panels and queries of one engine were zero: its names had another letter in them."""
    file, colon, underscore = NAMES[engine]
    content = (PAGES / file).read_bytes()
    before, after = read_page(content), read_page(content.replace(colon, underscore))
    assert before.requests == after.requests > 0
    assert before.kv_usage == after.kv_usage
    assert before.first_tokens == after.first_tokens
    assert before.dialect != after.dialect


def test_names_that_nobody_knows_are_an_error_that_lists_the_known_ones() -> None:
    content = (PAGES / "sglang.txt").read_bytes().replace(b"sglang:", b"sgl/")
    with pytest.raises(
        PageUnreadable, match=r"no running requests under any known name .*SGLang \(sglang_\)"
    ):
        read_page(content)


# ------------------------------------------------------------------ who asks


async def test_two_signals_of_one_server_ask_as_whom_each_of_them_says(tmp_path: Path) -> None:
    """Connections were shared by address alone: one object's identity was used for another's requests."""
    asked: dict[object, set[str]] = {}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        connection = request.transport.get_extra_info("peername")
        asked.setdefault(connection, set()).add(request.headers["Authorization"])
        return vector("1")

    signals = []
    async with serving(answer) as url:
        for name in ("one", "two"):
            (tmp_path / name).write_text(name)
            token = {"bearerTokenFile": str(tmp_path / name)}
            signals.append(query(url, "Requests", name=name, authorization=token))
        async with chain(chat=signals) as on:
            await on.until(lambda: len(set().union(*asked.values())) == 2)
            await on.until(lambda: not on.load().absent)
    assert set().union(*asked.values()) == {"Bearer one", "Bearer two"}
    assert all(len(whose) == 1 for whose in asked.values()), "no connection has carried both"


# ------------------------------------------------------------------ all at once


async def test_many_signals_of_one_server_share_a_few_connections_that_stay() -> None:
    """From ten objects on each made connections of its own, anew for each question, and questions timed out."""
    peers: set[object] = set()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        await asyncio.sleep(0.03)  # a server with something to do, so that questions meet
        return vector("1")

    async with serving(answer) as url:
        asked = [query(url, "Requests", intervalSeconds=2, timeoutSeconds=2)]
        of, servers = policies(**{f"p{number}": asked for number in range(40)}), PrometheusServers()
        asking = [PrometheusSource(key, one, servers) for key, one in _queries(of)]
        async with running(*asking) as heard, asyncio.timeout(30):
            while len(twice := [k for k, n in Counter(w.key for w in heard.words).items() if n >= 2]) < 40:
                await heard.reading()
    assert len(twice) == 40
    assert not heard.failures
    assert len(peers) <= 4


def _queries(of: PolicySet) -> Iterator[tuple[SignalKey, Prometheus]]:
    return ((key, one) for key, one in signals_of(of).items() if isinstance(one, Prometheus))


class Moments:
    """A sink that notes when something was asked."""

    def __init__(self) -> None:
        self.at: list[float] = []

    async def ask(self) -> Observation:
        now = asyncio.get_running_loop().time()
        self.at.append(now)
        return Observation({Part.REQUESTS: 1.0}, now)

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        pass

    def failed(self, key: SignalKey, why: str) -> None:
        raise AssertionError(f"{key}: {why}")


@pytest.mark.looptime
async def test_signals_that_began_together_do_not_go_on_asking_together() -> None:
    """Loops that were made at one moment polled at one moment ever after."""
    count, interval, noted = 40, 15.0, Moments()
    with suppress(TimeoutError):
        async with asyncio.timeout(600.0), asyncio.TaskGroup() as tasks:
            for number in range(count):
                rounds = Rounds(SignalKey(PolicyName(f"p{number}"), "query"), interval)
                tasks.create_task(rounds.run(noted.ask, noted))
    late = [at for at in noted.at if at > 300.0]
    assert len(late) >= count * 15
    crowds = Counter(int(at * 4) for at in late)
    assert max(crowds.values()) < count / 3, "in any quarter of a second"
