"""The calls that an operator makes for one trigger, in its order, from the moment at which a ScaledObject is applied.

The order is a real operator's (2.18 line): `GetMetricSpec` when the HPA is made, then the stream, then for each poll
`GetMetricSpec`, `GetMetrics`, `IsActive`; a `GetMetrics` that fails is made once more at once, and `IsActive` left out.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Final, TypeVar

from scaler.keda.client import UNIMPLEMENTED, CallFailed, KedaClient, Metric, ScaledObject, Spec

_T = TypeVar("_T")

_FIRST_SECONDS: Final = 2.0
"""For a stream's first message: the present state is sent when it opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call, and what came of it.

    Attributes:
        name: the call.
        answer: what was answered, for people; empty where it failed.
        seconds: how long it took.
        code: gRPC's status where it failed, or a word for what was wrong with the answer; empty otherwise.
        message: what was said then.
        wrong: whether KEDA gets less from it than it should.
    """

    name: str
    answer: str
    seconds: float
    code: str = ""
    message: str = ""
    wrong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What an operator would know now.

    Attributes:
        calls: what was called, in order.
        value: the metric's value; None where there is none.
        active: whether the trigger is active; None where that is unknown.
    """

    calls: tuple[Call, ...]
    value: float | None
    active: bool | None


class _Log:
    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def of(self, name: str, call: Awaitable["list[Spec] | list[Metric] | bool"]) -> object:
        """Await a call, note it, and return its answer; None where it failed."""
        began = time.perf_counter()
        try:
            answer = await call
        except CallFailed as error:
            self._failed(name, error, began)
            return None
        wrong = _wrong(answer)
        self.calls.append(
            Call(
                name=name,
                answer=_text(answer),
                seconds=time.perf_counter() - began,
                code="WrongAnswer" if wrong else "",
                message=wrong,
                wrong=bool(wrong),
            )
        )
        return None if wrong else answer

    def _failed(self, name: str, error: CallFailed, began: float) -> None:
        optional = name == "StreamMetricSpec" and error.code == UNIMPLEMENTED
        self.calls.append(
            Call(
                name=name,
                answer="not offered: KEDA polls GetMetricSpec" if optional else "",
                seconds=time.perf_counter() - began,
                code=error.code,
                message=str(error),
                wrong=not optional,
            )
        )


async def rehearse(client: KedaClient, asker: ScaledObject, *, pushes: bool, listen: float) -> Rehearsed:
    """Make an operator's calls.

    Args:
        client: the connection.
        asker: on whose behalf.
        pushes: whether the trigger is of type external-push.
        listen: seconds for which the open stream is listened to after its first message.
    """
    log = _Log()
    specs = await log.of("GetMetricSpec", client.metric_spec(asker))
    if pushes:
        await _pushed(log, client, asker, listen)
    value: float | None = None
    active: bool | None = None
    if isinstance(specs, list) and specs:
        name = specs[0].name
        await log.of("GetMetricSpec", client.metric_spec(asker))
        metrics = await log.of("GetMetrics", client.metrics(asker, name))
        if metrics is None:
            metrics = await log.of("GetMetrics", client.metrics(asker, name))
        if isinstance(metrics, list) and metrics:
            value = metrics[0].value
            answered = await log.of("IsActive", client.is_active(asker))
            active = answered if isinstance(answered, bool) else None
    async with client.pushed_specs(asker) as messages:
        await log.of("StreamMetricSpec", _first(messages))
    return Rehearsed(calls=tuple(log.calls), value=value, active=active)


async def _pushed(log: _Log, client: KedaClient, asker: ScaledObject, listen: float) -> None:
    async with client.pushed(asker) as messages:
        if await log.of("StreamIsActive", _first(messages)) is None:
            return
        try:
            async with asyncio.timeout(listen):
                while True:
                    if await log.of("StreamIsActive", _first(messages, None)) is None:
                        return
        except TimeoutError:
            pass


async def _first(messages: AsyncIterator[_T], seconds: float | None = _FIRST_SECONDS) -> _T:
    try:
        async with asyncio.timeout(seconds):
            return await anext(messages)
    except TimeoutError as error:
        raise CallFailed(
            "NothingSent", f"nothing within {seconds:g} s: what it would say is unknown"
        ) from error
    except StopAsyncIteration as error:
        raise CallFailed("Ended", "the server ended the stream") from error


def _text(answer: object) -> str:
    match answer:
        case bool():
            return str(answer).lower()
        case list():
            return ", ".join(map(_entry, answer)) or "nothing"
        case _:
            return str(answer)


def _entry(entry: object) -> str:
    match entry:
        case Spec(name=name, target=target):
            return f"{name}, target {target:g}"
        case Metric(name=name, value=value):
            return f"{name} = {value:g}"
        case _:
            return str(entry)


def _wrong(answer: object) -> str:
    """Say what KEDA would stumble over."""
    if not isinstance(answer, list):
        return ""
    if not answer:
        return "an empty list: KEDA makes no HPA of it"
    if len(answer) > 1 and all(isinstance(each, Metric) for each in answer):
        return "several values: KEDA gives them one name, and the HPA adds them up"
    if any(isinstance(each, Spec) and each.target <= 0 for each in answer):
        return "a target of 0: the HPA can't divide by it"
    return ""
