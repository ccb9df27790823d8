"""What will be needed is in the node's memory before it is: from a real stage daemon, over its socket."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import safetensors.torch
import torch

from loader.stage.client import StageClient
from loader.stage.daemon import Daemon
from loader.stage.pool import Pool
from tests.unit.warmpool.agent.rig import FakeEngine, Machine, config, live, resident
from warmpool.agent.ahead import LOOK_SECONDS, PENDING_SECONDS, Ahead, Place, Stager, starting, wanted
from warmpool.agent.board import Board
from warmpool.agent.orders import StageOrder
from warmpool.agent.seat import ORDERED_SECONDS
from warmpool.engines.arguments import staged_checkpoint
from warmpool.engines.kinds import EngineKind
from warmpool.errors import StaleEpoch, WrongState
from warmpool.states import ResidentState

SECONDS = 30.0
MIB = 2**20


def checkpoint(directory: Path, mebibytes: int = 1) -> str:
    directory.mkdir()
    data = torch.zeros(mebibytes * MIB // 4)
    safetensors.torch.save_file({"w": data}, directory / "model.safetensors")
    return str(directory)


@contextmanager
def daemon_at(
    path: Path, root: Path, *, budget: int = 64 * MIB, ready: Callable[[torch.Tensor], None] = lambda _: None
) -> Iterator[None]:
    daemon = Daemon(Pool(budget, (str(root),), ready=ready), path)
    thread = Thread(target=daemon.serve)
    thread.start()
    try:
        yield
    finally:
        daemon.close()
        thread.join()


async def settled(stager: Stager, checkpoints: Sequence[str]) -> list[tuple[str, Place]]:
    """Ask until nothing is on its way any more."""
    async with asyncio.timeout(SECONDS):
        await stager.keep(checkpoints)
        while stager.pending:
            await stager.keep(checkpoints)
    return [(each.checkpoint, each.place) for each in stager.found]


@pytest.fixture
def stager(tmp_path: Path) -> Iterator[Stager]:
    made = Stager(tmp_path / "s.sock")
    yield made
    made.close()


async def test_what_is_wanted_is_read_and_leased_until_it_is_wanted_no_more(
    stager: Stager, tmp_path: Path
) -> None:
    a, b = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    with daemon_at(tmp_path / "s.sock", tmp_path):
        assert await settled(stager, [a, b]) == [(a, Place.STAGED), (b, Place.STAGED)]
        with StageClient(tmp_path / "s.sock") as client:
            assert [each["leases"] for each in client.statuses()] == [1, 1]
            assert await settled(stager, [b]) == [(b, Place.STAGED)]
            async with asyncio.timeout(SECONDS):
                while client.statuses()[0]["leases"]:
                    await asyncio.sleep(0)
            assert client.drop(a)
            assert not client.drop(b)


async def test_nothing_that_is_needed_more_gives_way_and_what_finds_no_room_is_told(
    stager: Stager, tmp_path: Path
) -> None:
    a, b, c = (checkpoint(tmp_path / name, size) for name, size in (("a", 4), ("b", 4), ("c", 1)))
    with daemon_at(tmp_path / "s.sock", tmp_path, budget=6 * MIB):
        assert await settled(stager, [a, b, c]) == [(a, Place.STAGED), (b, Place.LEFT_OUT), (c, Place.STAGED)]
        assert "don't fit" in stager.found[1].reason
        assert await settled(stager, [b]) == [(b, Place.STAGED)]  # the others are wanted no more


async def test_one_is_read_at_a_time_and_the_most_needed_first(stager: Stager, tmp_path: Path) -> None:
    a, b = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    read = Event()
    with daemon_at(tmp_path / "s.sock", tmp_path, ready=lambda _: assert_set(read)):
        try:
            await stager.keep([a, b])
            assert [each.place for each in stager.found] == [Place.STAGING, Place.WAITS]
            await stager.keep([b, a])  # reading isn't called off
            assert [each.place for each in stager.found] == [Place.WAITS, Place.STAGING]
        finally:
            read.set()
        assert await settled(stager, [a, b]) == [(a, Place.STAGED), (b, Place.STAGED)]


def assert_set(event: Event) -> None:
    assert event.wait(SECONDS)


async def test_what_is_being_read_stays_until_it_is_leased_whatever_others_want(tmp_path: Path) -> None:
    """Two agents of a node, and room for one checkpoint: who comes first has it, and nothing is read twice."""
    a, b = checkpoint(tmp_path / "a", 4), checkpoint(tmp_path / "b", 4)
    read, reads = Event(), 0

    def ready(_: torch.Tensor) -> None:
        nonlocal reads
        reads += 1
        assert_set(read)

    first, second = Stager(tmp_path / "s.sock"), Stager(tmp_path / "s.sock")
    with daemon_at(tmp_path / "s.sock", tmp_path, budget=6 * MIB, ready=ready):
        try:
            await first.keep([a])
            await second.keep([b])
            assert [each.found[0].place for each in (first, second)] == [Place.STAGING, Place.WAITS]
            read.set()
            with StageClient(tmp_path / "s.sock") as client:
                while [each["state"] for each in client.statuses()] != ["Staged"]:
                    await asyncio.sleep(0)
            assert await settled(second, [b]) == [(b, Place.LEFT_OUT)]  # it looks before the other one does
            assert await settled(first, [a]) == [(a, Place.STAGED)]
            assert reads == 1
        finally:
            read.set()
            first.close()
            second.close()


async def test_what_another_has_read_is_leased_as_soon_as_it_is_there(tmp_path: Path) -> None:
    a = checkpoint(tmp_path / "a")
    read = Event()
    first, second = Stager(tmp_path / "s.sock"), Stager(tmp_path / "s.sock")
    with daemon_at(tmp_path / "s.sock", tmp_path, ready=lambda _: assert_set(read)):
        try:
            for each in (first, second):
                await each.keep([a])
                assert [ahead.place for ahead in each.found] == [Place.STAGING]
            read.set()
            assert await settled(second, [a]) == [(a, Place.STAGED)]
            first.close()
            with StageClient(tmp_path / "s.sock") as client:
                async with asyncio.timeout(SECONDS):
                    while client.statuses()[0]["leases"] != 1:
                        await asyncio.sleep(0)
                assert not client.drop(a)
        finally:
            read.set()
            first.close()
            second.close()


async def test_a_daemon_that_ends_while_it_reads_is_asked_anew(stager: Stager, tmp_path: Path) -> None:
    a = checkpoint(tmp_path / "a")
    read = Event()
    with daemon_at(tmp_path / "s.sock", tmp_path, ready=lambda _: assert_set(read)):
        await stager.keep([a])
        assert [each.place for each in stager.found] == [Place.STAGING]
        read.set()
    with daemon_at(tmp_path / "s.sock", tmp_path):
        assert await settled(stager, [a]) == [(a, Place.STAGED)]


async def test_what_an_engine_is_taking_stays_and_is_not_read_for_it(stager: Stager, tmp_path: Path) -> None:
    a, b = checkpoint(tmp_path / "a", 4), checkpoint(tmp_path / "b", 4)
    with daemon_at(tmp_path / "s.sock", tmp_path, budget=6 * MIB):
        await stager.keep([], [a])
        assert stager.found == ()
        assert await settled(stager, [a]) == [(a, Place.STAGED)]
        await stager.keep([b], [a])  # its engine starts, and loads from there
        assert [each.place for each in stager.found] == [Place.LEFT_OUT, Place.STAGED]
        assert await settled(stager, [b]) == [(b, Place.STAGED)]  # it has loaded
        await stager.keep([], [b])
        assert [each.place for each in stager.found] == [Place.STAGED]


async def test_where_those_are_that_nobody_wants_is_told_and_changes_nothing(
    stager: Stager, tmp_path: Path
) -> None:
    a, b = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")

    async def places(*wanted_now: str) -> dict[str, str]:
        await settled(stager, wanted_now)
        await stager.keep(wanted_now, (), [a, b])
        return {Path(path).name: str(each.place) for path, each in stager.places.items()}

    assert await places() == {"a": "LeftOut", "b": "LeftOut"}
    assert "no stage daemon answers" in stager.places[a].reason
    with daemon_at(tmp_path / "s.sock", tmp_path):
        assert await places() == {"a": "Absent", "b": "Absent"}
        assert await places(a) == {"a": "Staged", "b": "Absent"}
        assert [each.checkpoint for each in stager.found] == [a]
        assert await places(b) == {"a": "Staged", "b": "Staged"}  # it stays until room is wanted
        with StageClient(tmp_path / "s.sock") as client:
            assert client.drop(a)
        assert await places(b) == {"a": "Absent", "b": "Staged"}


async def test_a_daemon_that_was_started_anew_reads_it_again(stager: Stager, tmp_path: Path) -> None:
    a = checkpoint(tmp_path / "a")
    with daemon_at(tmp_path / "s.sock", tmp_path):
        assert await settled(stager, [a]) == [(a, Place.STAGED)]
    assert await settled(stager, [a]) == [(a, Place.LEFT_OUT)]
    assert "no stage daemon answers" in stager.found[0].reason
    with daemon_at(tmp_path / "s.sock", tmp_path):
        assert await settled(stager, [a]) == [(a, Place.STAGED)]


async def test_what_is_no_checkpoint_is_left_out_with_the_daemon_s_words(
    stager: Stager, tmp_path: Path
) -> None:
    a = checkpoint(tmp_path / "a")
    with daemon_at(tmp_path / "s.sock", tmp_path):
        none, outside = str(tmp_path / "none"), "/proc"
        assert await settled(stager, [none, outside, a]) == [
            (none, Place.LEFT_OUT),
            (outside, Place.LEFT_OUT),
            (a, Place.STAGED),
        ]
        assert all(each.reason for each in stager.found[:2])


# ------------------------------------------------------------------ what is wanted


def board(tmp_path: Path, *names: str) -> Board:
    return Board(config(tmp_path, [resident(name, checkpoint=f"/m/{name}") for name in names]))


class Running:
    """Stands for an engine's process."""

    exited = False


