"""SIGKILL to an engine, its agent and its launcher, in each state of a resident, while a neighbour on the same device serves.

`python -m scaler.drill.bench.kills OUT`

Two seats share one device. On the first live the resident that is hit and a rival of higher priority, on the second the
neighbour, whose streams follow each other without a break. Controller, gateway, agents and launchers are processes of their
own; what was killed is started again at once, as a kubelet does it. A row is done when everything is calm again; then memory
is compared with what was taken before.
"""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from scaler.drill.bench.checkpoint import CACHE, made
from scaler.drill.bench.installation import Installation, Json
from scaler.drill.bench.kill_rows import STATES, Memory, Row, Victim, memory_failures, table
from scaler.drill.bench.kill_setting import HIT, MODELS, RIVAL, SEAT, Setting
from scaler.drill.bench.kill_streams import Streams, begun
from scaler.drill.bench.machine import device_mebibytes, machine
from scaler.drill.bench.orders import OrderFailed, Orders
from scaler.drill.bench.sound import EngineShape, NotSound, length_in, prompts, proof, sound_answers
from scaler.drill.bench.streams import Answer
from scaler.drill.bench.waiting import NotSo, until
from scaler.drill.checkpoints import CheckpointFailed
from scaler.drill.interruptible import first, run
from scaler.drill.scenario import Shape
from warmpool.states import ResidentState as State

_LONG, _SHORT, _SHARED = 200, 20, 75
"""Tokens of answers: who is hit while being served, who waits, the rival's."""
_BEGUN = 20
"""Tokens that have come of a stream when something is killed."""
_SEQUENCES = 8
_PROMPT_TOKENS = 64
_CPU_LENGTH = 512
_READY_SECONDS = 300.0
_STATE_SECONDS = 60.0
_BACK_SECONDS = 90.0
_CALM_SECONDS = 60.0
_MEMORY_SECONDS = 15.0
_ATTEMPTS = 5
_AT_ONCE_SECONDS = 0.001
_USABLE = frozenset({State.PAUSED, State.PARKED, State.UNPARKING, State.PROMOTING, State.SERVING})
_RESTS = frozenset({State.PAUSED, State.PARKED})


