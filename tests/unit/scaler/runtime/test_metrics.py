"""The controller's metrics, read as a scraper reads them."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from scaler.core.decide import decide
from scaler.core.islands import Island
from scaler.core.memory import Memory
from scaler.core.model import MISSING, FleetShare, FleetSpec, Load, PolicySpec, Quality, Reading
from scaler.runtime.bench import exposition as exposition_bench
from scaler.runtime.controller import PolicyTable, Tick
from scaler.runtime.events import EventLog, PromotionRecord, Trigger
from scaler.runtime.metrics import ControllerMetrics, Page, catalogue
from scaler.runtime.metrics.signals import Read
from scaler.runtime.observer import observe
from tests.fakes.loop_clock import LoopClock
from tests.fakes.stock import stock_of
from warmpool.healing import Cause, Found
from warmpool.metric_families import Family, Kind, RowMetric
from warmpool.plan import Plan
from warmpool.seats import FleetName, Operation, PolicyName, Resident, Seat, SeatName
from warmpool.states import Depth, ResidentState
from warmpool.timeline import CacheUse, StartFacts, WeightLoad

CHAT, CODE = PolicyName("chat"), PolicyName("code")
OWN, SPARES = FleetName("chat-own"), FleetName("spares")
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def policy(name: PolicyName, *fleets: FleetName) -> PolicySpec:
    shares = tuple(FleetShare(fleet=fleet, target_in_flight=8) for fleet in fleets)
    return PolicySpec(name=name, fleets=shares, serving_min=1, serving_max=4, ttft_objective=0.5)


TABLE = PolicyTable(
    policies=(policy(CHAT, OWN, SPARES), policy(CODE, SPARES)),
    fleets=(
        FleetSpec(name=OWN, max_seats=2),
        FleetSpec(name=SPARES, max_seats=4, spare_target=2, observe=True),
    ),
    hash="h",
)


def reading(value: float) -> Reading:
    return Reading(value=value, age=0.25, quality=Quality.FRESH)


LOADS = {CHAT: Load(queued=reading(3), in_flight=reading(5), peak=reading(8)), CODE: Load()}


WAKES = {Depth.KV_RELEASED: 0.1, Depth.PARKED: 2.5}


def seat(name: str, fleet: FleetName, *policies: PolicyName, gpus: int = 1, serves: bool = False) -> Seat:
    state = ResidentState.SERVING if serves else ResidentState.PAUSED
    return Seat(
        name=SeatName(name),
        uid=name,
        version="1",
        fleet=fleet,
        gpus=tuple(str(number) for number in range(gpus)),
        residents=tuple(
            Resident(policy=each, state=state, since=0.0, wake_seconds=WAKES) for each in policies
        ),
        serving=frozenset(policies) if serves else frozenset(),
    )


SEATS = (
    seat("pod-own-0", OWN, CHAT, serves=True),
    seat("pod-spare-0", SPARES, CHAT, CODE, gpus=2),
    seat("pod-spare-1", SPARES, CHAT, CODE, gpus=2),
)


@dataclass
class Scene:
    """A controller's metrics with the law in front of them."""

    metrics: ControllerMetrics
    registry: CollectorRegistry
    memory: Memory
    number: int = 0

    def tick(
        self,
        now: float = 1.0,
        table: PolicyTable = TABLE,
        seats: Sequence[Seat] = SEATS,
        loads: Mapping[PolicyName, Load] = LOADS,
    ) -> Tick:
        held = Counter(each.fleet for each in seats)
        stock = stock_of(seats)
        snapshot = observe(table.policies, table.fleets, stock, held.__getitem__, loads.__getitem__)
        decision, self.memory = decide(table.policies, table.fleets, snapshot, self.memory, now)
        self.number += 1
        tick = Tick(
            number=self.number,
            at=1e9 + now,
            causes={"sample": 2, "a new cause": 1},
            looked=Island(tuple(table.policies), tuple(table.fleets)),
            snapshot=snapshot,
            decision=decision,
            plan=Plan(),
            stock=stock,
        )
        self.metrics.woke(tick.causes)
        self.metrics.looked(tick.at, 0.003)
        self.metrics.ticked(tick, table)
        return tick

    def families(self) -> list[Metric]:
        return list(text_string_to_metric_families(generate_latest(self.registry).decode()))

    def samples(self) -> Samples:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families()
            for sample in family.samples
        }

    def read(self, name: str, **labels: str) -> float | None:
        wanted = f"emberpool_{name}"
        for metric in self.registry.collect():
            if wanted.startswith(metric.name):
                for sample in metric.samples:
                    if (sample.name, sample.labels) == (wanted, labels):
                        return float(sample.value)
        return None


