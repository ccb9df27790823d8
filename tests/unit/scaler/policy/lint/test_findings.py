"""Each check, with the smallest set that it has something to say of and one that it hasn't."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from scaler.policy.document import dotted
from scaler.policy.lint import Code, Severity
from tests.unit.scaler.policy.lint.sets import (
    Tree,
    controller,
    deployment,
    findings,
    fleet,
    policy,
    residents,
)

GATEWAY = {"name": "gateway", "type": "Pushed"}
ENGINE = {"name": "engine", "type": "EngineMetrics"}
INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR


def prometheus(query: str, measures: str = "QueueDepth", **more: Any) -> Tree:
    return {
        "name": "prom",
        "type": "Prometheus",
        "query": query,
        "measures": measures,
        "server": "http://p:9090",
        **more,
    }


def share(query: str) -> Tree:
    return policy(signals=[GATEWAY, prometheus(query, "TtftShareOverObjective")])


def window(count: str, start: str = "0 8 * * *") -> Tree:
    return {"name": "day", "start": start, "end": "0 22 * * *", count: 2}


CHAT = {"policy": "chat", "command": ["vllm"], "port": 8001}
KEDA = {"resizedBy": "Keda"}
SERVING = 'kube_pod_labels{label_serving_emberpool_dev_chat="true"}'
GOOD_SHARE = f'1 - sum(rate(m_bucket{{le="5.0"}}[1m]) * {SERVING}) / sum(rate(m_count[1m]) * {SERVING})'
JOBS = {
    "name": "jobs",
    "type": "RedisList",
    "key": "jobs",
    "server": {"addresses": ["redis:6379"]},
}
SLOW = {"startSeconds": 90}
BARE = fleet(spare={"min": 0}, maxSeats=2)
KV = 'vllm:kv_cache_usage_perc{namespace="default"}'
SLOTS = 'slots{namespace="default"}'
WAITING = 'vllm:num_requests_waiting{model_name="chat"}'
RUNNING = 'vllm:num_requests_running{model_name="chat"}'
SIZES = {"pausedMiB": 16_000, "kvMiB": 40_000}
PAUSED = {"engine": SIZES}
CHECKED = {"engine": {**SIZES, "activationMiB": 2_000}}


def parking(memory: int, host: int = 40_000) -> Tree:
    """A fleet with so many MiB of GPU memory, and of host memory for parked residents."""
    return fleet(seat={"memoryMiB": memory}, spare={"min": 1, "parked": {"hostMemoryMiB": host}})


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a check says of `loud`, and that it says nothing of `quiet`.

    `quietly` is assumed for the latter where it matters, else the same as for the former.
    """

    loud: Sequence[Tree]
    quiet: Sequence[Tree]
    severity: Severity
    path: str
    says: str
    assumed: dict[str, Any] = field(default_factory=dict)
    quietly: dict[str, Any] | None = None


