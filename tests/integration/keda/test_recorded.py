"""A real operator's calls, made again in their order: every answer is the recorded one, and every push comes where it came."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler.keda.client import CallFailed, ScaledObject
from tests.integration.keda.conftest import Desk, serving

RECORDED = Path(__file__).parents[2] / "data" / "keda" / "external-push-calls.jsonl"


def lines() -> Iterator[dict[str, Any]]:
    for line in RECORDED.read_text("utf-8").splitlines():
        yield json.loads(line)


def asker(line: dict[str, Any]) -> ScaledObject:
    """The recorded ScaledObject with our words: its fleet was called a pool there, and the metric had a name of its own."""
    metadata = dict(line["scalerMetadata"])
    metadata["fleet"] = metadata["pool"]
    return ScaledObject(line["name"], line["namespace"], {**metadata, "metricName": "desired-replicas"})


async def replay(desk: Desk) -> dict[str, int]:
    made: dict[str, int] = {}
    known: dict[str, Any] = {"value": 0.0, "err": False}
    first = next(line for line in lines() if line.get("rpc") == "StreamIsActive")
    publish(desk, known)
    async with desk.client.pushed(asker(first)) as pushed:
        for line in lines():
            if changed := line.get("serverStateChanges"):
                known |= changed
                publish(desk, known)
            elif "pushed" in line:
                assert await anext(pushed) is line["pushed"], line
            elif line["rpc"] != "StreamIsActive":
                await call(desk, line)
                made[line["rpc"]] = made.get(line["rpc"], 0) + 1
    return made


def publish(desk: Desk, known: dict[str, Any]) -> None:
    if known["err"]:
        desk.forget("llama-70b")
    else:
        desk.publish(int(known["value"]), "llama-70b")


async def call(desk: Desk, line: dict[str, Any]) -> None:
    who = asker(line)
    match line["rpc"]:
        case "GetMetricSpec":
            assert [(spec.name, spec.target) for spec in await desk.client.metric_spec(who)] == [
                ("desired-replicas", 1.0)
            ]
        case "GetMetrics" if line["err"]:
            with pytest.raises(CallFailed) as caught:
                await desk.client.metrics(who, line["metricName"])
            assert caught.value.code == "UNAVAILABLE"
        case "GetMetrics":
            (metric,) = await desk.client.metrics(who, line["metricName"])
            assert (metric.name, metric.value) == (line["metricName"], line["answer"])
        case "IsActive":
            assert await desk.client.is_active(who) is line["answer"]


async def test_a_real_operators_calls_get_the_answers_that_were_recorded() -> None:
    async with serving() as desk:
        desk.board.follow({"llama-70b": "serving"}, {})
        made = await replay(desk)
    assert made == {"GetMetricSpec": 34, "GetMetrics": 37, "IsActive": 27}


def test_the_recording_holds_what_the_model_of_an_operator_takes_from_it() -> None:
    """A failing `GetMetrics` is made twice and `IsActive` left out; no call has a deadline; a poll has the calls in this order."""
    calls = [line for line in lines() if line.get("rpc") not in {None, "StreamIsActive"}]
    assert all(line["deadlineSeconds"] is None for line in calls)
    words = "".join(
        {"GetMetricSpec": "s", "GetMetrics": "m", "IsActive": "a"}[line["rpc"]] for line in calls[1:]
    )
    failing = "smm" * 5
    assert words.replace(failing, "").replace("sma", "").replace("s", "", 1) == ""
    assert failing in words
