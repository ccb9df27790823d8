"""Coalescing wake-ups, in virtual time."""

import asyncio

import pytest

from scaler.runtime.mailbox import IDLE_SECONDS, Mailbox
from warmpool.seats import FleetName, PolicyName

pytestmark = pytest.mark.looptime

CHAT, CODE, SPARES = PolicyName("chat"), PolicyName("code"), FleetName("spares")


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_an_urgent_cause_is_answered_at_once() -> None:
    mailbox, began = Mailbox(), now()
    mailbox.wake("sample", urgent=True)
    assert (await mailbox.wait(None)).causes == {"sample": 1}
    assert now() - began == 0.0


async def test_ordinary_causes_wait_for_company() -> None:
    mailbox, began = Mailbox(), now()
    mailbox.wake("cluster")
    mailbox.wake("cluster")
    mailbox.wake("policy")
    assert (await mailbox.wait(None)).causes == {"cluster": 2, "policy": 1}
    assert now() - began == pytest.approx(IDLE_SECONDS)


async def test_an_urgent_cause_ends_the_wait_for_company() -> None:
    mailbox, began = Mailbox(), now()
    mailbox.wake("cluster")
    asyncio.get_running_loop().call_later(IDLE_SECONDS / 4, lambda: mailbox.wake("sample", urgent=True))
    assert (await mailbox.wait(None)).causes == {"cluster": 1, "sample": 1}
    assert now() - began == pytest.approx(IDLE_SECONDS / 4)


async def test_a_deadline_is_a_cause() -> None:
    mailbox, began = Mailbox(), now()
    assert (await mailbox.wait(3.0)).causes == {"deadline": 1}
    assert now() - began == pytest.approx(3.0)


async def test_causes_are_handed_out_once() -> None:
    mailbox = Mailbox()
    mailbox.wake("sample", urgent=True)
    await mailbox.wait(None)
    assert (await mailbox.wait(0.5)).causes == {"deadline": 1}


async def test_what_is_new_is_gathered_from_all_causes() -> None:
    mailbox = Mailbox()
    mailbox.wake("sample", policies=(CHAT,))
    mailbox.wake("sample", policies=(CODE,))
    mailbox.ended(SPARES)
    woken = await mailbox.wait(None)
    assert (woken.policies, woken.fleets, woken.everything) == ({CHAT, CODE}, {SPARES}, False)


async def test_a_cause_that_names_nothing_is_about_everything() -> None:
    mailbox = Mailbox()
    mailbox.wake("sample", policies=(CHAT,), urgent=True)
    mailbox.wake("policies")
    assert (await mailbox.wait(None)).everything
    assert not (await mailbox.wait(0.5)).everything