@pytest.fixture
def scene() -> Scene:
    registry = CollectorRegistry()
    return Scene(ControllerMetrics(registry), registry, Memory.initial(0.0))


@pytest.fixture
def read_signals(scene: Scene) -> None:
    """Two signals, of which one has been read."""
    ttft, jobs = Read("chat", "ttft", (5, 2, 1), 1e9), Read("chat", "jobs", (0, 3, 0), 0.0)
    scene.metrics.signals.watch(lambda: [ttft, jobs])
    scene.metrics.signals.listens(True)


def promotion(**changes: object) -> PromotionRecord:
    facts: dict[str, object] = {
        "claim": "c-1",
        "operation": Operation.SWITCH,
        "policy": CHAT,
        "fleet": SPARES,
        "seat": SeatName("pod-spare-0"),
        "trigger": Trigger(sample=100.0, decision=100.004),
        "claimed": 100.01,
        "resumed": 100.05,
        "canary": 100.06,
        "rotation": 100.075,
    }
    return PromotionRecord(**(facts | changes))  # type: ignore[arg-type]


def begun(at: float = 1030.5, restarts: int = 0, **changes: object) -> tuple[Seat, Resident]:
    """A seat whose resident has just completed its start."""
    start = StartFacts(
        at=at,
        weights=WeightLoad(tier="Staged", nbytes=8 * 10**9, seconds=0.5),
        compile_cache=CacheUse(hits=3, misses=1),
        first_request_seconds=0.25,
    )
    resident = Resident(
        policy=CHAT,
        state=ResidentState.PAUSED,
        since=0.0,
        restarts=restarts,
        phases={"waiting": 0.5, "weights": 0.5, "a newer one": 2.0},
        start=start,
    )
    facts = {"created_at": 1000.0, "scheduled_at": 1002.0, "running_at": 1030.0} | changes
    return replace(seat("new", OWN, CHAT), residents=(resident,), **facts), resident  # type: ignore[arg-type]


# ------------------------------------------------------------------ the page as a whole


def declared(sample: str) -> Family | None:
    """The family that a sample's name belongs to."""
    for family in catalogue.FAMILIES:
        names = {family.name}
        if family.kind is Kind.HISTOGRAM:
            names = {family.name + suffix for suffix in ("_bucket", "_sum", "_count", "_created")}
        if family.kind is Kind.COUNTER:
            names.add(family.stem + "_created")
        if sample in names:
            return family
    return None


@pytest.mark.usefixtures("read_signals")
def test_the_page_is_the_catalogue_no_less_and_no_more(scene: Scene) -> None:
    scene.tick()
    scene.metrics.started(*begun())
    shown = {declared(sample.name) for family in scene.families() for sample in family.samples}
    assert shown == set(catalogue.FAMILIES)
    kinds = {family.name: family.type for family in scene.families() if not family.name.endswith("_created")}
    assert kinds == {family.stem: str(family.kind) for family in catalogue.FAMILIES}
    helps = {family.name: family.documentation for family in scene.families()}
    assert all(helps[family.stem] == family.help for family in catalogue.FAMILIES)


@pytest.mark.usefixtures("read_signals")
def test_no_label_value_is_unbounded(scene: Scene) -> None:
    scene.tick()
    scene.metrics.promoted(promotion())
    names: dict[str, set[str]] = {
        "policy": {CHAT, CODE},
        "fleet": {OWN, SPARES},
        "signal": {"ttft", "jobs"},
    }
    for family in scene.families():
        for sample in family.samples:
            found = declared(sample.name)
            assert found is not None
            labels = {label.name: label for label in found.labels}
            assert set(sample.labels) - {"le"} == set(labels)
            for name, value in sample.labels.items():
                if name in labels and found is not catalogue.BUILD_INFO:
                    assert value in (labels[name].values or names[name]), (sample.name, name, value)


