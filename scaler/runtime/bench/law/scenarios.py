"""What is compared: the cases by name, and what is swept in each."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

from scaler.runtime.bench.law import grids
from scaler.runtime.bench.law.arms import ARMS
from scaler.runtime.bench.law.arrivals import CHAT, CODING, Trace, read
from scaler.runtime.bench.law.case import Case, Model
from warmpool.seats import PolicyName

_FORTY: Final = 40
_FLEETS: Final = 7
"""Fleets that forty models take with six on a seat at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One comparison with its sweep.

    Attributes:
        name: its letter and what it is about.
        make: makes the case.
        grids: what is swept.
        judged: whether the targets are judged on it.
    """

    name: str
    make: Callable[[], Case]
    grids: grids.Grids
    judged: bool = False


@cache
def scenarios(*, quick: bool) -> Mapping[str, Scenario]:
    """Return the scenarios by name, in order."""
    found = [_quick()] if quick else [*_main(), *_sensitivities(), *_others()]
    return {scenario.name: scenario for scenario in found}


@cache
def case_of(name: str, *, quick: bool) -> Case:
    """Return the case of a scenario."""
    return scenarios(quick=quick)[name].make()


def _main() -> list[Scenario]:
    halves, thirds = "independent halves of coding", "independent thirds of coding and chat"
    return [
        Scenario(
            name="a: six models, coding, shifted in time", make=_coding, grids=grids.whole(6), judged=True
        ),
        Scenario(name=f"b: six models, {halves}", make=_halves, grids=grids.around(6)),
        Scenario(name=f"b: six models, {thirds}", make=_thirds, grids=grids.around(6)),
    ]


def _sensitivities() -> list[Scenario]:
    found = {f"c: models of {size} GB": partial(_coding, gigabytes=float(size)) for size in (8, 20)} | {
        f"c: start-up of {start} s a model": partial(_coding, start=float(start)) for start in (30, 180)
    }
    sweeps = [Scenario(name=name, make=make, grids=grids.around(6)) for name, make in found.items()]
    sweeps += [
        Scenario(name=f"c: {count} models", make=partial(_coding, count), grids=grids.around(count))
        for count in (2, 4, 8)
    ]
    filled = "c: seats filled one after the other"
    return [*sweeps, Scenario(name=filled, make=partial(_coding, packed=True), grids=grids.around(6))]


def _others() -> list[Scenario]:
    return [
        Scenario(name="d: one model alone", make=partial(_coding, 1), grids=grids.alone()),
        *(
            Scenario(
                name=f"e: forty models, each {keep}th chat request",
                make=partial(_rare, keep),
                grids=grids.rare(seats),
            )
            for keep, seats in ((40, (4, 5, 6)), (400, (2, 3, 4, 5, 6)))
        ),
    ]


def _quick() -> Scenario:
    """Return one small scenario with every arm: it shows that all of it works, and nothing about the law."""
    sweep = {name: [replace(grids.PLAIN[name], spares=4, least=1)] for name in ARMS}
    return Scenario(name="quick: two models, two minutes", make=_short, grids=sweep, judged=True)


def _short() -> Case:
    return Case(groups=[_spread(_trace(CODING).cut(120.0), 2)])


def _coding(count: int = 6, gigabytes: float = 16.0, **more: Any) -> Case:  # noqa: ANN401 - fields of a case
    return Case(groups=[_spread(_trace(CODING), count, gigabytes)], **more)


def _halves() -> Case:
    halves = [_trace(CODING).part(index, 2) for index in range(2)]
    return Case(groups=[[model for half in halves for model in _spread(half, 3)]])


def _thirds() -> Case:
    parts = [_trace(name).part(index, 3) for name in (CODING, CHAT) for index in range(3)]
    seconds = min(part.seconds for part in parts)
    return Case(groups=[[Model(name=_name(part.name), trace=part.cut(seconds)) for part in parts]])


def _rare(keep: int) -> Case:
    """Return forty models, each with every `keep`th request of the chat, in groups that share seats."""
    chat = _trace(CHAT)
    models = [
        Model(
            name=_name(f"chat {number}"),
            trace=chat.thinned(keep, number * keep // _FORTY).shifted(number * chat.seconds / _FORTY),
        )
        for number in range(_FORTY)
    ]
    return Case(groups=[models[first::_FLEETS] for first in range(_FLEETS)])


def _spread(trace: Trace, count: int, gigabytes: float = 16.0) -> Sequence[Model]:
    """Return so many models that replay one trace, each the same time later than the one before."""
    step = math.floor(trace.seconds / count)
    return [
        Model(name=_name(f"{trace.name} {number}"), trace=trace.shifted(number * step), gigabytes=gigabytes)
        for number in range(count)
    ]


def _name(text: str) -> PolicyName:
    return PolicyName("".join(c if c.isalnum() else "-" for c in text))


@cache
def _trace(name: str) -> Trace:
    return read(name)
