"""Orders: what controllers may ask of a seat, and the bookkeeping that makes asking twice harmless."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from warmpool.errors import AgentError, BadOrder, StaleEpoch, WarmpoolError
from warmpool.states import ResidentState

_LOG = logging.getLogger(__name__)

REMEMBERED = 512
"""Finished orders that are remembered for repeats; the oldest is forgotten first."""


MOST_NAMED = 100
"""Policies that an order of starts may name; a seat has no more residents."""


class OrderKind(StrEnum):
    """What may be ordered, as the API's paths name it."""

    RESUME = "resume"
    """Bring a paused or parked resident into service, or recall a draining one."""
    DRAIN = "drain"
    """Refuse new requests and wait for the accepted ones."""
    PAUSE = "pause"
    """Pause a drained resident."""
    PROVE = "prove"
    """Compare tokens out of rotation."""
    PARK = "park"
    """Move a paused resident's weights to host memory."""
    UNPARK = "unpark"
    """Move a parked resident's weights back to device memory."""


class Order(BaseModel):
    """One order to one resident.

    Attributes:
        kind: what is to be done.
        policy: the resident's policy.
        claim: id of the claim in whose name; the idempotency key.
        epoch: the controller's term.
        deadline_seconds: by when it must have been carried out or undone, from its arrival.
        displace: policies whose paused residents may be parked to make room, the first first; if left out, the least needed
            first, which is the reverse of the config's order.
        gpu_health: whether what the node says of GPUs may refuse it; if left out, as the seat's config says.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, strict=True)

    kind: OrderKind
    policy: Annotated[str, Field(min_length=1)]
    claim: Annotated[str, Field(min_length=1, max_length=256)]
    epoch: Annotated[int, Field(ge=0)]
    deadline_seconds: Annotated[float, Field(gt=0, le=86_400)]
    displace: list[str] | None = None
    gpu_health: Literal["Enforce", "Observe"] | None = None


class StartOrder(BaseModel):
    """In which order a seat's residents are needed.

    Attributes:
        epoch: the controller's term.
        policies: the most needed first; those that the seat doesn't have are ignored.
        wanted: those of which more is wanted now than can be had: a start-up that has only begun gives way to theirs.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, strict=True)

    epoch: Annotated[int, Field(ge=0)]
    policies: Annotated[list[str], Field(max_length=MOST_NAMED)]
    wanted: Annotated[list[str], Field(max_length=MOST_NAMED)] = []


class StageOrder(BaseModel):
    """Which checkpoints the seat's node will need beside those of its own residents.

    Attributes:
        epoch: the controller's term.
        checkpoints: directories, by the paths that the node's stage daemon knows, the most needed first; none any more if empty.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, strict=True)

    epoch: Annotated[int, Field(ge=0)]
    checkpoints: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(max_length=MOST_NAMED)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an order came to.

    Attributes:
        policy: the resident's policy.
        state: its state when the order ended.
        phases: seconds per step.
        aborted: requests that were ended early.
    """

    policy: str
    state: ResidentState
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    aborted: int = 0


class Refused(Exception):
    """An order was refused before anything was begun. A repeat may fare better, so it isn't remembered.

    Attributes:
        error: why.
    """

    def __init__(self, error: AgentError) -> None:
        super().__init__(str(error))
        self.error = error


def parse_order(kind: OrderKind, body: object) -> Order:
    """Read an order's body.

    Raises:
        BadOrder: it isn't one; the message names each key and what is wrong with it.
    """
    if not isinstance(body, dict):
        raise BadOrder("the body is no JSON object")
    return _validated(Order, {**body, "kind": kind})


def parse_start_order(body: object) -> StartOrder:
    """Read the body that says in which order residents are needed.

    Raises:
        BadOrder: it doesn't; the message names each key and what is wrong with it.
    """
    if not isinstance(body, dict):
        raise BadOrder("the body is no JSON object")
    return _validated(StartOrder, body)


def parse_stage_order(body: object) -> StageOrder:
    """Read the body that says which checkpoints the node will need.

    Raises:
        BadOrder: it doesn't; the message names each key and what is wrong with it.
    """
    if not isinstance(body, dict):
        raise BadOrder("the body is no JSON object")
    return _validated(StageOrder, body)


_Model = TypeVar("_Model", bound=BaseModel)


def _validated(model: type[_Model], body: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        wrong = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
        raise BadOrder("; ".join(wrong)) from error


_Key = tuple[str, OrderKind, str]
_Outcome = asyncio.Future[Result | WarmpoolError]


class OrderBook:
    """Which orders came, in whose term, and what became of them.

    A repeat of an order (same claim, kind and resident) gets the first one's answer, also while that one is still under way.

    Args:
        epoch: the highest term that an earlier agent of the seat has seen.
    """

    def __init__(self, epoch: int = 0) -> None:
        self._epoch = epoch
        self._outcomes: OrderedDict[_Key, _Outcome] = OrderedDict()

    @property
    def epoch(self) -> int:
        """The highest term seen."""
        return self._epoch

    def admit(self, order: Order) -> _Outcome | None:
        """Check an order's term, and find the outcome of an earlier order that it repeats.

        Raises:
            StaleEpoch: a later term has been seen.
        """
        self.heed(order.epoch)
        return self._outcomes.get(_key(order))

    def heed(self, epoch: int) -> None:
        """Take note of a term in whose name something is asked.

        Raises:
            StaleEpoch: a later term has been seen.
        """
        if epoch < self._epoch:
            raise StaleEpoch(
                f"the order comes from term {epoch}, and term {self._epoch} has begun; stop acting"
            )
        self._epoch = epoch

    async def carry_out(self, order: Order, work: Callable[[Order], Awaitable[Result]]) -> None:
        """Do `work` for an order that `begin` noted, and keep what becomes of it."""
        key, outcome = _key(order), self._outcomes[_key(order)]
        try:
            outcome.set_result(await work(order))
        except Refused as refused:
            self._outcomes.pop(key)
            outcome.set_result(refused.error)
        except WarmpoolError as error:
            outcome.set_result(error)
        except Exception:  # noqa: BLE001 (the error becomes the outcome)
            # A fault in one order must not end the agent, and the engines with it.
            _LOG.exception("%s of %s (claim %s)", order.kind, order.policy, order.claim)
            outcome.set_result(AgentError("a fault in the agent; its log has the details"))
        finally:
            if not outcome.done():
                self._outcomes.pop(key, None)
                outcome.cancel()
        self._forget()

    def begin(self, order: Order) -> _Outcome:
        """Note that an order is under way, and return the future of its outcome."""
        outcome: _Outcome = asyncio.get_running_loop().create_future()
        self._outcomes[_key(order)] = outcome
        return outcome

    def _forget(self) -> None:
        finished: list[Any] = [key for key, outcome in self._outcomes.items() if outcome.done()]
        for key in finished[: max(0, len(finished) - REMEMBERED)]:
            del self._outcomes[key]


def _key(order: Order) -> _Key:
    return (order.claim, order.kind, order.policy)