def test_no_seat_is_named(scene: Scene) -> None:
    scene.tick()
    scene.metrics.promoted(promotion())
    scene.metrics.replaced(SPARES)
    assert b"pod-" not in generate_latest(scene.registry)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        pytest.param(
            "promotions_total",
            {"policy": "code", "operation": "Recall", "outcome": "Failed"},
            id="promotions",
        ),
        pytest.param("demotions_total", {"policy": "code", "outcome": "Released"}, id="demotions"),
        pytest.param("decisions_total", {"policy": "code", "mode": "Stable"}, id="decisions"),
        pytest.param("resident_restarts_total", {"policy": "code"}, id="restarts"),
        pytest.param("replacements_total", {"fleet": "spares"}, id="replacements"),
        pytest.param("seat_rests_total", {"fleet": "spares"}, id="rests"),
        pytest.param("seats", {"fleet": "spares", "value": "Doomed"}, id="seats"),
        pytest.param("residents", {"policy": "code", "state": "Failed"}, id="residents"),
        pytest.param("seat_seconds_total", {"fleet": "spares", "value": "Lent"}, id="seat time"),
        pytest.param("gpu_seconds_total", {"fleet": "spares", "value": "Lent"}, id="GPU time"),
        pytest.param("signal_samples_total", {"way": "Redis", "outcome": "Rejected"}, id="samples"),
        pytest.param("signal_source_restarts_total", {"type": "RedisList"}, id="sources"),
        pytest.param("tick_wakeups_total", {"cause": "deadline"}, id="wake-ups"),
        pytest.param("promotion_to_first_token_seconds_count", {"policy": "code"}, id="first token"),
        pytest.param(
            "promotion_duration_seconds_bucket",
            {"policy": "code", "operation": "Promote", "stage": "canary", "le": "0.005"},
            id="stages",
        ),
    ],
)
def test_what_has_not_happened_yet_is_zero(scene: Scene, name: str, labels: dict[str, str]) -> None:
    scene.tick()
    assert scene.read(name, **labels) == 0.0


def test_series_go_with_their_policy_and_fleet(scene: Scene) -> None:
    scene.tick(1.0)
    scene.metrics.promoted(promotion())
    smaller = PolicyTable(policies=TABLE.policies[1:], fleets=TABLE.fleets[1:], hash="h2")
    scene.tick(2.0, smaller, SEATS[1:])
    scene.metrics.promoted(promotion())  # one that was under way when its policy went
    found = generate_latest(scene.registry)
    assert b'policy="chat"' not in found
    assert b'fleet="chat-own"' not in found
    scene.tick(3.0)
    labels = {"policy": "chat", "operation": "Switch", "outcome": "Promoted"}
    assert scene.read("promotions_total", **labels) == 1.0, "the first one was forgotten with its policy"


async def test_the_page_says_what_the_client_would_write(scene: Scene) -> None:
    scene.tick()
    scene.metrics.promoted(promotion())
    page = (await Page(scene.registry).render()).decode()
    expected = scene.samples()
    families = list(text_string_to_metric_families(page))
    found = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    assert found == expected
    assert {f.name: (f.type, f.documentation) for f in families} == {
        f.name: (f.type, f.documentation) for f in scene.families()
    }


def test_the_client_can_write_it_as_openmetrics_too(scene: Scene) -> None:
    scene.tick()
    scene.metrics.promoted(promotion())
    text = exposition.generate_latest(scene.registry).decode()  # type: ignore[no-untyped-call]
    families = openmetrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    assert {family.name for family in families} == {family.stem for family in catalogue.FAMILIES}


async def test_a_page_shows_what_was_measured_since_the_one_before(scene: Scene) -> None:
    scene.tick()
    page = Page(scene.registry)
    for _ in range(3):
        scene.metrics.promoted(promotion())
        families = text_string_to_metric_families((await page.render()).decode())
        found = {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}
        assert found == scene.samples()