class _Kill:
    """One row: bring the resident into a state, kill, and see what becomes of everybody."""

    def __init__(self, streams: Streams, victim: Victim, state: State) -> None:
        self._streams = streams
        self._installation = streams.installation
        self._device = streams.setting.shape.device
        self._victim = victim
        self._state = state
        self._asked: list[tuple[str, Answer, asyncio.Task[Answer]]] = []
        self._sharer: tuple[str, Answer, asyncio.Task[Answer]] | None = None

    async def row(self) -> Row:
        """Carry it out; what can't be done is the row's trouble."""
        try:
            await self._calm()
            before = await self._memory()
            await self._streams.neighbour_in_the_middle()
            hit = await self._reach()
            killed_at = time.time()
            await self._kill(hit)
            back_seconds, given_up = await self._back(hit, killed_at)
            for _, _, asking in self._everybody:
                await asking
            await self._calm()
            after = await self._memory_again(before)
            return Row(
                victim=self._victim,
                state=self._state,
                back_seconds=back_seconds,
                given_up=given_up,
                clients=[self._streams.seen(answer, who) for who, answer, _ in self._asked],
                sharer=None if self._sharer is None else self._streams.seen(self._sharer[1], self._sharer[0]),
                neighbours=await self._streams.since(killed_at),
                before=before,
                after=after,
            ).judged()
        except NotSo as error:
            for _, _, asking in self._everybody:
                asking.cancel()
            return Row(victim=self._victim, state=self._state, trouble=str(error)).judged()

    @property
    def _everybody(self) -> list[tuple[str, Answer, asyncio.Task[Answer]]]:
        return [*self._asked, *([] if self._sharer is None else [self._sharer])]

    # -------------------------------------------------------------- the state

    async def _reach(self) -> Json:
        """Bring the resident into the row's state, and return it as its agent told it then."""
        match self._state:
            case State.PAUSED:
                self._sharer = ("who asked its rival", *self._streams.begin(RIVAL, _SHARED))
                await begun(self._sharer[1], _BEGUN)
            case State.LOADING:
                await self._fail_engine()
            case State.PROMOTING:
                return await self._promoting()
            case State.SERVING | State.DRAINING:
                await self._serve()
            case State.PARKED:
                await self._park()
            case other:
                raise NotSo(f"nobody knows how to bring a resident into {other}")
        return await self._told(self._state)

    async def _fail_engine(self) -> None:
        """Have it start anew: its engine is killed, and its agent's word for the death awaited."""
        before = await self._told(State.PAUSED)
        os.kill(int(before["pid"]), signal.SIGKILL)

        async def dead() -> bool:
            now = await self._installation.resident(SEAT, HIT)
            return now is not None and now["pid"] != before["pid"]

        await until(dead, "its agent's word for the death of an engine", _STATE_SECONDS, _AT_ONCE_SECONDS)

    async def _promoting(self) -> Json:
        """Ask it, and look fast enough; a promotion that was over before anybody looked is waited for and tried again."""
        for _ in range(_ATTEMPTS):
            answer, asking = self._streams.begin(HIT, _SHORT)
            while answer.first is None and not asking.done():
                now = await self._installation.resident(SEAT, HIT)
                if now is not None and now["state"] == State.PROMOTING:
                    self._asked.append(("who caused its promotion", answer, asking))
                    return now
                await asyncio.sleep(0)
            await asking
            await self._calm()
        raise NotSo(f"it was promoted {_ATTEMPTS} times before anybody saw it")

    async def _serve(self) -> None:
        """Have it serve one stream, with two more requests waiting at the gateway; for a drain, have its rival want the seat."""
        answer, asking = self._streams.begin(HIT, _LONG)
        self._asked.append(("whom it served", answer, asking))
        await begun(answer, _BEGUN)
        for _ in range(2):
            self._asked.append(("who waited for it", *self._streams.begin(HIT, _SHORT)))
        if self._state is State.DRAINING:
            self._asked.append(("who asked its rival", *self._streams.begin(RIVAL, _SHORT)))

    async def _park(self) -> None:
        orders = Orders(self._streams.session, self._installation.token)
        agent = self._installation.agent(SEAT)
        try:
            await orders.give(agent, "park", HIT, seconds=_STATE_SECONDS)
        except OrderFailed as error:
            raise NotSo(str(error)) from error

    async def _told(self, state: State) -> Json:
        """Wait until the agent tells that the resident is in a state, and return it."""
        found: Json = {}

        async def so() -> bool:
            nonlocal found
            found = await self._installation.resident(SEAT, HIT) or {}
            return found.get("state") == state

        try:
            await until(so, f"resident {state}", _STATE_SECONDS, _AT_ONCE_SECONDS)
        except NotSo as error:
            raise NotSo(f"{error}; it is {found.get('state')} {found.get('failure', '')}") from error
        return found

    # -------------------------------------------------------------- the kill, and after

    async def _kill(self, hit: Json) -> None:
        if self._victim is Victim.ENGINE:
            os.kill(int(hit["pid"]), signal.SIGKILL)
        else:
            name = f"{self._victim} {SEAT}"
            await self._installation.kill(name)
            await self._installation.start(name)
        if not self._asked:
            self._asked.append(("who asked it afterwards", *self._streams.begin(HIT, _SHORT)))

    async def _back(self, hit: Json, killed_at: float) -> tuple[float | None, str]:
        """Wait until the resident can serve again, or is given up: the seconds since the kill, and why it was given up."""
        given_up = ""

        async def decided() -> bool:
            nonlocal given_up
            now = await self._installation.resident(SEAT, HIT)
            if now is None:
                return False
            failure = str(now["failure"])
            given_up = failure if now["state"] == State.FAILED and failure.startswith("given up") else ""
            lives = self._victim is Victim.AGENT or now["pid"] not in {None, hit["pid"]}
            return bool(given_up) or (lives and now["state"] in _USABLE)

        try:
            await until(decided, "its return", _BACK_SECONDS)
        except NotSo:
            return None, ""
        return (None, given_up) if given_up else (time.time() - killed_at, "")

    async def _calm(self) -> None:
        """Wait until both residents of the seat rest, and the controller knows."""
        seen: Mapping[str, Json] = {}

        async def rests() -> bool:
            nonlocal seen
            seen = await self._installation.seats()
            seat, told = seen.get(SEAT), await self._installation.seat(SEAT)
            if seat is None or told is None or seat["value"] != "Spare":
                return False
            residents = [*told["residents"], *seat["residents"]]
            return told["operation"] is None and all(each["state"] in _RESTS for each in residents)

        try:
            await until(rests, "a calm seat", _CALM_SECONDS)
        except NotSo as error:
            seat = seen.get(SEAT, {})
            states = {each["policy"]: (each["state"], each["failure"]) for each in seat.get("residents", ())}
            raise NotSo(f"{error}: the controller sees {seat.get('value')} {states}") from error

    async def _memory(self) -> Memory:
        return Memory(
            mebibytes=await device_mebibytes(self._device),
            engines=len(self._installation.engines()),
            orphans=len(self._installation.orphans()),
        )

    async def _memory_again(self, before: Memory) -> Memory:
        """Return what is taken once it is what was taken before, or at the end of a while in which it should become so."""
        after = before

        async def same() -> bool:
            nonlocal after
            after = await self._memory()
            return not memory_failures(before, after)

        with suppress(NotSo):
            await until(same, "memory as before", _MEMORY_SECONDS)
        return after