CASES: list[tuple[Code, Case]] = [
    (
        Code.NOT_ACTED_ON,
        Case(
            loud=[fleet(spare={"min": 1, "replenish": {"maxPerNode": 1}}), policy(engine={"type": "SGLang"})],
            quiet=[fleet(), policy(), controller(breaker={"maxPercent": 5})],
            severity=WARNING,
            path="spec.spare.replenish.maxPerNode",
            says="is not acted on yet: seats that are starting are not counted by node",
        ),
    ),
    (
        Code.SCALE_UP_DISABLED,
        Case(
            loud=[fleet(scaleUp={"selectPolicy": "Disabled"}), policy()],
            quiet=[fleet(scaleUp={"selectPolicy": "Min"}), policy()],
            severity=WARNING,
            path="spec.scaleUp.selectPolicy",
            says="the fleet never grows beyond its floors; spares that a burst took don't come back",
        ),
    ),
    (
        Code.SCALE_DOWN_DISABLED,
        Case(
            loud=[fleet(scaleDown={"selectPolicy": "Disabled"}), policy()],
            quiet=[fleet(), policy()],
            severity=WARNING,
            path="spec.scaleDown.selectPolicy",
            says="after one burst it keeps up to 4 seats",
        ),
    ),
    (
        Code.CHANGE_IGNORED,
        Case(
            loud=[fleet(maxSeats=20, scaleUp={"tolerancePercent": 10}), policy()],
            quiet=[fleet(maxSeats=9, scaleUp={"tolerancePercent": 10}), policy()],
            severity=WARNING,
            path="spec.scaleUp.tolerancePercent",
            says="from 10 seats on a change of one is ignored, at 20 seats one of up to 2, as many as all its spare seats (1)",
        ),
    ),
    (
        Code.CHANGE_IGNORED,
        Case(
            loud=[fleet(scaleDown={"tolerancePercent": 100}), policy()],
            quiet=[fleet(maxSeats=9, scaleDown={"tolerancePercent": 10}), policy()],
            severity=WARNING,
            path="spec.scaleDown.tolerancePercent",
            says="the fleet never shrinks",
        ),
    ),
    (
        Code.CHANGE_IGNORED,
        Case(
            loud=[fleet(maxSeats=20, scaleDown={"tolerancePercent": 10}), policy()],
            quiet=[fleet(maxSeats=20), policy()],
            severity=INFO,
            path="spec.scaleDown.tolerancePercent",
            says="at 20 seats one of up to 2",
        ),
    ),
    (
        Code.HPA_DEAD_ZONE,
        Case(
            loud=[fleet(maxSeats=44, spare={"min": 2}, **KEDA), policy()],
            quiet=[fleet(maxSeats=9, **KEDA), policy()],
            severity=INFO,
            path="spec.resizedBy",
            says="(its default, unless the ScaledObject says otherwise) ignores a change of one seat from 10 seats on, at 44 seats one of up to 4, as many as all its spare seats (2)",
        ),
    ),
    (
        Code.HPA_DEAD_ZONE,
        Case(
            loud=[fleet(maxSeats=44, spare={"min": 6}, **KEDA), policy()],
            quiet=[fleet(maxSeats=44), policy()],
            severity=INFO,
            path="spec.resizedBy",
            says="at 44 seats one of up to 4",
        ),
    ),
    (
        Code.WINDOWS_ADD_UP,
        Case(
            loud=[fleet(spare={"min": 0}, **KEDA), policy(serving={"min": 0})],
            quiet=[fleet(spare={"min": 1}, scaleDown={"stabilizationWindowSeconds": 0}, **KEDA), policy()],
            severity=INFO,
            path="spec.scaleDown.stabilizationWindowSeconds",
            says="300 s (scaleDown window) + 300 s (HPA's scaleDown window) + 300 s (KEDA's cooldown) = 900 s",
        ),
    ),
    (
        Code.WINDOWS_ADD_UP,
        Case(
            loud=[fleet(**KEDA), policy()],
            quiet=[fleet(), policy()],
            severity=INFO,
            path="spec.scaleDown.stabilizationWindowSeconds",
            says="300 s (scaleDown window) + 300 s (HPA's scaleDown window) = 600 s before a seat",
        ),
    ),
    (
        Code.HPA_DEAD_ZONE,
        Case(
            loud=[fleet(maxSeats=44, **KEDA), policy()],
            quiet=[fleet(maxSeats=9, **KEDA), policy()],
            severity=WARNING,
            path="spec.resizedBy",
            says="the HPA's tolerance of 10 % ignores a change",
            assumed={"hpa_tolerance_percent": 10},
        ),
    ),
    (
        Code.WINDOWS_ADD_UP,
        Case(
            loud=[fleet(**KEDA), policy()],
            quiet=[fleet(), policy()],
            severity=WARNING,
            path="spec.scaleDown.stabilizationWindowSeconds",
            says="windows come one after the other: 300 s",
            assumed={"hpa_down_window_seconds": 300},
        ),
    ),
    (
        Code.ALWAYS_ACTIVE,
        Case(
            loud=[fleet(spare={"min": 2}, **KEDA), policy(serving={"min": 1})],
            quiet=[fleet(spare={"min": 0}, **KEDA), policy(serving={"min": 0})],
            severity=INFO,
            path="spec.spare.min",
            says="never below 3",
        ),
    ),
    (
        Code.SCALE_UP_DELAYED,
        Case(
            loud=[fleet(scaleUp={"stabilizationWindowSeconds": 30}), policy()],
            quiet=[fleet(), policy()],
            severity=INFO,
            path="spec.scaleUp.stabilizationWindowSeconds",
            says="30 s late",
        ),
    ),
    (
        Code.SCALE_DOWN_HASTY,
        Case(
            loud=[fleet(scaleDown={"stabilizationWindowSeconds": 60}), policy(engine={"startSeconds": 90})],
            quiet=[fleet(scaleDown={"stabilizationWindowSeconds": 90}), policy(engine={"startSeconds": 90})],
            severity=WARNING,
            path="spec.scaleDown.stabilizationWindowSeconds",
            says="after 60 s without need, and a new one takes 90 s to start at least",
        ),
    ),
    (
        Code.ONLY_OBSERVED,
        Case(
            loud=[fleet(mode="Observe"), policy()],
            quiet=[fleet(), policy()],
            severity=INFO,
            path="spec.mode",
            says="no resident is promoted",
        ),
    ),
    (
        Code.SPARE_COST,
        Case(
            loud=[fleet(spare={"min": 2}, costPerGpuHour={"cents": 250}), policy()],
            quiet=[fleet(spare={"min": 0}), policy()],
            severity=INFO,
            path="spec.spare.min",
            says="spare seats cost 120 USD a day; all of maxSeats would cost 240 USD",
        ),
    ),
    (
        Code.SHARING_SAVES,
        Case(
            loud=[fleet(spare={"min": 2}), policy(), policy("code")],
            quiet=[fleet(spare={"min": 2}), policy()],
            severity=INFO,
            path="spec.spare.min",
            says="2 models share 2 spare seats; as many for each alone would be 4, so sharing saves 48 GPU-hours a day",
        ),
    ),
    (
        Code.MEMORY_UNKNOWN,
        Case(
            loud=[fleet(), policy(**PAUSED), policy("code", engine={"pausedMiB": 1})],
            quiet=[fleet(seat={"memoryMiB": 143_771}), policy(**PAUSED), policy("code", **PAUSED)],
            severity=INFO,
            path="spec.seat",
            says="whether 2 residents fit a seat can't be told without seat.memoryMiB, engine.kvMiB of code",
        ),
    ),
    (
        Code.SEAT_MEMORY_EXCEEDED,
        Case(
            loud=[fleet(seat={"memoryMiB": 70_000}), policy(**PAUSED), policy("code", **PAUSED)],
            quiet=[fleet(seat={"memoryMiB": 74_000}), policy(**PAUSED), policy("code", **PAUSED)],
            severity=ERROR,
            path="spec.seat.memoryMiB",
            says="16000 (chat paused) + 16000 (code paused) + 40000 (chat KV, the largest) + 1400 (2 % reserve) = 73400 MiB",
        ),
    ),
    (
        Code.SEAT_MEMORY_EXCEEDED,
        Case(
            loud=[fleet(), policy(engine={"pausedMiB": 80_000})],
            quiet=[fleet(), policy(engine={"pausedMiB": 70_000})],
            severity=ERROR,
            path="spec.seat",
            says="its GPUs have 81559 MiB",
            assumed={"seat_memory_mib": 81_559},
        ),
    ),
    (
        Code.SEAT_MEMORY_EXCEEDED,
        Case(
            loud=[parking(50_000), policy(**PAUSED), policy("code", **PAUSED)],
            quiet=[parking(74_000), policy(**PAUSED), policy("code", **PAUSED)],
            severity=ERROR,
            path="spec.seat.memoryMiB",
            says="its GPUs have 50000 MiB",
        ),
    ),
    (
        Code.RESIDENTS_PARKED,
        Case(
            loud=[parking(70_000), policy(**PAUSED), policy("code", **PAUSED)],
            quiet=[parking(74_000), policy(**PAUSED), policy("code", **PAUSED)],
            severity=INFO,
            path="spec.spare.parked.hostMemoryMiB",
            says="there is room for chat to be paused; code waits in host memory, in 16000 of 40000 MiB",
        ),
    ),
    (
        Code.RESIDENTS_COLD,
        Case(
            loud=[parking(70_000, host=9_000), policy(**PAUSED), policy("code", **PAUSED)],
            quiet=[parking(70_000, host=32_000), policy(**PAUSED), policy("code", **PAUSED)],
            severity=WARNING,
            path="spec.spare.parked.hostMemoryMiB",
            says="code finds room in neither GPU nor host memory",
        ),
    ),
    (
        Code.RESIDENTS_COLD,
        Case(
            loud=[parking(70_000), policy(**PAUSED), policy("code", engine={"type": "Generic", **SIZES})],
            quiet=[parking(70_000), policy(**PAUSED), policy("code", engine={"type": "VLLM", **SIZES})],
            severity=WARNING,
            path="spec.spare.parked.hostMemoryMiB",
            says="code finds room in neither",
        ),
    ),
    (
        Code.RESIDENTS_COLD,
        Case(
            loud=[
                parking(70_000),
                *(policy(name, **PAUSED) for name in ("chat", "code", "math")),
            ],
            quiet=[
                parking(70_000, host=48_000),
                *(policy(name, **PAUSED) for name in ("chat", "code", "math")),
            ],
            severity=WARNING,
            path="spec.spare.parked.hostMemoryMiB",
            says="math finds room in neither GPU nor host memory",
        ),
    ),
    (
        Code.PROMOTIONS_NOT_VERIFIED,
        Case(
            loud=[fleet(seat={"memoryMiB": 143_771}), policy(**PAUSED), policy("code", **CHECKED)],
            quiet=[fleet(seat={"memoryMiB": 143_771}), policy(**CHECKED), policy("code", **CHECKED)],
            severity=INFO,
            path="spec.seat",
            says="a promotion of chat that holds more",
        ),
    ),
    (
        Code.HOST_MEMORY_UNUSED,
        Case(
            loud=[parking(74_000), policy(**PAUSED), policy("code", **PAUSED)],
            quiet=[parking(70_000), policy(**PAUSED), policy("code", **PAUSED)],
            severity=INFO,
            path="spec.spare.parked.hostMemoryMiB",
            says="none is parked",
        ),
    ),
    (
        Code.WAKE_MISSES_OBJECTIVE,
        Case(
            loud=[parking(70_000), policy(**PAUSED), policy("code", **PAUSED)],
            quiet=[parking(74_000), policy(**PAUSED), policy("code", **PAUSED)],
            severity=INFO,
            path="spec.objectives.ttft",
            says="burst on own, from host memory: 6.5 s, and the objective is 5 s",
            assumed={"move_milliseconds_per_gib": 200},
        ),
    ),
    (
        Code.WAKE_MISSES_OBJECTIVE,
        Case(
            loud=[
                parking(70_000, host=9_000),
                policy(**PAUSED),
                policy("code", engine={**SIZES, "startSeconds": 40}),
            ],
            quiet=[parking(70_000, host=9_000), policy(**PAUSED), policy("code", **PAUSED)],
            severity=INFO,
            path="spec.objectives.ttft",
            says="burst on own, without an engine: 40.2 s, and the objective is 5 s",
        ),
    ),
    (
        Code.SHARING_CUTS,
        Case(
            loud=[
                parking(50_000, host=0),
                policy(engine={"pausedMiB": 4_000, "kvMiB": 40_000}),
                policy("code", engine={"pausedMiB": 30_000, "kvMiB": 1}),
            ],
            quiet=[  # who is parked takes nothing
                parking(50_000),
                policy(engine={"pausedMiB": 4_000, "kvMiB": 40_000}),
                policy("code", engine={"pausedMiB": 30_000, "kvMiB": 1}),
            ],
            severity=ERROR,
            path="spec.fleets[0]",
            says="leave 15000 of 40000 MiB",
        ),
    ),
    (
        Code.SHARING_CUTS,
        Case(
            loud=[
                fleet(seat={"memoryMiB": 55_000}),
                policy(**PAUSED),
                policy("code", engine={"pausedMiB": 18_000, "kvMiB": 1}),
            ],
            quiet=[
                fleet(seat={"memoryMiB": 66_000}),
                policy(**PAUSED),
                policy("code", engine={"pausedMiB": 18_000, "kvMiB": 1}),
            ],
            severity=ERROR,
            path="spec.fleets[0]",
            says="leave 19900 of 40000 MiB, 50% of the KV memory that it needs: 15 of 32 requests in flight",
        ),
    ),
    (
        Code.SHARING_CUTS,
        Case(
            loud=[
                fleet(seat={"memoryMiB": 64_000}),
                policy(**PAUSED),
                policy("code", engine={"pausedMiB": 18_000, "kvMiB": 1}),
            ],
            quiet=[
                fleet(seat={"memoryMiB": 65_308}),
                policy(**PAUSED),
                policy("code", engine={"pausedMiB": 18_000, "kvMiB": 1}),
            ],
            severity=WARNING,
            path="spec.fleets[0]",
            says="72% of the KV memory that it needs: 22 of 32",
        ),
    ),
    (
        Code.SHARING_CUTS,
        Case(
            loud=[
                fleet(seat={"memoryMiB": 100_000}),
                policy(engine={"pausedMiB": 10_000}),
                policy("code", engine={"pausedMiB": 50_000, "kvMiB": 38_000}),
            ],
            quiet=[
                fleet(seat={"memoryMiB": 100_000}),
                policy(engine={"pausedMiB": 10_000}),
                policy("code", engine={"pausedMiB": 20_000, "kvMiB": 38_000}),
            ],
            severity=WARNING,
            path="spec.fleets[0]",
            says="43% of the KV memory that it could have alone",
        ),
    ),
    (
        Code.SHARING_CUTS,
        Case(
            loud=[fleet(), fleet("spares"), policy(fleets={"own": 32, "spares": 20})],
            quiet=[fleet(), fleet("spares"), policy(fleets={"own": 32, "spares": 24})],
            severity=WARNING,
            path="spec.fleets[1].targetInFlight",
            says="a seat of spares holds 20 requests in flight, 62% of the 32 on own",
        ),
    ),
    (
        Code.KEEPS_KV_ON_SHARED_SEAT,
        Case(
            loud=[fleet(seat={"kvWhenPaused": "Keep"}), policy(), policy("code")],
            quiet=[fleet(seat={"kvWhenPaused": "Keep"}), policy()],
            severity=WARNING,
            path="spec.seat.kvWhenPaused",
            says="chat, code share a seat",
        ),
    ),
    (
        Code.SERVING_MAX_UNREACHABLE,
        Case(
            loud=[fleet(), policy(serving={"max": 4}), policy("code", serving={"min": 2})],
            quiet=[fleet(), policy(serving={"max": 2}), policy("code", serving={"min": 2})],
            severity=WARNING,
            path="spec.serving.max",
            says="there are seats for 2 at most (4 (own maxSeats) − 2 (code serving.min))",
        ),
    ),
    (
        Code.SPARES_LEAVE_NO_ROOM,
        Case(
            loud=[fleet(spare={"min": 4}), fleet("spares"), policy(fleets={"own": 32, "spares": 32})],
            quiet=[fleet(spare={"min": 3}), fleet("spares"), policy(fleets={"own": 32, "spares": 32})],
            severity=WARNING,
            path="spec.spare.min",
            says="4 spare seats beside 1 that always serve here are 5, and maxSeats is 4",
        ),
    ),
    (
        Code.BUDGET_TOO_SMALL,
        Case(
            loud=[fleet(), policy(schedules=[window("minServing")]), controller(gpuBudget=1)],
            quiet=[fleet(), policy(schedules=[window("minServing")]), controller(gpuBudget=3)],
            severity=ERROR,
            path="spec.gpuBudget",
            says="2 (chat: 2 × 1) + 1 (own spares: 1 × 1) = 3 GPUs, and the budget is 1",
        ),
    ),
    (
        Code.BUDGET_TOO_SMALL,
        Case(
            loud=[fleet(), policy(serving={"min": 2}), controller(gpuBudget=2)],
            quiet=[fleet(), policy(serving={"min": 2}), controller()],
            severity=WARNING,
            path="spec.gpuBudget",
            says="= 3 GPUs, and the budget is 2",
        ),
    ),
    (
        Code.BURST_UNREACHABLE,
        Case(
            loud=[fleet(), policy(signals=[ENGINE])],
            quiet=[fleet(), policy(signals=[GATEWAY, ENGINE])],
            severity=WARNING,
            path="spec.burst.thresholdPercent",
            says="each gets targetInFlight (32) requests at most, which is 100 % of its capacity, and a burst begins at 150 %",
        ),
    ),
    (
        Code.BURST_UNREACHABLE,
        Case(
            loud=[fleet(), policy(serving={"min": 2, "max": 2})],
            quiet=[fleet(), policy(serving={"min": 2, "max": 3})],
            severity=INFO,
            path="spec.serving.min",
            says="2 residents always serve and no more can",
        ),
    ),
    (
        Code.NO_SPARES_YET,
        Case(
            loud=[fleet(spare={"mode": "Auto", "min": 0, "max": 3}), policy()],
            quiet=[fleet(spare={"mode": "Auto", "min": 1, "max": 3}), policy()],
            severity=WARNING,
            path="spec.spare.min",
            says="until a day of history exists",
        ),
    ),
    (
        Code.NO_SPARES_FOR_BURST,
        Case(
            loud=[fleet(spare={"min": 0}), policy(engine={"startSeconds": 90})],
            quiet=[fleet(spare={"min": 0}), policy(preemptible=True)],
            severity=WARNING,
            path="spec.fleets",
            says="waits for new ones (90 s at least)",
        ),
    ),
    (
        Code.NO_SPARES_FOR_BURST,
        Case(
            loud=[fleet(spare={"min": 0}), policy()],
            quiet=[fleet(spare={"min": 0}), fleet("spares"), policy(fleets={"own": 32, "spares": 32})],
            severity=WARNING,
            path="spec.fleets",
            says="how long isn't known",
        ),
    ),
    (
        Code.FALLBACK_UNREACHABLE,
        Case(
            loud=[fleet(), policy(fallback={"replicas": 5})],
            quiet=[fleet(), policy(fallback={"replicas": 4})],
            severity=WARNING,
            path="spec.fallback.replicas",
            says="5 residents never serve: there are seats for 4 at most",
        ),
    ),
    (
        Code.FLEET_UNUSED,
        Case(
            loud=[fleet(), fleet("forgotten"), policy()],
            quiet=[fleet(), policy()],
            severity=WARNING,
            path="metadata.name",
            says="no policy names the fleet",
        ),
    ),
    (
        Code.GPU_COUNTS_DIFFER,
        Case(
            loud=[fleet(), fleet("spares", seat={"gpus": 2}), policy(fleets={"own": 32, "spares": 32})],
            quiet=[fleet(), fleet("spares"), policy(fleets={"own": 32, "spares": 32})],
            severity=WARNING,
            path="spec.fleets[1].name",
            says="a seat of spares has 2 GPUs and one of own 1",
        ),
    ),
    (
        Code.OBJECTIVE_BETWEEN_BUCKETS,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"milliseconds": 1500}})],
            quiet=[fleet(), policy(objectives={"ttft": {"milliseconds": 1500}}, engine={"type": "SGLang"})],
            severity=WARNING,
            path="spec.objectives.ttft.milliseconds",
            says="1.5 s is no edge of the engine's (1 s and 2.5 s) TTFT histogram",
        ),
    ),
    (
        Code.OBJECTIVE_BETWEEN_BUCKETS,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"milliseconds": 2500}})],
            quiet=[fleet(), policy(objectives={"ttft": {"milliseconds": 2500}}, signals=[ENGINE])],
            severity=WARNING,
            path="spec.objectives.ttft.milliseconds",
            says="2.5 s is no edge of the gateway's (2 s and 3 s) TTFT histogram",
        ),
    ),
    (
        Code.OBJECTIVE_BELOW_PROMOTION,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"milliseconds": 100}})],
            quiet=[fleet(), policy(objectives={"ttft": {"milliseconds": 500}})],
            severity=WARNING,
            path="spec.objectives.ttft.milliseconds",
            says="0.1 s is shorter than the 0.17 s",
        ),
    ),
    (
        Code.DRAIN_SLOWER_THAN_OBJECTIVE,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"seconds": 1}}, serving={"queueDrainSeconds": 3})],
            quiet=[fleet(), policy(objectives={"ttft": {"seconds": 1}})],  # the defaults
            severity=INFO,
            path="spec.serving.queueDrainSeconds",
            says="3 s to drain, longer than the objective of 1 s, until the age",
        ),
    ),
    (
        Code.DRAIN_SLOWER_THAN_OBJECTIVE,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"milliseconds": 500}})],
            quiet=[
                fleet(),
                policy(objectives={"ttft": {"milliseconds": 500}}, serving={"queueDrainSeconds": 1}),
            ],
            severity=INFO,
            path="spec.serving.queueDrainSeconds",
            says="2 s to drain, longer than the objective of 0.5 s, until the age",
        ),
    ),
    (
        Code.DRAIN_SLOWER_THAN_OBJECTIVE,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"seconds": 1}}, signals=[ENGINE])],
            quiet=[fleet(), policy(signals=[ENGINE])],
            severity=WARNING,
            path="spec.serving.queueDrainSeconds",
            says="and no signal tells the age of the oldest request",
        ),
    ),
    (
        Code.DRAIN_SLOWER_THAN_OBJECTIVE,
        Case(
            loud=[
                fleet(),
                policy(signals=[GATEWAY, JOBS], serving={"queueDrainSeconds": 6}),
            ],
            quiet=[fleet(), policy(signals=[ENGINE, JOBS], serving={"queueDrainSeconds": 6})],  # work only
            severity=INFO,
            path="spec.serving.queueDrainSeconds",
            says="6 s to drain, longer than the objective of 5 s, until the age",
        ),
    ),
    (
        Code.OBJECTIVE_BEYOND_QUEUE,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"seconds": 60}})],
            quiet=[fleet(), policy(objectives={"ttft": {"seconds": 59}})],
            severity=WARNING,
            path="spec.objectives.ttft.seconds",
            says="60 s is no less than the 60 s after which the gateway refuses what still waits: a request is turned away with 503",
        ),
    ),
    (
        Code.OBJECTIVE_BEYOND_QUEUE,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"milliseconds": 640_000}})],
            quiet=[fleet(), policy(objectives={"ttft": {"seconds": 20}})],
            severity=WARNING,
            path="spec.objectives.ttft.milliseconds",
            says="640 s is no less than the 120 s after which the gateway refuses whatever has no first token",
        ),
    ),
    (
        Code.OBJECTIVE_BEYOND_QUEUE,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"seconds": 640}}, signals=[ENGINE])],
            quiet=[fleet(), policy(objectives={"ttft": {"seconds": 40}}, signals=[ENGINE])],
            severity=INFO,
            path="spec.objectives.ttft.seconds",
            says="a request that comes through one is turned away",
        ),
    ),
    (
        Code.OBJECTIVE_BEYOND_QUEUE,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"seconds": 100}})],
            quiet=[fleet(), policy(objectives={"ttft": {"seconds": 80}})],
            severity=WARNING,
            path="spec.objectives.ttft.seconds",
            says="100 s is no less than the 90 s",
            assumed={"gateway_queue_seconds": 300, "gateway_deadline_seconds": 90},
        ),
    ),
    (
        Code.DRAIN_SLOWER_THAN_QUEUE,
        Case(
            loud=[
                fleet(),
                policy(objectives={"ttft": {"seconds": 80}}, serving={"queueDrainSeconds": 61}),
            ],
            quiet=[
                fleet(),
                policy(objectives={"ttft": {"seconds": 80}}, serving={"queueDrainSeconds": 60}),
            ],
            severity=WARNING,
            path="spec.serving.queueDrainSeconds",
            says="a queue may take 61 s to drain, and the gateway refuses what has waited for 60 s",
        ),
    ),
    (
        Code.DRAIN_SLOWER_THAN_QUEUE,
        Case(
            loud=[
                fleet(),
                policy(objectives={"ttft": {"seconds": 20}}, serving={"queueDrainSeconds": 30}),
            ],
            quiet=[fleet(), policy(serving={"queueDrainSeconds": 90})],  # the objective of 5 s comes first
            severity=WARNING,
            path="spec.serving.queueDrainSeconds",
            says="refuses what has waited for 15 s",
            assumed={"gateway_queue_seconds": 15},
        ),
    ),
    (
        Code.COLD_START_REFUSED,
        Case(
            loud=[BARE, policy(serving={"min": 0}, engine=SLOW)],
            quiet=[BARE, policy(serving={"min": 0}, engine=SLOW, signals=[JOBS])],  # work waits in its queue
            severity=WARNING,
            path="spec.serving.min",
            says="after a rest a new seat takes 91.2 s, and the gateway refuses what has waited for 60 s: requests of the first 31.2 s get 503",
            assumed={"pod_start_seconds": 1},
        ),
    ),
    (
        Code.COLD_START_REFUSED,
        Case(
            loud=[BARE, policy(serving={"min": 0}, engine=SLOW)],
            quiet=[BARE, policy(serving={"min": 0}, engine={"startSeconds": 59})],
            severity=WARNING,
            path="spec.serving.min",
            says="a new seat takes 90.2 s at least",
        ),
    ),
    (
        Code.COLD_START_REFUSED,
        Case(
            loud=[BARE, policy(serving={"min": 0}, engine=SLOW)],
            quiet=[fleet(maxSeats=2), policy(serving={"min": 0}, engine=SLOW)],
            severity=WARNING,
            path="spec.serving.min",
            says="after a rest a new seat takes 90.2 s",
        ),
    ),
    (
        Code.COLD_START_REFUSED,
        Case(
            loud=[BARE, policy(serving={"min": 0}, engine=SLOW)],
            quiet=[BARE, policy(serving={"min": 0}, engine=SLOW, preemptible=True)],
            severity=WARNING,
            path="spec.serving.min",
            says="after a rest a new seat takes 90.2 s at least, and the gateway refuses what has waited for 30 s",
            assumed={"gateway_queue_seconds": 40, "gateway_deadline_seconds": 30},
        ),
    ),
    (
        Code.COLD_START_REFUSED,
        Case(
            loud=[
                fleet(maxSeats=2),
                policy(serving={"min": 0}, engine=SLOW),
                policy("code", serving={"min": 0}),
            ],
            quiet=[
                fleet(maxSeats=2),
                policy(serving={"min": 0}, engine=SLOW, priority=1),
                policy("code", serving={"min": 0}, signals=[JOBS]),
            ],
            severity=INFO,
            path="spec.serving.min",
            says="after a rest, while code has the ready seats, a new seat takes 90.2 s at least",
        ),
    ),
    (
        Code.COLD_START_REFUSED,
        Case(
            loud=[fleet(spare={"min": 0}), policy(engine=SLOW)],
            quiet=[fleet(spare={"min": 1}), policy(engine=SLOW)],  # half of four at once: 45 s
            severity=WARNING,
            path="spec.fleets",
            says="all 4 residents, 1 serve at once, and new seats take 90.2 s at least: requests would wait for up to 67.6 s or more",
        ),
    ),
    (
        Code.COLD_START_REFUSED,
        Case(
            loud=[fleet(), policy(engine={"startSeconds": 240})],
            quiet=[fleet(maxSeats=3), policy(serving={"min": 2}, engine={"startSeconds": 240})],
            severity=INFO,
            path="spec.fleets",
            says="all 4 residents, 2 serve at once, and new seats take 240.2 s: requests would wait for up to 120.1 s, and",
            assumed={"pod_start_seconds": 0},
        ),
    ),
    (
        Code.COLD_START_REFUSED,
        Case(
            loud=[fleet(spare={"mode": "Auto", "min": 0, "max": 3}), policy(engine=SLOW)],
            quiet=[fleet(spare={"min": 0}), policy(engine=SLOW, signals=[ENGINE])],
            severity=INFO,
            path="spec.fleets",
            says="all 4 residents, 1 serve at once",
        ),
    ),
    (
        Code.CLIENT_GIVES_UP_FIRST,
        Case(
            loud=[fleet(), policy(objectives={"ttft": {"seconds": 40}})],
            quiet=[fleet(), policy(objectives={"ttft": {"seconds": 40}})],
            severity=WARNING,
            path="spec.objectives.ttft.seconds",
            says="clients give up after 30 s, before the objective of 40 s is missed",
            assumed={"client_seconds": 30},
            quietly={"client_seconds": 61},
        ),
    ),
    (
        Code.CLIENT_GIVES_UP_FIRST,
        Case(
            loud=[fleet(), policy()],
            quiet=[fleet(), policy()],
            severity=INFO,
            path="spec.objectives.ttft.seconds",
            says="no later than the gateway's 503 with Retry-After, which comes after 60 s",
            assumed={"client_seconds": 60},
            quietly={},
        ),
    ),
    (
        Code.WHOLE_ANSWERS_REFUSED,
        Case(
            loud=[fleet(), policy()],
            quiet=[fleet(), policy()],
            severity=WARNING,
            path="spec.objectives.ttft.seconds",
            says="an answer that takes 600 s is never there: the gateway gives it up after 600 s, waiting included",
            assumed={"answer_seconds": 600},
            quietly={"answer_seconds": 540},
        ),
    ),
    (
        Code.WHOLE_ANSWERS_REFUSED,
        Case(
            loud=[fleet(), policy()],
            quiet=[fleet(), policy()],
            severity=INFO,
            path="spec.objectives.ttft.seconds",
            says="an answer that takes 90 s is not there after a wait of more than 30 s",
            assumed={"answer_seconds": 90, "gateway_answer_seconds": 120},
            quietly={},
        ),
    ),
    (
        Code.ANSWERS_CUT,
        Case(
            loud=[fleet(), policy()],
            quiet=[fleet(), policy()],
            severity=WARNING,
            path="spec.fleets",
            says="once their resident is demoted (30 s), their pod ends (10 s), their gateway ends (30 s)",
            assumed={"answer_seconds": 31},
            quietly={"answer_seconds": 10},
        ),
    ),
    (
        Code.ANSWERS_CUT,
        Case(
            loud=[fleet(), policy(priority=1), policy("code", preemptible=True)],
            quiet=[fleet(), policy()],
            severity=WARNING,
            path="spec.fleets",
            says="once another model takes their seat (0 s), their pod ends (10 s)",
            assumed={"answer_seconds": 11, "drain_seconds": 60, "gateway_drain_seconds": 60},
            quietly={},
        ),
    ),
    (
        Code.COUNTED_TWICE,
        Case(
            loud=[fleet(), policy(signals=[GATEWAY, prometheus("sum(vllm:num_requests_waiting)")])],
            quiet=[
                fleet(),
                policy(
                    signals=[
                        GATEWAY,
                        prometheus("sum(vllm:num_requests_waiting + vllm:num_requests_running)", "Requests"),
                    ]
                ),
            ],
            severity=WARNING,
            path="spec.signals[1].measures",
            says="requests that wait in engines count as QueueDepth here and in signal gateway too",
        ),
    ),
    (
        Code.COUNTED_TWICE,
        Case(
            loud=[
                fleet(),
                policy(
                    signals=[
                        GATEWAY,
                        prometheus(
                            "sum(emberpool_gateway_queue_requests + emberpool_gateway_in_flight_requests)",
                            "Requests",
                        ),
                    ]
                ),
            ],
            quiet=[
                fleet(),
                policy(signals=[GATEWAY, prometheus("sum(emberpool_gateway_queue_requests)")]),
            ],
            severity=WARNING,
            path="spec.signals[1].measures",
            says="requests that wait at the gateway count as Requests here and in signal gateway too",
        ),
    ),
    (
        Code.COUNTED_TWICE,
        Case(
            loud=[fleet(), policy(signals=[JOBS, {**JOBS, "name": "again", "intervalMilliseconds": 2000}])],
            quiet=[fleet(), policy(signals=[JOBS, {**JOBS, "name": "more", "key": "other"}])],
            severity=WARNING,
            path="spec.signals[1].key",
            says="entries of jobs count in signal jobs too, and queues of work are added",
        ),
    ),
    (
        Code.FIRST_REQUEST_UNSEEN,
        Case(
            loud=[fleet(), policy(serving={"min": 0}, signals=[ENGINE])],
            quiet=[fleet(), policy(serving={"min": 0}, signals=[ENGINE, prometheus("sum(q)")])],
            severity=ERROR,
            path="spec.serving.min",
            says="no signal sees the next request",
        ),
    ),
    (
        Code.DEMAND_UNSEEN,
        Case(
            loud=[fleet(), policy(signals=[prometheus(GOOD_SHARE, "TtftShareOverObjective")])],
            quiet=[fleet(), policy(signals=[ENGINE])],
            severity=ERROR,
            path="spec.signals",
            says="no signal tells how many requests there are",
        ),
    ),
    (
        Code.WINDOW_SHORTER_THAN_SIGNAL,
        Case(
            loud=[fleet(), policy(signals=[prometheus("sum(q)", intervalSeconds=15)])],
            quiet=[fleet(), policy(signals=[GATEWAY, prometheus("sum(q)", intervalSeconds=15)])],
            severity=WARNING,
            path="spec.burst.windowSeconds",
            says="the burst window of 6 s is shorter than the 15 s between two readings",
        ),
    ),
    (
        Code.SERVER_UNNAMED,
        Case(
            loud=[fleet(), policy(signals=[{"name": "jobs", "type": "RedisList", "key": "jobs"}])],
            quiet=[
                fleet(),
                policy(
                    signals=[
                        {
                            "name": "jobs",
                            "type": "RedisList",
                            "key": "jobs",
                            "server": {"addresses": ["redis:6379"]},
                        }
                    ]
                ),
            ],
            severity=INFO,
            path="spec.signals[0].server",
            says="unless the controller is started with --redis",
        ),
    ),
    (
        Code.SERVER_UNNAMED,
        Case(
            loud=[
                fleet(),
                policy(
                    signals=[
                        GATEWAY,
                        {"name": "p", "type": "Prometheus", "query": "q", "measures": "Requests"},
                    ]
                ),
            ],
            quiet=[fleet(), policy(signals=[GATEWAY, prometheus("q")])],
            severity=INFO,
            path="spec.signals[1].server",
            says="unless the controller is started with --prometheus",
        ),
    ),
    (
        Code.QUERY_IN_SECONDS,
        Case(
            loud=[fleet(), share("histogram_quantile(0.99, sum by (le) (rate(m_bucket[1m])))")],
            quiet=[fleet(), share(GOOD_SHARE)],
            severity=ERROR,
            path="spec.signals[1].query",
            says="histogram_quantile answers with seconds",
        ),
    ),
    (
        Code.QUERY_NOT_A_SHARE,
        Case(
            loud=[fleet(), share(f"sum(late_requests * {SERVING})")],
            quiet=[fleet(), share(GOOD_SHARE)],
            severity=WARNING,
            path="spec.signals[1].query",
            says="may be no share",
        ),
    ),
    (
        Code.QUERY_OTHER_OBJECTIVE,
        Case(
            loud=[fleet(), share(GOOD_SHARE.replace("5.0", "0.5"))],
            quiet=[fleet(), share(GOOD_SHARE.replace("5.0", "5"))],
            severity=WARNING,
            path="spec.signals[1].query",
            says="asks about 0.5 s, and the objective is 5 s",
        ),
    ),
    (
        Code.QUERY_COUNTS_PAUSED,
        Case(
            loud=[fleet(), share('1 - sum(rate(m_bucket{le="5.0"}[1m])) / sum(rate(m_count[1m]))')],
            quiet=[fleet(), share(GOOD_SHARE)],
            severity=WARNING,
            path="spec.signals[1].query",
            says="counts every resident",
        ),
    ),
    (
        Code.QUERY_IS_RATE,
        Case(
            loud=[
                fleet(),
                policy(signals=[GATEWAY, prometheus("sum(rate(requests_total[1m]))", "Requests")]),
            ],
            quiet=[fleet(), policy(signals=[GATEWAY, prometheus("sum(rated_requests)", "Requests")])],
            severity=WARNING,
            path="spec.signals[1].query",
            says="answers with a change over time",
        ),
    ),
    (
        Code.QUERY_IS_SHARE,
        Case(
            loud=[fleet(), policy(signals=[GATEWAY, prometheus(f"max({KV})", "Requests")])],
            quiet=[fleet(), policy(signals=[GATEWAY, prometheus(f"max({KV}) * sum({SLOTS})", "Requests")])],
            severity=WARNING,
            path="spec.signals[1].query",
            says=(
                "vllm:kv_cache_usage_perc is a share, and measures Requests is a number of requests: it never passes 1,"
                " which asks for 1 resident at targetInFlight 32"
            ),
        ),
    ),
    (
        Code.QUERY_IS_SHARE,
        Case(
            loud=[fleet(), policy(signals=[GATEWAY, prometheus(f"100 * avg({KV})")], fleets={"own": 80})],
            quiet=[
                fleet(maxSeats=2),
                policy(signals=[GATEWAY, prometheus(f"100 * avg({KV})")], fleets={"own": 80}),
            ],
            severity=WARNING,
            path="spec.signals[1].query",
            says="measures QueueDepth is a number of requests: it never passes 100, which asks for 2 residents",
        ),
    ),
    (
        Code.QUERY_IS_SHARE,
        Case(
            loud=[fleet(), policy(signals=[GATEWAY, prometheus(f"sum({KV})", "Requests")])],
            quiet=[fleet(), policy(signals=[GATEWAY, prometheus(f"sum({KV} * 33)", "Requests")])],
            severity=WARNING,
            path="spec.signals[1].query",
            says="no series passes 1, and at targetInFlight 32 it never asks for more residents than series",
        ),
    ),
    (
        Code.QUERY_IS_SHARE,
        Case(
            loud=[fleet(), policy(signals=[GATEWAY, prometheus(f"sum({WAITING}) / sum({RUNNING})")])],
            quiet=[fleet(), policy(signals=[GATEWAY, prometheus(f"sum({WAITING}) + sum({RUNNING})")])],
            severity=WARNING,
            path="spec.signals[1].query",
            says="requests divided by requests is a ratio, and measures QueueDepth is a number of requests",
        ),
    ),
    (
        Code.QUERY_COUNTS_OTHERS,
        Case(
            loud=[fleet(), policy(signals=[GATEWAY, prometheus("sum(vllm:num_requests_waiting)")])],
            quiet=[fleet(), policy(signals=[GATEWAY, prometheus(f"sum({WAITING})")])],
            severity=INFO,
            path="spec.signals[1].query",
            says="reads vllm:num_requests_waiting of everybody whom this Prometheus scrapes",
        ),
    ),
    (
        Code.QUERY_COUNTS_OTHERS,
        Case(
            loud=[fleet(), policy(signals=[GATEWAY, prometheus("max(oldest_seconds)", "QueueAgeSeconds")])],
            quiet=[
                fleet(),
                policy(signals=[GATEWAY, prometheus("max(chat_oldest_seconds)", "QueueAgeSeconds")]),
            ],
            severity=INFO,
            path="spec.signals[1].query",
            says="reads oldest_seconds of everybody",
        ),
    ),
    (
        Code.METRIC_GONE,
        Case(
            loud=[fleet(), policy(signals=[GATEWAY, prometheus("avg(vllm:gpu_cache_usage_perc)")])],
            quiet=[fleet(), policy(signals=[GATEWAY, prometheus("avg(vllm:kv_cache_usage_perc)")])],
            severity=WARNING,
            path="spec.signals[1].query",
            says="vLLM has no vllm:gpu_cache_usage_perc any more",
        ),
    ),
    (
        Code.FREEZE_EXPIRED,
        Case(
            loud=[fleet(frozen={"until": "2026-06-01T12:00:00Z", "reason": "driver"}), policy()],
            quiet=[fleet(frozen={"until": "2026-06-01T14:00:01+02:00", "reason": "driver"}), policy()],
            severity=WARNING,
            path="spec.frozen.until",
            says="ended at 2026-06-01T12:00+00:00",
        ),
    ),
    (
        Code.SCHEDULE_WHILE_FROZEN,
        Case(
            loud=[
                fleet(
                    frozen={"until": "2026-06-03T00:00:00Z", "reason": "driver"},
                    schedules=[window("minSeats", "0 20 * * *")],
                ),
                policy(),
            ],
            quiet=[
                fleet(
                    frozen={"until": "2026-06-01T20:00:00Z", "reason": "driver"},
                    schedules=[window("minSeats", "0 20 * * *")],
                ),
                policy(),
            ],
            severity=WARNING,
            path="spec.schedules[0].start",
            says="window day opens at 2026-06-01T20:00+00:00, while fleet own is frozen until 2026-06-03T00:00+00:00",
        ),
    ),
    (
        Code.SCHEDULE_WHILE_FROZEN,
        Case(
            loud=[
                fleet(frozen={"until": "2026-06-03T00:00:00Z", "reason": "driver"}),
                policy(schedules=[window("minServing")]),
            ],
            quiet=[fleet(), policy(schedules=[window("minServing")])],
            severity=WARNING,
            path="spec.schedules[0].start",
            says="window day is open, while fleet own is frozen",
        ),
    ),
    (
        Code.PREEMPTIBLE_FIRST,
        Case(
            loud=[fleet(), policy(), policy("batch", preemptible=True)],
            quiet=[fleet(), policy(priority=1), policy("batch", preemptible=True)],
            severity=WARNING,
            path="spec.priority",
            says="priority 0 of preemptible work is not below that of chat (0)",
        ),
    ),
    (
        Code.NOTHING_TO_LEND,
        Case(
            loud=[fleet(spare={"min": 2}), policy(preemptible=True)],
            quiet=[fleet(spare={"mode": "Auto", "min": 1, "max": 3}), policy(preemptible=True)],
            severity=WARNING,
            path="spec.preemptible",
            says="beyond its 1 own it gets seats only while they wait to be deleted",
        ),
    ),
    (
        Code.NOTHING_TO_LEND,
        Case(
            loud=[
                fleet(schedules=[window("minSeats")]),
                policy(preemptible=True),
            ],  # 1 serves, 1 is spare.min
            quiet=[fleet(schedules=[{**window("minSeats"), "minSeats": 3}]), policy(preemptible=True)],
            severity=WARNING,
            path="spec.preemptible",
            says="only spares beyond spare.min are lent",
        ),
    ),
    (
        Code.RECLAIM_WAITS,
        Case(
            loud=[fleet(), policy(), policy("batch", preemptible=True, onReclaim="Wait")],
            quiet=[fleet(), policy(), policy("batch", preemptible=True)],
            severity=WARNING,
            path="spec.onReclaim",
            says="comes back after 6 s at most, later than the objectives of chat (5 s)",
        ),
    ),
    (
        Code.RECLAIM_WAITS,
        Case(
            loud=[fleet(), policy(), policy("batch", preemptible=True, onReclaim="Wait")],
            quiet=[
                fleet(),
                policy(objectives={"ttft": {"seconds": 10}}),
                policy("batch", preemptible=True, onReclaim="Wait"),
            ],
            severity=WARNING,
            path="spec.onReclaim",
            says="requests that take longer are ended all the same",
        ),
    ),
    (
        Code.RECLAIM_ABORTS,
        Case(
            loud=[fleet(), policy(preemptible=True)],
            quiet=[fleet(), policy(preemptible=True, onReclaim="Wait")],
            severity=INFO,
            path="spec.onReclaim",
            says="ends up to 32 requests at once",
        ),
    ),
    (
        Code.GENERIC_NOT_PAUSED,
        Case(
            loud=[fleet(), policy(engine={"type": "Generic", "pausedMiB": 16_000, "kvMiB": 40_000})],
            quiet=[fleet(), policy(engine={"type": "VLLM"})],
            severity=INFO,
            path="spec.engine.type",
            says="it goes on holding 56000 MiB",
        ),
    ),
    (
        Code.GENERIC_NOT_PAUSED,
        Case(
            loud=[fleet(), policy(engine={"type": "Generic"})],
            quiet=[fleet(), policy(engine={"type": "SGLang"})],
            severity=INFO,
            path="spec.engine.type",
            says="it goes on holding its whole GPU memory",
        ),
    ),
    (
        Code.GENERIC_TOKEN_IDS,
        Case(
            loud=[fleet(), policy(engine={"type": "Generic"})],
            quiet=[fleet(), policy(engine={"type": "VLLM"})],
            severity=INFO,
            path="spec.engine.type",
            says="one that doesn't tell them is never proven, and never serves",
        ),
    ),
    (
        Code.ENGINE_LACKS_ARGUMENTS,
        Case(
            loud=[fleet(), policy(engine={"type": "VLLM", "kvMiB": 1024}), policy("code")],
            quiet=[fleet(), policy(engine={"type": "VLLM", "kvMiB": 1024})],
            severity=INFO,
            path="spec.engine",
            says="with --enable-sleep-mode, --kv-cache-memory-bytes 1073741824, --gpu-memory-utilization 0.05,"
            " VLLM_SERVER_DEV_MODE=1, unless what starts it says so already",
        ),
    ),
    (
        Code.ENGINE_LACKS_ARGUMENTS,
        Case(
            loud=[
                fleet(),
                policy(engine={"type": "VLLM", "args": ["--enable-sleep-mode"]}),
                policy("code"),
                deployment(),
            ],
            quiet=[
                fleet(),
                policy(
                    engine={"type": "VLLM", "args": ["--enable-sleep-mode", "--gpu-memory-utilization=0.1"]}
                ),
                policy("code"),
                deployment(
                    spec__containers=[
                        {
                            "name": "engines",
                            "env": [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}],
                            "resources": {"limits": {"nvidia.com/gpu": 1}},
                        }
                    ]
                ),
            ],
            severity=WARNING,
            path="spec.engine.args",
            says="it must be started with --gpu-memory-utilization 0.05, VLLM_SERVER_DEV_MODE=1",
        ),
    ),
    (
        Code.ENGINE_LACKS_ARGUMENTS,
        Case(
            loud=[parking(70_000), policy(engine={"type": "VLLM"})],
            quiet=[
                parking(70_000),
                policy(engine={"type": "VLLM", "args": ["--enable-sleep-mode"]}),
                deployment(
                    spec__containers=[
                        {
                            "name": "engines",
                            "env": [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}],
                            "resources": {"limits": {"nvidia.com/gpu": 1}},
                        }
                    ]
                ),
            ],
            severity=INFO,
            path="spec.engine",
            says="to be parked on own it must be started with --enable-sleep-mode, VLLM_SERVER_DEV_MODE=1",
        ),
    ),
    (
        Code.ENGINE_LACKS_ARGUMENTS,
        Case(
            loud=[parking(70_000), policy(engine={"type": "SGLang", "args": ["--enable-memory-saver"]})],
            quiet=[
                parking(70_000),
                policy(
                    engine={
                        "type": "SGLang",
                        "args": ["--enable-memory-saver", "--enable-weights-cpu-backup"],
                    }
                ),
            ],
            severity=INFO,
            path="spec.engine.args",
            says="with --enable-weights-cpu-backup, unless",
        ),
    ),
    (
        Code.ENGINE_ARGUMENT_CONFLICTS,
        Case(
            loud=[parking(70_000), policy(engine={"type": "VLLM", "args": ["--mm-encoder-tp-mode=data"]})],
            quiet=[fleet(), policy(engine={"type": "VLLM", "args": ["--mm-encoder-tp-mode=data"]})],
            severity=WARNING,
            path="spec.engine.args",
            says="--mm-encoder-tp-mode data: beside it",
        ),
    ),
    (
        Code.WITNESS_MISSING,
        Case(
            loud=[fleet(spare={"min": 0}), policy(engine={"proof": {"source": "Agreement"}})],
            quiet=[fleet(spare={"min": 1}), policy(engine={"proof": {"source": "Agreement"}})],
            severity=WARNING,
            path="spec.engine.proof.source",
            says="none of them ever serves",
        ),
    ),
    (
        Code.ENGINE_LACKS_ARGUMENTS,
        Case(
            loud=[fleet(), policy(engine={"type": "SGLang"}), policy("code")],
            quiet=[
                fleet(),
                policy(engine={"type": "SGLang", "args": ["--enable-memory-saver"]}),
                policy("code"),
            ],
            severity=INFO,
            path="spec.engine",
            says="with --enable-memory-saver, unless",
        ),
    ),
    (
        Code.ENGINE_ARGUMENT_CONFLICTS,
        Case(
            loud=[fleet(), policy(engine={"type": "VLLM", "args": ["--api-key", "x"]})],
            quiet=[fleet(), policy(engine={"type": "VLLM", "args": ["--kv-transfer-config", "{}"]})],
            severity=WARNING,
            path="spec.engine.args",
            says="--api-key: the agent sends no key",
        ),
    ),
    (
        Code.ENGINE_ARGUMENT_CONFLICTS,
        Case(
            loud=[
                fleet(),
                policy(engine={"type": "VLLM", "args": ["--kv-transfer-config={}"]}),
                policy("code"),
            ],
            quiet=[fleet(), policy(engine={"type": "VLLM"}), policy("code")],
            severity=WARNING,
            path="spec.engine.args",
            says="--kv-transfer-config: beside a KV connector",
        ),
    ),
    (
        Code.ENGINE_ARGUMENT_CONFLICTS,
        Case(
            loud=[
                fleet(seat={"memoryMiB": 100_000}),
                policy(engine={"type": "VLLM", "args": ["--gpu-memory-utilization", "0.9"]}),
                policy("code", **PAUSED),
            ],
            quiet=[
                fleet(seat={"memoryMiB": 100_000}),
                policy(engine={"type": "VLLM", "args": ["--gpu-memory-utilization", "0.8"]}),
                policy("code", **PAUSED),
            ],
            severity=WARNING,
            path="spec.engine.args",
            says="--gpu-memory-utilization 0.9: it starts only while that share of the device is free, and on own its"
            " neighbours leave 84%",
        ),
    ),
    (
        Code.ENGINE_ARGUMENT_CONFLICTS,
        Case(
            loud=[fleet(), policy(engine={"type": "VLLM", "args": ["--host=0.0.0.0"]})],
            quiet=[fleet(), policy(engine={"type": "VLLM", "args": ["--host=127.0.0.1"]})],
            severity=WARNING,
            path="spec.engine.args",
            says="--host 0.0.0.0: its control routes are on the listener of /v1",
        ),
    ),
    (
        Code.GENERIC_SHARES,
        Case(
            loud=[fleet(), policy(engine={"type": "Generic"}), policy("code")],
            quiet=[fleet(), policy(engine={"type": "Generic"})],
            severity=ERROR,
            path="spec.fleets[0].name",
            says="on own it shares seats with code",
        ),
    ),
    (
        Code.GRAPHS_AT_START,
        Case(
            loud=[
                fleet(),
                policy(engine={"type": "VLLM", "graphCapture": "WhilePaused", "args": ["--enforce-eager"]}),
            ],
            quiet=[fleet(), policy(engine={"graphCapture": "WhilePaused"}), policy("code")],
            severity=WARNING,
            path="spec.engine.graphCapture",
            says="VLLM captures its graphs before it is ready, or with --enforce-eager never: that can't be undone",
        ),
    ),
    (
        Code.GRAPHS_AT_START,
        Case(
            loud=[fleet(), policy(engine={"graphCapture": "WhilePaused", "args": ["--enforce-eager"]})],
            quiet=[fleet(), policy(engine={"args": ["--enforce-eager"]})],
            severity=WARNING,
            path="spec.engine.graphCapture",
            says="it is started with --enforce-eager, so that there are no graphs to capture",
        ),
    ),
    (
        Code.WARM_UP_FALLS_SHORT,
        Case(
            loud=[
                fleet(),
                fleet("big"),
                policy(fleets={"own": 8, "big": 32}, engine={"warmup": {"batchSizes": [16, 1]}}),
            ],
            quiet=[
                fleet(),
                policy(engine={"warmup": {"batchSizes": [32]}}),
                policy("code", engine={"warmup": {"promptTokens": []}}),
            ],
            severity=WARNING,
            path="spec.engine.warmup.batchSizes",
            says="a resident on big holds up to 32 requests, and more than 16 at once are computed for the first time",
        ),
    ),
    (
        Code.WARM_UP_EXCEEDS_ENGINE,
        Case(
            loud=[
                fleet(),
                policy(engine={"warmup": {"promptTokens": [512]}, "args": ["--max-model-len=512"]}),
            ],
            quiet=[
                fleet(),
                policy(engine={"warmup": {"promptTokens": [504]}, "args": ["--max-model-len=512"]}),
                policy("code", engine={"type": "Generic", "warmup": {"promptTokens": [1 << 20]}}),
            ],
            severity=WARNING,
            path="spec.engine.warmup.promptTokens",
            says="a prompt and its answer come to 520 tokens, and the engine is started with --max-model-len 512",
        ),
    ),
    (
        Code.WARM_UP_EXCEEDS_ENGINE,
        Case(
            loud=[
                fleet(),
                policy(engine={"type": "SGLang", "warmup": {"batchSizes": [64]}}),
                deployment(
                    metadata__annotations=residents(
                        {**CHAT, "command": ["s", "--max-running-requests", "32"], "enginePort": 9}
                    )
                ),
            ],
            quiet=[fleet(), policy(engine={"type": "SGLang", "warmup": {"batchSizes": [64]}})],
            severity=WARNING,
            path="spec.engine.warmup.batchSizes",
            says="64 requests are sent at once, and the engine is started with --max-running-requests 32",
        ),
    ),
    (
        Code.TEMPLATE_OF_NO_FLEET,
        Case(
            loud=[fleet(), policy(), deployment("other")],
            quiet=[fleet(), policy(), deployment()],
            severity=ERROR,
            path="spec.template.metadata.labels.emberpool.dev/fleet",
            says="its label names fleet other, which isn't in the set",
        ),
    ),
    (
        Code.TEMPLATE_OF_NO_FLEET,
        Case(
            loud=[fleet(), policy(), deployment("other", labels={})],
            quiet=[fleet(target={"name": "other"}), policy(), deployment("other", labels={})],
            severity=ERROR,
            path="metadata.name",
            says="it has no label that names one",
        ),
    ),
    (
        Code.FLEET_LABEL_MISSING,
        Case(
            loud=[fleet(), policy(), deployment(labels={})],
            quiet=[fleet(), policy(), deployment()],
            severity=ERROR,
            path="spec.template.metadata",
            says="the pods lack the label emberpool.dev/fleet",
        ),
    ),
    (
        Code.RESIDENTS_MISSING,
        Case(
            loud=[fleet(), policy(), deployment(metadata__annotations={})],
            quiet=[fleet(), policy(), deployment()],
            severity=ERROR,
            path="spec.template.metadata",
            says="the annotation emberpool.dev/residents is missing",
        ),
    ),
    (
        Code.NOT_RESIDENT,
        Case(
            loud=[fleet(), policy(), policy("code"), deployment()],
            quiet=[fleet(), policy(), deployment()],
            severity=WARNING,
            path="spec.template.metadata.annotations.emberpool.dev/residents",
            says="policy code names fleet own (fleets[0]), and its seats have no resident of it",
        ),
    ),
    (
        Code.RESIDENT_UNKNOWN,
        Case(
            loud=[
                fleet(),
                policy(),
                deployment(metadata__annotations=residents(CHAT, {**CHAT, "policy": "old", "port": 8002})),
            ],
            quiet=[fleet(), policy(), deployment()],
            severity=ERROR,
            path="spec.template.metadata.annotations.emberpool.dev/residents",
            says="[1].policy: there is no policy old",
        ),
    ),
    (
        Code.RESIDENT_ELSEWHERE,
        Case(
            loud=[fleet(), fleet("spares"), policy(), deployment("spares")],
            quiet=[fleet(), fleet("spares"), policy(fleets={"own": 32, "spares": 32}), deployment("spares")],
            severity=ERROR,
            path="spec.template.metadata.annotations.emberpool.dev/residents",
            says="[0].policy: chat doesn't name fleet spares",
        ),
    ),
    (
        Code.PORT_DIFFERS,
        Case(
            loud=[fleet(), policy(engine={"port": 9000}), deployment()],
            quiet=[fleet(), policy(engine={"port": 8001}), deployment()],
            severity=ERROR,
            path="spec.template.metadata.annotations.emberpool.dev/residents",
            says="[0].port: is 8001, and policy chat says engine.port 9000",
        ),
    ),
    (
        Code.CONTAINER_MISSING,
        Case(
            loud=[
                fleet(),
                policy(),
                deployment(
                    metadata__annotations=residents({"policy": "chat", "container": "x", "port": 8001})
                ),
            ],
            quiet=[
                fleet(),
                policy(),
                deployment(
                    metadata__annotations=residents({"policy": "chat", "container": "engines", "port": 8001})
                ),
            ],
            severity=ERROR,
            path="spec.template.metadata.annotations.emberpool.dev/residents",
            says="[0].container: the pod has no container x",
        ),
    ),
    (
        Code.GPUS_DIFFER,
        Case(
            loud=[fleet(seat={"gpus": 2}), policy(), deployment()],
            quiet=[fleet(), policy(), deployment()],
            severity=ERROR,
            path="spec.template.spec.containers",
            says="the pod asks for 1 GPUs, and a seat of own has 2",
        ),
    ),
    (
        Code.GPUS_DIFFER,
        Case(
            loud=[
                fleet(),
                policy(),
                policy("code"),
                deployment(
                    metadata__annotations=residents(
                        {"policy": "chat", "container": "a", "port": 8001},
                        {"policy": "code", "container": "b", "port": 8002},
                    ),
                    spec__containers=[
                        {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                        {"name": "b"},
                    ],
                ),
            ],
            quiet=[
                fleet(),
                policy(),
                policy("code"),
                deployment(
                    metadata__annotations=residents(CHAT, {**CHAT, "policy": "code", "port": 8002}),
                ),
            ],
            severity=ERROR,
            path="spec.template.spec.containers",
            says="residents in containers of their own (a, b) can't share GPUs that a device plugin hands out",
        ),
    ),
    (
        Code.GPUS_UNKNOWN,
        Case(
            loud=[fleet(), policy(), deployment(spec__resourceClaims=[{"name": "gpu"}])],
            quiet=[fleet(), policy(), deployment()],
            severity=INFO,
            path="spec.template.spec.resourceClaims",
            says="come from resource claims",
        ),
    ),
    (
        Code.GRACE_TOO_SHORT,
        Case(
            loud=[fleet(), policy(), deployment(spec__terminationGracePeriodSeconds=14)],
            quiet=[fleet(), policy(), deployment(spec__terminationGracePeriodSeconds=15)],
            severity=WARNING,
            path="spec.template.spec.terminationGracePeriodSeconds",
            says="the pod has 14 s to end, and its agent gives requests up to 10 s and the engines 5 s more to stop",
        ),
    ),
    (
        Code.GRACE_TOO_SHORT,
        Case(
            loud=[fleet(), policy(), deployment(spec__terminationGracePeriodSeconds=9)],
            quiet=[fleet(), policy(), deployment(spec__terminationGracePeriodSeconds=None)],
            severity=ERROR,
            path="spec.template.spec.terminationGracePeriodSeconds",
            says="the pod has 9 s to end",
        ),
    ),
    (
        Code.PROGRESS_DEADLINE_TOO_SHORT,
        Case(
            loud=[fleet(), policy(engine={"startSeconds": 600}), deployment()],
            quiet=[fleet(), policy(engine={"startSeconds": 599}), deployment()],
            severity=WARNING,
            path="spec.progressDeadlineSeconds",
            says="fails after 600 s without progress, Kubernetes' default, and a seat takes 600 s",
        ),
    ),
    (
        Code.PROBES,
        Case(
            loud=[
                fleet(),
                policy(),
                deployment(
                    spec__containers=[
                        {"name": "e", "livenessProbe": {}, "resources": {"limits": {"nvidia.com/gpu": 1}}}
                    ]
                ),
            ],
            quiet=[fleet(), policy(), deployment()],
            severity=WARNING,
            path="spec.template.spec.containers[0].livenessProbe",
            says="takes the whole seat out of rotation",
        ),
    ),
    (
        Code.GATE_MISSING,
        Case(
            loud=[fleet(), policy(), deployment(spec__readinessGates=None)],
            quiet=[fleet(), policy(), deployment()],
            severity=WARNING,
            path="spec.template.spec",
            says="the readiness gate emberpool.dev/admitted is missing",
        ),
    ),
    (
        Code.UNAVAILABLE_ABOVE_SPARES,
        Case(
            loud=[fleet(maxSeats=9), policy(), deployment(workload__strategy=None)],
            quiet=[fleet(maxSeats=7), policy(), deployment(workload__strategy=None)],
            severity=WARNING,
            path="spec.strategy.rollingUpdate.maxUnavailable",
            says="may take away 2 of 9 seats at once (maxUnavailable 25%, Kubernetes' default), and 1 are spare",
        ),
    ),
    (
        Code.UNAVAILABLE_ABOVE_SPARES,
        Case(
            loud=[fleet(), policy(), deployment(workload__strategy={"rollingUpdate": {"maxUnavailable": 2}})],
            quiet=[fleet(), policy(), deployment(workload__strategy={"type": "Recreate"})],
            severity=WARNING,
            path="spec.strategy.rollingUpdate.maxUnavailable",
            says="may take away 2 of 4 seats at once (maxUnavailable 2), and 1 are spare",
        ),
    ),
]


