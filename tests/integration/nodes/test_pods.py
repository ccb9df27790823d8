"""Pods on the stand-in of a node: phases, conditions, probes, restarts and ends as Kubernetes documents a pod's lifecycle."""

import time
from typing import Any

import aiohttp
import psutil
import pytest

from scaler.cluster.kube.resources import CONFIG_MAP, LEASE, NODE, POD
from scaler.errors import NotFound
from tests.fakes.kube_calls import SECRET
from tests.integration.nodes.conftest import GPU, QUIET, World, condition, is_running, main, ready

STUBBORN = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done"
SERVER = "exec python3 -m http.server 8080 --bind 0.0.0.0"


def first(pod: dict[str, Any], kind: str = "containerStatuses") -> dict[str, Any]:
    found: dict[str, Any] = (pod["status"].get(kind) or [{}])[0]
    return found


def waiting(pod: dict[str, Any]) -> str:
    reason: str = first(pod).get("state", {}).get("waiting", {}).get("reason", "")
    return reason


@pytest.mark.parametrize(("script", "phase", "code"), [("exit 0", "Succeeded", 0), ("exit 3", "Failed", 3)])
async def test_a_pod_that_is_not_restarted_ends_in_its_containers_phase(
    world: World, script: str, phase: str, code: int
) -> None:
    await world.pod("job", main(script), restartPolicy="Never")
    pod = await world.when("job", lambda p: p["status"]["phase"] == phase)
    assert first(pod)["state"]["terminated"]["exitCode"] == code
    assert (condition(pod, "Ready"), first(pod)["restartCount"]) == ("False", 0)


async def test_init_containers_run_one_after_the_other_and_a_sidecar_before_and_beside_the_rest(
    world: World,
) -> None:
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    init = [
        main("echo one >> /shared/order", **shared) | {"name": "one"},
        main("echo side >> /shared/order; exec sleep 1000", **shared)
        | {"name": "side", "restartPolicy": "Always"},
        main("echo two >> /shared/order", **shared) | {"name": "two"},
    ]
    last = main("cat /shared/order; exec sleep 1000", **shared)
    await world.pod("ordered", last, initContainers=init, volumes=[{"name": "shared", "emptyDir": {}}])
    pod = await world.when("ordered", ready)
    text = await world.printed("ordered", "two")
    assert text.split() == ["one", "side", "two"]
    states = {each["name"]: next(iter(each["state"])) for each in pod["status"]["initContainerStatuses"]}
    assert states == {"one": "terminated", "side": "running", "two": "terminated"}


async def test_an_init_container_that_fails_keeps_the_pod_pending_and_is_tried_again(world: World) -> None:
    await world.pod("stuck", QUIET, initContainers=[main("exit 1") | {"name": "init"}])
    pod = await world.when("stuck", lambda p: first(p, "initContainerStatuses").get("restartCount", 0) >= 2)
    assert (pod["status"]["phase"], condition(pod, "Initialized")) == ("Pending", "False")
    assert waiting(pod) == "PodInitializing"


async def test_a_container_that_crashes_is_started_again_after_longer_and_longer_pauses(world: World) -> None:
    await world.pod("crasher", main("exit 7"))
    pod = await world.when("crasher", lambda p: waiting(p) == "CrashLoopBackOff")
    assert first(pod)["lastState"]["terminated"]["exitCode"] == 7
    again = await world.when(
        "crasher", lambda p: first(p).get("restartCount", 0) >= 3 and waiting(p) == "CrashLoopBackOff"
    )  # between two pauses it runs for a moment
    assert (again["status"]["phase"], condition(again, "Ready")) == ("Running", "False")


