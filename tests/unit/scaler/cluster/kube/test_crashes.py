"""Containers that don't come up are read from a pod's status, with what the kubelet says of them."""

from typing import Any

import pytest

from scaler.cluster.kube.crashes import crash_of
from scaler.cluster.kube.views import pod_from_json
from warmpool.seats import Crash

Json = dict[str, Any]


def container(name: str = "engines", restarts: int = 0, **state: Json) -> Json:
    return {"name": name, "restartCount": restarts, "ready": False, "state": state}


def ended(code: int, reason: str = "Error", message: str = "", signal: int = 0) -> Json:
    more = {"message": message} if message else {}
    more |= {"signal": signal} if signal else {}
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": "x", "finishedAt": "y", **more}}


RUNNING = {"startedAt": "2026-01-01T00:00:00Z"}
LOOP = {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=engines"}


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        pytest.param([], None, id="no-status-yet"),
        pytest.param([container(running=RUNNING, restarts=9)], None, id="runs-again"),
        pytest.param([container(waiting={"reason": "ContainerCreating"})], None, id="comes-up"),
        pytest.param([container(terminated={"exitCode": 0})], None, id="has-done-its-work"),
        pytest.param(
            [container(waiting=LOOP, restarts=3) | {"lastState": ended(2, message="error: no such file")}],
            Crash(
                container="engines",
                reason="CrashLoopBackOff",
                restarts=3,
                how="it exited with status 2: error: no such file",
            ),
            id="its-last-words",
        ),
        pytest.param(
            [container(waiting=LOOP, restarts=3) | {"lastState": ended(137, "OOMKilled")}],
            Crash(
                container="engines",
                reason="CrashLoopBackOff",
                restarts=3,
                how="it exited with status 137 (OOMKilled)",
            ),
            id="out-of-memory",
        ),
        pytest.param(
            [container(waiting=LOOP, restarts=1) | {"lastState": ended(139, signal=11)}],
            Crash(
                container="engines", reason="CrashLoopBackOff", restarts=1, how="it was killed by signal 11"
            ),
            id="a-signal",
        ),
        pytest.param(
            [container(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image x"})],
            Crash(container="engines", reason="ImagePullBackOff", how="Back-off pulling image x"),
            id="no-image",
        ),
    ],
)
def test_a_container_that_waits_for_its_next_attempt_is_found(
    statuses: list[Json], found: Crash | None
) -> None:
    assert crash_of({"containerStatuses": statuses}) == found


def test_the_one_with_the_most_attempts_is_told_sidecars_too() -> None:
    status = {
        "initContainerStatuses": [container("agent", 7, waiting=LOOP)],
        "containerStatuses": [container("engines", 2, waiting=LOOP)],
    }
    found = crash_of(status)
    assert found is not None
    assert (found.container, found.restarts) == ("agent", 7)
    assert str(found) == "container agent is in CrashLoopBackOff after 7 restarts"


@pytest.mark.parametrize(
    ("last", "refused"),
    [
        pytest.param(ended(69), True, id="its-status"),
        pytest.param(ended(1, message="pre-flight: NoGpu: there is no GPU"), True, id="its-words"),
        pytest.param(ended(1, message="pre-flight: Passed: GPU-a: all\nboom"), False, id="it-passed"),
        pytest.param(ended(2), False, id="another-status"),
    ],
)
def test_one_that_a_pre_flight_ended_is_told_apart(last: Json, *, refused: bool) -> None:
    found = crash_of({"containerStatuses": [container(waiting=LOOP, restarts=3) | {"lastState": last}]})
    assert found is not None
    assert found.refused is refused


def test_one_that_crashes_is_told_before_any_that_a_pre_flight_ended() -> None:
    chat = container("chat", 9, waiting=LOOP) | {"lastState": ended(69)}
    code = container("code", 1, waiting=LOOP) | {"lastState": ended(2)}
    found = crash_of({"containerStatuses": [chat, code]})
    assert found is not None
    assert (found.container, found.refused) == ("code", False)


def test_a_pod_that_is_read_has_it() -> None:
    body = {
        "metadata": {"name": "p", "uid": "u"},
        "status": {"containerStatuses": [container(waiting=LOOP, restarts=3)]},
    }
    crash = pod_from_json(body).seat.crash
    assert crash is not None
    assert crash.restarts == 3
    del body["status"]
    assert pod_from_json(body).seat.crash is None
