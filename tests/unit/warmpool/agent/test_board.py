"""The board: legal moves, and those who wait for them."""

import asyncio
from pathlib import Path

import pytest

from warmpool.agent.board import Board
from warmpool.agent.config import AgentConfig
from warmpool.errors import EngineLost, IllegalTransition, UnknownResident
from warmpool.states import ResidentState

S = ResidentState


def board(tmp_path: Path, *policies: str, exclusive: bool = True) -> Board:
    residents = [
        {
            "policy": policy,
            "model": policy,
            "command": ["engine", "{port}", "{controlPort}"],
            "proof": {"prompts": [{"prompt": "x", "tokens": [1]}]},
        }
        for policy in policies
    ]
    raw = {"seat": "s", "fleet": "f", "uid": "u", "logDirectory": str(tmp_path), "exclusive": exclusive}
    return Board(AgentConfig.model_validate(raw | {"residents": residents}))


def test_only_legal_moves(tmp_path: Path) -> None:
    seat = board(tmp_path, "a")
    record = seat.record("a")
    with pytest.raises(IllegalTransition):
        seat.move(record, S.SERVING)
    assert (record.state, seat.seq) == (S.STARTING, 0)
    seat.move(record, S.LOADING)
    assert (record.state, seat.seq) == (S.LOADING, 1)
    with pytest.raises(UnknownResident, match="it has a"):
        seat.record("b")


@pytest.mark.parametrize("end", [S.FAILED, S.TERMINATING])
def test_work_that_an_end_has_overtaken_stops(tmp_path: Path, end: ResidentState) -> None:
    seat = board(tmp_path, "a")
    record = seat.record("a")
    seat.move(record, end)
    with pytest.raises(EngineLost):
        seat.advance(record, S.LOADING)
    with pytest.raises(EngineLost):
        record.engine  # noqa: B018 (reading it raises)


@pytest.mark.parametrize(("exclusive", "in_the_way"), [(True, True), (False, False)])
def test_a_neighbour_that_has_the_seat_is_in_the_way(
    tmp_path: Path, *, exclusive: bool, in_the_way: bool
) -> None:
    seat = board(tmp_path, "a", "b", exclusive=exclusive)
    a, b = seat.records
    for state in (S.LOADING, S.WARMING, S.PROVING, S.PAUSED):
        seat.move(a, state)
        assert seat.rival(b) is None
    for state in (S.PROMOTING, S.SERVING, S.DRAINING):
        seat.move(a, state)
        assert (seat.rival(b) is a) == in_the_way
        assert seat.rival(a) is None


async def test_waiting_for_a_condition_ends_when_it_holds(tmp_path: Path) -> None:
    seat = board(tmp_path, "a")
    record = seat.record("a")
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(seat.until(lambda: record.state is S.WARMING))
        for state in (S.LOADING, S.WARMING):
            assert not waiting.done()
            seat.move(record, state)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert waiting.done()
