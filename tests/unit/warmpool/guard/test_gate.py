"""The gate: who is admitted, who is counted, and how those inside are asked to end."""

import asyncio

import pytest

from warmpool.guard import Gate, GateClosed


async def test_a_closed_gate_admits_nobody_and_counts_nothing() -> None:
    gate = Gate(is_open=False)
    with pytest.raises(GateClosed):
        gate.enter()
    assert gate.in_flight == 0


async def test_a_gate_is_born_closed() -> None:
    assert not Gate().is_open


async def test_closing_stops_nobody_inside() -> None:
    gate = Gate(is_open=True)
    with gate.enter() as passage:
        gate.close()
        assert (gate.in_flight, passage.cancelled) == (1, False)
    assert gate.in_flight == 0


async def test_an_error_inside_ends_the_passage_too() -> None:
    gate = Gate(is_open=True)
    with pytest.raises(RuntimeError), gate.enter():
        raise RuntimeError
    assert gate.in_flight == 0


async def test_draining_waits_for_the_last_one() -> None:
    gate = Gate(is_open=True)
    first, second = gate.enter(), gate.enter()
    async with asyncio.TaskGroup() as group:
        drained = group.create_task(gate.wait_drained())
        gate.leave(first)
        await asyncio.sleep(0)
        assert not drained.done()
        gate.leave(second)
    assert drained.done()


async def test_an_empty_gate_is_drained_at_once() -> None:
    async with asyncio.timeout(1):
        await Gate(is_open=True).wait_drained()


async def test_cancelling_calls_back_each_request_once() -> None:
    gate = Gate(is_open=True)
    calls: list[str] = []
    first, second = gate.enter(), gate.enter()
    first.on_cancel(lambda: calls.append("first"))
    assert gate.cancel_all() == 2
    assert gate.cancel_all() == 0
    second.on_cancel(lambda: calls.append("second, late"))
    assert calls == ["first", "second, late"]
    assert gate.in_flight == 2
