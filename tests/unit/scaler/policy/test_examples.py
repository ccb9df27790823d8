"""The examples in `policies/`: each can be used, by itself and with the others, and shows what it is there for."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from scaler.core.wishes import FOLLOWED_SECONDS, HPA_SYNC_SECONDS, holds
from scaler.policy.compile import PolicySet, load_policies
from scaler.policy.document import dotted, load_documents, parse_documents
from scaler.policy.fleet import Fleet, FleetMode, ResizedBy, SpareMode
from scaler.policy.lint import Code, Subject, lint
from scaler.policy.schedules import floor_at
from scaler.policy.signals import EngineMetrics, Prometheus, RedisStream
from scaler.policy.template import Starts, Written, template
from scaler.policy.unbuilt import not_acted_on
from scaler.policy.workload import find_workload
from warmpool.seats import FleetName, PolicyName

EXAMPLES = Path(__file__).parents[4] / "policies"
FILES = sorted(EXAMPLES.glob("*.yaml"))
MODELINE = "# yaml-language-server: $schema=schema/emberpool.schema.json\n"
NOT_ACTED_ON = "# Not acted on yet: "
WITH_FLEETS = re.compile(r"^kind: Fleet$", re.MULTILINE)
EVERY_FILE = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def example(name: str) -> PolicySet:
    return load_policies([EXAMPLES / f"{name}.yaml"])


@EVERY_FILE
def test_each_can_be_used_by_itself(file: Path) -> None:
    found = load_policies([file])
    assert found.policy_specs or found.settings
    assert set(found.fleet_specs) == {
        share.fleet for spec in found.policy_specs.values() for share in spec.fleets
    }


def test_all_can_be_used_together() -> None:
    found = load_policies([EXAMPLES])
    assert found.controller is not None
    assert found.xid_table is not None
    assert len(found.fleet_specs) == sum(len(load_policies([file]).fleet_specs) for file in FILES)


@EVERY_FILE
def test_each_is_a_page_that_says_what_it_shows(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    first, *others = text.split("\n---\n")
    assert len(text.splitlines()) <= 100
    assert first.startswith(MODELINE + "# ")
    assert all(document.startswith(MODELINE) for document in others)  # the comment counts for one document


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: file.name)
def test_each_says_what_of_it_is_not_acted_on_yet(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    told = [line.removeprefix(NOT_ACTED_ON).rstrip(".") for line in lines if line.startswith(NOT_ACTED_ON)]
    found = [dotted(each.path) for document in load_documents([file]) for each in not_acted_on(document.data)]
    assert [key for line in told for key in line.split(", ")] == list(dict.fromkeys(found))


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: file.name)
def test_cron_fields_are_in_quotes(file: Path) -> None:
    for line in file.read_text(encoding="utf-8").splitlines():
        for value in re.findall(r"\b(?:start|end): (\S)", line.partition("#")[0]):
            assert value == '"', line


@EVERY_FILE
def test_each_query_asks_for_the_number_that_it_stands_for_and_says_whose(file: Path) -> None:
    report = lint(Subject(policies=load_policies([file]), now=datetime(2026, 6, 1, tzinfo=UTC)))
    codes = {finding.code for finding in report.findings}
    assert codes.isdisjoint({Code.QUERY_IS_SHARE, Code.QUERY_IS_RATE, Code.QUERY_COUNTS_OTHERS})


def test_what_is_said_of_others_wishes_is_what_the_law_does() -> None:
    fleet = example("keda").fleet_specs[FleetName("summarizer")]
    description = Fleet.model_json_schema()["$defs"]["FleetSpec"]["properties"]["resizedBy"]["description"]
    written = (EXAMPLES / "keda.yaml").read_text("utf-8")
    assert f"the last {FOLLOWED_SECONDS:g} seconds" in " ".join(description.split())
    assert f"at least {HPA_SYNC_SECONDS:g} seconds" in " ".join(description.split())
    assert f"the last {FOLLOWED_SECONDS:g} seconds" in written
    assert f"here {holds(fleet.scale_down.window):g} seconds" in written


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        pytest.param("one-model", lambda it: len(it.fleets) == len(it.policies) == 1, id="one-model"),
        pytest.param(
            "shared-spares",
            lambda it: (
                len(it.policies_on(FleetName("spares"))) == 3
                and all(policy.spec.fleets[1].name == "spares" for policy in it.policies.values())
            ),
            id="shared-spares",
        ),
        pytest.param(
            "shared-fleet", lambda it: (len(it.fleets), len(it.policies)) == (1, 3), id="shared-fleet"
        ),
        pytest.param(
            "keda",
            lambda it: all(fleet.spec.resized_by is ResizedBy.KEDA for fleet in it.fleets.values()),
            id="keda",
        ),
        pytest.param(
            "queue-workers",
            lambda it: (
                it.policies["grading"].spec.preemptible
                and it.policies["grading"].spec.serving.min == 0
                and isinstance(it.policies["grading"].spec.signals[0], RedisStream)
                and it.fleets["tutor-spares"].spec.spare.mode is SpareMode.AUTO
            ),
            id="queue-workers",
        ),
        pytest.param(
            "parked",
            lambda it: it.fleets["long-tail"].spec.spare.parked.host_memory_mib > 0,
            id="parked",
        ),
        pytest.param("two-gpus", lambda it: it.fleets["llama-70b"].spec.seat.gpus == 2, id="two-gpus"),
        pytest.param(
            "observe",
            lambda it: (
                it.fleets["search-llm"].spec.mode is FleetMode.OBSERVE
                and [type(signal) for signal in it.policies["search-llm"].spec.signals]
                == [EngineMetrics, Prometheus]
            ),
            id="observe",
        ),
        pytest.param("controller", lambda it: it.controller.spec.gpu_budget == 96, id="controller"),
    ],
)
def test_each_shows_what_it_is_there_for(name: str, shows: Callable[[PolicySet], bool]) -> None:
    assert shows(example(name))


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if WITH_FLEETS.search(file.read_text("utf-8"))],
    ids=lambda file: file.name,
)
def test_every_fleet_can_be_written_into_a_manifest(file: Path) -> None:
    found, documents = load_policies([file]), load_documents([file])
    assert found.fleets
    places = {
        each.data["metadata"]["name"]: each for each in documents if each.data["kind"] == "ScalingPolicy"
    }
    for name, fleet in found.fleets.items():
        _, _, kind, workload = fleet.target
        manifest = (
            f"apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {workload}}}\nspec: {{template: {{spec: {{containers:"
            f" [{{name: engine, resources: {{limits: {{nvidia.com/gpu: {fleet.spec.seat.gpus}}}}}}}]}}}}}}\n"
        )
        policies = [Written(places[policy], found.policies[policy]) for policy in found.policies_on(name)]
        if any(each.policy.spec.engine.port is None for each in policies):
            assert file.name == "local-cpu.yaml"  # without a cluster the agents choose the ports
            continue
        starts = Starts(
            commands={each.name: ("serve", f"--port={9000 + index}") for index, each in enumerate(policies)}
        )
        wanted = template(fleet, policies, find_workload(fleet, parse_documents(manifest, "m.yaml")), starts)
        assert [each.policy for each in wanted.residents] == found.policies_on(name)


def test_the_scaled_object_agrees_with_its_fleet() -> None:
    text = (EXAMPLES / "keda.yaml").read_text(encoding="utf-8")
    commented = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    (document,) = parse_documents("\n".join(commented), "keda.yaml")
    scaled, found = document.data, example("keda")
    fleet, policy = found.fleets[FleetName("summarizer")], found.policies[PolicyName("summarizer")]
    assert scaled["kind"] == "ScaledObject"
    assert scaled["metadata"] == {"name": "summarizer", "namespace": fleet.metadata.namespace}
    assert scaled["spec"]["scaleTargetRef"]["name"] == fleet.target[3]
    assert scaled["spec"]["minReplicaCount"] == policy.spec.serving.min + fleet.spec.spare.min
    assert scaled["spec"]["maxReplicaCount"] == fleet.spec.max_seats
    assert scaled["spec"]["fallback"]["replicas"] == policy.spec.fallback.replicas
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["type"], trigger["metadata"]["fleet"]) == ("external-push", fleet.metadata.name)


@pytest.mark.parametrize(
    ("moment", "seats", "serving"),
    [
        pytest.param("2026-11-04T20:00", 0, 0, id="wednesday"),
        pytest.param("2026-11-07T10:00", 8, 0, id="saturday"),
        pytest.param("2026-11-10T22:30", 30, 0, id="eve"),
        pytest.param("2026-11-10T23:45", 30, 24, id="doors"),
        pytest.param("2026-11-11T12:00", 30, 12, id="day"),
        pytest.param("2026-11-12T03:00", 30, 0, id="night-after"),
        pytest.param("2026-11-12T08:00", 0, 0, id="over"),
    ],
)
def test_seats_are_there_before_the_sale_and_go_after_it(moment: str, seats: int, serving: int) -> None:
    found, now = example("sale-day"), datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    assert floor_at(found.fleets[FleetName("shop")].spec.schedules, now).value == seats
    assert floor_at(found.policies[PolicyName("shop-assistant")].spec.schedules, now).value == serving


BAD = {46, 48, 54, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158, 169}
BAD_SOMETIMES = {74: "MultiGpu"} | dict.fromkeys(range(144, 151), "SaysFatal")
SUSPECT = {8, 11, 25, 32, 63, 69, 80, 92, 157}
RECORDED = {13, 31, 37, 38, 43, 44, 45, 66, 67, 68, 94, 121, 137, 141, 154, 159, 160, 161, 162, 163, 164, 165}
TWICE = {8, 11, 25, 32, 69, 80, 109}


def test_the_xid_table_says_what_each_known_error_means() -> None:
    table = example("xid-table").xid_table
    assert table is not None
    rules = {xid: rule for rule in table.spec.rules for xid in rule.xids}
    assert {xid: str(rule.verdict) for xid, rule in rules.items()} == (
        dict.fromkeys(BAD | set(BAD_SOMETIMES), "Bad")
        | dict.fromkeys(SUSPECT, "Suspect")
        | dict.fromkeys(RECORDED, "Record")
    )
    assert {xid: str(rule.when) for xid, rule in rules.items() if rule.when != "Always"} == BAD_SOMETIMES
    assert {xid for xid, rule in rules.items() if rule.occurrences == 2} == TWICE