def _ids(value: object) -> str | None:
    return value.value if isinstance(value, Code) else ""


@pytest.mark.parametrize(("code", "case"), CASES, ids=_ids)
def test_a_check_says_what_is_so_and_where(code: Code, case: Case) -> None:
    found = findings(code, *case.loud, **case.assumed)
    said = [each for each in found if case.says in each.message]
    assert len(said) == 1, [each.message for each in found]
    assert (said[0].severity, dotted(said[0].place.path)) == (case.severity, case.path)


@pytest.mark.parametrize(("code", "case"), CASES, ids=_ids)
def test_a_check_is_silent_where_all_is_well(code: Code, case: Case) -> None:
    assumed = case.assumed if case.quietly is None else case.quietly
    assert findings(code, *case.quiet, **assumed) == []


BOTH = {"signals": [GATEWAY, ENGINE]}


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        pytest.param(
            {"objectives": {"ttft": {"milliseconds": 1500}}, "signals": [ENGINE]},
            "the nearest edges of the histogram: 1 s and 2.5 s",
            id="one histogram",
        ),
        pytest.param(
            {"objectives": {"ttft": {"milliseconds": 600}}, **BOTH},
            "the nearest edges that both histograms have: 0.5 s and 0.75 s",
            id="both",
        ),
        pytest.param(
            {"objectives": {"ttft": {"seconds": 45}}, **BOTH},
            "the nearest edges are the gateway's: 30 s and 60 s, the engine's: 40 s and 80 s",
            id="between what both have",
        ),
        pytest.param(
            {"objectives": {"ttft": {"seconds": 3000}}, "signals": [ENGINE]},
            "the nearest edges are the engine's: 2560 s; beyond a histogram's last edge it can't tell how late a request was",
            id="beyond the last",
        ),
    ],
)
def test_an_objective_between_edges_is_told_the_nearest_ones(spec: dict[str, Any], hint: str) -> None:
    (found,) = findings(Code.OBJECTIVE_BETWEEN_BUCKETS, fleet(), policy(**spec))
    assert found.hint == hint


def test_what_has_no_mend_is_not_said() -> None:
    shortest = {"objectives": {"ttft": {"milliseconds": 500}}, "serving": {"queueDrainSeconds": 1}}
    assert findings(Code.DRAIN_SLOWER_THAN_OBJECTIVE, fleet(), policy(**shortest, signals=[ENGINE])) == []


def test_every_code_has_a_case() -> None:
    assert {code for code, _ in CASES} == set(Code)
