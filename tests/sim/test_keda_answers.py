"""What a tick of the whole controller puts up for KEDA."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from scaler.core.islands import Island
from scaler.core.model import FallbackBehavior, FleetShare, FleetSpec, PolicySpec
from scaler.keda.answers import answer
from scaler.keda.settings import KedaSettings
from scaler.keda.trigger import read
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyFiles, Reading
from scaler.runtime.controller import Tick
from scaler.runtime.keda_answers import KedaAnswers
from tests.fakes.loop_clock import LoopClock
from tests.sim.world import World, world
from warmpool.seats import FleetName, PolicyName

pytestmark = pytest.mark.looptime
SPARES, CHAT = FleetName("spares"), PolicyName("chat")
FILE = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares, namespace: serving}
spec: {maxSeats: 4, spare: {min: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat, namespace: serving}
spec: {fleets: [{name: spares, targetInFlight: 4}], serving: {min: 1, max: 4}}
"""


def policies(folder: Path, text: str = FILE) -> PolicySet:
    (folder / "policies.yaml").write_text(text, "utf-8")
    return PolicyFiles((folder,)).read().set


def answers(folder: Path, settings: KedaSettings | None = None) -> KedaAnswers:
    return KedaAnswers(policies(folder), LoopClock(), settings or KedaSettings())


async def settled(on: World) -> None:
    await on.until(lambda: on.serving("chat") >= 1 and on.controller.last is not None)


def specs() -> tuple[list[PolicySpec], list[FleetSpec]]:
    policy = PolicySpec(
        name=CHAT,
        fleets=(FleetShare(fleet=SPARES, target_in_flight=4),),
        serving_min=1,
        fallback=FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER,
        fallback_serving=2,
    )
    return [policy], [FleetSpec(name=SPARES, max_seats=4, spare_target=1)]


async def test_a_tick_puts_up_the_fleets_total_and_the_policys_numbers(tmp_path: Path) -> None:
    keda = answers(tmp_path)
    async with world(*specs()) as on:
        await settled(on)
        for _ in range(6):
            on.traffic.arrive(CHAT, 30.0)
        await on.until(lambda: on.serving("chat") >= 2)
        tick = on.controller.last
        assert tick is not None
        keda.published(tick)
        now = LoopClock().monotonic()
        expected = {
            ("fleet", "spares", "Total"): float(tick.decision.fleets[SPARES].total),
            ("fleet", "serving/spares", "Spare"): 1.0,
            ("policy", "chat", "Serving"): float(sum(tick.decision.policies[CHAT].serving.values())),
            ("policy", "chat", "QueueDepth"): tick.snapshot.loads[CHAT].queued.value,
        }
        for (subject, name, value), number in expected.items():
            found = answer(read({subject: name, "value": value}), keda.board.current, now)
            assert (found.value, found.stale) == (number, False)
        assert keda.board.current.fleets["spares"].fallback == 3, "two residents and a spare"


async def test_before_the_first_seat_comes_a_policy_serves_what_it_shall(tmp_path: Path) -> None:
    """A companion that follows it would go to zero with each cold start otherwise."""
    keda = answers(tmp_path)
    async with world(*specs()) as on:
        await settled(on)
        tick = on.controller.last
        assert tick is not None
        cold = replace(tick.decision.policies[CHAT], serving={SPARES: 0}, wanted={SPARES: 2})
        seen = replace(with_total(tick, 3), decision=replace(tick.decision, policies={CHAT: cold}))
        keda.published(seen)
        found = answer(read({"policy": "chat"}), keda.board.current, LoopClock().monotonic())
        assert (found.value, found.active) == (2.0, True)


async def test_a_total_falls_only_when_nothing_is_being_promoted_and_every_serving_pod_is_ready(
    tmp_path: Path,
) -> None:
    keda = answers(tmp_path)
    async with world(*specs()) as on:
        await settled(on)
        await on.until(lambda: all(seat.ready for seat in on.cluster.seats()))
        await asyncio.sleep(2.0)
        tick = on.controller.last
        assert tick is not None
        told = []
        for seen in (
            with_total(tick, 4),
            promoting(with_total(tick, 2)),
            unready(with_total(tick, 2)),
            with_total(tick, 2),
        ):
            keda.published(seen)
            told.append(keda.board.current.fleets["spares"].total)
        assert told == [4, 4, 4, 2]