def test_those_that_wait_for_their_start_are_wanted_and_then_what_the_controller_tells(
    tmp_path: Path,
) -> None:
    table = board(tmp_path, "a", "b", "c")
    first, _, last = table.records
    assert wanted(table.by_need, ["/m/x"]) == ("/m/x",)  # whoever comes first starts at once
    first.process = Running()  # type: ignore[assignment]  # that it is there is enough
    assert wanted(table.by_need, ["/m/x", "/m/b"]) == ("/m/b", "/m/c", "/m/x")
    table.need(["c"], ["c"])
    assert wanted(table.by_need, []) == ("/m/c", "/m/b")
    last.state = ResidentState.TERMINATING
    assert wanted(table.by_need, []) == ("/m/b",)


def test_who_has_been_given_up_needs_nothing(tmp_path: Path) -> None:
    table = board(tmp_path, "a", "b")
    first, other = table.records
    other.process = Running()  # type: ignore[assignment]  # that it is there is enough
    first.state, first.failure = ResidentState.FAILED, "it ended"
    assert (wanted(table.by_need, []), starting([first])) == (("/m/a",), ("/m/a",))
    first.given_up = True
    assert (wanted(table.by_need, []), starting([first])) == ((), ())


@pytest.mark.parametrize(
    ("state", "loaded", "taken"),
    [
        (ResidentState.STARTING, False, True),
        (ResidentState.LOADING, False, True),
        (ResidentState.LOADING, True, False),  # it waits for the seat
        (ResidentState.WARMING, True, False),
        (ResidentState.SERVING, True, False),
        (ResidentState.TERMINATING, False, False),
    ],
)
def test_who_starts_takes_its_weights_until_it_has_loaded(
    tmp_path: Path, state: ResidentState, *, loaded: bool, taken: bool
) -> None:
    (record,) = board(tmp_path, "a").records
    record.state, record.loaded = state, loaded
    assert starting([record]) == (("/m/a",) if taken else ())


