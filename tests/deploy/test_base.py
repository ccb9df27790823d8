"""deploy/base, as kubectl renders it: valid objects, pods that a restricted namespace takes, and everything in agreement with the policies."""

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
from ruamel.yaml import YAML
from typer.core import TyperGroup

from loader.cli.staging import stage
from scaler.cli.app import main
from scaler.keda.settings import DEFAULT_PORT
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyFiles
from tests.fakes.kube_api.selectors import selects
from tests.integration.kube.conftest import documented_role
from warmpool.agent.config import load_config
from warmpool.nodehealth.marks import TAINT_KEY
from warmpool.nodehealth.preflight.command import options as preflight_options
from warmpool.seats import FLEET_LABEL, SEAT_LABEL, SERVING_LABEL_PREFIX

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy" / "base"
OVERLAY = ROOT / "deploy" / "overlays" / "serving"
POLICIES = BASE / "policies"
FLEETS = {"chat": "one-resident", "spares": "three-residents"}
GATE = "emberpool.dev/admitted"
CLAIMS = "components/container-per-resident"
Body = dict[str, Any]

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the base")


def rendered(folder: Path) -> list[Body]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [body for body in YAML(typ="safe").load_all(done.stdout) if body]


@pytest.fixture(scope="module")
def bare() -> list[Body]:
    return rendered(BASE)


@pytest.fixture(scope="module")
def overlay() -> list[Body]:
    return rendered(OVERLAY)


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> list[Body]:
    """Seats whose agents ask the node agent beside them."""
    folder = tmp_path_factory.mktemp("asking")
    base = Path(*[".."] * len(folder.relative_to("/").parts)) / BASE.relative_to("/")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "serving",
        "resources": [str(base)],
        "components": [str(base / "components" / "ask-node-agent")],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return rendered(folder)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> list[Body]:
    """Seats that ask the stage daemon beside them, and that daemon."""
    folder = tmp_path_factory.mktemp("staged")
    base = Path(*[".."] * len(folder.relative_to("/").parts)) / BASE.relative_to("/")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "serving",
        "resources": [str(base)],
        "components": [str(base / "components" / "stage-daemon")],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return rendered(folder)


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> list[Body]:
    """The shared fleet with a container per resident."""
    folder = tmp_path_factory.mktemp("claims")
    up = Path(*[".."] * len(folder.relative_to("/").parts))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "serving",
        "resources": [str(up / BASE.relative_to("/") / "fleets" / "three-residents")],
        "components": [str(up / BASE.relative_to("/") / CLAIMS)],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return rendered(folder)


def of_nodes(folder: Path, *components: str) -> list[Body]:
    """The node agent in a namespace of its own, as README.md says."""
    up = Path(*[".."] * len(folder.relative_to("/").parts))
    env = [{"name": "CONTROLLERS_NAMESPACE", "value": "serving", "valueFrom": None}]
    patch = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "emberpool-node-agent"},
        "spec": {"template": {"spec": {"containers": [{"name": "node-agent", "env": env}]}}},
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "emberpool-nodes",
        "components": [str(up / BASE.relative_to("/") / "components" / each) for each in components],
        "patches": [{"patch": json.dumps(patch)}],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    return rendered(folder)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> list[Body]:
    """Node agents without the kernel's log."""
    return of_nodes(tmp_path_factory.mktemp("quiet"), "node-agent")


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> list[Body]:
    """Node agents with the kernel's log."""
    return of_nodes(tmp_path_factory.mktemp("logged"), "node-agent", "kernel-log")


@pytest.fixture(params=["quiet", "logged"])
def nodes(request: pytest.FixtureRequest) -> list[Body]:
    found: list[Body] = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def known() -> PolicySet:
    return PolicyFiles((POLICIES,)).read().set


def of(objects: list[Body], kind: str, name: str = "") -> list[Body]:
    return [each for each in objects if each["kind"] == kind and name in {"", each["metadata"]["name"]}]


def one(objects: list[Body], kind: str, name: str) -> Body:
    (found,) = of(objects, kind, name)
    return found


