"""The formats, the rules between documents, and what the law gets."""

from collections.abc import Callable

import pytest

from scaler.core import model as core
from scaler.errors import PolicyError, UserError
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.default import default_set
from scaler.policy.fleet import KvWhenPaused
from scaler.policy.scaling_policy import EngineType
from scaler.policy.source import parse_documents
from warmpool.nodehealth.breaker import BreakerLimits
from warmpool.nodehealth.others import Heeded

FLEET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: own}
spec:
  maxSeats: 4
  mode: Observe
  seat: {gpus: 2, kvWhenPaused: Keep}
  spare: {min: 1, max: 3, replenish: {maxConcurrent: 2, perMinute: 5}}
  scaleDown: {stabilizationWindowSeconds: 120}
---
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 3}
---
"""
POLICY = """\
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets:
    - {name: own, targetInFlight: 32}
    - {name: spares, targetInFlight: 24}
  models: [chat, chat-v2]
  engine: {type: VLLM, args: [--max-num-seqs, "32"]}
  priority: 7
  objectives: {ttft: {milliseconds: 250, percent: 95}}
  serving: {min: 2, max: 5, queueDrainSeconds: 3}
  burst: {thresholdPercent: 130, windowSeconds: 4, stableWindowSeconds: 40, demoteAfterSeconds: 20}
  fallback: {failureThreshold: 5, behavior: CurrentReplicasIfHigher, replicas: 3}