def test_one_that_is_held_up_is_wanted_meanwhile(tmp_path: Path) -> None:
    table = board(tmp_path, "a")
    assert wanted(table.by_need, []) == ()
    table.wait(table.records[0], "GPU 0 is Bad")
    assert wanted(table.by_need, []) == ("/m/a",)


@pytest.mark.parametrize(
    ("kind", "command", "found"),
    [
        (EngineKind.REFERENCE, ["serve", "--checkpoint", "/m/a", "--port", "1"], "/m/a"),
        (EngineKind.REFERENCE, ["serve", "--checkpoint=/m/a"], "/m/a"),
        (EngineKind.REFERENCE, ["serve"], ""),
        (EngineKind.VLLM, ["vllm", "serve", "/m/a"], ""),
        (EngineKind.VLLM, ["vllm", "serve", "/m/a", "--model-loader-extra-config", '{"threads": 8}'], ""),
        (
            EngineKind.VLLM,
            ["vllm", "serve", "/m/a", "--model-loader-extra-config", '{"stage_socket": "/s"}'],
            "/m/a",
        ),
        (
            EngineKind.VLLM,
            ["python", "-m", "vllm", "--model=/m/a", '--model-loader-extra-config={"stage_socket": "/s"}'],
            "/m/a",
        ),
        (EngineKind.SGLANG, ["--model-path", "/m/a"], ""),
    ],
)
def test_engines_that_ask_the_stage_daemon_are_known_by_their_commands(
    kind: EngineKind, command: list[str], found: str
) -> None:
    assert staged_checkpoint(kind, command) == found


# ------------------------------------------------------------------ a whole seat


