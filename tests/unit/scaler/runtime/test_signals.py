"""Everything that signals say, put together for the loop: in virtual time, with sources that do as they are told."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from scaler.core.model import Load, Quality
from scaler.errors import SampleRejected
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.document import parse_documents
from scaler.runtime.mailbox import IDLE_SECONDS, Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.signals import PolicySignals
from scaler.runtime.sources import Wanted
from scaler.signals.port import Part, SignalKey, Sink
from tests.fakes.loop_clock import EPOCH, LoopClock
from warmpool.seats import PolicyName

pytestmark = pytest.mark.looptime

CHAT, CODE = PolicyName("chat"), PolicyName("code")
JOBS, DEPTH = SignalKey(CHAT, "jobs"), SignalKey(CHAT, "depth")
GATEWAY = "{name: gateway, type: Pushed}"
QUEUE = "{name: jobs, type: RedisList, key: jobs, intervalMilliseconds: 1000, timeoutMilliseconds: 500}"
QUERY = (
    "{name: depth, type: Prometheus, query: up, measures: QueueDepth, intervalSeconds: 2, timeoutSeconds: 1}"
)


def policies(**signals: list[str]) -> PolicySet:
    """Make a set with a policy for each name, with those signals."""
    documents = ["kind: Fleet\nmetadata: {name: spares}\nspec: {maxSeats: 2}\n"]
    documents += [
        f"kind: ScalingPolicy\nmetadata: {{name: {name}}}\nspec:\n"
        f"  fleets: [{{name: spares, targetInFlight: 8}}]\n  signals: [{', '.join(of)}]\n"
        for name, of in signals.items()
    ]
    text = "---\n".join(f"apiVersion: emberpool.dev/v1alpha1\n{each}" for each in documents)
    return compile_set(parse_documents(text, "f.yaml"))


@dataclass
class Told:
    """A source that says what a test has it say."""

    of: Wanted
    sink: Sink | None = None

    async def run(self, sink: Sink) -> None:
        self.sink = sink
        try:
            await asyncio.Event().wait()
        finally:
            self.sink = None

    def say(self, at: float | None = None, **parts: float) -> None:
        assert self.sink is not None
        now = asyncio.get_running_loop().time()
        self.sink.observed(
            self.of.key, {Part[name]: n for name, n in parts.items()}, now if at is None else at
        )


@dataclass
class Slowed(Told):
    """One that reads more slowly than its policy has it."""

    interval: float = 10.0


@dataclass
class Stage:
    """Signals with their sources, and what they wake."""

    signals: PolicySignals
    mailbox: Mailbox
    registry: CollectorRegistry
    sources: dict[SignalKey, Told] = field(default_factory=dict)
    sequence: int = 0

    def push(self, policy: str = "chat", kind: str = "Gateway", **numbers: float) -> None:
        self.sequence += 1
        body = {
            "instance": f"{kind}-1",
            "kind": kind,
            "sequence": self.sequence,
            "at": LoopClock().wall(),
            "policies": {policy: numbers},
        }
        self.signals.ingest(json.dumps(body).encode())

    def load(self, policy: PolicyName = CHAT) -> Load:
        return self.signals.load(policy, asyncio.get_running_loop().time())

    def counted(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"emberpool_{name}", labels)

    async def woken(self) -> tuple[Mapping[str, int], float]:
        """Wait for the loop to be woken; return why, and after how long."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        return (await self.mailbox.wait(60.0)).causes, loop.time() - began


@asynccontextmanager
async def stage(of: PolicySet) -> AsyncIterator[Stage]:
    mailbox, registry = Mailbox(), CollectorRegistry()
    made: dict[SignalKey, Told] = {}

    def factory(wanted: Wanted) -> Told:
        kind = Slowed if wanted.signal.name == "slowed" else Told
        made[wanted.key] = kind(wanted)
        return made[wanted.key]

    factories = {"RedisList": factory, "Prometheus": factory}
    signals = PolicySignals(of, mailbox, LoopClock(), ControllerMetrics(registry), factories)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(signals.run())
        await asyncio.sleep(0.001)
        try:
            yield Stage(signals, mailbox, registry, made)
        finally:
            task.cancel()


# ------------------------------------------------------------------ what they come to


async def test_what_is_pushed_and_what_is_read_come_to_one_load() -> None:
    async with stage(policies(chat=[GATEWAY, QUEUE, QUERY])) as on:
        on.push(queued=3, inFlight=8)
        on.sources[JOBS].say(BACKLOG=40, BACKLOG_AGE_SECONDS=9)
        on.sources[DEPTH].say(QUEUED=5)
        load = on.load()
        assert (load.queued.value, load.in_flight.value, load.backlog.value, load.backlog_age.value) == (
            5,
            8,
            40,
            9,
        )
        assert load.queued.quality is load.backlog.quality is Quality.FRESH
        assert on.signals.gateways() == ["Gateway-1"]
        assert on.signals.queued(CHAT) == 3


