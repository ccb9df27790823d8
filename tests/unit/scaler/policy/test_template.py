"""What a fleet's pod template must say, and what keeps its pods from being seats."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import PolicyError
from scaler.policy.compile import compile_set
from scaler.policy.document import parse_documents
from scaler.policy.residents import ResidentsInvalid, parse_residents
from scaler.policy.template import Starts, Template, Written, entry_of, template
from scaler.policy.workload import find_workload
from warmpool.agent.annotations import with_policy

FLEET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares, namespace: serving}
spec: {maxSeats: 4, seat: {gpus: 1}}
"""
POLICY = """\
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: NAME, namespace: serving}
spec:
  fleets: [{name: spares, targetInFlight: 8}]
  engine: {type: VLLM, port: PORT}
"""
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: spares}
spec:
  selector: {matchLabels: {app: spares}}
  template:
    metadata:
      labels: {app: spares}
    spec:
      containers:
        - name: engine
          args: [vllm, serve, /models/chat]
          resources: {limits: {nvidia.com/gpu: 1}}
"""
ONE = FLEET + POLICY.replace("NAME", "chat").replace("PORT", "8001")
TWO = ONE + POLICY.replace("NAME", "code").replace("PORT", "8002")
CODE_ON_8001 = '[{"policy":"code","container":"engine","port":8001}]'
COMMANDS = {"chat": ("serve", "--port", "9001"), "code": ("serve", "--port=9002")}
SECOND = "        - name: code\n          args: [--port=9002]\n          resources: {limits: {nvidia.com/gpu: 1}}\n"
CLAIM = "resources: {claims: [{name: gpus}]}"
LIMIT = "resources: {limits: {nvidia.com/gpu: 1}}"

ASSUMED = (
    "the engine of chat is not told its port here: it is taken to listen on port 8000, as vLLM does by default; if it"
    " listens elsewhere, say so with --port N in its command or its container's args, or as enginePort in the annotation"
)
INSIDE = "8001, the resident's own, with the guard inside the engine"


def made(policies: str, manifest: str, starts: Starts | None = None) -> Template:
    documents = parse_documents(policies, "p.yaml")
    found = compile_set(documents)
    written = {
        each.data["metadata"]["name"]: each for each in documents if each.data["kind"] == "ScalingPolicy"
    }
    on_fleet = [Written(written[name], found.policies[name]) for name in found.policies_on("spares")]
    fleet = found.fleets["spares"]
    return template(
        fleet, on_fleet, find_workload(fleet, parse_documents(manifest, "m.yaml")), starts or Starts()
    )


def entries(wanted: Template) -> list[dict[str, object]]:
    return [entry_of(each) for each in wanted.residents]


def faults(policies: str, manifest: str, starts: Starts | None = None) -> list[str]:
    with pytest.raises(PolicyError) as raised:
        made(policies, manifest, starts)
    return [str(fault).replace("\n\nhint: ", " | ") for fault in raised.value.faults]


PARKING = ONE.replace(
    "seat: {gpus: 1}",
    "seat: {gpus: 1, memoryMiB: 80000, kvWhenPaused: Keep}, spare: {parked: {hostMemoryMiB: 65536}}",
)


def test_what_a_seat_may_take_is_written_where_the_fleet_says_it() -> None:
    wanted = made(PARKING, MANIFEST)
    written = '{"deviceMiB": 80000, "hostMiB": 65536, "kvWhenPaused": "Keep"}'
    assert f"emberpool.dev/memory: '{written}'\n" in wanted.apply(MANIFEST)
    once = wanted.apply(MANIFEST)
    assert made(PARKING, once).changes == []
    (change,) = made(ONE, once).changes
    assert (change.what, change.before, change.after) == ("annotation emberpool.dev/memory", written, "{}")


def test_agents_are_told_by_the_template_where_verdicts_on_gpus_are_observed() -> None:
    observes = ONE.replace("seat: {gpus: 1}", "seat: {gpus: 1}, gpuHealth: {mode: Observe}")
    once = made(observes, MANIFEST).apply(MANIFEST)
    assert "emberpool.dev/gpu-health: Observe\n" in once
    assert made(observes, once).changes == []
    again = made(ONE, once).apply(once)
    assert "emberpool.dev/gpu-health: Enforce\n" in again
    assert made(ONE, again).changes == []
    assert "gpu-health" not in made(ONE, MANIFEST).apply(MANIFEST)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("64Gi", "65536 MiB"),
        ("32G", "30518 MiB"),
        ("100Mi", "100 MiB"),
        ("68719476736", "65536 MiB"),
        ('"6871e7"', "65527 MiB"),
        ("65Gi", ""),
        ("0.1Ti", ""),
        ("much", ""),
    ],
)
def test_parked_weights_have_to_fit_into_the_container(limit: str, said: str) -> None:
    manifest = MANIFEST.replace("nvidia.com/gpu: 1", f"nvidia.com/gpu: 1, memory: {limit}")
    notes = [note for note in made(PARKING, manifest).notes if "parked weights" in note]
    assert [note.partition(" of memory")[0] for note in notes] == (
        [f"container engine may take {said}"] if said else []
    )


def test_a_fleet_of_one_model_needs_nothing_but_its_policy() -> None:
    wanted = made(ONE, MANIFEST)
    assert (
        wanted.apply(MANIFEST)
        == """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: spares}
