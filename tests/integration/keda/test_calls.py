import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from scaler.errors import UserError
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.client import CallFailed, ScaledObject
from scaler.keda.server import SERVICE
from scaler.keda.settings import KedaSettings
from scaler.runtime.metrics import catalogue
from tests.integration.keda.conftest import Desk, asker, board, serving


async def test_a_metric_has_one_value_in_both_number_fields_under_the_name_that_was_asked_for(
    desk: Desk,
) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{desk.port}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/GetMetrics", response_deserializer=pb.GetMetricsResponse.FromString
        )
        for name in ("s0-emberpool-policy-chat-queue-age-seconds", "emberpool-policy-chat-queue-age-seconds"):
            ref = asker(policy="chat", value="QueueAgeSeconds").ref()
            request = pb.GetMetricsRequest(scaledObjectRef=ref, metricName=name)
            answer = await call(request.SerializeToString())
            (value,) = answer.metricValues
            assert (value.metricName, value.metricValue, value.metricValueFloat) == (name, 1, 0.4)


async def test_a_metric_without_a_name_is_the_triggers_own(desk: Desk) -> None:
    (value,) = await desk.client.metrics(asker(), "")
    assert (value.name, value.value) == ("emberpool-fleet-spares-total", 3.0)


@pytest.mark.parametrize("total", [0, 1, 44])
async def test_the_target_is_one_whatever_the_value(desk: Desk, total: int) -> None:
    desk.publish(total)
    (spec,) = await desk.client.metric_spec(asker())
    assert (spec.name, spec.target) == ("emberpool-fleet-spares-total", 1.0)
    assert await desk.client.is_active(asker()) is (total > 0)


@pytest.mark.parametrize("call", ["metric_spec", "metrics", "is_active"])
@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"pool": "x"}, "INVALID_ARGUMENT"),
        ({"fleet": "spares", "value": "Queue"}, "INVALID_ARGUMENT"),
        ({"fleet": "spare"}, "NOT_FOUND"),
        ({"policy": "other/chat"}, "NOT_FOUND"),
    ],
)
async def test_every_call_refuses_what_there_isnt(
    desk: Desk, call: str, metadata: dict[str, str], code: str
) -> None:
    method = getattr(desk.client, call)
    with pytest.raises(CallFailed) as caught:
        await (method(asker(**metadata), "") if call == "metrics" else method(asker(**metadata)))
    assert caught.value.code == code
    assert str(caught.value)


async def test_what_is_unknown_is_unavailable_and_the_metric_keeps_its_spec(desk: Desk) -> None:
    desk.forget()
    for call in (desk.client.metrics(asker(), ""), desk.client.is_active(asker())):
        with pytest.raises(CallFailed, match="the last decision is 3600 s old") as caught:
            await call
        assert caught.value.code == "UNAVAILABLE"
        assert catalogue.TICK_LAST_SUCCESS.name in str(caught.value)
    assert await desk.client.metric_spec(asker())


async def test_value_and_activity_are_of_one_publication(desk: Desk) -> None:
    before = desk.board.current
    desk.publish(0)
    assert before.fleets["spares"].total == 3
    assert not await desk.client.is_active(asker())
    assert (await desk.client.metrics(asker(), ""))[0].value == 0.0


async def test_specs_are_streamed_only_where_that_is_switched_on_and_never_empty(desk: Desk) -> None:
    async with desk.client.pushed_specs(asker()) as specs:
        with pytest.raises(CallFailed) as caught:
            await anext(specs)
    assert caught.value.code == "UNIMPLEMENTED"
    async with serving(KedaSettings(port=0, streams_specs=True)) as other:
        other.publish(3)
        async with other.client.pushed_specs(asker()) as specs:
            assert await anext(specs) == await other.client.metric_spec(asker())
        async with other.client.pushed_specs(asker(fleet="x")) as specs:
            with pytest.raises(CallFailed, match="no policy file has a fleet named 'x'"):
                await anext(specs)


async def test_an_edge_is_pushed_at_once(desk: Desk) -> None:
    async with desk.client.pushed(asker()) as pushed:
        assert await anext(pushed) is True
        desk.publish(0)
        assert await anext(pushed) is False
        desk.publish(2)
        assert await anext(pushed) is True


@pytest.mark.parametrize("metadata", [{"pool": "x"}, {"fleet": "x"}])
async def test_a_stream_for_what_there_isnt_is_refused(desk: Desk, metadata: dict[str, str]) -> None:
    async with desk.client.pushed(asker(**metadata)) as pushed:
        with pytest.raises(CallFailed):
            await anext(pushed)


async def test_streams_end_with_ok_when_the_server_ends() -> None:
    """Anything else would have KEDA wait for up to a minute before it opens them again."""
    async with serving(KedaSettings(port=0, streams_specs=True)) as desk:
        desk.publish(1)
        async with desk.client.pushed(asker()) as pushed, desk.client.pushed_specs(asker()) as specs:
            assert await anext(pushed)
            await anext(specs)
            async with asyncio.TaskGroup() as tasks:
                rest = [tasks.create_task(anext(each, None)) for each in (pushed, specs)]
                await asyncio.sleep(0)
                desk.server.end()
            assert [task.result() for task in rest] == [None, None]