async def test_what_is_said_no_more_grows_old_and_goes() -> None:
    async with stage(policies(chat=[QUEUE])) as on:
        on.sources[JOBS].say(BACKLOG=40)
        qualities = []
        for seconds in (2.0, 0.1, 27.8, 0.2):
            await asyncio.sleep(seconds)
            qualities.append(on.load().backlog.quality)
        assert qualities == [Quality.FRESH, Quality.STALE, Quality.STALE, Quality.MISSING]


async def test_a_time_ahead_is_now() -> None:
    async with stage(policies(chat=[QUEUE])) as on:
        on.sources[JOBS].say(BACKLOG=40, at=1e6)
        await asyncio.sleep(1)
        on.sources[JOBS].say(BACKLOG=1)
        assert on.load().backlog.value == 1


async def test_a_source_that_reads_more_slowly_than_it_should_holds_for_as_long_as_it_needs() -> None:
    async with stage(policies(chat=[QUEUE.replace("jobs, type", "slowed, type")])) as on:
        on.sources[SignalKey(CHAT, "slowed")].say(BACKLOG=1)
        await asyncio.sleep(15)
        assert on.load().backlog.quality is Quality.FRESH


async def test_the_newest_of_what_is_pushed_and_read_has_a_time() -> None:
    async with stage(policies(chat=[GATEWAY, QUEUE])) as on:
        assert on.signals.observed_at(CHAT) is None
        on.push(queued=1)
        pushed = LoopClock().wall()
        assert on.signals.observed_at(CHAT) == pytest.approx(pushed, abs=1e-3)
        await asyncio.sleep(1)
        on.sources[JOBS].say(BACKLOG=1)
        assert on.signals.observed_at(CHAT) == pytest.approx(pushed + 1, abs=1e-3)
        assert on.signals.observed_at(CODE) is None


async def test_peaks_begin_anew_once_they_are_seen() -> None:
    async with stage(policies(chat=[GATEWAY])) as on:
        on.push(inFlight=1, peak=9)
        assert on.load().peak.value == 9
        on.signals.seen([CHAT])
        assert on.load().peak.value == 1


# ------------------------------------------------------------------ what wakes the loop


async def test_a_rise_wakes_the_loop_at_once_and_all_else_in_company() -> None:
    async with stage(policies(chat=[GATEWAY, QUEUE])) as on:
        on.sources[JOBS].say(BACKLOG=40)
        assert await on.woken() == (Counter(sample=1), 0.0)
        for backlog in (39, 38):
            await asyncio.sleep(0.1)
            on.sources[JOBS].say(BACKLOG=backlog)
        causes, seconds = await on.woken()
        assert (causes, seconds) == (Counter(sample=2), pytest.approx(IDLE_SECONDS))
        on.push(queued=1)
        assert await on.woken() == (Counter(sample=1), 0.0)
        on.push(queued=0)
        causes, seconds = await on.woken()
        assert (causes, seconds) == (Counter(sample=1), pytest.approx(IDLE_SECONDS))


async def test_a_reading_that_says_what_is_known_wakes_nobody() -> None:
    async with stage(policies(chat=[QUEUE])) as on:
        on.sources[JOBS].say(BACKLOG=40)
        await on.woken()
        on.sources[JOBS].say(BACKLOG=40)
        assert await on.woken() == (Counter(deadline=1), 60.0)


# ------------------------------------------------------------------ other policies


async def test_signals_that_stay_keep_what_they_said_when_others_come_and_go() -> None:
    async with stage(policies(chat=[QUEUE, QUERY])) as on:
        on.sources[JOBS].say(BACKLOG=40)
        on.sources[DEPTH].say(QUEUED=5)
        reader = on.sources[JOBS]
        slower = QUEUE.replace("intervalMilliseconds: 1000", "intervalMilliseconds: 2000")
        on.signals.follow(policies(chat=[slower], code=[QUEUE]))
        await asyncio.sleep(0.001)
        assert on.load() == Load(backlog=on.load().backlog)
        assert on.load().backlog.value == 40
        assert reader.sink is None
        assert on.sources[JOBS].sink is not None
        assert on.sources[SignalKey(CODE, "jobs")].sink is not None


async def test_what_a_signal_said_is_forgotten_when_it_means_something_else() -> None:
    async with stage(policies(chat=[QUEUE])) as on:
        on.sources[JOBS].say(BACKLOG=40)
        on.signals.follow(policies(chat=[QUEUE.replace("key: jobs", "key: others")]))
        assert on.load() == Load(absent=("jobs",))


async def test_the_same_policies_again_leave_every_source_alone() -> None:
    async with stage(policies(chat=[QUEUE])) as on:
        reader = on.sources[JOBS]
        on.signals.follow(policies(chat=[QUEUE]))
        await asyncio.sleep(1)
        assert on.sources[JOBS] is reader
        assert reader.sink is not None


# ------------------------------------------------------------------ what is refused, counted and shown