async def test_a_killed_process_has_the_status_that_a_shell_would_tell(world: World) -> None:
    await world.pod("victim", main("kill -9 $$$$"))
    pod = await world.when("victim", lambda p: first(p).get("lastState", {}).get("terminated"))
    ended = first(pod)["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "Error")


# ---------------------------------------------------------------- ends


async def test_a_deleted_pod_gets_its_hook_then_sigterm_and_its_object_stays_until_it_has_ended(
    world: World,
) -> None:
    script = "trap 'echo term; sleep 0.5; echo done; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "sleep 1.5; touch $HOME/hooked"]}}}
    container = main(f"{script.replace('echo term', 'cd $HOME; ls hooked; echo term')}", lifecycle=hook)
    await world.pod("polite", container)
    await world.printed("polite", "up")
    await world.calls.delete(POD, "default", "polite")
    marked = await world.get(POD, "polite")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 5
    path = world.logs / f"default_polite_{marked['metadata']['uid']}" / "main" / "0.log"
    await world.when_gone("polite")
    assert path.read_text().split() == ["up", "hooked", "term", "done"]


async def test_what_ignores_sigterm_is_killed_with_its_children_when_the_grace_is_over(world: World) -> None:
    await world.pod("stubborn", main(STUBBORN + " & wait; wait; wait"), terminationGracePeriodSeconds=1)
    await world.printed("stubborn", "up")
    uid = (await world.get(POD, "stubborn"))["metadata"]["uid"]
    begun = time.monotonic()
    await world.calls.delete(POD, "default", "stubborn")
    await world.when_gone("stubborn")
    assert time.monotonic() - begun >= 1.0
    assert not processes_in(uid)


def processes_in(uid: str) -> list[int]:
    """Processes that run in a pod: each has its folder as its home."""
    found = []
    for process in psutil.process_iter():
        try:
            if f"/{uid[:8]}" in process.environ().get("HOME", ""):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


async def test_a_shorter_grace_later_on_rules(world: World) -> None:
    await world.pod("hurried", main(STUBBORN), terminationGracePeriodSeconds=600)
    await world.printed("hurried", "up")
    await world.calls.delete(POD, "default", "hurried")
    await world.printed("hurried", "asked")
    await world.calls.delete(POD, "default", "hurried", grace=1)
    await world.when_gone("hurried")


async def test_a_pod_that_is_forced_out_is_gone_at_once_and_its_processes_soon_after(world: World) -> None:
    await world.pod("forced", main(STUBBORN), terminationGracePeriodSeconds=600)
    await world.printed("forced", "up")
    uid = (await world.get(POD, "forced"))["metadata"]["uid"]
    await world.calls.delete(POD, "default", "forced", grace=0)
    with pytest.raises(NotFound):
        await world.get(POD, "forced")

    async def none_left() -> bool:
        return not processes_in(uid)

    await world.until("the end of all processes", none_left)


async def test_a_sidecar_outlives_the_containers_that_need_it(world: World) -> None:
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    script = "trap 'sleep {}; echo {} ended; exit' TERM; echo up; while :; do sleep 0.05; done"
    side = main(script.format(0, "side"), **shared) | {"name": "side", "restartPolicy": "Always"}
    container = main(script.format(0.5, "main") + " ", **shared)
    await world.pod("pair", container, initContainers=[side], volumes=[{"name": "shared", "emptyDir": {}}])
    await world.printed("pair", "up")
    uid = (await world.get(POD, "pair"))["metadata"]["uid"]
    await world.calls.delete(POD, "default", "pair")
    folder = world.logs / f"default_pair_{uid}"

    async def over() -> bool:
        return "main ended" in (folder / "main" / "0.log").read_text()

    await world.until("the main container's end", over)
    await world.when_gone("pair")
    side_log, main_log = folder / "side" / "0.log", folder / "main" / "0.log"
    assert "side ended" in side_log.read_text()
    assert side_log.stat().st_mtime_ns >= main_log.stat().st_mtime_ns


# ---------------------------------------------------------------- probes


async def test_a_readiness_probe_rules_over_ready_and_over_nothing_else(world: World) -> None:
    probe = {
        "exec": {"command": ["sh", "-c", "test -e $HOME/good"]},
        "periodSeconds": 0.1,
        "failureThreshold": 1,
    }
    script = "sleep 2; touch $HOME/good; sleep 4; rm $HOME/good; exec sleep 1000"
    await world.pod("probed", main(script, readinessProbe=probe))
    seen = await world.when("probed", is_running)
    assert condition(seen, "Ready") == "False"
    await world.when("probed", ready)
    again = await world.when("probed", lambda p: not ready(p))
    assert first(again)["restartCount"] == 0
    said = next(each for each in again["status"]["conditions"] if each["type"] == "Ready")
    assert (said["reason"], said["message"]) == (
        "ContainersNotReady",
        "containers with unready status: [main]",
    )


async def test_a_liveness_probe_that_fails_restarts_the_container(world: World) -> None:
    probe = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 0.1, "initialDelaySeconds": 0.2}
    ports = [{"name": "web", "containerPort": 8080}]
    container = main("exec sleep 1000", livenessProbe=probe, ports=ports, terminationGracePeriodSeconds=1)
    await world.pod("dead", container)
    await world.when("dead", lambda p: first(p).get("restartCount", 0) >= 1)