"""


def compiled(text: str) -> PolicySet:
    return compile_set(parse_documents(text, "f.yaml"))


def faults(text: str) -> list[str]:
    with pytest.raises(PolicyError) as raised:
        compiled(text)
    return [str(fault).replace("\n\nhint: ", " | ") for fault in raised.value.faults]


def test_everything_that_was_written_reaches_the_law() -> None:
    found = compiled(FLEET + POLICY)
    assert found.fleet_specs["own"] == core.FleetSpec(
        name="own",
        max_seats=4,
        spare_target=1,
        replenish=core.Replenish(max_concurrent=2, per_minute=5),
        scale_down=core.Pace(window=120.0),
        gpus=2,
        observe=True,
    )
    assert found.policy_specs["chat"] == core.PolicySpec(
        name="chat",
        fleets=(
            core.FleetShare(fleet="own", target_in_flight=32),
            core.FleetShare(fleet="spares", target_in_flight=24),
        ),
        priority=7,
        serving_min=2,
        serving_max=5,
        ttft_objective=0.25,
        late_share=0.05,
        queue_drain=3.0,
        burst=core.Burst(threshold=1.3, window=4.0, stable_window=40.0, demote_after=20.0),
        failure_threshold=5,
        fallback_serving=3,
    )
    policy, fleet = found.policies["chat"], found.fleets["own"]
    assert policy.spec.engine.type is EngineType.VLLM
    assert policy.spec.engine.args == ("--max-num-seqs", "32")
    assert policy.models == ("chat", "chat-v2")
    assert (fleet.spec.seat.gpus, fleet.spec.seat.kv_when_paused) == (2, KvWhenPaused.KEEP)


def test_what_was_left_out_takes_the_documented_defaults() -> None:
    found = compiled(
        FLEET
        + "apiVersion: emberpool.dev/v1alpha1\nkind: ScalingPolicy\nmetadata: {name: chat}\n"
        + "spec: {fleets: [{name: spares, targetInFlight: 8}]}\n"
    )
    assert found.policy_specs["chat"] == core.PolicySpec(
        name="chat", fleets=(core.FleetShare(fleet="spares", target_in_flight=8),), serving_min=1
    )
    assert found.fleet_specs["spares"] == core.FleetSpec(name="spares", max_seats=3)
    assert found.policies["chat"].models == ("chat",)


def test_seconds_and_milliseconds_say_the_same_objective() -> None:
    seconds = compiled((FLEET + POLICY).replace("milliseconds: 250", "seconds: 2"))
    milliseconds = compiled((FLEET + POLICY).replace("milliseconds: 250", "milliseconds: 2000"))
    assert seconds.policy_specs == milliseconds.policy_specs


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            "serving: {min: 2, max: 5",
            "serving: {min: 6, max: 5",
            ["f.yaml:27:18: spec.serving.min: must be ≤ max (6 > 5) | raise max or lower min"],
            id="serving-min-above-max",
        ),
        pytest.param(
            "spare: {min: 1, max: 3",
            "spare: {min: 4, max: 3",
            ["f.yaml:8:16: spec.spare.min: must be ≤ max (4 > 3) | raise max or lower min"],
            id="spare-min-above-max",
        ),
        pytest.param(
            "spare: {min: 1, max: 3",
            "spare: {min: 1, max: 5",
            [
                "f.yaml:8:24: spec.spare.max: must be ≤ spec.maxSeats (5 > 4) | raise maxSeats or lower spare.max"
            ],
            id="spare-max-above-max-seats",
        ),
        pytest.param(
            "spec: {maxSeats: 3}",
            "spec: {maxSeats: 3, spare: {min: 4}}",
            [
                "f.yaml:14:34: spec.spare.min: must be ≤ spec.maxSeats (4 > 3) | raise maxSeats or lower spare.min"
            ],
            id="spare-min-above-max-seats",
        ),
        pytest.param(
            "stableWindowSeconds: 40",
            "stableWindowSeconds: 3",
            [
                (
                    "f.yaml:28:73: spec.burst.stableWindowSeconds: must be ≥ windowSeconds (3 < 4) |"
                    " raise stableWindowSeconds or lower windowSeconds"
                )
            ],
            id="stable-window-below-burst-window",
        ),
        pytest.param(
            "milliseconds: 250",
            "milliseconds: 250, seconds: 1",
            [
                "f.yaml:26:37: spec.objectives.ttft.milliseconds: seconds is given as well | keep one of the two"
            ],
            id="objective-given-twice",
        ),
        pytest.param(
            "replicas: 3",
            "replicas: 6",
            [
                (
                    "f.yaml:29:80: spec.fallback.replicas: must be ≤ spec.serving.max (6 > 5) |"
                    " raise serving.max or lower fallback.replicas"
                )
            ],
            id="fallback-above-max",
        ),
        pytest.param(
            "name: spares, targetInFlight",
            "name: own, targetInFlight",
            ["f.yaml:22:14: spec.fleets[1].name: own is listed twice | keep one entry"],
            id="fleet-listed-twice",
        ),
        pytest.param(
            "[chat, chat-v2]",
            "[chat, chat]",
            ["f.yaml:23:18: spec.models[1]: chat is listed twice | keep one entry"],
            id="model-listed-twice",
        ),
        pytest.param(
            "{name: own, targetInFlight",
            "{name: onw, targetInFlight",
            ["f.yaml:21:14: spec.fleets[0].name: there is no fleet onw | did you mean own?"],
            id="misspelt-fleet",
        ),
        pytest.param(
            "{name: own, targetInFlight",
            "{name: gpu-h200, targetInFlight",
            ["f.yaml:21:14: spec.fleets[0].name: there is no fleet gpu-h200 | known fleets: own, spares"],
            id="unknown-fleet",
        ),
        pytest.param(
            "metadata: {name: chat}",
            "metadata: {name: chat, namespace: serving}",
            [
                (
                    "f.yaml:21:14: spec.fleets[0].name: fleet own is in namespace default, this policy in serving |"
                    " a policy and its fleets share one namespace"
                ),
                (
                    "f.yaml:22:14: spec.fleets[1].name: fleet spares is in namespace default, this policy in serving |"
                    " a policy and its fleets share one namespace"
                ),
            ],
            id="other-namespace",
        ),
        pytest.param(
            "metadata: {name: spares}",
            "metadata: {name: own}",
            [
                (
                    "f.yaml:13:18: metadata.name: the Fleet own is already defined in f.yaml:3 |"
                    " rename or remove one of the two"
                ),
                "f.yaml:22:14: spec.fleets[1].name: there is no fleet spares | known fleets: own",
            ],
            id="fleet-defined-twice",
        ),
        pytest.param(
            "metadata: {name: chat}",
            "metadata: {name: " + "x" * 64 + "}",
            [
                "f.yaml:18:18: metadata.name: must be a DNS label (lower-case letters, digits and -, begins and"
                ' ends with a letter or digit, at most 63 characters), is "'
                + "x"
                * 57
                + '…" | name of the object,'
                " unique among the objects of its kind, for example llama-8b"
            ],
            id="name-too-long",
        ),
        pytest.param(
            "type: VLLM",
            "type: vllm",
            [
                'f.yaml:24:18: spec.engine.type: must be one of Reference, VLLM, SGLang, Generic, is "vllm" | did you mean VLLM?'
            ],
            id="engine-in-lower-case",
        ),
        pytest.param(
            'args: [--max-num-seqs, "32"]',
            "args: [--max-num-seqs, 32]",
            [
                (
                    "f.yaml:24:47: spec.engine.args[1]: must be text of at most 4096 characters, is 32 |"
                    " put it into quotes"
                )
            ],
            id="number-as-argument",
        ),
        pytest.param(
            "thresholdPercent: 130",
            "thresholdPercent: 100",
            [
                (
                    "f.yaml:28:29: spec.burst.thresholdPercent: must be an integer from 101 to 1000, is 100 |"
                    " a burst begins when demand over the short window reaches this share of the serving capacity, in"
                    " percent, for example 150"
                )
            ],
            id="threshold-that-is-always-reached",
        ),
        pytest.param(
            "serving: {min: 2, max: 5",
            "serving: {min: 0, max: 0",
            [
                (
                    "f.yaml:27:26: spec.serving.max: must be an integer from 1 to 1000000, is 0 | residents that serve at"
                    " most, for example 4"
                )
            ],
            id="a-model-that-may-never-serve",
        ),
        pytest.param(
            "spare: {min: 1, max: 3",
            "spare: {min: 1, max: 3, quantile: 95",
            [
                "f.yaml:8:37: spec.spare.quantile: is for mode Auto, and mode is Fixed | set mode: Auto, or remove quantile"
            ],
            id="quantile-of-fixed-spares",
        ),
        pytest.param(
            "spare: {min: 1, max: 3",
            "spare: {min: 1, max: 3, lookbackSeconds: 3600",
            [
                (
                    "f.yaml:8:44: spec.spare.lookbackSeconds: is for mode Auto, and mode is Fixed | set mode: Auto, or"
                    " remove lookbackSeconds"
                )
            ],
            id="look-back-of-fixed-spares",
        ),
        pytest.param(
            "behavior: CurrentReplicasIfHigher",
            "behavior: CurrentReplicas",
            [
                (
                    "f.yaml:29:72: spec.fallback.replicas: is 3, and behavior CurrentReplicas compares with no number |"
                    " remove replicas, or set behavior: CurrentReplicasIfHigher"
                )
            ],
            id="a-number-that-the-fallback-ignores",
        ),
        pytest.param(
            "spec: {maxSeats: 3}",
            "spec: {maxSeats: 3, spare: Auto}",
            [
                (
                    'f.yaml:14:28: spec.spare: must be a mapping, is "Auto" | write {mode: "Auto"}; it has the keys mode,'
                    " min, max, quantile, lookbackSeconds, replenish, parked"
                )
            ],
            id="a-key-below-is-left-out",
        ),
        pytest.param(
            "[chat, chat-v2]",
            "chat",
            ['f.yaml:23:11: spec.models: must be a list with at least one entry, is "chat" | write ["chat"]'],
            id="one-entry-without-its-list",
        ),
        pytest.param(
            "seat: {gpus: 2,",
            "seat: {gpus: two,",
            [
                (
                    'f.yaml:7:16: spec.seat.gpus: must be an integer from 0 to 16, is "two" | GPUs of one seat, which every'
                    " resident of the seat uses as a whole, for example 1"
                )
            ],
            id="an-acronym-keeps-its-capitals",
        ),
        pytest.param(
            "spec: {maxSeats: 3}",
            "spec: {maxSeats: 3, frozen: {until: '2026-12-24T18:00:00+25:00', reason: update}}",
            [
                (
                    "f.yaml:14:37: spec.frozen.until: there is no such time: the hour of the offset goes from 0 to 23, and"
                    " is 25 | as 2026-12-24T18:00:00Z, or with an offset as 2026-12-24T18:00:00+01:00"
                )
            ],
            id="an-offset-that-no-place-has",
        ),
        pytest.param(
            "spec: {maxSeats: 3}",
            "spec: {maxSeats: 3, frozen: {until: '2026-02-30T18:00Z', reason: update}}",
            [
                (
                    "f.yaml:14:37: spec.frozen.until: there is no such time: 2026-02 has fewer than 30 days |"
                    " as 2026-12-24T18:00:00Z, or with an offset as 2026-12-24T18:00:00+01:00"
                )
            ],
            id="a-day-that-the-month-lacks",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(old: str, new: str, expected: list[str]) -> None:
    text = FLEET + POLICY
    assert text.count(old) == 1
    assert faults(text.replace(old, new)) == expected


SECOND = """\
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: %s}
spec: {fleets: [{name: %s, targetInFlight: 8}], models: [%s], serving: {min: %d}}
"""


def test_a_model_name_belongs_to_one_policy() -> None:
    assert faults(FLEET + POLICY + SECOND % ("code", "spares", "code, chat-v2", 1)) == [
        (
            "f.yaml:34:68: spec.models[1]: the model name chat-v2 belongs to policy chat already |"
            " list it in one policy; see f.yaml:18"
        )
    ]


def test_a_policys_own_name_is_a_model_name_too() -> None:
    without = (FLEET + POLICY).replace("  models: [chat, chat-v2]\n", "")
    assert faults(without + SECOND % ("code", "spares", "chat", 1)) == [
        (
            "f.yaml:33:62: spec.models[0]: the model name chat belongs to policy chat already |"
            " list it in one policy; see f.yaml:18"
        )
    ]


def on_port(name: str, port: int, *fleets: str) -> str:
    shares = ", ".join(f"{{name: {fleet}, targetInFlight: 8}}" for fleet in fleets)
    return (
        f"---\napiVersion: emberpool.dev/v1alpha1\nkind: ScalingPolicy\nmetadata: {{name: {name}}}\n"
        f"spec: {{fleets: [{shares}], serving: {{min: 0}}, engine: {{port: {port}}}}}\n"
    )


def test_residents_of_a_seat_share_a_pod_and_so_no_port() -> None:
    assert faults(FLEET + on_port("a", 8001, "own", "spares") + on_port("b", 8001, "own", "spares")) == [
        (
            "f.yaml:25:119: spec.engine.port: port 8001 is that of policy a already, in f.yaml:20, and both are on each"
            " seat of own | give each policy of a fleet a port of its own"
        )
    ]


@pytest.mark.parametrize(
    "other", [on_port("b", 8002, "own"), on_port("b", 8001, "spares")], ids=["another-port", "another-fleet"]
)
def test_a_port_is_free_on_other_pods(other: str) -> None:
    assert set(compiled(FLEET + on_port("a", 8001, "own") + other).policies) == {"a", "b"}


BUDGET = """\
---
apiVersion: emberpool.dev/v1alpha1
kind: Controller
metadata: {name: emberpool}
spec: {gpuBudget: %d}
"""


def test_a_budget_holds_the_floors() -> None:
    assert faults(FLEET + POLICY + SECOND % ("code", "spares", "code", 1) + BUDGET % 2) == [
        (
            "f.yaml:39:19: spec.gpuBudget: floors need 2 (chat serving.min) + 1 (code serving.min) = 3 GPUs, and the"
            " budget is 2 | raise gpuBudget, or lower serving.min"
        )
    ]
    on_two = POLICY.replace("    - {name: spares, targetInFlight: 24}\n", "")
    assert faults(FLEET + on_two + BUDGET % 3) == [
        (
            "f.yaml:33:19: spec.gpuBudget: floors need 4 (chat serving.min × 2 GPUs) = 4 GPUs, and the budget is 3 |"
            " raise gpuBudget, or lower serving.min"
        )
    ]
    single = on_two.replace("serving: {min: 2", "serving: {min: 1").replace(
        "seat: {gpus: 2", "seat: {gpus: 1"
    )
    assert " = 2 GPUs, and" in faults(FLEET + single + BUDGET % 1)[0]
    assert "= 1 GPU, and" in faults(FLEET.replace("gpus: 2", "gpus: 1") + single + BUDGET % 0)[0]


@pytest.mark.parametrize("budget", [3, 96])
def test_a_budget_may_be_too_small_for_spares(budget: int) -> None:
    text = FLEET + POLICY + SECOND % ("code", "spares", "code", 1) + BUDGET % budget
    assert compiled(text).gpu_budget == budget


def test_a_budget_need_not_hold_at_once_what_schedules_ask_for_one_after_the_other() -> None:
    night = "  schedules: [{name: night, start: '0 20 * * *', end: '0 6 * * *', minServing: 5}]\n"
    text = FLEET.replace("maxSeats: 3", "maxSeats: 9") + POLICY + night + BUDGET % 3
    assert compiled(text).gpu_budget == 3


def test_two_policies_of_one_name() -> None:
    assert faults(FLEET + POLICY + SECOND % ("chat", "spares", "code", 1)) == [
        (
            "f.yaml:33:18: metadata.name: the ScalingPolicy chat is already defined in f.yaml:18 |"
            " rename or remove one of the two"
        )
    ]


def test_floors_and_spares_must_find_room_on_one_fleet() -> None:
    text = (FLEET + POLICY).replace("spec: {maxSeats: 3}", "spec: {maxSeats: 3, spare: {min: 2}}")
    text = text + SECOND % ("code", "spares", "code", 1) + SECOND % ("draw", "spares", "draw", 1)
    assert faults(text) == [
        (
            "f.yaml:14:18: spec.maxSeats: floors and spares need 1 (code serving.min) + 1 (draw serving.min) +"
            " 2 (spares spare.min) = 4 seats, but there are at most 3 (spares maxSeats) |"
            " raise maxSeats, or lower serving.min or spare.min"
        )
    ]


def test_floors_must_find_room_on_all_their_fleets_together() -> None:
    text = (FLEET + POLICY).replace("serving: {min: 2, max: 5", "serving: {min: 7, max: 7")
    assert faults(text) == [
        (
            "f.yaml:27:18: spec.serving.min: floors and spares need 7 (chat serving.min) + 1 (own spare.min) = 8"
            " seats, but there are at most 4 (own maxSeats) + 3 (spares maxSeats) = 7 |"
            " raise maxSeats, or lower serving.min or spare.min"
        )
    ]


def test_a_floor_may_spill_onto_the_bridge() -> None:
    text = (FLEET + POLICY).replace("serving: {min: 2, max: 5", "serving: {min: 6, max: 7")
    assert compiled(text).policy_specs["chat"].serving_min == 6


def test_rules_between_documents_are_looked_at_beside_the_faults_of_one() -> None:
    text = (
        (FLEET + POLICY)
        .replace("maxSeats: 4", "maxSeats: four")
        .replace("name: spares, t", "name: sparse, t")
    )
    assert [line.partition(": ")[2].partition(":")[0] for line in faults(text)] == [
        "spec.maxSeats",
        "spec.fleets[1].name",
    ]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("{name: own}", "\n  # here\n  name: own"), id="layout"),
        pytest.param(lambda text: text.replace("mode: Observe", "mode: 'Observe'"), id="quotes"),
        pytest.param(lambda text: text + "\n---\n", id="empty-document"),
        pytest.param(
            lambda text: text.replace("spec: {maxSeats: 3}", "spec: {maxSeats: 3, mode: Enforce}"),
            id="default-written-out",
        ),
        pytest.param(lambda text: "---\n".join(reversed(text.split("---\n"))), id="order-of-documents"),
    ],
)
def test_the_hash_is_of_what_was_meant(change: Callable[[str], str]) -> None:
    assert compiled(change(FLEET + POLICY)).hash == compiled(FLEET + POLICY).hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("priority: 7", "priority: 8", id="priority"),
        pytest.param("{name: spares, targetInFlight: 24}", "{name: spares, targetInFlight: 25}", id="share"),
        pytest.param('"32"', '"33"', id="engine-argument"),
    ],
)
def test_the_hash_tells_meanings_apart(old: str, new: str) -> None:
    changed = compiled((FLEET + POLICY).replace(old, new))
    assert changed.hash != compiled(FLEET + POLICY).hash
    assert changed.short_hash == changed.hash[:12]


def test_a_set_answers_who_serves_what_where() -> None:
    found = compiled(FLEET + POLICY + SECOND % ("code", "spares", "code", 1))
    assert found.policy_of("chat-v2") == "chat"
    assert found.policy_of("unheard-of") is None
    assert found.policies_on("spares") == ["chat", "code"]
    assert found.policies_on("own") == ["chat"]


# ------------------------------------------------------------------ defaults


def test_the_default_set_gives_each_checkpoint_a_seat_and_keeps_the_rest_spare() -> None:
    found = default_set(["chat", "code"], seats=3, target_in_flight=6, gpus=1)
    fleet = found.fleet_specs["local"]
    assert (fleet.max_seats, fleet.spare_target) == (3, 1)
    assert found.fleets["local"].spec.seat.gpus == 1
    assert {name: spec.serving_min for name, spec in found.policy_specs.items()} == {"chat": 1, "code": 1}
    assert found.policy_specs["chat"].fleets == (core.FleetShare(fleet="local", target_in_flight=6),)


def test_the_default_set_shares_seats_that_are_too_few() -> None:
    found = default_set(["a", "b", "c"], seats=2)
    assert found.fleet_specs["local"].spare_target == 2
    assert {spec.serving_min for spec in found.policy_specs.values()} == {0}


def test_the_default_set_is_one_that_could_have_been_written() -> None:
    found = default_set(["a", "b"], seats=2)
    written = "---\n".join(
        item.model_dump_json(by_alias=True) + "\n"
        for item in [*found.fleets.values(), *found.policies.values()]
    )
    assert compiled(written).hash == found.hash


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        pytest.param([], "no checkpoint was given", "name one: --checkpoint NAME=DIR", id="none"),
        pytest.param(
            ["Llama_3"],
            "'Llama_3' can't be a policy's name: it needs lower-case letters, digits and - only, at most 63",
            "give the checkpoint another name: --checkpoint NAME=DIR",
            id="not-a-label",
        ),
    ],
)
def test_the_default_set_refuses_names_that_are_none(names: list[str], message: str, hint: str) -> None:
    with pytest.raises(UserError) as raised:
        default_set(names, seats=1)
    assert (str(raised.value), raised.value.hint) == (message, hint)


def test_what_a_controller_says_of_nodes_is_what_the_leader_goes_by() -> None:
    text = (
        "apiVersion: emberpool.dev/v1alpha1\nkind: Controller\nmetadata: {name: c}\nspec:\n"
        "  breaker: {maxPercent: 10, atLeast: 2, atMost: 5, windowSeconds: 60}\n"
        "  heeds: {taints: [example.com/gpu-fault], conditions: [GpuFault, acme.io/Hardware=False]}\n"
    )
    made = compile_set(parse_documents(text, "c.yaml"))
    assert made.breaker == BreakerLimits(max_percent=10, at_least=2, at_most=5, window_seconds=60.0)
    assert made.heeded == Heeded(
        taints=frozenset({"example.com/gpu-fault"}),
        conditions={"GpuFault": "True", "acme.io/Hardware": "False"},
    )


def test_without_a_controllers_word_nothing_is_heeded_beside_cordons() -> None:
    assert compile_set(parse_documents(CONTROLLER, "c.yaml")).heeded == Heeded()


@pytest.mark.parametrize("written", ["GpuFault=Maybe", "=True", "no good", ""])
def test_a_condition_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(PolicyError, match="the type of a node's condition"):
        compile_set(parse_documents(f"{CONTROLLER}  heeds: {{conditions: ['{written}']}}\n", "c.yaml"))


CONTROLLER = (
    "apiVersion: emberpool.dev/v1alpha1\nkind: Controller\nmetadata: {name: c}\nspec:\n  gpuBudget: 8\n"
)