_WRITERS_SECONDS = 0.35
"""What prometheus-client's own writer takes for the quiet page on the machine for which the limits were set."""


@pytest.mark.wall_clock
def test_the_page_of_a_large_controller_is_quick_and_holds_the_loop_up_by_little() -> None:
    large = exposition_bench.Shape(policies=500, seats=10_000)
    registry, metrics, _ = exposition_bench.controller(large)
    quiet = exposition_bench.measure(registry, 5)
    began = time.thread_time()
    generate_latest(registry)
    slow = max(1.0, (time.thread_time() - began) / _WRITERS_SECONDS)  # as slow as the machine is just now
    exposition_bench.promote_all(metrics, exposition_bench.table(large))
    busy = exposition_bench.measure(registry, 5)
    assert max(min(quiet.pages), min(busy.pages)) <= 0.1 * slow
    assert max(min(quiet.waits), min(busy.waits)) <= 0.02 * slow


async def test_names_that_need_escaping_come_back_whole(scene: Scene) -> None:
    wild = PolicyName('a"b\\c\nd%s')
    table = PolicyTable(policies=(policy(wild, SPARES),), fleets=TABLE.fleets[1:], hash="h")
    scene.tick(table=table, loads={wild: Load()}, seats=())
    scene.metrics.promoted(promotion(policy=wild))
    page = (await Page(scene.registry).render()).decode()
    families = text_string_to_metric_families(page)
    policies = {s.labels["policy"] for f in families for s in f.samples if "policy" in s.labels}
    assert policies == {wild}


async def test_the_loop_gets_its_turns_while_a_large_page_is_written() -> None:
    family = Family(name="emberpool_many", kind=Kind.GAUGE, help="Many.", unit="things")

    class Many:
        def collect(self) -> Iterator[Metric]:
            yield RowMetric(family, (((), float(number)) for number in range(200_000)))

    registry = CollectorRegistry()
    registry.register(Many())
    turns = 0
    page = Page(registry)
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(page.render())
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
    assert writing.result().count(b"\n") == 200_002
    assert turns > 10


# ------------------------------------------------------------------ what the last tick said


def test_a_policy_shows_what_it_needs_and_gets(scene: Scene) -> None:
    decided = scene.tick().decision.policies[CHAT]
    assert scene.read("demand_requests", policy="chat") == 8.0
    assert scene.read("needed_requests", policy="chat") == decided.needed
    assert scene.read("capacity_requests", policy="chat") == 8.0
    assert scene.read("objective_ttft_seconds", policy="chat") == 0.5
    assert scene.read("target_in_flight_requests", policy="chat", fleet="spares") == 8.0
    assert scene.read("serving_residents", policy="chat", fleet="chat-own") == decided.serving[OWN]
    assert scene.read("supply_residents", policy="code", fleet="spares", supply="Promotable") == 2.0
    for mode in ("Stable", "Burst", "Hold"):
        assert scene.read("policy_mode", policy="chat", mode=mode) == (mode == decided.mode)
    for reason in decided.reasons:
        assert scene.read("policy_reason", policy="chat", code=reason.code) == 1.0


def test_unfilled_is_what_is_wanted_beyond_what_seats_can_give(scene: Scene) -> None:
    tick = scene.tick()
    wanting = replace(tick.decision.policies[CHAT], wanted={OWN: 3, SPARES: 0}, serving={OWN: 1, SPARES: 2})
    policies = {**tick.decision.policies, CHAT: wanting}
    scene.metrics.ticked(replace(tick, decision=replace(tick.decision, policies=policies)), TABLE)
    assert scene.read("unfilled_residents", policy="chat", fleet="chat-own") == 2.0
    assert scene.read("unfilled_residents", policy="chat", fleet="spares") == 0.0


def test_a_fleet_shows_its_seats_and_its_decision(scene: Scene) -> None:
    decided = scene.tick().decision.fleets[SPARES]
    assert scene.read("seats", fleet="spares", value="Spare") == 2.0
    assert scene.read("seats", fleet="chat-own", value="Serving") == 1.0
    assert scene.read("residents", policy="chat", state="Paused") == 2.0
    assert scene.read("fleet_total_seats", fleet="spares") == decided.total
    assert scene.read("fleet_spare_target_seats", fleet="spares") == 2.0
    assert scene.read("fleet_max_seats", fleet="spares") == 4.0
    assert scene.read("fleet_replicas", fleet="spares") == 2.0
    assert scene.read("fleet_mode", fleet="spares", mode="Observe") == 1.0
    assert scene.read("fleet_mode", fleet="chat-own", mode="Observe") == 0.0


