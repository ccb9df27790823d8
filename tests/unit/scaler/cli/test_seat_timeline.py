"""What people and programs see of a seat's starts, to the letter, from a controller that answers over a socket."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scaler.cli import cluster_items
from scaler.cli.app import main
from scaler.cli.cluster_items import Objects
from scaler.cluster.kube.stamps import PodStamps, pod_stamps
from tests.integration.cli.fake_controller import FakeController, serving

NOT_HELD = {"tier": "Attached", "code": "NotHeld", "reason": "no copy of it is held on GPU-1"}
WARMED = {"promptTokens": [8, 512], "batchSizes": [1, 2, 8], "maxTokens": 8, "leftOut": 1}
WARM_UP = "prompts of 8, 512 tokens; batches of 2, 8; 8 tokens answered each; 1 refused by the engine"
CHAT = {
    "policy": "chat",
    "state": "Paused",
    "since": 1040.0,
    "phases": {"waiting": 0.5, "process": 1.0, "import": 4.0, "weights": 0.5, "warm-up": 2.0, "paused": 0.0},
    "start": {
        "at": 1030.5,
        "told": True,
        "weights": {
            "tier": "Staged",
            "bytes": 16 * 10**9,
            "seconds": 0.4,
            "passedOver": [NOT_HELD],
        },
        "compileCache": {"hits": 3, "misses": 1},
        "firstRequestSeconds": 1.5,
        "warmUp": WARMED,
    },
}
CODE = {"policy": "code", "state": "Warming", "since": 1041.0}
SEAT = {
    "name": "s-0",
    "uid": "u",
    "version": "1",
    "fleet": "spares",
    "createdAt": 1000.0,
    "scheduledAt": 1002.0,
    "runningAt": 1030.0,
    "residents": [CHAT, CODE],
}
DRAWN = f"""\
chat on s-0: 38s±1s from its seat's creation at 1970-01-01T00:16:40Z
PHASE       BEGIN   TOOK     SHARE
scheduled   0ms     2s±1s    5%      ###
image       2.00s   28s±1s   73%       ##############################
waiting     30.0s   1s±1s    3%                                     ##
process     31.0s   1.00s    3%                                      ##
import      32.0s   4.00s    10%                                      #####
weights     36.0s   0.50s    1%                                           #
warm-up     36.5s   2.00s    5%                                           ###
paused      38.5s   0ms      0%
Weights: 14.9 GiB in 0.40s (40.0 GB/s) from Staged
Passed over: Attached (NotHeld): no copy of it is held on GPU-1
Compile cache: 3 found, 1 compiled
First request: 1.50s
Warm-up: {WARM_UP}
"""


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with serving(FakeController()) as answering:
        yield answering


def ask(controller: FakeController, seat: dict[str, Any], *arguments: str) -> int:
    controller.say("/v1/seats", {"items": [seat]})
    return main(["seat", "timeline", "s-0", *arguments, "--server", controller.url])


def test_a_start_is_drawn_from_its_pods_creation(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(controller, SEAT) == 0
    assert capsys.readouterr().out == DRAWN


def test_a_later_start_begins_with_itself_and_an_engine_that_only_logs_is_said_to(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    later = {
        "policy": "chat",
        "state": "Paused",
        "since": 1.0,
        "restarts": 1,
        "phases": {"other": 1.0, "proof": 1.0},
        "start": {"at": 5000.0},
    }
    assert ask(controller, {**SEAT, "residents": [later]}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "chat on s-0: 2.00s from its own beginning at 1970-01-01T01:23:20Z"
    assert lines[2].split() == ["other", "0ms", "1.00s", "50%", "#" * 20]
    assert (
        lines[-1]
        == "The engine tells nothing of its start; what its log says is shown, and the rest is other."
    )


def test_programs_read_the_same_with_all_its_digits(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(controller, SEAT, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seat"], told["fleet"]) == ("s-0", "spares")
    chat, code = told["residents"]
    assert code == {"policy": "code", "state": "Warming", "start": None}
    start = chat["start"]
    assert (start["at"], start["from"], start["seconds"], start["uncertainSeconds"]) == (
        1000.0,
        "Seat",
        38.5,
        1.0,
    )
    assert sum(each["seconds"] for each in start["phases"]) == start["seconds"]
    assert start["phases"][4] == {
        "phase": "import",
        "beginSeconds": 32.0,
        "seconds": 4.0,
        "uncertainSeconds": 0.0,
    }
    assert start["weights"]["bytesPerSecond"] == 40 * 10**9
    assert start["weights"]["passedOver"] == [NOT_HELD]
    assert start["warmUp"] == WARMED


@pytest.mark.parametrize(
    ("seat", "arguments", "said"),
    [
        pytest.param(
            {**SEAT, "residents": [CODE]},
            [],
            "error: no start of a resident on seat s-0 has been seen to be completed\n\nhint: residents: code Warming\n",
            id="not-over",
        ),
        pytest.param(
            {**SEAT, "residents": []},
            [],
            "error: no start of a resident on seat s-0 has been seen to be completed\n\nhint: residents: it has none yet\n",
            id="no-residents",
        ),
        pytest.param(
            SEAT,
            ["--policy", "batch"],
            "error: seat s-0 has no resident of batch\n\nhint: there are: chat, code\n",
            id="no-such-resident",
        ),
        pytest.param(
            {**SEAT, "reported": False},
            [],
            "error: what residents of seat s-0 are and were is for its controller to tell, and that isn't reached"
            "\n\nhint: --controller-namespace says where it is\n",
            id="no-controller",
        ),
    ],
)
def test_what_cannot_be_shown_is_said(
    controller: FakeController,
    capsys: pytest.CaptureFixture[str],
    seat: dict[str, Any],
    arguments: list[str],
    said: str,
) -> None:
    assert ask(controller, seat, *arguments) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.rstrip()) == ("", said.rstrip())


# ------------------------------------------------------------------ what a pod tells

SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"}


def running(at: str, **others: Any) -> dict[str, Any]:
    return {"restartCount": 0, "state": {"running": {"startedAt": at}}, **others}


AGENT, ENGINE = running("2026-01-01T00:00:20Z"), running("2026-01-01T00:00:30Z")
DONE = {"restartCount": 0, "state": {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:10Z"}}}


@pytest.mark.parametrize(
    ("status", "stamps"),
    [
        pytest.param({}, PodStamps(), id="nothing"),
        pytest.param({"conditions": [{**SCHEDULED, "status": "False"}]}, PodStamps(), id="no-node-takes-it"),
        pytest.param({"conditions": [SCHEDULED]}, PodStamps("2026-01-01T00:00:02Z"), id="a-node-has-it"),
        pytest.param(
            {"initContainerStatuses": [AGENT], "containerStatuses": [{"state": {"waiting": {}}}]},
            PodStamps(),
            id="an-image-is-pulled",
        ),
        pytest.param(
            {"initContainerStatuses": [DONE, AGENT], "containerStatuses": [ENGINE]},
            PodStamps(running="2026-01-01T00:00:30Z"),
            id="all-run",
        ),
        pytest.param(
            {"containerStatuses": [AGENT, {**ENGINE, "restartCount": 1}]},
            PodStamps(),
            id="one-was-started-again",
        ),
    ],
)
def test_times_of_a_pod(status: dict[str, Any], stamps: PodStamps) -> None:
    assert pod_stamps(status) == stamps


def test_a_clusters_seats_have_their_pods_times() -> None:
    body = {
        "metadata": {"name": "s-0", "uid": "u", "labels": {"emberpool.dev/fleet": "spares"}},
        "status": {"conditions": [SCHEDULED], "containerStatuses": [ENGINE]},
    }
    (item,) = cluster_items.seats(Objects(pods=[body]))
    assert (item["scheduledAt"], item["runningAt"]) == (1767225602.0, 1767225630.0)
    del body["status"]
    (item,) = cluster_items.seats(Objects(pods=[body]))
    assert (item["scheduledAt"], item["runningAt"]) == (None, None)


def test_describe_says_what_warmed_a_resident_and_which_container_does_not_come_up(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = {
        "container": "agent",
        "reason": "CrashLoopBackOff",
        "restarts": 3,
        "how": "it exited with status 2",
    }
    controller.say("/v1/seats", {"items": [{**SEAT, "crash": crash}]})
    assert main(["seat", "describe", "s-0", "--server", controller.url]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Warm-up: {WARM_UP}" in out
    assert "container agent is in CrashLoopBackOff after 3 restarts: it exited with status 2" in out