async def test_a_startup_probe_comes_before_all_others(world: World) -> None:
    startup = {"tcpSocket": {"port": 8080}, "periodSeconds": 0.1, "failureThreshold": 300}
    await world.pod("slow", main(f"sleep 2; {SERVER}", startupProbe=startup))
    seen = await world.when("slow", is_running)
    assert (first(seen)["started"], condition(seen, "Ready")) == (False, "False")
    seen = await world.when("slow", ready)
    assert first(seen)["started"] is True


# ---------------------------------------------------------------- what containers are given


async def test_pods_have_addresses_of_their_own_with_all_ports(world: World) -> None:
    for name in ("a", "b"):
        await world.pod(name, main(f"echo {name} > $HOME/index.html; cd $HOME; {SERVER}"))
    probed = [await world.when(name, ready) for name in ("a", "b")]
    addresses = [pod["status"]["podIP"] for pod in probed]
    assert len({*addresses, probed[0]["status"]["hostIP"]}) == 3

    async def answers() -> list[str]:
        try:
            async with aiohttp.ClientSession() as session:
                return [await (await session.get(f"http://{ip}:8080/")).text() for ip in addresses]
        except aiohttp.ClientError:
            return []

    assert await world.until("answers", answers) == ["a\n", "b\n"]


async def test_variables_files_and_arguments_come_from_the_pod_and_from_objects(world: World) -> None:
    await world.calls.create(CONFIG_MAP, "default", {"metadata": {"name": "c"}, "data": {"k": "config"}})
    await world.calls.create(SECRET, "default", {"metadata": {"name": "s"}, "stringData": {"k": "secret"}})
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "JOINED", "value": "$(NAME)-$(C)-$$(C)-$(NOBODY)"},
        {"name": "FILE", "value": "/etc/config/k"},
    ]
    mounts = [{"name": "config", "mountPath": "/etc/config"}, {"name": "pod", "mountPath": "/etc/pod"}]
    items = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
    volumes = [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "pod", "downwardAPI": {"items": items}},
    ]
    script = "echo $JOINED; echo $S; cat $FILE; echo; cat /etc/pod/labels; echo; echo $0; exec sleep 1000"
    container = main(script, env=env, volumeMounts=mounts, args=["$(IP)"])
    await world.pod("given", container, volumes=volumes)
    pod = await world.when("given", ready)
    text = await world.printed("given", pod["status"]["podIP"])
    assert text.split("\n")[:5] == [
        "given-config-$(C)-$(NOBODY)",
        "secret",
        "config",
        'app="given"',
        pod["status"]["podIP"],
    ]