def pods(objects: list[Body]) -> Iterator[tuple[str, Body]]:
    """Each workload's name and pod template."""
    for kind in ("Deployment", "StatefulSet"):
        for body in of(objects, kind):
            yield body["metadata"]["name"], body["spec"]["template"]


def containers(template: Body) -> list[Body]:
    spec = template["spec"]
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


# ---------------------------------------------------------------- valid


@pytest.mark.parametrize("version", ["1.34", "1.36"])
@pytest.mark.parametrize("which", ["bare", "overlay", "claims", "asking", "staged", "quiet", "logged"])
def test_every_object_is_valid_and_has_no_misspelt_key(
    request: pytest.FixtureRequest, which: str, version: str
) -> None:
    objects = request.getfixturevalue(which)
    assert objects
    for body in objects:
        kubernetes_validate.validate(copy.deepcopy(body), version, strict=True)


def test_the_base_names_no_namespace_and_an_overlay_gives_one_to_all(
    bare: list[Body], overlay: list[Body]
) -> None:
    assert [each["metadata"]["name"] for each in bare if "namespace" in each["metadata"]] == []
    whole = {
        "Namespace",
        "ClusterRole",
        "ClusterRoleBinding",
        "PriorityClass",
        "FlowSchema",
        "PriorityLevelConfiguration",
    }
    placed = {each["metadata"].get("namespace") for each in overlay if each["kind"] not in whole}
    assert placed == {"serving"}
    subjects = [
        subject
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for each in of(overlay, kind)
        for subject in each["subjects"]
    ]
    (schema,) = of(overlay, "FlowSchema")
    subjects += [each["serviceAccount"] for rule in schema["spec"]["rules"] for each in rule["subjects"]]
    assert {each["namespace"] for each in subjects} == {"serving"}


def test_images_are_two_names_without_a_registry(bare: list[Body]) -> None:
    found = {each["image"] for _, template in pods(bare) for each in containers(template)}
    assert found == {"emberpool", "engine"}


def test_what_is_mounted_and_named_is_there(overlay: list[Body]) -> None:
    from_outside = {("Secret", "emberpool-tokens"), ("PersistentVolumeClaim", "models")}
    there = {(each["kind"], each["metadata"]["name"]) for each in overlay} | from_outside
    there |= {("PersistentVolumeClaim", "models")}
    for _, template in pods(overlay):
        spec = template["spec"]
        assert wanted(template) <= there
        volumes = {each["name"] for each in spec.get("volumes", ())}
        mounted = {mount["name"] for each in containers(template) for mount in each.get("volumeMounts", ())}
        assert mounted == volumes


def wanted(template: Body) -> set[tuple[str, str]]:
    spec = template["spec"]
    found = {("PriorityClass", spec["priorityClassName"])}
    if name := spec.get("serviceAccountName"):
        found.add(("ServiceAccount", name))
    for volume in spec.get("volumes", ()):
        if config := volume.get("configMap"):
            found.add(("ConfigMap", config["name"]))
        if claim := volume.get("persistentVolumeClaim"):
            found.add(("PersistentVolumeClaim", claim["claimName"]))
    for container in containers(template):
        for each in container.get("env") or ():
            if secret := (each.get("valueFrom") or {}).get("secretKeyRef"):
                found.add(("Secret", secret["name"]))
    return found


# ---------------------------------------------------------------- security


@pytest.mark.parametrize("which", ["overlay", "claims"])
def test_pods_keep_to_the_restricted_standard(request: pytest.FixtureRequest, which: str) -> None:
    """As Kubernetes' Pod Security Standards list it."""
    allowed = {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
        *("projected", "secret"),
    }
    for name, template in pods(request.getfixturevalue(which)):
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys(), name
        assert {kind for volume in spec.get("volumes", ()) for kind in volume if kind != "name"} <= allowed, (
            name
        )
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(template):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert not {"privileged", "runAsUser", "procMount"} & own.keys()
            assert all("hostPort" not in port for port in container.get("ports") or ())


