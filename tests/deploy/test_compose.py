"""docker-compose.yaml and what it mounts: right by the specification's schema, and right with each other."""

import fnmatch
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from scaler.cluster.static.listing import load_agents
from scaler.policy.compile import load_policies
from tests.deploy.compose import FILE, PORT_OPTIONS, ROOT, load, substituted, variables_of
from tests.deploy.monitoring import needs, parse

COMPOSE = load()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("emberpool-")}
IMAGES = sorted(service["build"]["dockerfile"] for service in OURS.values() if "build" in service)
ENDING = {"prepare", "drill"}
"""Services that end when their work is done."""
SEATS = sorted(name for name in SERVICES if name.startswith("seat-"))
DEPLOY = ROOT / "deploy/compose"


def mounts(service: str) -> dict[str, str]:
    """Sources by container path."""
    entries = [entry.split(":") for entry in SERVICES[service].get("volumes", [])]
    return {entry[1]: entry[0] for entry in entries}


def test_the_file_follows_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_would_notice_a_wrong_key(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yaml"
    wrong.write_text(FILE.read_text("utf-8").replace("healthcheck:", "healthchek:"), "utf-8")
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(wrong),
    ]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_watched_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    if name in ENDING:
        assert (service["restart"], service["healthcheck"]) == ("no", {"disable": True})
        return
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", sorted(OURS.keys() - ENDING))
def test_a_service_of_ours_has_time_to_start_before_it_counts_as_sick(name: str) -> None:
    seconds = re.fullmatch(r"(\d+)s", SERVICES[name]["healthcheck"]["start_period"])
    assert seconds is not None
    assert int(seconds[1]) >= 30  # some 2 s on two cores with everything in the page cache


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_mounts_is_there(name: str) -> None:
    for target, source in mounts(name).items():
        if source.startswith("."):
            assert (ROOT / source).exists(), f"{target} is mounted from {source}"
        else:
            assert source in COMPOSE["volumes"]


def test_no_secret_stands_in_the_file_and_the_example_names_each() -> None:
    example = (DEPLOY / ".env.example").read_text("utf-8")
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("TOKEN|PASSWORD|SECRET|KEY", name):
                assert re.fullmatch(r"\$\{\w+:\?.+\}", value)
    needed = {match["name"] for match in variables_of(FILE.read_text("utf-8")) if match["how"] != ":-"}
    assert needed == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))  # named, and empty
    with pytest.raises(KeyError):
        substituted(COMPOSE, {})


def test_git_leaves_files_with_secrets_alone() -> None:
    assert "/.env" in (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert "/agent-token" in (ROOT / "deploy/monitoring/.gitignore").read_text("utf-8").splitlines()


def test_nothing_is_published_beyond_this_machine_unless_it_is_asked_for() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in substituted(ports, {}))
    opened = substituted(ports, {"EMBERPOOL_GATEWAY_ADDRESS": "0.0.0.0"})
    assert [port for port in opened if not port.startswith("127.0.0.1:")] == ["0.0.0.0:8000:8000"]