def test_seats_that_changed_or_went_are_counted_anew(scene: Scene) -> None:
    scene.tick(1.0)
    assert scene.read("residents", policy="code", state="Paused") == 2.0
    failed = replace(SEATS[1], residents=(replace(SEATS[1].residents[1], state=ResidentState.FAILED),))
    scene.tick(2.0, seats=(failed,))
    assert scene.read("residents", policy="code", state="Paused") == 0.0
    assert scene.read("residents", policy="code", state="Failed") == 1.0
    assert scene.read("seats", fleet="chat-own", value="Serving") == 0.0
    assert scene.read("seats", fleet="spares", value="Spare") == 0.0


def test_a_seat_whose_agent_is_silent_is_unreachable_whatever_it_is_worth(scene: Scene) -> None:
    scene.tick(1.0)
    assert scene.read("fleet_unreachable_seats", fleet="chat-own") == 0.0
    silent = [replace(each, reachable=False) for each in SEATS]
    scene.tick(2.0, seats=(*silent[:2], replace(silent[2], terminating=True)))
    assert scene.read("seats", fleet="chat-own", value="Serving") == 1.0
    assert scene.read("fleet_unreachable_seats", fleet="chat-own") == 1.0
    assert scene.read("fleet_unreachable_seats", fleet="spares") == 1.0, "the terminating one is gone anyway"
    scene.tick(3.0)
    assert scene.read("fleet_unreachable_seats", fleet="chat-own") == 0.0
    assert scene.read("fleet_unreachable_seats", fleet="spares") == 0.0


def test_unknown_is_absent_and_not_zero(scene: Scene) -> None:
    scene.tick()
    assert scene.read("demand_requests", policy="code") is None
    assert scene.read("signal_age_seconds", policy="code", source="gateway") is None
    assert scene.read("signal_quality", policy="code", source="gateway", quality="Missing") == 1.0
    assert scene.read("signal_age_seconds", policy="chat", source="gateway") == 0.25
    assert scene.read("signal_quality", policy="chat", source="gateway", quality="Fresh") == 1.0


@pytest.mark.usefixtures("read_signals")
def test_readings_of_signals_are_counted_by_how_they_ended_with_the_time_of_the_last(scene: Scene) -> None:
    counted = {"policy": "chat", "signal": "ttft"}
    assert scene.read("signal_readings_total", **counted, outcome="Read") == 5.0
    assert scene.read("signal_readings_total", **counted, outcome="Failed") == 2.0
    assert scene.read("signal_readings_total", **counted, outcome="Spoilt") == 1.0
    assert scene.read("signal_last_reading_timestamp_seconds", **counted) == 1e9
    assert scene.read("signal_last_reading_timestamp_seconds", policy="chat", signal="jobs") == 0.0


def test_whether_samples_over_redis_are_listened_to_shows_only_where_they_should_be() -> None:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    assert registry.get_sample_value("emberpool_signal_channel_connected") is None
    metrics.signals.listens(False)
    assert registry.get_sample_value("emberpool_signal_channel_connected") == 0.0


def test_a_source_that_crashed_is_counted(scene: Scene) -> None:
    scene.metrics.signals.restarted("Prometheus")
    assert scene.read("signal_source_restarts_total", type="Prometheus") == 1.0


@pytest.mark.parametrize("source", ["engines", "backlog", "late_share"])
def test_what_not_every_policy_has_is_a_source_from_its_first_reading_on(scene: Scene, source: str) -> None:
    scene.tick(1.0)
    labels = {"policy": "chat", "source": source, "quality": "Missing"}
    assert scene.read("signal_quality", **labels) is None
    scene.tick(2.0, loads={**LOADS, CHAT: replace(LOADS[CHAT], **{source: reading(0.5)})})
    assert scene.read("signal_quality", **labels) == 0.0
    scene.tick(3.0, loads={**LOADS, CHAT: replace(LOADS[CHAT], **{source: MISSING})})
    assert scene.read("signal_quality", **labels) == 1.0


