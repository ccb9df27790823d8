"""Coalescing wake-ups, in virtual time."""

import asyncio

import pytest

from scaler.runtime.mailbox import IDLE_SECONDS, Mailbox

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_an_urgent_cause_is_answered_at_once() -> None:
    mailbox, began = Mailbox(), now()
    mailbox.wake("sample", urgent=True)
    assert await mailbox.wait(None) == {"sample": 1}
    assert now() - began == 0.0


async def test_ordinary_causes_wait_for_company() -> None:
    mailbox, began = Mailbox(), now()
    mailbox.wake("cluster")
    mailbox.wake("cluster")
    mailbox.wake("policy")
    assert await mailbox.wait(None) == {"cluster": 2, "policy": 1}
    assert now() - began == pytest.approx(IDLE_SECONDS)


async def test_an_urgent_cause_ends_the_wait_for_company() -> None:
    mailbox, began = Mailbox(), now()
    mailbox.wake("cluster")
    asyncio.get_running_loop().call_later(IDLE_SECONDS / 4, lambda: mailbox.wake("sample", urgent=True))
    assert await mailbox.wait(None) == {"cluster": 1, "sample": 1}
    assert now() - began == pytest.approx(IDLE_SECONDS / 4)


async def test_a_deadline_is_a_cause() -> None:
    mailbox, began = Mailbox(), now()
    assert await mailbox.wait(3.0) == {"deadline": 1}
    assert now() - began == pytest.approx(3.0)


async def test_causes_are_handed_out_once() -> None:
    mailbox = Mailbox()
    mailbox.wake("sample", urgent=True)
    await mailbox.wait(None)
    assert await mailbox.wait(0.5) == {"deadline": 1}