spec:
  selector: {matchLabels: {app: spares}}
  template:
    metadata:
      labels: {app: spares, emberpool.dev/fleet: spares}
      annotations:
        emberpool.dev/residents: '[{"policy": "chat", "container": "engine", "port": 8001, "enginePort": 8000, "targetInFlight": 8}]'
    spec:
      containers:
        - name: engine
          args: [vllm, serve, /models/chat]
          resources: {limits: {nvidia.com/gpu: 1}}
      readinessGates:
        - conditionType: emberpool.dev/admitted
"""
    )
    assert [(change.what, change.before, change.after) for change in wanted.changes] == [
        ("label emberpool.dev/fleet", None, "spares"),
        (
            "annotation emberpool.dev/residents",
            None,
            [
                {
                    "policy": "chat",
                    "container": "engine",
                    "port": 8001,
                    "enginePort": 8000,
                    "targetInFlight": 8,
                }
            ],
        ),
        ("readiness gate", None, "emberpool.dev/admitted"),
    ]
    assert wanted.notes == [ASSUMED]


def test_engines_that_share_a_container_each_have_a_command() -> None:
    wanted = made(TWO, MANIFEST, Starts(commands=COMMANDS))
    text = wanted.apply(MANIFEST)
    (document,) = parse_documents(text, "m.yaml")
    written = document.data["spec"]["template"]["metadata"]["annotations"]["emberpool.dev/residents"]
    assert written.splitlines() == [
        "[",
        '  {"policy": "chat", "command": ["serve", "--port", "9001"], "port": 8001, "enginePort": 9001, "targetInFlight": 8},',
        '  {"policy": "code", "command": ["serve", "--port=9002"], "port": 8002, "enginePort": 9002, "targetInFlight": 8}',
        "]",
    ]
    assert parse_residents(written) == tuple(wanted.residents)


@pytest.mark.parametrize(
    ("policies", "manifest", "starts"),
    [
        pytest.param(ONE, MANIFEST, Starts(), id="container"),
        pytest.param(TWO, MANIFEST, Starts(commands=COMMANDS), id="commands"),
        pytest.param(ONE, MANIFEST.replace("labels: {app: spares}", "labels: {}"), Starts(), id="no-labels"),
        pytest.param(
            ONE,
            MANIFEST.replace("spec:\n      c", "spec:\n      readinessGates:\n      c"),
            Starts(),
            id="empty-gates",
        ),
        pytest.param(
            ONE,
            MANIFEST.replace(
                "spec:\n      c", "spec:\n      readinessGates: [{conditionType: other}]\n      c"
            ),
            Starts(),
            id="another-gate",
        ),
        pytest.param(ONE, '{"a": 1}\n---\n' + MANIFEST + "---\nb: 2\n", Starts(), id="among-documents"),
    ],
)
def test_a_second_run_changes_nothing_and_needs_no_commands(
    policies: str, manifest: str, starts: Starts
) -> None:
    text = made(policies, manifest, starts).apply(manifest)
    again = made(policies, text)
    assert again.changes == []
    assert again.apply(text) == text


@pytest.mark.parametrize(
    ("line", "engine", "expected"),
    [
        pytest.param("[serve, --port, '9001']", "VLLM", 9001, id="two-words"),
        pytest.param("[serve, --port=9001]", "VLLM", 9001, id="one-word"),
        pytest.param("[-c, exec vllm serve --port 9001 /m]", "VLLM", 9001, id="shell"),
        pytest.param("[serve, --metrics-port=7]", "VLLM", 8000, id="another-port"),
        pytest.param("[serve]", "SGLang", 30000, id="sglang's-own"),
        pytest.param("[serve]", "Generic", None, id="nobody-says"),
        pytest.param("[serve, --port=8001]", "VLLM", None, id="guard-inside-the-engine"),
        pytest.param("[serve, --port, $(PORT)]", "VLLM", None, id="variable"),
    ],
)
def test_where_an_engine_listens_is_read_from_how_it_starts(
    line: str, engine: str, expected: int | None
) -> None:
    manifest = MANIFEST.replace("[vllm, serve, /models/chat]", line)
    (entry,) = entries(made(ONE.replace("VLLM", engine), manifest))
    assert entry.get("enginePort") == expected


@pytest.mark.parametrize(
    ("line", "engine", "expected"),
    [
        pytest.param("[serve, --port, '9001']", "VLLM", [], id="told"),
        pytest.param("[serve]", "VLLM", [ASSUMED], id="vllm's-own"),
        pytest.param(
            "[serve]",
            "SGLang",
            [ASSUMED.replace("8000, as vLLM", "30000, as SGLang")],
            id="sglang's-own",
        ),
        pytest.param(
            "[serve]",
            "Generic",
            [ASSUMED.replace("8000, as vLLM does by default", INSIDE)],
            id="nobody-says",
        ),
        pytest.param(
            "[serve, --port, $(PORT)]",
            "VLLM",
            [
                ASSUMED.replace("not told its port here", "told its port as $(PORT)").replace(
                    "8000, as vLLM does by default", INSIDE
                )
            ],
            id="variable",
        ),
    ],
)
def test_where_an_engine_is_assumed_to_listen_is_said_with_how_to_set_it(
    line: str, engine: str, expected: list[str]
) -> None:
    manifest = MANIFEST.replace("[vllm, serve, /models/chat]", line)
    policies = ONE.replace("VLLM", engine)
    wanted = made(policies, manifest)
    assert wanted.notes == expected
    assert made(policies, wanted.apply(manifest)).notes == [], "the annotation says it now"


def annotated(text: str) -> str:
    return MANIFEST.replace(
        "      labels:", f"      annotations:\n        emberpool.dev/residents: '{text}'\n      labels:"
    )


def test_what_the_annotation_alone_knows_is_kept() -> None:
    known = '[{"policy":"chat","container":"engine","port":8007,"enginePort":8010,"pausedMiB":7,"kvMiB":9}]'
    (entry,) = entries(made(ONE.replace(", port: 8001", ""), annotated(known)))
    assert entry == {
        "policy": "chat",
        "container": "engine",
        "port": 8007,
        "enginePort": 8010,
        "targetInFlight": 8,
        "pausedMiB": 7,
        "kvMiB": 9,
    }


def test_what_the_policy_says_goes_before_the_annotation() -> None:
    known = '[{"policy":"chat","container":"engine","port":8007,"pausedMiB":7}]'
    policies = ONE.replace("port: 8001", "port: 8001, pausedMiB: 8, kvMiB: 10")
    (entry,) = entries(made(policies, annotated(known)))
    assert (entry["port"], entry["pausedMiB"], entry["kvMiB"]) == (8001, 8, 10)


def test_residents_keep_their_order_and_new_ones_come_by_priority() -> None:
    policies = TWO + POLICY.replace("NAME", "vip").replace("PORT", "8003") + "  priority: 9\n"
    known = '[{"policy":"code","command":["a"],"port":8002},{"policy":"chat","command":["b"],"port":8001}]'
    wanted = made(policies, annotated(known), Starts(commands={"vip": ("c",)}))
    assert [each.policy for each in wanted.residents] == ["code", "chat", "vip"]


def test_a_resident_whose_policy_left_the_fleet_goes() -> None:
    known = (
        '[{"policy":"gone","command":["a"],"port":8002},{"policy":"chat","container":"engine","port":8001}]'
    )
    wanted = made(ONE, annotated(known))
    assert [each.policy for each in wanted.residents] == ["chat"]
    assert [change.what for change in wanted.changes][1] == "annotation emberpool.dev/residents"


def test_another_fleets_label_is_replaced() -> None:
    manifest = MANIFEST.replace("labels: {app: spares}", "labels: {emberpool.dev/fleet: old}")
    wanted = made(ONE, manifest)
    assert (wanted.changes[0].before, wanted.changes[0].after) == ("old", "spares")
    assert "labels: {emberpool.dev/fleet: spares}\n" in wanted.apply(manifest)


def test_a_container_of_the_policys_name_holds_its_resident() -> None:
    manifest = MANIFEST.replace("name: engine", "name: chat").replace(LIMIT, CLAIM)
    manifest += SECOND.replace(LIMIT, CLAIM)
    wanted = made(TWO, manifest)
    assert [(each.policy, each.container) for each in wanted.residents] == [
        ("chat", "chat"),
        ("code", "code"),
    ]
    assert [note.partition(":")[0] for note in wanted.notes] == [
        "the engine of chat is not told its port here",
        "container chat has its GPUs through a ResourceClaim, which doesn't say here how many",
        "container code has its GPUs through a ResourceClaim, which doesn't say here how many",
    ]


def test_another_workload_may_be_the_target() -> None:
    policies = ONE.replace(
        "spec: {maxSeats",
        "spec: {target: {apiVersion: argoproj.io/v1alpha1, kind: Rollout, name: r}, maxSeats",
    )
    manifest = MANIFEST.replace("apps/v1", "argoproj.io/v1beta1").replace("Deployment", "Rollout")
    manifest = manifest.replace("metadata: {name: spares}", "metadata: {name: r, namespace: serving}")
    assert made(policies, manifest).workload.kind == "Rollout"


@pytest.mark.parametrize(
    ("change", "note"),
    [
        pytest.param(
            lambda text: (
                text + "        - name: logs\n          readinessProbe: {}\n          livenessProbe: {}\n"
            ),
            "container logs has a readinessProbe and livenessProbe: while it fails, the whole seat may count as not"
            " ready",
            id="another-containers-probe",
        ),
        pytest.param(
            lambda text: (
                text
                + "      initContainers: [{name: a, restartPolicy: Always, startupProbe: {}}, {name: b}]\n"
            ),
            "container a has a startupProbe: while it fails, the whole seat may count as not ready",
            id="sidecars-probe",
        ),
        pytest.param(
            lambda text: text.replace("  selector", "  replicas: 3\n  selector"),
            "spec.replicas is 3: applying the manifest resets the number of seats to that; leave it out, since the fleet"
            " is resized by its policies",
            id="replicas",
        ),
    ],
)
def test_what_whoever_applies_it_should_know(change: object, note: str) -> None:
    assert callable(change)
    assert made(ONE, change(MANIFEST)).notes == [ASSUMED, note]


NO_PLACE = "m.yaml:10:7: spec.template.spec.containers: "
SHARE = "containers engine and code get GPUs of their own, but the residents of a seat share its GPUs"
HOW = "let one container hold all engines (--command), or give all the same ResourceClaim"


@pytest.mark.parametrize(
    ("policies", "old", "new", "starts", "expected"),
    [
        pytest.param(
            ONE,
            "gpu: 1",
            "gpu: 2",
            {},
            [
                (
                    "m.yaml:13:48: spec.template.spec.containers[0].resources.limits.nvidia.com/gpu: container engine has 2"
                    " GPUs, a seat of fleet spares 1 | set the limit nvidia.com/gpu to 1, or seat.gpus of the fleet to what"
                    " the engines need"
                )
            ],
            id="too-many-gpus",
        ),
        pytest.param(
            ONE,
            f"          {LIMIT}\n",
            "",
            {},
            [
                (
                    "m.yaml:11:11: spec.template.spec.containers[0].resources.limits.nvidia.com/gpu: container engine has no"
                    " GPU, a seat of fleet spares 1 | set the limit nvidia.com/gpu to 1, or seat.gpus of the fleet to what"
                    " the engines need"
                )
            ],
            id="no-gpu",
        ),
        pytest.param(
            ONE,
            "gpu: 1",
            "gpu: one",
            {},
            [
                (
                    "m.yaml:13:48: spec.template.spec.containers[0].resources.limits.nvidia.com/gpu: must be a whole number of"
                    ' GPUs, is "one" | Kubernetes counts devices in whole numbers'
                )
            ],
            id="no-number",
        ),
        pytest.param(
            ONE,
            "          args",
            "          readinessProbe: {}\n          startupProbe: {}\n          args",
            {},
            [
                (
                    "m.yaml:12:11: spec.template.spec.containers[0].readinessProbe: container engine holds engines, and must"
                    " have no probe | remove readinessProbe: the agent watches engines, and the pod's readiness gate says when"
                    " it is ready"
                ),
                (
                    "m.yaml:13:11: spec.template.spec.containers[0].startupProbe: container engine holds engines, and must"
                    " have no probe | remove startupProbe: the agent watches engines, and the pod's readiness gate says when"
                    " it is ready"
                ),
            ],
            id="probes",
        ),
        pytest.param(
            ONE,
            "",
            "",
            {"containers": {"chat": "vllm"}},
            [
                NO_PLACE
                + "there is no container vllm, which should hold the resident of chat | there are: engine; say"
                " which one it is with --container chat=NAME"
            ],
            id="no-such-container",
        ),
        pytest.param(
            TWO,
            "",
            "",
            {"commands": {"chat": ("a",)}},
            [
                NO_PLACE
                + "nothing says how the resident of code starts: no container is called code | --command"
                " code='PROGRAM ARGUMENTS' where one container holds all engines, --container code=NAME where each has"
                " its own"
            ],
            id="no-start",
        ),
        pytest.param(
            TWO,
            "",
            "",
            {"containers": {"chat": "engine", "code": "engine"}},
            [
                NO_PLACE
                + "container engine would hold the residents of chat and code | say what starts each: --command"
                " chat='…' --command code='…'; or give each its own"
            ],
            id="one-container-for-two",
        ),
        pytest.param(
            TWO,
            "",
            "",
            {"containers": {"chat": "engine"}, "commands": {"code": ("a",)}},
            [
                NO_PLACE
                + "the resident of chat has a container of its own, that of code a command: engines either share"
                " one container, or each has its own | say what starts chat, too: --command chat='PROGRAM ARGUMENTS'"
            ],
            id="container-and-command",
        ),
        pytest.param(
            TWO,
            LIMIT + "\n",
            LIMIT + "\n" + SECOND,
            {"containers": {"chat": "engine"}},
            [f"m.yaml:14:11: spec.template.spec.containers[1]: {SHARE} | {HOW}"],
            id="gpus-of-their-own",
        ),
        pytest.param(
            TWO,
            LIMIT + "\n",
            CLAIM + "\n" + SECOND.replace(LIMIT, CLAIM.replace("gpus", "others")),
            {"containers": {"chat": "engine"}},
            [f"m.yaml:14:11: spec.template.spec.containers[1]: {SHARE} | {HOW}"],
            id="claims-of-their-own",
        ),
        pytest.param(
            TWO,
            LIMIT + "\n",
            LIMIT + "\n" + SECOND,
            {"commands": COMMANDS},
            [f"m.yaml:14:11: spec.template.spec.containers[1]: {SHARE} | {HOW}"],
            id="two-containers-for-commands",
        ),
        pytest.param(
            TWO.replace(", port: 8002", ""),
            "      labels:",
            f"      annotations:\n        emberpool.dev/residents: '{CODE_ON_8001}'\n      labels:",
            {"commands": COMMANDS},
            [
                (
                    "p.yaml:11:30: spec.engine.port: port 8001 is taken by the resident of code, and both listen on the same"
                    " pods | give each policy of a fleet a port of its own"
                )
            ],
            id="one-port-for-two",
        ),
        pytest.param(
            TWO,
            "",
            "",
            {"commands": {"chat": ("a", "--port=9"), "code": ("b", "--port=9")}},
            [
                NO_PLACE
                + "the engine of code listens on port 9, which is taken by the engine of chat | start the engine"
                " of code with another --port"
            ],
            id="one-port-for-two-engines",
        ),
        pytest.param(
            TWO,
            "",
            "",
            {"commands": {"chat": ("a", "--port=8002"), "code": ("b", "--port=9")}},
            [
                NO_PLACE
                + "the engine of chat listens on port 8002, which is taken by the resident of code | start the"
                " engine of chat with another --port"
            ],
            id="an-engine-on-a-neighbours-port",
        ),
        pytest.param(
            ONE.replace(", port: 8001", ""),
            "",
            "",
            {},
            [
                (
                    "p.yaml:11:3: spec.engine.port: is missing: the residents of a seat are told apart by their ports | choose"
                    " one that no other policy of its fleets has, such as 8001"
                )
            ],
            id="no-port",
        ),
        pytest.param(
            ONE,
            "{matchLabels: {app: spares}}",
            "{matchLabels: {emberpool.dev/fleet: other}}",
            {},
            [
                (
                    "m.yaml:5:49: spec.selector.matchLabels.emberpool.dev/fleet: selects pods of fleet other, and the pods"
                    " will be those of fleet spares | a selector can't be changed: leave the label out in a new workload"
                )
            ],
            id="selector-of-another-fleet",
        ),
        pytest.param(
            ONE,
            "name: spares}\nspec",
            "name: other}\nspec",
            {},
            [
                (
                    "m.yaml:1:1: there is no Deployment spares here, the workload of fleet spares | the manifest holds:"
                    " Deployment other; spec.target of the fleet says which one is meant"
                )
            ],
            id="no-workload",
        ),
        pytest.param(
            ONE,
            "name: spares}\nspec",
            "name: spares, namespace: old}\nspec",
            {},
            [
                (
                    "m.yaml:3:37: metadata.namespace: the Deployment spares is in namespace old, the fleet in serving | they"
                    " share one namespace"
                )
            ],
            id="another-namespace",
        ),
        pytest.param(
            ONE,
            LIMIT + "\n",
            LIMIT + "\n---\n" + MANIFEST,
            {},
            [
                (
                    "m.yaml:17:18: metadata.name: there is a Deployment spares already, in line 3 | name one of the two"
                    " otherwise"
                )
            ],
            id="two-of-one-name",
        ),
        pytest.param(
            ONE,
            "  template:\n",
            "  pods:\n",
            {},
            [
                (
                    "m.yaml:4:1: spec.template.spec: the Deployment spares has no pod template at spec.template.spec | write it"
                    " as Kubernetes documents it"
                )
            ],
            id="no-pod-template",
        ),
        pytest.param(
            ONE,
            "- name: engine",
            "- image: engine",
            {},
            [
                (
                    "m.yaml:11:11: spec.template.spec.containers[0]: must be a mapping with a name | write it as Kubernetes"
                    " documents it"
                )
            ],
            id="container-without-name",
        ),
        pytest.param(
            ONE,
            LIMIT,
            "resources: none",
            {},
            [
                (
                    'm.yaml:13:22: spec.template.spec.containers[0].resources: must be a mapping, is "none" | write it as'
                    " Kubernetes documents it"
                )
            ],
            id="resources-are-no-mapping",
        ),
        pytest.param(
            ONE,
            "    spec:\n",
            "    spec:\n      readinessGates: {}\n",
            {},
            [
                (
                    "m.yaml:10:7: spec.template.spec.readinessGates: must be a list, is an empty mapping | write it as"
                    " Kubernetes documents it"
                )
            ],
            id="gates-are-no-list",
        ),
    ],
)
def test_what_keeps_pods_from_being_seats_is_said_with_its_place_and_mend(
    policies: str, old: str, new: str, starts: dict[str, dict[str, Sequence[str]]], expected: list[str]
) -> None:
    manifest = MANIFEST.replace(old, new) if old else MANIFEST
    assert faults(policies, manifest, Starts(**starts)) == expected


def test_gpus_and_ports_are_looked_at_where_nothing_says_how_residents_start() -> None:
    manifest = MANIFEST.replace("gpu: 1", "gpu: 2").replace("name: chat", "name: engines")
    found = faults(TWO.replace(", port: 8002", ""), manifest)
    assert [fault.split(": ")[1] for fault in found] == [
        "spec.template.spec.containers",
        "spec.template.spec.containers",
        "spec.engine.port",
        "spec.template.spec.containers[0].resources.limits.nvidia.com/gpu",
    ]


def test_all_faults_come_at_once() -> None:
    manifest = MANIFEST.replace("gpu: 1", "gpu: 2").replace(
        "          args", "          livenessProbe: {}\n          args"
    )
    manifest = manifest.replace(
        "      labels:",
        f"      annotations:\n        emberpool.dev/residents: '{CODE_ON_8001}'\n      labels:",
    )
    found = faults(TWO.replace(", port: 8002", ""), manifest, Starts(commands=COMMANDS))
    assert [fault.split(": ")[1] for fault in found] == [
        "spec.template.spec.containers[0].resources.limits.nvidia.com/gpu",
        "spec.template.spec.containers[0].livenessProbe",
        "spec.engine.port",
    ]


def test_an_annotation_that_cant_be_read_is_a_fault_at_its_place() -> None:
    fault = faults(ONE, annotated('[{"policy":"chat","ports":8001}]'))[-1]
    assert fault.startswith(
        "m.yaml:9:34: spec.template.metadata.annotations.emberpool.dev/residents[0].ports: is not a known key"
    )


def test_a_container_of_the_annotation_that_is_gone_is_a_fault_at_the_annotation() -> None:
    (fault,) = faults(ONE, annotated('[{"policy":"chat","container":"old","port":8001}]'))
    assert fault.startswith(
        "m.yaml:9:34: spec.template.metadata.annotations.emberpool.dev/residents: there is no container old"
    )


def test_labels_that_are_an_alias_cant_take_one_of_their_own() -> None:
    manifest = MANIFEST.replace("{matchLabels: {app: spares}}", "{matchLabels: &labels {app: spares}}")
    manifest = manifest.replace("labels: {app: spares}\n", "labels: *labels\n")
    wanted = made(ONE, manifest)
    with pytest.raises(PolicyError) as raised:
        wanted.apply(manifest)
    assert str(raised.value) == (
        "m.yaml:8:7: spec.template.metadata.labels: is an alias of what stands elsewhere\n\nhint: write labels out here"
    )


def test_a_seat_without_gpus_needs_none() -> None:
    policies = ONE.replace("gpus: 1", "gpus: 0").replace("VLLM", "Reference")
    manifest = MANIFEST.replace(f"          {LIMIT}\n", "")
    assert [each.container for each in made(policies, manifest).residents] == ["engine"]


def test_a_command_that_is_none_is_refused() -> None:
    with pytest.raises(
        ResidentsInvalid, match=r"\[0\]\.command\[0\]: must be text of at most 4096 characters"
    ):
        made(TWO, MANIFEST, Starts(commands={"chat": ("x" * 5000,), "code": ("y",)}))


WHOLE = json.dumps(
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "spares", "namespace": "serving"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "spares"}},
            "template": {
                "metadata": {
                    "labels": {"app": "spares"},
                    "annotations": {
                        "emberpool.dev/residents": '[{"policy":"chat","container":"e","port":1}]'
                    },
                },
                "spec": {
                    "readinessGates": [{"conditionType": "other"}],
                    "initContainers": [
                        {"name": "i", "restartPolicy": "Always", "startupProbe": {"exec": {}}}
                    ],
                    "containers": [
                        {
                            "name": "e",
                            "command": ["vllm"],
                            "args": ["--port=9"],
                            "resources": {"limits": {"nvidia.com/gpu": 1}, "claims": []},
                        }
                    ],
                },
            },
        },
    }
)


def places(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    for key, value in (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    ):
        yield (*path, key)
        yield from places(value, (*path, key))


JUNK = st.sampled_from([None, True, -1, 2.5, "", "x", [], {}, [None], [1], [[]], {"x": None}, {"name": 1}])


@given(path=st.sampled_from(list(places(json.loads(WHOLE)))), junk=JUNK, gone=st.booleans())
def test_whatever_stands_in_a_manifest_it_is_written_or_refused(
    path: tuple[str | int, ...], junk: Any, *, gone: bool
) -> None:
    tree = json.loads(WHOLE)
    *way, last = path
    here = tree
    for part in way:
        here = here[part]
    if gone:
        del here[last]
    else:
        here[last] = junk
    text = json.dumps(tree, indent=1)
    try:
        wanted = made(ONE, text)
        after = wanted.apply(text)
    except PolicyError as error:
        assert all(1 <= fault.line <= text.count("\n") + 1 for fault in error.faults)  # noqa: PT017 - either is right
    else:
        assert made(ONE, after).changes == []


def test_what_a_policy_says_of_the_proof_and_of_computing_goes_with_its_resident() -> None:
    written = ONE.replace(
        "port: 8001}",
        "port: 8001, activationMiB: 2048, proof: {source: Agreement, tolerancePercent: 5, ownership: {dtype: bfloat16}}}",
    )
    (entry,) = [entry_of(each) for each in made(written, MANIFEST).residents]
    assert entry["activationMiB"] == 2048
    assert entry["proof"] == {
        "source": "Agreement",
        "tolerancePercent": 5,
        "ownership": {"dtype": "bfloat16"},
    }
    assert with_policy({}, entry["proof"])["agree"] is True


@pytest.mark.parametrize(
    ("listed", "target", "written"),
    [
        pytest.param(None, 8, 8, id="not-listed"),
        pytest.param(8, 8, 8, id="the-same"),
        pytest.param(8, 9, 9, id="more-than-was-warmed-up-for"),
        pytest.param(32, 8, 32, id="fewer-replace-no-seat"),
        pytest.param(33, 8, 8, id="far-fewer-do"),
    ],
)
def test_how_far_warm_up_goes_follows_the_policy_as_far_as_it_must(
    listed: int | None, target: int, written: int
) -> None:
    known = '[{"policy":"chat","container":"engine","port":8001,"enginePort":8000'
    known += "}]" if listed is None else f',"targetInFlight":{listed}}}]'
    policies = ONE.replace("targetInFlight: 8", f"targetInFlight: {target}")
    (entry,) = entries(made(policies, annotated(known)))
    assert entry["targetInFlight"] == written


def test_what_a_policy_says_of_warm_up_goes_with_its_resident_and_nothing_else_does() -> None:
    written = ONE.replace(
        "port: 8001}",
        "port: 8001, graphCapture: WhilePaused, warmup: {promptTokens: [], batchSizes: [2, 8]}}",
    )
    (entry,) = entries(made(written, MANIFEST))
    assert entry["graphCapture"] == "WhilePaused"
    assert entry["warmup"] == {"promptTokens": [], "batchSizes": [2, 8]}
    (entry,) = entries(made(ONE, MANIFEST))
    assert not {"warmup", "graphCapture"} & entry.keys()