async def test_while_one_resident_starts_the_next_one_s_weights_are_read(tmp_path: Path) -> None:
    a, b, x = (checkpoint(tmp_path / name) for name in "abx")
    settings = config(
        tmp_path,
        [resident("a", checkpoint=a), resident("b", checkpoint=b)],
        stageDaemon=f"unix://{tmp_path / 's.sock'}",
    )
    engines = {"a": [FakeEngine(load_seconds=1e9)], "b": [FakeEngine()]}
    with daemon_at(tmp_path / "s.sock", tmp_path):
        async with live(settings, Machine(engines=engines)) as rig:
            seen: list[dict[str, Any]] = []

            async def until(places: list[Ahead]) -> None:
                async with asyncio.timeout(SECONDS):
                    while (seen[:] if seen else None) != [each.to_json() for each in places]:
                        seen[:] = rig.seat.state()["stage"]
                        await asyncio.sleep(0.01)

            await until([Ahead(checkpoint=b, place=Place.STAGED)])
            assert [rig.told("a")[key] for key in ("checkpoint", "stage", "stageReason")] == [a, "Absent", ""]
            assert rig.told("b")["stage"] == "Staged"
            sample = rig.seat.metrics.registry.get_sample_value
            name = "emberpool_agent_stage_checkpoints"
            counts = {place: sample(name, {"place": place}) for place in ("Staged", "Absent", "Waits")}
            assert counts == {"Staged": 1.0, "Absent": 1.0, "Waits": 0.0}
            told = rig.seat.take_stage_order(StageOrder(epoch=2, checkpoints=[x]))
            assert told == {"checkpoints": [b, x]}
            await until([Ahead(checkpoint=each, place=Place.STAGED) for each in (b, x)])
            with pytest.raises(StaleEpoch):
                rig.seat.take_stage_order(StageOrder(epoch=1, checkpoints=[]))


async def test_what_was_read_ahead_stays_until_the_engine_has_loaded_it(tmp_path: Path) -> None:
    b = checkpoint(tmp_path / "b")
    settings = config(
        tmp_path,
        [resident("a"), resident("b", checkpoint=b)],
        stageDaemon=f"unix://{tmp_path / 's.sock'}",
    )
    first, second = FakeEngine(load_seconds=1e9), FakeEngine(load_seconds=1e9)
    with daemon_at(tmp_path / "s.sock", tmp_path):
        async with live(settings, Machine(engines={"a": [first], "b": [second]})) as rig:

            async def until(leases: int, staged: list[str]) -> None:
                async with asyncio.timeout(SECONDS):
                    while (leases, staged) != (_leases(tmp_path), _staged(rig.seat.state())):
                        await asyncio.sleep(0.01)

            await until(1, [b])  # the other one starts first
            first.load_seconds = 0.0
            await rig.until(a="Paused")
            assert rig.states()["b"] in {"Starting", "Loading"}
            await asyncio.sleep(PENDING_SECONDS)
            assert (_leases(tmp_path), _staged(rig.seat.state())) == (1, [b])
            second.load_seconds = 0.0
            await rig.until(b="Paused")
            await until(0, [])


def _leases(directory: Path) -> int:
    with StageClient(directory / "s.sock") as client:
        return sum(int(str(each["leases"])) for each in client.statuses())


def _staged(state: dict[str, Any]) -> list[str]:
    return [each["checkpoint"] for each in state["stage"] if each["place"] == "Staged"]


@pytest.mark.looptime
async def test_an_order_that_nobody_repeats_lapses(tmp_path: Path) -> None:
    """Its controller has ended, or tells another agent of the node: nothing may stay leased for it for ever."""
    settings = config(tmp_path, [resident("a")], stageDaemon=f"unix://{tmp_path / 's.sock'}")
    async with live(settings, Machine(engines={"a": [FakeEngine()]})) as rig:
        await rig.until(a="Paused")

        def told() -> list[str]:
            return [each["checkpoint"] for each in rig.seat.state()["stage"]]

        rig.seat.take_stage_order(StageOrder(epoch=2, checkpoints=["/m/x"]))
        await asyncio.sleep(ORDERED_SECONDS - 1)
        assert told() == ["/m/x"]
        rig.seat.take_stage_order(StageOrder(epoch=2, checkpoints=["/m/x"]))
        await asyncio.sleep(ORDERED_SECONDS - 1)
        assert told() == ["/m/x"]
        await asyncio.sleep(LOOK_SECONDS + 2)
        assert told() == []


async def test_a_seat_without_a_stage_daemon_says_so(tmp_path: Path) -> None:
    engines = {"a": [FakeEngine()]}
    async with live(config(tmp_path, [resident("a", checkpoint="/m/a")]), Machine(engines=engines)) as rig:
        assert rig.seat.state()["stage"] is None
        assert [rig.told("a")[key] for key in ("checkpoint", "stage")] == ["", ""]
        metrics = rig.seat.metrics.registry
        assert metrics.get_sample_value("emberpool_agent_stage_checkpoints", {"place": "Staged"}) is None
        with pytest.raises(WrongState, match="names none"):
            rig.seat.take_stage_order(StageOrder(epoch=1, checkpoints=[]))