async def test_streams_that_are_gone_are_forgotten(desk: Desk) -> None:
    for _ in range(20):
        async with desk.client.pushed(asker()) as pushed:
            await anext(pushed)
    async with asyncio.timeout(30):
        while desk.server.open_streams:
            await asyncio.sleep(0.01)


async def test_health_is_not_serving_until_something_was_decided_and_once_it_ends() -> None:
    empty = board()
    empty.follow({"spares": "serving"}, {})
    async with serving(on=empty) as desk, grpc.aio.insecure_channel(f"127.0.0.1:{desk.port}") as channel:
        status = health_pb2.HealthCheckResponse
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=status.FromString,
        )(health_pb2.HealthCheckRequest(service=SERVICE))
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=status.FromString,
        )
        assert (await watch.read()).status == status.NOT_SERVING
        desk.publish(1)
        assert (await watch.read()).status == status.SERVING
        assert (await check(health_pb2.HealthCheckRequest())).status == status.SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await check(health_pb2.HealthCheckRequest(service="x"))
        desk.server.end()
        assert (await watch.read()).status == status.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF


async def test_reflection_tells_the_interface(desk: Desk) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{desk.port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest
        call = stub.ServerReflectionInfo(
            iter([request(list_services=""), request(file_containing_symbol=SERVICE)])
        )
        listed, described = [answer async for answer in call]
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    assert b"StreamMetricSpec" in described.file_descriptor_response.file_descriptor_proto[0]


async def test_a_port_that_is_taken_is_said(desk: Desk) -> None:
    settings = replace(KedaSettings(), port=desk.port)
    with pytest.raises(UserError, match=f"can't listen on 127.0.0.1:{desk.port} for KEDA"):
        async with serving(settings):
            pass


@pytest.mark.parametrize(
    ("metadata", "code", "message"),
    [
        ({"pool": "x"}, "INVALID_ARGUMENT", "needs `fleet: NAME`"),
        ({"fleet": "gone"}, "NOT_FOUND", "no policy file has a fleet named 'gone'"),
    ],
)
@pytest.mark.parametrize(
    "call", ["GetMetricSpec", "GetMetrics", "IsActive", "StreamIsActive", "StreamMetricSpec"]
)
async def test_every_refusal_is_kept_with_its_time(
    call: str, metadata: dict[str, str], code: str, message: str
) -> None:
    async with serving(KedaSettings(port=0, streams_specs=True)) as desk:
        began = time.time()
        with pytest.raises(CallFailed):
            await asked(desk, call, asker(**metadata))
        (entry,) = desk.server.book.as_json()["items"]
        assert entry["refused"]["code"] == code
        assert message in entry["refused"]["message"]
        assert entry["answeredAt"] >= began
        assert entry["calls"] == {call: 1}
        assert list(desk.server.book.last_calls()) == [("serving/spares", entry["answeredAt"])]


async def asked(desk: Desk, call: str, of: ScaledObject) -> None:
    """Make one call, and take the first message of it."""
    match call:
        case "GetMetricSpec":
            await desk.client.metric_spec(of)
        case "GetMetrics":
            await desk.client.metrics(of, "")
        case "IsActive":
            await desk.client.is_active(of)
        case "StreamIsActive":
            async with desk.client.pushed(of) as pushed:
                await anext(pushed)
        case _:
            async with desk.client.pushed_specs(of) as specs:
                await anext(specs)


async def test_one_stream_too_many_is_kept_as_refused(desk: Desk) -> None:
    async with AsyncExitStack() as streams:
        for _ in range(8):
            await anext(await streams.enter_async_context(desk.client.pushed(asker())))
        with pytest.raises(CallFailed, match="has 8 streams open already"):
            await asked(desk, "StreamIsActive", asker())
        (entry,) = desk.server.book.as_json()["items"]
    assert entry["refused"]["code"] == "RESOURCE_EXHAUSTED"


async def test_who_asked_for_what_is_kept_with_the_keys_that_meant_nothing(desk: Desk) -> None:
    with_team = asker(fleet="spares", team="x", secretFromEnv="y")
    await desk.client.is_active(with_team)
    with pytest.raises(CallFailed):
        await desk.client.metrics(asker(fleet="gone"), "")
    gone, known = desk.server.book.as_json()["items"]
    assert gone["refused"]["code"] == "NOT_FOUND"
    assert (known["scaledObject"], known["fleet"], known["value"]) == ("serving/spares", "spares", "Total")
    assert known["ignoredKeys"] == ["secretFromEnv", "team"]
    assert (known["answer"]["value"], known["answer"]["active"], known["answer"]["stale"]) == (
        3.0,
        True,
        False,
    )
    assert known["calls"] == {"IsActive": 1}
    assert known["peer"].startswith("ipv4:127.0.0.1:")