async def test_a_pod_waits_for_an_object_that_is_missing_and_for_an_image_that_is_unknown(
    world: World,
) -> None:
    env = [{"name": "C", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "k"}}}]
    await world.pod("early", main("exec sleep 1000", env=env))
    await world.pod("strange", {"name": "main", "image": "nowhere/strange:1"})
    await world.when("early", lambda p: waiting(p) == "CreateContainerConfigError")
    await world.when("strange", lambda p: waiting(p) in {"ErrImagePull", "ImagePullBackOff"})
    await world.calls.create(CONFIG_MAP, "default", {"metadata": {"name": "later"}, "data": {"k": "v"}})
    await world.when("early", ready)


async def test_files_follow_their_objects_all_at_once(world: World) -> None:
    await world.calls.create(
        CONFIG_MAP, "default", {"metadata": {"name": "c"}, "data": {"a": "1 ", "b": "1"}}
    )
    items = [{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]
    volumes = [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "pod", "downwardAPI": {"items": items}},
    ]
    mounts = [{"name": "config", "mountPath": "/etc/config"}, {"name": "pod", "mountPath": "/etc/pod"}]
    script = "while :; do cd -P /etc/config/..data; echo $(cat a b); cat /etc/pod/annotations; echo; sleep 0.05; done"
    await world.pod("reader", main(script, volumeMounts=mounts), volumes=volumes)
    await world.printed("reader", "1 1")
    patch = {"metadata": {"annotations": {"note": "new"}}}
    await world.calls.merge(POD, "default", "reader", patch)
    await world.calls.merge(CONFIG_MAP, "default", "c", {"data": {"a": "2 ", "b": "2"}})
    await world.printed("reader", 'note="new"')
    text = await world.printed("reader", "2 2")
    assert not {"1 2", "2 1"} & set(text.split("\n"))


async def test_each_gpu_is_one_containers_alone(world: World) -> None:
    script = "echo got $NVIDIA_VISIBLE_DEVICES; exec sleep 1000"
    await world.deploy("gpus", 4, main(script, resources=GPU))
    pods = await world.when_pods(
        lambda found: len(found) == 4 and all(map(ready, found)), "4 pods", app="gpus"
    )
    texts = [await world.printed(pod["metadata"]["name"], "got") for pod in pods]
    assert sorted(texts) == [f"got GPU-gpu-{node}-{number}\n" for node in (0, 1) for number in (0, 1)]


# ---------------------------------------------------------------- nodes


async def test_a_node_is_ready_has_its_gpus_and_renews_its_lease(world: World) -> None:
    node = await world.calls.get(NODE, "", "gpu-0")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    lease = await world.calls.get(LEASE, "kube-node-lease", "gpu-0")

    async def renewed() -> bool:
        found = await world.calls.get(LEASE, "kube-node-lease", "gpu-0")
        return bool(found["spec"]["renewTime"] > lease["spec"]["renewTime"])

    await world.until("a heartbeat", renewed)

    async def untainted() -> bool:
        return not (await world.calls.get(NODE, "", "gpu-0"))["spec"].get("taints")

    await world.until("a node without taints", untainted)


async def test_a_lost_node_takes_its_pods_along_and_they_start_anew_when_it_is_back(world: World) -> None:
    keep = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]
    await world.pod("there", main("echo up; exec sleep 1000"), nodeName="gpu-0", tolerations=keep)
    pod = await world.when("there", ready)
    await world.nodes.lose("gpu-0")
    assert not processes_in(pod["metadata"]["uid"])

    async def unknown() -> bool:
        node = await world.calls.get(NODE, "", "gpu-0")
        taints = {each["key"] for each in node["spec"].get("taints") or ()}
        return condition(node, "Ready") == "Unknown" and "node.kubernetes.io/unreachable" in taints

    await world.until("an unknown node", unknown)
    await world.when("there", lambda p: not ready(p))
    await world.nodes.bring_back("gpu-0")
    await world.when("there", ready)