def rules(objects: list[Body], kind: str, name: str, *, named: bool = False) -> set[tuple[str, str]]:
    """List what a role grants of everything, or of objects that it names."""
    found = set()
    for each in of(objects, kind, name):
        for rule in each["rules"]:
            if bool(rule.get("resourceNames")) is not named:
                continue
            for group in rule["apiGroups"]:
                suffix = f".{group}" if group else ""
                for resource in rule["resources"]:
                    plural, slash, below = resource.partition("/")
                    found |= {(f"{plural}{suffix}{slash}{below}", verb) for verb in rule["verbs"]}
    return found


def test_the_controllers_may_do_what_the_tests_of_their_calls_run_with_and_no_more(
    overlay: list[Body],
) -> None:
    granted = rules(overlay, "Role", "emberpool-controller") | rules(
        overlay, "ClusterRole", "emberpool-controller"
    )
    assert granted == documented_role()
    everywhere = {resource for resource, _ in rules(overlay, "ClusterRole", "emberpool-controller")}
    whole = ("nodes", "resourceslices.", "devicetaintrules.")  # these are in no namespace
    assert {each for each in everywhere if not each.startswith(whole)} == {"events.events.k8s.io"}
    assert rules(overlay, "Role", "emberpool-controller", named=True) == {("configmaps", "watch")}
    assert rules(overlay, "Role", "emberpool-gateway") == {
        ("pods", verb) for verb in ("get", "list", "watch")
    }


def test_the_controllers_watch_the_policies_that_are_there_and_may(overlay: list[Body]) -> None:
    (template,) = (template for name, template in pods(overlay) if name == "emberpool-controller")
    (name,) = (
        each.partition("=")[2]
        for each in containers(template)[0]["args"]
        if each.startswith("--policy-config-map")
    )
    (watched,) = (
        rule["resourceNames"]
        for rule in one(overlay, "Role", "emberpool-controller")["rules"]
        if rule.get("resourceNames")
    )
    assert watched == [name]
    one(overlay, "ConfigMap", name)


def test_each_binding_joins_an_account_and_a_role_that_are_there(overlay: list[Body]) -> None:
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for each in of(overlay, kind):
            one(overlay, each["roleRef"]["kind"], each["roleRef"]["name"])
            for subject in each["subjects"]:
                one(overlay, subject["kind"], subject["name"])


def test_an_agents_port_is_for_controllers_alone_and_residents_ports_are_for_all(
    overlay: list[Body], known: PolicySet
) -> None:
    policy = one(overlay, "NetworkPolicy", "emberpool-seats")["spec"]
    agents, residents = policy["ingress"]
    (source,) = agents["from"]
    for name, template in pods(overlay):
        labels = template["metadata"]["labels"]
        assert selects(source["podSelector"], labels) is (name == "emberpool-controller")
        assert selects(policy["podSelector"], labels) is (name in FLEETS)
    for fleet in FLEETS:
        (agent,) = (each for each in containers(seat(overlay, fleet)) if each["name"] == "agent")
        (port,) = (each["containerPort"] for each in agent["ports"] if each.get("name") == "agent")
        assert agents["ports"] == [{"protocol": "TCP", "port": port}]
    assert "from" not in residents
    (span,) = residents["ports"]
    numbers = [each.spec.engine.port or 0 for each in known.policies.values()]
    assert span["port"] <= min(numbers) <= max(numbers) <= span["endPort"]
    assert port not in range(span["port"], span["endPort"] + 1)


def test_flow_control_takes_up_the_controllers_requests_alone(overlay: list[Body]) -> None:
    (schema,), (level,) = of(overlay, "FlowSchema"), of(overlay, "PriorityLevelConfiguration")
    assert schema["spec"]["priorityLevelConfiguration"]["name"] == level["metadata"]["name"]
    (rule,) = schema["spec"]["rules"]
    assert [each["serviceAccount"]["name"] for each in rule["subjects"]] == ["emberpool-controller"]
    assert 1 <= schema["spec"]["matchingPrecedence"] < 9000