def test_before_the_first_tick_there_is_the_process_alone(scene: Scene) -> None:
    assert scene.read("tick_last_success_timestamp_seconds") == 0.0
    assert scene.read("leader") == 0.0
    assert b"policy=" not in generate_latest(scene.registry)


# ------------------------------------------------------------------ what happened


def test_ticks_wakeups_and_decisions_are_counted(scene: Scene) -> None:
    mode = scene.tick(1.0).decision.policies[CODE].mode
    scene.tick(2.0)
    assert scene.read("tick_duration_seconds_count") == 2.0
    assert scene.read("tick_wakeups_total", cause="sample") == 4.0
    assert scene.read("tick_wakeups_total", cause="other") == 2.0
    counted = [
        scene.read("decisions_total", policy="code", mode=each) for each in ("Stable", "Burst", "Hold")
    ]
    assert sum(each or 0 for each in counted) == 2.0
    assert (scene.read("decisions_total", policy="code", mode=mode) or 0) >= 1.0
    assert scene.read("tick_last_success_timestamp_seconds") == 1e9 + 2.0


def stages(scene: Scene, operation: str = "Switch") -> dict[str, float]:
    found = {}
    for stage in catalogue.STAGES:
        labels = {"policy": "chat", "operation": operation, "stage": stage}
        if scene.read("promotion_duration_seconds_count", **labels):
            found[stage] = round(scene.read("promotion_duration_seconds_sum", **labels) or 0.0, 6)
    return found


def test_a_promotion_is_measured_stage_by_stage(scene: Scene) -> None:
    scene.tick()
    record = promotion()
    scene.metrics.promoted(record)
    scene.metrics.answered(record, 100.1, waited=True)
    measured = stages(scene)
    assert measured == {
        "decision": 0.004,
        "claimed": 0.006,
        "resumed": 0.04,
        "canary": 0.01,
        "rotation": 0.015,
        "first_token": 0.025,
    }
    whole = scene.read("promotion_to_first_token_seconds_sum", policy="chat")
    assert whole == pytest.approx(sum(measured.values()))
    assert scene.read("promotion_to_rotation_seconds_bucket", policy="chat", le="0.05") == 0.0
    assert scene.read("promotion_to_rotation_seconds_bucket", policy="chat", le="0.1") == 1.0
    assert scene.read("promotions_total", policy="chat", operation="Switch", outcome="Promoted") == 1.0


def test_a_failed_promotion_is_counted_and_not_measured(scene: Scene) -> None:
    scene.tick()
    scene.metrics.promoted(promotion(error="the engine was lost", rotation=0.0))
    assert stages(scene) == {}
    assert scene.read("promotions_total", policy="chat", operation="Switch", outcome="Failed") == 1.0


def test_a_first_token_that_nobody_waited_for_says_nothing(scene: Scene) -> None:
    scene.tick()
    scene.metrics.answered(promotion(), 160.0, waited=False)
    assert scene.read("promotion_to_first_token_seconds_count", policy="chat") == 0.0


def test_held_time_is_the_integral_of_the_seats(scene: Scene) -> None:
    scene.tick(10.0)
    scene.tick(12.5)
    scene.tick(13.0, seats=SEATS[:2])
    generate_latest(scene.registry)
    scene.tick(17.0, seats=())
    scene.tick(99.0, seats=())
    assert scene.read("seat_seconds_total", fleet="spares", value="Spare") == 2 * 2.5 + 2 * 0.5 + 4.0
    assert scene.read("gpu_seconds_total", fleet="spares", value="Spare") == 2 * (2 * 2.5 + 2 * 0.5 + 4.0)
    assert scene.read("gpu_seconds_total", fleet="chat-own", value="Serving") == 7.0


def test_a_machine_without_gpus_has_seat_time_alone(scene: Scene) -> None:
    plain = [seat("pod-0", SPARES, CODE, gpus=0)]
    scene.tick(1.0, seats=plain)
    scene.tick(3.0, seats=plain)
    assert scene.read("seat_seconds_total", fleet="spares", value="Spare") == 2.0
    assert scene.read("gpu_seconds_total", fleet="spares", value="Spare") == 0.0


