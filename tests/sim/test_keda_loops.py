"""Closed loops with KEDA in virtual time: what is decided is put up, asked for, and comes back as seats.

The law, the answers and their ages are the real ones; KEDA and the HPA are models of what they do (`tests.fakes.keda_operator`).
"""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from scaler.keda.answers import STALE_SECONDS, UNKNOWN_SECONDS, Code, Refused, answer
from scaler.keda.findings import Code as Found
from scaler.keda.objects import Fallback, Pause
from scaler.keda.published import Board, FleetFigures
from scaler.keda.trigger import read
from scaler.runtime.bench.law.hpa import DEFAULT_DOWN, DEFAULT_UP, SYNC_SECONDS, Hpa
from tests.fakes.keda_operator import Operator
from tests.sim.test_closed_loop import (
    DEMOTE,
    DOWN,
    FLEET,
    HOUR,
    HPA_DOWN,
    SLACK,
    STABLE,
    START_SECONDS,
    TARGET,
    Cluster,
    constant,
    steps,
)
from tests.unit.scaler.keda.test_findings import found

TRIGGER = read({"fleet": FLEET})
SHIPPED = Hpa(
    max_replicas=60,
    up=replace(DEFAULT_UP, limits=(replace(DEFAULT_UP.limits[1], value=60),), tolerance=0.0),
    down=replace(DEFAULT_DOWN, window=0.0, tolerance=0.0),
)
"""The HPA's behavior as deploy/keda has it."""
FALLBACK = Fallback(threshold=3, replicas=3, behavior="currentReplicasIfHigher")


@dataclass
class Served:
    """Our server, as an operator sees it: away, or with what the board has."""

    board: Board
    away: bool = False

    def metric_spec(self, now: float) -> None:
        del now
        self._reached()

    def metrics(self, now: float) -> float:
        self._reached()
        return answer(TRIGGER, self.board.current, now).value

    def is_active(self, now: float) -> bool:
        self._reached()
        return answer(TRIGGER, self.board.current, now).active

    def _reached(self) -> None:
        if self.away:
            raise Refused(Code.UNAVAILABLE, "connection refused")


@dataclass
class Loop(Cluster):
    """A fleet that KEDA resizes.

    Attributes:
        minimum: `minReplicaCount`.
        pushes: when the stream said what.
        stuck: nothing is decided, and the server answers all the same.
    """

    minimum: int = 0
    cooldown: float = 300.0
    fallback: Fallback | None = FALLBACK
    pause: Pause = field(default_factory=Pause)
    hpa: Hpa = SHIPPED
    pushes: list[tuple[float, bool]] = field(default_factory=list)
    stuck: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.board = Board()
        self.board.follow({FLEET: "serving"}, {})
        self.served = Served(self.board)
        self.streams = False
        self.operator = Operator(
            self.served,
            replace(self.hpa, min_replicas=max(1, self.minimum)),
            self.scale,
            minimum=self.minimum,
            cooldown=self.cooldown,
            fallback=self.fallback,
            pause=self.pause,
        )

    def run(self, seconds: float, *, controller: bool = True) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            self.served.away = not controller
            if controller and not self.stuck:
                self._decide()
                last = self.last
                figures = FleetFigures(
                    at=self.now, total=last.total, serving=last.serving, spare=last.spare, fallback=3
                )
                self.board.publish({FLEET: figures}, {})
            self._push(controller=controller)
            self.operator.tick(self.now, self.replicas)

    def _push(self, *, controller: bool) -> None:
        """Open the stream when the operator does, and say what is to be said on it."""
        if not controller:
            if self.operator.opens_stream(self.now):
                self.operator.stream_ended(self.now, ok=False)
            return
        if self.operator.opens_stream(self.now):
            self.streams, said = True, None
        elif self.streams:
            said = self.pushes[-1][1] if self.pushes else None
        else:
            return
        try:
            state = answer(TRIGGER, self.board.current, self.now).active
        except Refused:
            return
        if state is not said:
            self.pushes.append((self.now, state))
            self.operator.pushed(self.now, self.replicas, active=state)

    def end_streams(self, *, ok: bool) -> None:
        self.streams = False
        self.operator.stream_ended(self.now, ok=ok)


def loop(**given: Any) -> Loop:
    return Loop(**{"demand": constant(0), "replicas": 0, "spare": 0, "serving_min": 0, **given})


# ------------------------------------------------------------------ nothing moves that shouldn't


def test_a_fleet_that_idles_past_the_cooldown_keeps_its_spares() -> None:
    on = loop(replicas=2, spare=2, cooldown=10.0)
    on.run(HOUR)
    assert on.moves == []
    assert on.last.total == 2