async def test_a_total_stays_as_it_was_told_while_a_lower_one_could_cost_a_seat(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []
    why = "seat spares-0 is Serving, and its deletion cost doesn't say so yet"

    def refused(fleet: FleetName, total: int) -> str:
        asked.append((fleet, total))
        return why

    keda = KedaAnswers(policies(tmp_path), LoopClock(), KedaSettings(), refused=refused)
    async with world(*specs()) as on:
        await settled(on)
        await on.until(lambda: all(seat.ready for seat in on.cluster.seats()))
        await asyncio.sleep(2.0)
        tick = on.controller.last
        assert tick is not None
        told = []
        for total in (4, 4, 2):
            keda.published(with_total(tick, total))
            told.append(keda.board.current.fleets["spares"].total)
        why = ""
        keda.published(with_total(tick, 2))
        told.append(keda.board.current.fleets["spares"].total)
        assert told == [4, 4, 4, 2]
        assert asked == [(SPARES, 2), (SPARES, 2)], "nobody is asked about what isn't lower"


async def test_who_has_told_nothing_yet_holds_the_size_that_there_is(tmp_path: Path) -> None:
    keda = KedaAnswers(policies(tmp_path), LoopClock(), KedaSettings(), refused=lambda *_: "a rollout")
    async with world(*specs()) as on:
        await settled(on)
        await on.until(lambda: all(seat.ready for seat in on.cluster.seats()))
        tick = on.controller.last
        assert tick is not None
        view = replace(tick.snapshot.fleets[SPARES], replicas=3)
        seen = replace(with_total(tick, 2), snapshot=replace(tick.snapshot, fleets={SPARES: view}))
        keda.published(seen)
        assert keda.board.current.fleets["spares"].total == 3


def with_total(tick: Tick, total: int) -> Tick:
    fleet = replace(tick.decision.fleets[SPARES], total=total)
    return replace(
        tick, looked=Island(*map(tuple, specs())), decision=replace(tick.decision, fleets={SPARES: fleet})
    )


def promoting(tick: Tick) -> Tick:
    view = tick.snapshot.fleets[SPARES]
    supply = {CHAT: replace(view.supply[CHAT], promoting=1)}
    return replace(tick, snapshot=replace(tick.snapshot, fleets={SPARES: replace(view, supply=supply)}))


def unready(tick: Tick) -> Tick:
    return replace(tick, stock={SPARES: [replace(seat, ready=False) for seat in tick.stock[SPARES]]})


async def test_what_is_decided_is_put_up_for_whom_it_is_told_to(tmp_path: Path) -> None:
    keda = KedaAnswers(policies(tmp_path), LoopClock(), None)
    async with world(*specs()) as on, keda.serve() as port:
        await settled(on)
        assert on.controller.last is not None
        keda.published(on.controller.last)
        assert port is None
        assert not keda.board.decided
        keda.board.subscribe(lambda _: None)  # another replica follows
        keda.published(on.controller.last)
        assert keda.board.decided


class Force:
    """Takes every set."""

    async def refuse(self, _: Reading) -> list[object]:
        return []

    def adopt(self, _: PolicySet) -> list[str]:
        return ["a note"]


def test_a_reload_changes_what_can_be_asked_for(tmp_path: Path) -> None:
    keda = answers(tmp_path)
    force = keda.following(Force())  # type: ignore[arg-type] # faults are none
    other = policies(tmp_path, FILE.replace("name: spares", "name: own").replace("serving}", "other}"))
    assert force.adopt(other) == ["a note"]
    assert {name: dict(each) for name, each in keda.board.current.names.items()} == {
        "fleet": {"own": "other"},
        "policy": {"chat": "other"},
    }