@pytest.mark.looptime
async def test_restarts_are_counted_from_the_first_sight_on_and_never_fall(scene: Scene) -> None:
    scene.tick()
    events = EventLog(lambda _: None, LoopClock())
    events.watch(scene.metrics)
    at_first, later = (replace(SEATS[0].residents[0], restarts=count) for count in (3, 5))
    events.seats(OWN, [replace(SEATS[0], residents=(at_first,))])
    assert scene.read("resident_restarts_total", policy="chat") == 0.0
    events.seats(OWN, [replace(SEATS[0], residents=(later,))])
    events.seats(OWN, [])
    events.seats(OWN, [replace(SEATS[0], residents=(at_first,))])
    assert scene.read("resident_restarts_total", policy="chat") == 2.0


# ------------------------------------------------------------------ starts


def phases(scene: Scene, **labels: str) -> dict[str, float]:
    """Seconds by phase, of all starts together."""
    name = "emberpool_startup_phase_seconds_sum"
    wanted = set(labels.items())
    return {
        dict(of)["phase"]: value
        for (each, of), value in scene.samples().items()
        if each == name and wanted <= set(of)
    }


def test_a_seats_first_start_is_counted_from_its_pods_creation(scene: Scene) -> None:
    scene.tick()
    scene.metrics.started(*begun())
    found = phases(scene, policy="chat", fleet="chat-own")
    assert found == {"scheduled": 2.0, "image": 28.0, "waiting": 1.0, "weights": 0.5, "other": 2.0}


def test_a_later_start_is_counted_from_its_own_beginning(scene: Scene) -> None:
    scene.tick()
    scene.metrics.started(*begun(at=9000.0, restarts=1))
    assert phases(scene) == {"waiting": 0.5, "weights": 0.5, "other": 2.0}


def test_seats_that_start_badly_are_counted_for_each_fleet(scene: Scene) -> None:
    scene.tick()
    assert scene.read("fleet_ailing_seats", fleet="spares") == 0.0
    ailing = {SeatName("s"): "3 bad starts", SeatName("t"): "CrashLoopBackOff"}
    causes = {SeatName("s"): Cause.SLOW_START, SeatName("t"): Cause.CRASH_LOOP}
    scene.metrics.healed(SPARES, Found(ailing=ailing, causes=causes, held_back="too many"))
    assert scene.read("fleet_ailing_seats", fleet="spares") == 2.0
    assert scene.read("fleet_crash_looping_seats", fleet="spares") == 1.0
    assert scene.read("fleet_healing_held_back", fleet="spares") == 1.0
    assert scene.read("fleet_healing_held_back", fleet="chat-own") == 0.0


def test_graphs_that_come_later_are_a_phase_of_their_own(scene: Scene) -> None:
    scene.tick()
    seat, resident = begun()
    scene.metrics.captured(seat, resident, 1.5)
    assert phases(scene) == {"late-capture": 1.5}


def test_what_else_is_known_of_starts_is_counted(scene: Scene) -> None:
    scene.tick()
    scene.metrics.started(*begun())
    scene.metrics.started(*begun())
    scene.metrics.promoted(promotion())
    of = {"policy": "chat", "tier": "Staged"}
    assert scene.read("weight_load_duration_seconds_sum", **of) == 1.0
    assert scene.read("weight_load_rate_bytes_per_second_sum", **of) == 32e9
    assert scene.read("first_request_duration_seconds_count", policy="chat") == 2.0
    assert scene.read("compile_cache_lookups_total", policy="chat", outcome="Hit") == 6.0
    assert scene.read("compile_cache_lookups_total", policy="chat", outcome="Miss") == 2.0
    assert scene.read("engine_contexts_total", policy="chat", outcome="New") == 2.0
    assert scene.read("engine_contexts_total", policy="chat", outcome="Reused") == 1.0
    scene.metrics.promoted(promotion(error="it fell over"))
    assert scene.read("engine_contexts_total", policy="chat", outcome="Reused") == 1.0
