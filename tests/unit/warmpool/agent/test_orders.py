"""The bookkeeping of orders."""

import asyncio

import pytest

from warmpool.agent.orders import REMEMBERED, Order, OrderBook, OrderKind, Refused, Result, parse_order
from warmpool.errors import AgentBusy, AgentError, BadOrder, StaleEpoch, WrongState
from warmpool.states import ResidentState

GOOD = {"policy": "a", "claim": "c1", "epoch": 3, "deadlineSeconds": 1}
DONE = Result(policy="a", state=ResidentState.SERVING, phases={"canary": 0.1})


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        pytest.param([], "no JSON object", id="list"),
        pytest.param(GOOD | {"epoch": "3"}, "epoch", id="epoch as text"),
        pytest.param(GOOD | {"epoch": -1}, "epoch", id="negative epoch"),
        pytest.param(GOOD | {"deadlineSeconds": 0}, "deadlineSeconds", id="no time"),
        pytest.param(GOOD | {"deadlineSeconds": float("nan")}, "deadlineSeconds", id="not a number"),
        pytest.param(GOOD | {"claim": ""}, "claim", id="empty claim"),
        pytest.param({}, "policy", id="nothing"),
    ],
)
def test_a_bad_body_is_named_by_its_key(body: object, complaint: str) -> None:
    with pytest.raises(BadOrder, match=complaint):
        parse_order(OrderKind.RESUME, body)


def test_keys_of_a_newer_writer_are_ignored() -> None:
    assert parse_order(OrderKind.DRAIN, GOOD | {"reason": "burst"}).deadline_seconds == 1


def order(claim: str = "c1", epoch: int = 3, kind: OrderKind = OrderKind.RESUME) -> Order:
    return parse_order(kind, GOOD | {"claim": claim, "epoch": epoch})


async def done(_order: Order) -> Result:
    return DONE


async def test_a_repeat_finds_the_first_ones_outcome_and_another_kind_does_not() -> None:
    book = OrderBook()
    assert book.admit(order()) is None
    outcome = book.begin(order())
    assert book.admit(order()) is outcome
    assert book.admit(order(kind=OrderKind.DRAIN)) is None
    await book.carry_out(order(), done)
    assert await outcome == DONE
    assert book.admit(order()) is outcome


async def test_a_lower_epoch_is_stale_even_for_a_repeat() -> None:
    book = OrderBook()
    book.begin(order())
    await book.carry_out(order(), done)
    book.admit(order(claim="c2", epoch=4))
    assert book.epoch == 4
    with pytest.raises(StaleEpoch, match="term 3"):
        book.admit(order())


@pytest.mark.parametrize(
    ("raised", "kept", "remembered"),
    [
        pytest.param(WrongState("recalled"), WrongState, True, id="cut short"),
        pytest.param(Refused(AgentBusy("busy")), AgentBusy, False, id="refused"),
        pytest.param(ZeroDivisionError(), AgentError, True, id="fault in the agent"),
    ],
)
async def test_errors_are_outcomes(
    raised: Exception,
    kept: type[Exception],
    remembered: bool,  # noqa: FBT001 (a column of the table)
) -> None:
    async def work(_order: Order) -> Result:
        raise raised

    book = OrderBook()
    outcome = book.begin(order())
    await book.carry_out(order(), work)
    assert isinstance(await outcome, kept)
    assert (book.admit(order()) is outcome) == remembered


async def test_whoever_waits_for_a_cancelled_order_is_released() -> None:
    async def work(_order: Order) -> Result:
        await asyncio.Event().wait()
        raise AssertionError

    book = OrderBook()
    outcome = book.begin(order())
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(book.carry_out(order(), work))
        await asyncio.sleep(0)
        task.cancel()
    assert outcome.cancelled()
    assert book.admit(order()) is None


async def test_the_oldest_outcomes_are_forgotten() -> None:
    book = OrderBook()
    for number in range(REMEMBERED + 1):
        each = order(claim=f"c{number}")
        book.begin(each)
        await book.carry_out(each, done)
    assert book.admit(order(claim="c0")) is None
    assert book.admit(order(claim="c1")) is not None