# ---------------------------------------------------------------- selectors


def test_selectors_take_the_pods_that_they_mean(overlay: list[Body], known: PolicySet) -> None:
    templates = dict(pods(overlay))
    for kind in ("Deployment", "StatefulSet"):
        for body in of(overlay, kind):
            assert selects(body["spec"]["selector"], body["spec"]["template"]["metadata"]["labels"])
    for service in of(overlay, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        name = service["metadata"]["name"]
        born = [
            each for each, template in templates.items() if selects(selector, template["metadata"]["labels"])
        ]
        if name in known.policies:  # pods are born out of rotation
            assert selector["matchLabels"] == {f"{SERVING_LABEL_PREFIX}{name}": "true"}
            (port,) = service["spec"]["ports"]
            assert (born, port["targetPort"]) == ([], known.policies[name].spec.engine.port)
        else:
            assert born == ["emberpool-controller" if name == "emberpool-keda" else name]
    assert {each["metadata"]["name"] for each in of(overlay, "Service")} >= known.policies.keys()


def test_budgets_leave_what_policies_and_fleets_promise(overlay: list[Body], known: PolicySet) -> None:
    serving, spare = {}, {}
    for body in of(overlay, "PodDisruptionBudget"):
        spec, labels = body["spec"], body["spec"]["selector"]["matchLabels"]
        assert (type(spec["minAvailable"]), spec["unhealthyPodEvictionPolicy"]) == (int, "AlwaysAllow")
        if labels.get(SEAT_LABEL):
            assert labels[SEAT_LABEL] == "Spare"
            spare[labels[FLEET_LABEL]] = spec["minAvailable"]
        for label in labels:
            if label.startswith(SERVING_LABEL_PREFIX):
                serving[label.removeprefix(SERVING_LABEL_PREFIX)] = spec["minAvailable"]
    assert serving == {name: policy.spec.serving.min for name, policy in known.policies.items()}
    with_spares = {name: fleet.spec.spare.min for name, fleet in known.fleets.items() if fleet.spec.spare.min}
    assert spare == {name: max(0, least - 1) for name, least in with_spares.items()}


# ---------------------------------------------------------------- seats


def seat(objects: list[Body], fleet: str) -> Body:
    template: Body = one(objects, "Deployment", fleet)["spec"]["template"]
    return template


@pytest.mark.parametrize("fleet", FLEETS)
def test_the_fleets_are_what_fleet_template_writes(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = BASE / "fleets" / FLEETS[fleet] / "deployment.yaml"
    assert main(["fleet", "template", fleet, "-f", str(POLICIES), "-m", str(manifest), "--dry-run"]) == 0
    assert capsys.readouterr().out == ""


def test_the_variant_with_claims_is_what_fleet_template_writes(
    claims: list[Body], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "spares.yaml"
    with manifest.open("w") as file:
        YAML().dump(one(claims, "Deployment", "spares"), file)
    assert main(["fleet", "template", "spares", "-f", str(POLICIES), "-m", str(manifest), "--dry-run"]) == 0
    assert capsys.readouterr().out == ""


def test_the_containers_of_the_variant_share_one_claim(claims: list[Body], known: PolicySet) -> None:
    spec = seat(claims, "spares")["spec"]
    assert [each["name"] for each in spec["containers"]] == ["chat", "code", "draft"]
    (claim,) = spec["resourceClaims"]
    template = one(claims, "ResourceClaimTemplate", claim["resourceClaimTemplateName"])
    (wanted_devices,) = template["spec"]["spec"]["devices"]["requests"]
    assert wanted_devices["exactly"]["count"] == known.fleets["spares"].spec.seat.gpus
    for each in spec["containers"]:
        assert each["resources"]["claims"] == [{"name": claim["name"]}]
        assert "nvidia.com/gpu" not in each["resources"]["limits"]


def seconds_of(container: Mapping[str, Any], option: str) -> int:
    words = container["args"]
    return int(words[words.index(option) + 1])


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_seat_has_a_launcher_an_agent_as_sidecar_and_nothing_but_its_gate_to_be_ready_by(
    overlay: list[Body], known: PolicySet, fleet: str
) -> None:
    spec = seat(overlay, fleet)["spec"]
    assert spec["readinessGates"] == [{"conditionType": GATE}]
    assert all(
        not {"readinessProbe", "livenessProbe", "startupProbe"} & each.keys()
        for each in containers(seat(overlay, fleet))
    )
    (agent,) = (each for each in spec["initContainers"] if each["name"] == "agent")
    (engines,) = spec["containers"]
    assert agent["restartPolicy"] == "Always"
    assert engines["command"][1].endswith("/launcher.py")
    ends = seconds_of(engines, "--drain-seconds") + seconds_of(engines, "--grace-seconds")
    assert spec["terminationGracePeriodSeconds"] > ends
    assert engines["resources"]["limits"]["nvidia.com/gpu"] == known.fleets[fleet].spec.seat.gpus
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_rollout_takes_no_more_seats_than_there_are_spares(
    overlay: list[Body], known: PolicySet, fleet: str
) -> None:
    spec = one(overlay, "Deployment", fleet)["spec"]
    rolling = spec["strategy"]["rollingUpdate"]
    assert isinstance(rolling["maxUnavailable"], int)
    assert rolling["maxUnavailable"] <= known.fleets[fleet].spec.spare.min
    assert rolling["maxSurge"] + rolling["maxUnavailable"] > 0
    assert "replicas" not in spec  # who applies it again must not set back what Emberpool has written


@pytest.mark.parametrize("fleet", FLEETS)
def test_the_agent_can_read_its_configuration_with_the_templates_annotations_over_it(
    overlay: list[Body], fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: PolicySet
) -> None:
    template = seat(overlay, fleet)
    (name,) = (each["configMap"]["name"] for each in template["spec"]["volumes"] if each["name"] == "config")
    (tmp_path / "agent.json").write_text(one(overlay, "ConfigMap", name)["data"]["agent.json"])
    lines = [f"{key}={json.dumps(value)}" for key, value in template["metadata"]["annotations"].items()]
    (tmp_path / "annotations").write_text("\n".join(lines))
    monkeypatch.setenv("EMBERPOOL_SEAT", "seat-0")
    monkeypatch.setenv("EMBERPOOL_POD_UID", "uid-0")
    config = load_config(tmp_path / "agent.json", tmp_path / "annotations")
    assert (config.fleet, config.seat, config.uid, config.host) == (fleet, "seat-0", "uid-0", "0.0.0.0")
    assert [each.policy for each in config.residents] == list(known.policies_on(fleet))
    for each in config.residents:
        kind = known.policies[each.policy].spec.engine.type
        assert each.type.value == kind.value
        assert each.environment["VLLM_SERVER_DEV_MODE"] == "1"
        assert each.proof.agree
    (agent,) = (each for each in containers(template) if each["name"] == "agent")
    assert config.port == agent["ports"][0]["containerPort"]
    ports = {known.policies[policy].spec.engine.port for policy in known.policies_on(fleet)}
    assert {each["containerPort"] for each in agent["ports"][1:]} == ports


# ---------------------------------------------------------------- pre-flight


def engines_of(template: Body) -> dict[str, list[str]]:
    """What starts each resident's engine, by policy."""
    own = {
        each["name"]: each["args"] for each in template["spec"]["containers"] if "--" in each["command"][-1:]
    }
    told = json.loads(template["metadata"]["annotations"]["emberpool.dev/residents"])
    return {each["policy"]: each.get("command") or own[each["container"]] for each in told}


@pytest.mark.parametrize(
    ("which", "fleet"), [("overlay", "chat"), ("overlay", "spares"), ("claims", "spares")]
)
def test_every_engine_begins_with_a_look_at_its_gpu_that_asks_for_the_memory_it_needs(
    request: pytest.FixtureRequest, known: PolicySet, which: str, fleet: str
) -> None:
    template = seat(request.getfixturevalue(which), fleet)
    engines = engines_of(template)
    assert list(engines) == list(known.policies_on(fleet))
    for policy, command in engines.items():
        ends = command.index("--")
        look, engine = command[:ends], known.policies[policy].spec.engine
        needed = str((engine.paused_mib or 0) + (engine.kv_mib or 0))
        shared = len(engines) > 1  # a neighbour may want what is left
        assert look == [
            *("python3", "/opt/launcher/preflight.pyz", "--needed-mib", needed),
            *(("--most-mib", needed) if shared else ()),
        ]
        assert command[ends + 1] == "vllm"
        assert set(filter(lambda word: word.startswith("--"), look)) <= set(preflight_options())


@pytest.mark.parametrize(
    ("which", "fleet"), [("overlay", "chat"), ("overlay", "spares"), ("claims", "spares")]
)
def test_what_looks_is_packed_to_where_engines_find_it_by_a_container_that_may_write_nowhere_else(
    request: pytest.FixtureRequest, which: str, fleet: str
) -> None:
    spec = seat(request.getfixturevalue(which), fleet)["spec"]
    (packs,) = (each for each in spec["initContainers"] if each["name"] == "preflight")
    (mount,) = packs["volumeMounts"]
    assert packs["command"] == [
        *("python", "-m", "warmpool.nodehealth.preflight", "--pack"),
        f"{mount['mountPath']}/preflight.pyz",
    ]
    assert packs["securityContext"]["readOnlyRootFilesystem"] is True
    for each in spec["containers"]:
        found = [its["mountPath"] for its in each["volumeMounts"] if its["name"] == mount["name"]]
        assert found == ["/opt/launcher"]


# ---------------------------------------------------------------- controllers and gateways


def test_the_policies_are_valid_and_where_the_overlay_deploys_them(
    overlay: list[Body], known: PolicySet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "lint", str(POLICIES)]) == 0
    capsys.readouterr()
    namespaces = {each.metadata.namespace for each in (*known.fleets.values(), *known.policies.values())}
    assert namespaces == {"serving"}
    (config,) = of(overlay, "ConfigMap", "emberpool-policies")  # no hash: it is followed
    assert config["data"]["policies.yaml"] == (POLICIES / "policies.yaml").read_text()


@pytest.mark.parametrize("command", ["controller", "gateway"])
def test_options_are_options_of_the_command(
    overlay: list[Body], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    known_options = capsys.readouterr().out
    (template,) = (t for name, t in pods(overlay) if name == f"emberpool-{command}")
    (container,) = template["spec"]["containers"]
    assert container["args"][0] == command
    for argument in container["args"][1:]:
        option = argument.partition("=")[0]
        assert f" {option} " in known_options.replace(",", " ").replace("\n", " "), option


def test_every_controller_is_named_to_the_gateways_and_keda_finds_all(overlay: list[Body]) -> None:
    controllers = one(overlay, "StatefulSet", "emberpool-controller")["spec"]
    service = one(overlay, "Service", controllers["serviceName"])["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    (gateway,) = one(overlay, "Deployment", "emberpool-gateway")["spec"]["template"]["spec"]["containers"]
    named = {each.partition("=")[2] for each in gateway["args"] if each.startswith("--controller=")}
    assert named == {
        f"http://emberpool-controller-{number}.{controllers['serviceName']}:{service['ports'][0]['port']}"
        for number in range(controllers["replicas"])
    }
    keda = one(overlay, "Service", "emberpool-keda")["spec"]
    assert (keda["clusterIP"], [each["port"] for each in keda["ports"]]) == ("None", [DEFAULT_PORT])


def test_a_gateway_has_the_time_that_it_wants_to_end(overlay: list[Body]) -> None:
    spec = one(overlay, "Deployment", "emberpool-gateway")["spec"]["template"]["spec"]
    (gateway,) = spec["containers"]
    (drain,) = (each.partition("=")[2] for each in gateway["args"] if each.startswith("--drain-seconds="))
    assert spec["terminationGracePeriodSeconds"] > int(drain)


def test_every_probe_asks_a_port_that_the_container_has(overlay: list[Body]) -> None:
    for name in ("emberpool-controller", "emberpool-gateway"):
        (template,) = (t for each, t in pods(overlay) if each == name)
        (container,) = template["spec"]["containers"]
        names = {port["name"] for port in container["ports"]}
        asked = {
            container[kind]["httpGet"]["port"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        assert asked <= names


# ---------------------------------------------------------------- node agents


def node_agent(objects: list[Body]) -> tuple[Body, Body]:
    """The pod's spec, and its container."""
    spec = one(objects, "DaemonSet", "emberpool-node-agent")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def test_node_agents_name_every_controller_and_their_node(nodes: list[Body], overlay: list[Body]) -> None:
    _, container = node_agent(nodes)
    env = {each["name"]: each.get("value") or each["valueFrom"] for each in container["env"]}
    assert env["NODE_NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    (text,) = (each.partition("=")[2] for each in container["args"] if each.startswith("--controllers="))
    named = set(text.replace("$(CONTROLLERS_NAMESPACE)", env["CONTROLLERS_NAMESPACE"]).split(","))
    controllers = one(overlay, "StatefulSet", "emberpool-controller")["spec"]
    port = one(overlay, "Service", controllers["serviceName"])["spec"]["ports"][0]["port"]
    assert named == {
        f"http://emberpool-controller-{number}.{controllers['serviceName']}.serving:{port}"
        for number in range(controllers["replicas"])
    }


@pytest.mark.parametrize("fleet", FLEETS)
def test_agents_that_ask_the_node_agent_reach_its_socket_and_may_use_it(
    asking: list[Body], quiet: list[Body], fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = seat(asking, fleet)
    pod, (agent,) = template["spec"], (each for each in containers(template) if each["name"] == "agent")
    told = {each["name"]: each.get("value", "") for each in agent["env"]}
    monkeypatch.setenv("EMBERPOOL_NODE_AGENT", told["EMBERPOOL_NODE_AGENT"])
    monkeypatch.setenv("EMBERPOOL_SEAT", "seat-0")
    monkeypatch.setenv("EMBERPOOL_POD_UID", "uid-0")
    (name,) = (each["configMap"]["name"] for each in pod["volumes"] if each["name"] == "config")
    (tmp_path / "agent.json").write_text(one(asking, "ConfigMap", name)["data"]["agent.json"])
    (tmp_path / "annotations").write_text(
        "\n".join(f"{key}={json.dumps(value)}" for key, value in template["metadata"]["annotations"].items())
    )
    socket = Path(
        load_config(tmp_path / "agent.json", tmp_path / "annotations").node_agent.removeprefix("unix://")
    )
    places = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    mounts = {each["mountPath"]: places.get(each["name"]) for each in agent["volumeMounts"]}
    spec, container = node_agent(quiet)
    theirs = {each["name"]: each.get("hostPath", {}).get("path") for each in spec["volumes"]}
    (run,) = (
        theirs[each["name"]] for each in container["volumeMounts"] if each["mountPath"] == "/run/emberpool"
    )
    assert mounts[str(socket.parent)] == run
    assert f"--socket-group={pod['securityContext']['supplementalGroups'][0]}" in container["args"]


@pytest.mark.parametrize("fleet", FLEETS)
def test_agents_and_engines_reach_the_stage_daemon_s_socket_and_may_use_it(
    staged: list[Body], fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = seat(staged, fleet)
    pod = template["spec"]
    daemon = one(staged, "DaemonSet", "emberpool-stage-daemon")["spec"]["template"]["spec"]
    (container,) = daemon["containers"]
    told = dict(each.removeprefix("--").partition("=")[::2] for each in container["args"])
    folders = {each["name"]: each.get("hostPath", {}).get("path") for each in daemon["volumes"]}
    theirs = {each["mountPath"]: folders[each["name"]] for each in container["volumeMounts"]}
    ours = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    asking = [each for each in containers(template) if each["name"] in {"agent", "engines"}]
    assert len(asking) == 2
    for each in asking:
        env = {entry["name"]: entry.get("value", "") for entry in each["env"]}
        folder = str(Path(env["EMBERPOOL_STAGE"].removeprefix("unix://")).parent)
        assert env["EMBERPOOL_STAGE"] == f"unix://{told['socket']}"
        mounts = {mount["mountPath"]: ours[mount["name"]] for mount in each["volumeMounts"]}
        assert mounts[folder] == theirs[folder] is not None
    assert told["allow-user"] == str(pod["securityContext"]["runAsUser"])
    # The path by which a checkpoint is asked for is the one that it has in the engines' container.
    (models,) = (each for each in daemon["volumes"] if each["name"] == "models")
    assert models == next(each for each in pod["volumes"] if each["name"] == "models")
    assert told["root"] in theirs
    monkeypatch.setenv("EMBERPOOL_STAGE", f"unix://{told['socket']}")
    monkeypatch.setenv("EMBERPOOL_SEAT", "seat-0")
    monkeypatch.setenv("EMBERPOOL_POD_UID", "uid-0")
    (name,) = (each["configMap"]["name"] for each in pod["volumes"] if each["name"] == "config")
    (tmp_path / "agent.json").write_text(one(staged, "ConfigMap", name)["data"]["agent.json"])
    (tmp_path / "annotations").write_text(
        "\n".join(f"{key}={json.dumps(value)}" for key, value in template["metadata"]["annotations"].items())
    )
    config = load_config(tmp_path / "agent.json", tmp_path / "annotations")
    assert str(config.stage_socket) == told["socket"]


def test_a_stage_daemon_runs_where_gpus_are_takes_none_and_has_memory_for_its_budget(
    staged: list[Body],
) -> None:
    spec = one(staged, "DaemonSet", "emberpool-stage-daemon")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    told = dict(each.removeprefix("--").partition("=")[::2] for each in container["args"])
    assert {each["key"] for each in spec["tolerations"]} == {TAINT_KEY, "nvidia.com/gpu"}
    limits = container["resources"]["limits"]
    assert "nvidia.com/gpu" not in limits
    assert int(limits["memory"].removesuffix("Gi")) * 2**30 > float(told["budget"]) * 1e9 + 4 * 2**30
    assert container["command"] == ["python", "-m", "loader", "stage"]
    command = typer.main.get_command(stage)
    assert isinstance(command, TyperGroup)
    run = command.commands["run"]
    assert set(told) <= {name.removeprefix("--") for each in run.params for name in each.opts}


def test_node_agents_run_where_gpus_are_whatever_marks_the_node(nodes: list[Body]) -> None:
    spec, container = node_agent(nodes)
    assert {each["key"] for each in spec["tolerations"]} == {TAINT_KEY, "nvidia.com/gpu"}
    assert (spec["hostPID"], spec["runtimeClassName"]) == (True, "nvidia")
    assert "nvidia.com/gpu" not in (container["resources"]["limits"] | container["resources"]["requests"])


def test_node_agents_have_as_few_rights_as_they_can(nodes: list[Body]) -> None:
    spec, container = node_agent(nodes)
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC"} & spec.keys()
    own, reads_log = container["securityContext"], "--kernel-log=/dev/kmsg" in container["args"]
    assert own["readOnlyRootFilesystem"] is True
    assert own.get("privileged", False) is reads_log
    if not reads_log:
        assert (own["allowPrivilegeEscalation"], own["capabilities"]) == (False, {"drop": ["ALL"]})
    mounted = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert {path for path, read_only in mounted.items() if not read_only} == {
        "/run/emberpool",
        "/var/lib/emberpool",
    }
    assert ("/dev/kmsg" in mounted) is reads_log


def test_options_of_node_agents_are_options_of_the_command(
    nodes: list[Body], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node-agent", "--help"]) == 0
    known_options = capsys.readouterr().out.replace(",", " ").replace("\n", " ")
    _, container = node_agent(nodes)
    assert [
        each for each in container["args"][1:] if f" {each.partition('=')[0]} " not in known_options
    ] == []