async def test_samples_are_counted_and_the_first_that_is_refused_is_logged() -> None:
    async with stage(policies(chat=[GATEWAY])) as on:
        on.push(queued=1)
        with capture_logs() as logs:
            for body in (b"{", b"[]", b" " * 70_000):
                with pytest.raises(SampleRejected):
                    on.signals.ingest(body)
            await asyncio.sleep(61)
            with pytest.raises(SampleRejected):
                on.signals.ingest(b"{")
        assert [line["event"] for line in logs] == ["pushed sample refused"] * 2
        counts = {
            outcome: on.counted("signal_samples_total", way="Http", outcome=outcome)
            for outcome in ("Accepted", "Rejected", "TooLarge")
        }
        assert counts == {"Accepted": 1.0, "Rejected": 3.0, "TooLarge": 1.0}


async def test_an_error_goes_with_the_next_good_reading() -> None:
    async with stage(policies(chat=[QUEUE])) as on:
        on.signals.failed(JOBS, "connection refused")
        on.sources[JOBS].say(BACKLOG=1)
        (item,) = on.signals.listed()
        assert (item["lastError"], item["readings"]["failed"]) == (None, 1)


async def test_a_part_that_is_missing_says_why() -> None:
    share = QUERY.replace("QueueDepth", "TtftShareOverObjective")
    async with stage(policies(chat=[share, QUEUE])) as on:

        def reasons() -> list[tuple[str, str, str]]:
            return [
                (part["part"], part["quality"], part["reason"])
                for item in on.signals.listed()
                for part in item["parts"]
            ]

        unread = "it has not been read yet"
        assert reasons() == [("LateShare", "Missing", unread), ("Backlog", "Missing", unread)]
        on.sources[DEPTH].say()
        on.sources[JOBS].say(BACKLOG=1)
        await asyncio.sleep(40)
        assert reasons() == [
            ("LateShare", "Missing", "0/0: no requests, and so no share of them"),
            ("Backlog", "Missing", "the last reading has expired"),
        ]
        on.signals.failed(JOBS, "connection refused")
        assert reasons()[1] == ("Backlog", "Missing", "connection refused")


async def test_readings_are_counted_with_the_time_of_the_last() -> None:
    async with stage(policies(chat=[GATEWAY, QUEUE])) as on:
        labels = {"policy": "chat", "signal": "jobs"}
        assert on.counted("signal_last_reading_timestamp_seconds", **labels) == 0.0
        on.sources[JOBS].say(BACKLOG=-1)
        on.signals.failed(JOBS, "late")
        await asyncio.sleep(5)
        on.sources[JOBS].say(BACKLOG=1)
        outcomes = ("Read", "Failed", "Spoilt")
        counts = [on.counted("signal_readings_total", **labels, outcome=each) for each in outcomes]
        assert counts == [1.0, 1.0, 1.0]
        at = on.counted("signal_last_reading_timestamp_seconds", **labels)
        assert at == pytest.approx(EPOCH + 5, abs=0.01)
        assert on.counted("signal_readings_total", policy="chat", signal="gateway", outcome="Read") is None


def shown(item: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (part["part"], part["value"], part["ageSeconds"] and round(part["ageSeconds"], 2), part["quality"])
        for part in item["parts"]
    ]


async def test_every_signal_is_shown_with_what_it_says_now() -> None:
    async with stage(policies(chat=[GATEWAY, QUEUE, QUERY], code=[GATEWAY])) as on:
        on.push(queued=3, inFlight=8)
        on.push(kind="Queue", backlog=4)
        on.sources[JOBS].say(BACKLOG=40)
        on.signals.failed(DEPTH, "connection refused")
        await asyncio.sleep(1)
        gateway, jobs, depth, other = on.signals.listed()
        assert [item["name"] for item in (gateway, jobs, depth, other)] == [
            "gateway",
            "jobs",
            "depth",
            "gateway",
        ]
        assert shown(gateway) == [
            ("Queued", 3.0, 1.0, "Fresh"),
            ("InFlight", 8.0, 1.0, "Fresh"),
            ("Backlog", 4.0, 1.0, "Fresh"),
        ]
        assert [each["name"] for each in gateway["instances"]] == ["Gateway-1", "Queue-1"]
        assert shown(jobs) == [("Backlog", 40.0, 1.0, "Fresh")]
        assert shown(depth) == [("Queued", None, None, "Missing")]
        assert depth["lastError"] == {"message": "connection refused", "inARow": 1}
        assert (other["policy"], other["parts"]) == ("code", [])
        json.dumps(on.signals.listed(), allow_nan=False)


async def test_what_is_pushed_of_a_policy_that_names_no_such_signal_is_shown_too() -> None:
    async with stage(policies(chat=[QUEUE])) as on:
        on.push(queued=3)
        _, pushed = on.signals.listed()
        assert (pushed["policy"], pushed["name"], pushed["type"]) == ("chat", "pushed", "Pushed")


async def test_a_type_that_nothing_reads_here_says_so() -> None:
    stream = "{name: s, type: RedisStream, key: jobs, group: g}"
    async with stage(policies(chat=[stream])) as on:
        (item,) = on.signals.listed()
        assert item["lastError"]["message"] == "nothing reads signals of this type here"