def test_images_are_pinned_and_name_no_registry() -> None:
    for name, service in SERVICES.items():
        first, _, rest = service["image"].partition("/")
        assert not (rest and re.search(r"[.:]", first)), f"{name}: {service['image']}"
        if name not in OURS:
            assert re.search(r":v?\d+\.\d+", service["image"]), f"{name}: {service['image']}"


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_built_from_what_is_there_and_runs_without_root(image: str) -> None:
    text = (ROOT / image).read_text("utf-8")
    allowed = (ROOT / f"{image}.dockerignore").read_text("utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in allowed
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["python:3.12-slim"] * 2
    assert "\nUSER emberpool\n" in text


def test_each_image_is_built_by_one_service_and_never_pulled() -> None:
    built = [service["image"] for service in OURS.values() if "build" in service]
    assert sorted(built) == sorted({service["image"] for service in OURS.values()})
    assert all(service["pull_policy"] == "never" for service in OURS.values())


def test_only_the_seats_have_torch() -> None:
    extras = {
        image: re.findall(
            r"pip install .* '?\.(\[[\w,]+\])?'?$", (ROOT / image).read_text("utf-8"), re.MULTILINE
        )
        for image in IMAGES
    }
    assert extras == {
        "deploy/images/controller.Dockerfile": ["[node]"],
        "deploy/images/seat.Dockerfile": ["[engine,drill]"],
    }


def test_arguments_of_a_build_are_known_to_its_image() -> None:
    builds = [service["build"] for service in OURS.values() if "build" in service]
    assert any(build.get("args") for build in builds)
    for build in builds:
        declared = re.findall(r"^ARG (\w+)", (ROOT / build["dockerfile"]).read_text("utf-8"), re.MULTILINE)
        assert set(build.get("args", {})) <= set(declared)


def test_a_user_s_index_for_pip_reaches_the_build_and_none_is_the_default() -> None:
    arguments = SERVICES["prepare"]["build"]["args"]
    assert substituted(arguments, {}) == {"PIP_EXTRA_INDEX_URL": ""}
    assert substituted(arguments, {"PIP_EXTRA_INDEX_URL": "x"}) == {"PIP_EXTRA_INDEX_URL": "x"}


def test_policies_agents_and_services_are_of_one_mind() -> None:
    policies, listed = load_policies([DEPLOY / "policies.yaml"]), load_agents(DEPLOY / "agents.yaml")
    assert {fleet.name for fleet in listed.spec.fleets} == set(policies.fleets)
    for fleet in listed.spec.fleets:
        assert policies.fleets[fleet.name].spec.max_seats == len(fleet.seats)  # type: ignore[index]
        assert len(policies.policies_on(fleet.name)) == 2  # type: ignore[arg-type]
    seats = {seat.name: seat.agent for fleet in listed.spec.fleets for seat in fleet.seats}
    assert seats == {name: f"http://{name}:9081" for name in SEATS}
    for name in SEATS:
        assert SERVICES[name]["command"] == ["agent", f"--config=/data/seats/{name}.json"]


def test_the_seats_are_the_same_ones_without_docker_each_with_a_port_of_its_own() -> None:
    here, there = (load_agents(DEPLOY / name).spec.fleets for name in ("agents-here.yaml", "agents.yaml"))
    assert [(each.name, [seat.name for seat in each.seats]) for each in here] == [
        (each.name, [seat.name for seat in each.seats]) for each in there
    ]
    places = [urlsplit(seat.agent) for fleet in here for seat in fleet.seats]
    assert {place.hostname for place in places} == {"127.0.0.1"}
    taken = {8000, 9080, 9082, 9090, *(place.port for place in places)}
    assert len(taken) == 4 + len(places)


def test_the_commands_without_docker_are_those_of_the_services() -> None:
    text = (DEPLOY / "README.md").read_text("utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    started = {tuple(shlex.split(line)[1:3]) for line in lines if line.startswith(("emberpool", "python"))}
    commands = {service["command"][0] for name, service in OURS.items() if name not in ENDING}
    assert {command for command, _ in started} >= commands
    assert {f"$DATA/seats/{name}.json" for name in SEATS} == set(re.findall(r"agent --config (\S+)", text))
    for path in re.findall(r"deploy/[\w./-]+", text):
        assert (ROOT / path).exists() or path.endswith("/agent-token"), path
    for line in lines:
        arguments = shlex.split(line.partition(" 2>")[0])
        if arguments and arguments[0] == "emberpool":
            parse(arguments[1:])


def jobs() -> dict[str, Any]:
    return {job["job_name"]: job for job in load(DEPLOY / "prometheus.yml")["scrape_configs"]}


def test_prometheus_scrapes_every_process_of_ours() -> None:
    targets = {
        target
        for job in jobs().values()
        for each in job.get("static_configs", ())
        for target in each["targets"]
    }
    assert targets == {"controller:9080", "gateway:9082", *(f"{name}:9081" for name in SEATS)}
    assert {("controller", 9080), ("gateway", 9082)} <= PORT_OPTIONS.keys()
    assert set(load(DEPLOY / "prometheus.yml")["rule_files"]) <= set(mounts("prometheus"))


def test_prometheus_may_read_the_token_of_the_agents() -> None:
    file = Path(jobs()["emberpool-agent"]["authorization"]["credentials_file"])
    (secret,) = SERVICES["prometheus"]["secrets"]
    assert file == Path("/run/secrets") / secret["source"]
    assert secret["mode"] & 0o004  # it runs as nobody
    assert COMPOSE["secrets"][secret["source"]] == {"environment": "EMBERPOOL_AGENT_TOKEN"}


def test_prometheus_finds_a_drill_by_the_file_that_it_writes() -> None:
    drill = SERVICES["drill"]
    (option,) = [each for each in drill["command"] if each.startswith("--targets-file=")]
    written = Path(option.partition("=")[2])
    (pattern,) = jobs()["emberpool-drill"]["file_sd_configs"][0]["files"]
    read = Path(pattern)
    assert fnmatch.fnmatch(written.name, read.name)
    assert mounts("drill")[str(written.parent)] == mounts("prometheus")[str(read.parent)]
    # what it names is on the drill's 127.0.0.1
    assert drill["network_mode"] == "service:prometheus"
    # a volume takes its owner from the folder in the image: the drill isn't root
    seat = (ROOT / "deploy/images/seat.Dockerfile").read_text("utf-8")
    assert re.search(rf"install --directory --owner emberpool .*{written.parent}\b", seat)


def test_a_drill_runs_only_when_it_is_asked_for() -> None:
    assert [name for name, service in SERVICES.items() if service.get("profiles")] == ["drill"]


def test_promtool_accepts_the_configuration_of_prometheus() -> None:
    command = [needs("promtool"), "check", "config", "--syntax-only", str(DEPLOY / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_its_dashboards_and_its_data() -> None:
    provisioning = DEPLOY / "grafana/provisioning"
    (provider,) = load(provisioning / "dashboards/emberpool.yaml")["providers"]
    assert mounts("grafana")[provider["options"]["path"]] == "./deploy/monitoring/dashboards"
    (source,) = load(provisioning / "datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