@pytest.mark.parametrize("requests", [1, 20, 160])
def test_an_hour_of_constant_demand_moves_nothing(requests: int) -> None:
    wanted = -(-requests // TARGET) + 2
    on = loop(demand=constant(requests), replicas=wanted, spare=2, serving_min=1, minimum=3)
    on.run(HOUR)
    assert on.moves == []


@pytest.mark.parametrize(
    "fallback",
    [None, FALLBACK, Fallback(threshold=1, replicas=1, behavior="currentReplicas")],
)
@pytest.mark.parametrize("minimum", [0, 3])
def test_a_server_that_is_gone_for_ten_minutes_shrinks_nothing(
    fallback: Fallback | None, minimum: int
) -> None:
    on = loop(
        demand=constant(40),
        replicas=7,
        spare=2,
        serving_min=1,
        minimum=minimum,
        fallback=fallback,
        cooldown=10.0,
    )
    on.run(600.0)
    on.run(600.0, controller=False)
    on.run(600.0)
    assert on.moves == []


def test_a_controller_that_is_stuck_shrinks_nothing_neither_while_stale_nor_when_unknown() -> None:
    on = loop(demand=constant(40), replicas=7, spare=2, serving_min=1, minimum=3, cooldown=10.0)
    on.run(600.0)
    on.stuck = True
    on.run(STALE_SECONDS + 10.0)
    assert on.served.metrics(on.now) == 7.0
    on.run(UNKNOWN_SECONDS)
    with pytest.raises(Refused, match="nothing is known"):
        on.served.metrics(on.now)
    on.run(1200.0)
    assert on.moves == []


def test_a_static_fallback_below_the_running_size_shrinks_the_fleet_and_the_check_says_so() -> None:
    static = Fallback(threshold=3, replicas=3, behavior="static")
    on = loop(demand=constant(40), replicas=7, spare=2, serving_min=1, minimum=3, fallback=static)
    on.run(600.0)
    on.run(600.0, controller=False)
    assert [replicas for _, replicas in on.moves] == [3]
    assert Found.FALLBACK_BELOW_RUNNING in found({"spec.fallback.behavior": "static"}, running=7)


def test_a_fallback_of_zero_scales_to_zero_while_nobody_answers_and_the_check_says_so() -> None:
    none = Fallback(threshold=3, replicas=0, behavior="currentReplicasIfHigher")
    on = loop(demand=constant(40), replicas=7, spare=2, serving_min=1, fallback=none, cooldown=60.0)
    on.run(600.0)
    on.run(120.0, controller=False)
    assert on.replicas == 0
    changes = {"spec.fallback.replicas": 0, "spec.minReplicaCount": 0}
    assert Found.FALLBACK_ZERO in found(changes, floor=0)


# ------------------------------------------------------------------ zero, one, many, zero


def test_a_first_request_activates_within_a_second_and_the_hpa_does_the_rest_at_its_next_sync() -> None:
    at = 600.0
    on = loop(demand=steps((0.0, 0), (at, 40)))
    on.run(at + 60.0)
    (first, one), (then, many) = on.moves
    assert (one, many) == (1, 5)
    assert first <= at + 1.0, "the edge is pushed; a poll is up to 5 s away"
    assert then <= first + SYNC_SECONDS
    on.run(START_SECONDS + 60.0)
    assert on.serving == 5


def test_without_streams_activation_waits_for_a_poll() -> None:
    at = 601.0
    on = loop(demand=steps((0.0, 0), (at, 40)))
    on.run(10.0)
    on.streams = False
    on.run(at + 60.0)
    assert at <= on.moves[0][0] <= at + 5.0


def test_demand_that_ends_takes_the_fleet_to_zero_after_all_windows_and_once() -> None:
    at = 600.0
    on = loop(demand=steps((0.0, 40), (at, 0)), replicas=5, cooldown=60.0)
    on.run(at + 1200.0)
    totals = [replicas for _, replicas in on.moves]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 0
    assert on.moves[-1][0] <= at + STABLE + DEMOTE + DOWN + SLACK + on.cooldown + 10.0
    assert on.moves[-1][0] >= at + on.cooldown


def test_the_way_to_zero_is_kedas_cooldown_and_not_the_hpas_window() -> None:
    """From the moment at which the total is 0: KEDA asks nobody how many there still are."""
    at = 600.0
    slow = replace(SHIPPED, down=replace(DEFAULT_DOWN, tolerance=0.0))
    on = loop(demand=steps((0.0, 40), (at, 0)), replicas=5, cooldown=60.0, hpa=slow)
    on.run(at + 1200.0)
    assert on.moves[-1][1] == 0
    assert on.moves[-1][0] <= at + STABLE + DEMOTE + DOWN + SLACK + on.cooldown + 10.0


def test_the_hpas_own_window_comes_on_top_of_the_fleets_where_something_stays() -> None:
    at = 600.0
    slow = replace(SHIPPED, down=replace(DEFAULT_DOWN, tolerance=0.0))
    last = {}
    for hpa in (SHIPPED, slow):
        on = loop(demand=steps((0.0, 40), (at, 8)), replicas=5, hpa=hpa)
        on.run(at + STABLE + DEMOTE + DOWN + HPA_DOWN + 4 * SLACK)
        assert on.replicas == 1
        last[hpa.down.window] = on.moves[-1][0]
    assert abs(last[HPA_DOWN] - last[0.0] - HPA_DOWN) <= 2 * SYNC_SECONDS


# ------------------------------------------------------------------ errors and the fallback


def test_an_error_moves_nothing_between_zero_and_one() -> None:
    on = loop(fallback=None)
    on.run(60.0)
    on.run(600.0, controller=False)
    assert on.moves == []


def test_the_fallback_brings_a_fleet_up_to_its_floor_after_more_failures_than_the_threshold() -> None:
    on = loop(demand=constant(0), replicas=1, spare=1, fallback=FALLBACK, minimum=0)
    on.run(60.0)
    on.run(600.0, controller=False)
    (at, replicas) = on.moves[0]
    assert replicas == 3
    assert 60.0 + 3 * SYNC_SECONDS <= at <= 60.0 + 4 * SYNC_SECONDS + 1.0


def test_polls_have_the_recorded_order() -> None:
    on = loop(replicas=1, spare=1)
    on.run(20.0)
    assert on.operator.calls == "sma" * 4
    on.operator.calls = ""
    on.stuck = True
    on.run(10.0, controller=False)
    assert on.operator.calls == "s" * 2, "whoever doesn't answer the first call gets no other"
    on.operator.calls = ""
    on.board.follow({}, {})
    on.board.follow({FLEET: "serving"}, {})
    on.run(10.0)
    assert on.operator.calls == "smm" * 2, "as recorded: a spec is there, and its value unknown"


# ------------------------------------------------------------------ people who stop KEDA


def test_a_paused_object_moves_nothing_however_the_total_changes() -> None:
    on = loop(demand=steps((0.0, 8), (600.0, 80)), replicas=1, pause=Pause(stopped=True))
    on.run(1200.0)
    assert on.moves == []
    assert on.last.total == 10


def test_paused_replicas_are_written_once_and_are_a_persons_wish_that_lapses() -> None:
    on = loop(demand=constant(8), replicas=1, pause=Pause(stopped=True, replicas=4))
    on.run(1200.0)
    assert [replicas for _, replicas in on.moves] == [4]
    assert on.last.total == 1


def test_paused_scale_out_holds_growth_and_activation_and_nothing_else() -> None:
    on = loop(demand=steps((0.0, 0), (600.0, 40)), pause=Pause(scale_out=True))
    on.run(1200.0)
    assert on.moves == []
    assert on.pushes[-1][1], "it was pushed"


def test_paused_scale_in_holds_what_there_is() -> None:
    on = loop(demand=steps((0.0, 40), (600.0, 0)), replicas=5, pause=Pause(scale_in=True), cooldown=10.0)
    on.run(1200.0)
    assert on.moves == []


# ------------------------------------------------------------------ restarts


def test_a_clean_end_has_the_stream_back_after_two_seconds_however_often() -> None:
    on = loop(replicas=1, spare=1)
    on.run(10.0)
    for _ in range(10):
        on.end_streams(ok=True)
        on.run(5.0)
    opened = on.operator.streams_opened
    assert len(opened) == 11
    assert all(after - before <= 5.0 for before, after in itertools.pairwise(opened[1:]))
    assert len(on.pushes) == 11, "each begins with the present state"


def test_ends_that_arent_clean_leave_holes_of_up_to_a_minute() -> None:
    """Why the server ends its streams with OK."""
    on = loop(replicas=1, spare=1)
    on.run(10.0)
    for _ in range(8):
        on.end_streams(ok=False)
        on.run(61.0)
    gaps = [
        after - before
        for before, after in zip(on.operator.streams_opened, on.operator.streams_opened[1:], strict=False)
    ]
    assert max(gaps) >= 61.0


def test_a_restart_of_the_controller_moves_nothing() -> None:
    on = loop(demand=constant(40), replicas=7, spare=2, serving_min=1, minimum=3)
    on.run(600.0)
    on.end_streams(ok=True)
    on.run(3.0, controller=False)
    on.restart()
    on.run(1200.0)
    assert on.moves == []
