"""Models that rest are asked one after the other, each when nothing else on the device moves."""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from scaler.drill.bench.layout import Layout
from scaler.drill.bench.orders import OrderFailed, Orders
from scaler.drill.bench.parts import Asked
from scaler.drill.bench.streams import Question, ask
from scaler.drill.bench.waiting import NotSo, until
from scaler.drill.child import Endpoints
from scaler.drill.records import Outcome
from warmpool.states import Depth, ResidentState

TOKENS = 4
"""Tokens of each answer."""
_ANSWER_SECONDS = 30.0
_PARK_SECONDS = 30.0
_REST_SECONDS = 30.0
"""How long no model may be at rest; its windows and its demotion take two seconds."""
_POLL_SECONDS = 0.02
_BOUNDARY_SECONDS = 0.15
"""The law's windows end with the clock's seconds, so demotions begin there; nothing is sent this close to one."""
_MOVING = frozenset({"Promoting", "Draining"})
_FOUND_AT: Mapping[Depth, frozenset[Depth]] = {
    Depth.PAUSED: frozenset({Depth.PAUSED}),
    Depth.KV_RELEASED: frozenset({Depth.KV_RELEASED}),
    Depth.PARKED: frozenset({Depth.PARKED, Depth.KV_RELEASED}),
}
"""Per depth, those that a resident may be found at: who has been demoted is parked by order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Attributes:
        layout: the seats.
        checkpoint: what all engines serve.
        asked: per model, its prompts.
        expected: per model, what a sound engine answers to them.
        count: promotions.
        seconds: no promotion begins later than this after the first.
        seed: the order of models and prompts follows from it.
    """

    layout: Layout
    checkpoint: Path
    asked: Mapping[str, Sequence[Sequence[int]]]
    expected: Mapping[str, Sequence[Sequence[int]]]
    count: int
    seconds: float
    seed: int


class Turns:
    """Asks one model after the other.

    Args:
        plan: what is measured.
        session: connections.
        endpoints: where gateway and controller answer.
        orders: for depths that the law doesn't choose.
    """

    def __init__(
        self, plan: Plan, session: aiohttp.ClientSession, endpoints: Endpoints, orders: Orders
    ) -> None:
        self._plan = plan
        self._session = session
        self._endpoints = endpoints
        self._orders = orders
        self._choose = random.Random(plan.seed)
        self._asked_at: dict[str, int] = {}

    async def one(self, number: int) -> Asked:
        """Wait for a model at rest, ask it, and compare the answer.

        Raises:
            NotSo: none comes to rest.
        """
        depth = self._plan.layout.depth
        seat, resident = await self._at_rest()
        self._asked_at[str(seat["name"])] = number
        model = str(resident["policy"])
        if depth is Depth.PARKED:
            await self._park(seat, model)
        which = self._choose.randrange(len(self._plan.asked[model]))
        question = Question(model=model, prompt=self._plan.asked[model][which], tokens=TOKENS)
        await until(self._quiet, "a quiet device", _REST_SECONDS, _POLL_SECONDS)
        answer = await ask(self._session, self._endpoints.gateway, question, seconds=_ANSWER_SECONDS)
        return Asked(
            number=number,
            model=model,
            depth=depth,
            sent=answer.sent,
            first=answer.first,
            right=answer.tokens == self._plan.expected[model][which],
            failure="" if answer.outcome is Outcome.OK else f"{answer.outcome}: {answer.detail}",
        )

    async def _at_rest(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Wait until a seat is at rest with all its residents; return the one that was asked longest ago, and a resident."""
        found: Sequence[Mapping[str, Any]] = ()

        async def rests() -> bool:
            nonlocal found
            found = [seat for seat in await self._seats() if self._rests(seat)]
            return bool(found)

        await until(
            rests, f"a seat at rest, its residents {self._plan.layout.depth}", _REST_SECONDS, _POLL_SECONDS
        )
        seat = min(found, key=lambda seat: self._asked_at.get(str(seat["name"]), -1))
        return seat, self._choose.choice(seat["residents"])

    def _rests(self, seat: Mapping[str, Any]) -> bool:
        layout = self._plan.layout
        deep = [_depth(each) in _FOUND_AT[layout.depth] for each in seat["residents"]]
        return seat["value"] == "Spare" and all(deep) and len(deep) == layout.residents

    async def _park(self, seat: Mapping[str, Any], model: str) -> None:
        """Have a resident parked, unless it is, and wait until the controller knows."""

        async def parked() -> bool:
            residents = [
                each
                for one in await self._seats()
                if one["name"] == seat["name"]
                for each in one["residents"]
            ]
            return any(each["policy"] == model and _depth(each) is Depth.PARKED for each in residents)

        if not await parked():
            try:
                await self._orders.give(str(seat["agent"]), "park", model, seconds=_PARK_SECONDS)
            except OrderFailed as error:
                raise NotSo(str(error)) from error
        await until(parked, f"{model} parked", _PARK_SECONDS, _POLL_SECONDS)

    async def _quiet(self) -> bool:
        """Whether nothing moves on the device and no window is about to end."""
        into = math.modf(time.monotonic())[0]
        far = _BOUNDARY_SECONDS < into < 1.0 - 2 * _BOUNDARY_SECONDS
        return far and not any(seat["value"] in _MOVING for seat in await self._seats())

    async def _seats(self) -> list[Mapping[str, Any]]:
        try:
            async with self._session.get(f"{self._endpoints.controller}/v1/seats") as response:
                items: list[Mapping[str, Any]] = (await response.json())["items"]
        except (aiohttp.ClientError, OSError, ValueError, KeyError):
            return []  # its death is seen elsewhere
        return items


def _depth(resident: Mapping[str, Any]) -> Depth | None:
    """Return how deep a resident sleeps; None if it isn't at rest."""
    if resident["state"] == ResidentState.PARKED:
        return Depth.PARKED
    if resident["state"] != ResidentState.PAUSED:
        return None
    return Depth.KV_RELEASED if resident["kvReleased"] else Depth.PAUSED