# ------------------------------------------------------------------ all rows


async def rows(
    setting: Setting, wanted: Sequence[tuple[State, Victim]], out: Path, seconds: float
) -> list[Row]:
    """Start an installation and carry out the rows, as many as can begin within `seconds`.

    Raises:
        NotSo: it doesn't get warm.
    """
    done: list[Row] = []
    timeout = aiohttp.ClientTimeout(total=None)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            installation = Installation(Path(folder), setting.policies(), setting.seats(), session)
            begun = time.monotonic()
            try:
                async with installation.running():
                    await installation.ready(_READY_SECONDS)
                    typer.echo(f"warm after {time.monotonic() - begun:.1f} s")
                    async with asyncio.TaskGroup() as group:
                        streams = Streams(setting, installation, session, group)
                        neighbour = group.create_task(streams.keep_neighbour_busy())
                        for state, victim in wanted:
                            if time.monotonic() - begun > seconds:
                                break
                            done.append(await _Kill(streams, victim, state).row())
                            typer.echo("\n".join(table(done[-1:])[1:]))
                        neighbour.cancel()
            finally:
                for kept in ("logs", "state"):
                    if (Path(folder) / kept).is_dir():
                        shutil.copytree(Path(folder) / kept, out / kept, dirs_exist_ok=True)
    return done


def main(  # noqa: PLR0913 (one parameter per command-line option)
    out: Annotated[Path, typer.Argument(help="Folder for kills.json, logs and records; created.")],
    *,
    shape: Annotated[Shape, typer.Option(help="Of the checkpoint that is made.")] = Shape.LLAMA_8B,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    state: Annotated[list[State] | None, typer.Option(help="Only these states; repeatable.")] = None,
    victim: Annotated[list[Victim] | None, typer.Option(help="Only these victims; repeatable.")] = None,
    gigabytes: Annotated[float, typer.Option(help="KV memory of who serves on a GPU, in 10^9 bytes.")] = 10.0,
    parked_mebibytes: Annotated[
        int,
        typer.Option(min=0, help="Host memory of the seat for parked residents; 0: no rows of that state."),
    ] = 0,
    checkpoints: Annotated[
        Path, typer.Option(metavar="DIR", help="Where checkpoints are kept; memory is best.")
    ] = CACHE,
    seconds: Annotated[float, typer.Option(min=1, help="No row begins later than this.")] = 480.0,
    seed: Annotated[int, typer.Option(min=0, help="Prompts follow from it.")] = 1,
) -> None:
    """Print a row per victim and state; exit code 1 if one isn't as it should be, or couldn't be carried out."""
    out.mkdir(parents=True, exist_ok=True)
    states = state or [*STATES, *([State.PARKED] if parked_mebibytes else [])]
    wanted = [(each, hit) for each in states for hit in victim or Victim]
    try:
        checkpoint = run(made(shape, checkpoints))
        engine = _engine(checkpoint, device, gigabytes)
        setting = run(_setting(engine, parked_mebibytes, seed, out))
        done = run(rows(setting, wanted, out, seconds))
    except* (NotSo, NotSound, CheckpointFailed) as failures:
        typer.echo(f"error: {first(failures)}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(_told(done, len(wanted), out))


def _engine(checkpoint: Path, device: str, gigabytes: float) -> EngineShape:
    length = _CPU_LENGTH if device == "cpu" else length_in(gigabytes, _SEQUENCES, checkpoint, device)
    return EngineShape(checkpoint=checkpoint, device=device, sequences=_SEQUENCES, length=length)


async def _setting(engine: EngineShape, parked_mebibytes: int, seed: int, out: Path) -> Setting:
    drawn = prompts(len(MODELS), _PROMPT_TOKENS, seed)
    answers = await sound_answers(engine, drawn, _LONG, out / "sound.log")
    return Setting(
        shape=engine,
        questions=dict(zip(MODELS, drawn, strict=True)),
        expected=dict(zip(MODELS, answers, strict=True)),
        proof=await proof(engine.checkpoint, engine.device),
        parked_mebibytes=parked_mebibytes,
    )


def _told(done: Sequence[Row], wanted: int, out: Path) -> int:
    """Print and keep what came of it; the exit code."""
    failed = sum(bool(row.failures) for row in done)
    typer.echo("\n".join(table(done)))
    typer.echo(f"rows: {len(done)} of {wanted}, {failed} failed")
    kept = {"machine": machine(), "rows": [asdict(row) for row in done]}
    (out / "kills.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    return 1 if failed or len(done) < wanted else 0


if __name__ == "__main__":
    typer.run(main)
