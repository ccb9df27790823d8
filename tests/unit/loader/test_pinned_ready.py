"""Slots that are made ready while a load is planned. The driver is Python's here."""

from threading import Event
from typing import cast

import pytest

pytest.importorskip("torch")

from loader.copiers.pinned import PinnedPool
from loader.cuda.library import CallFailed, DeviceContext

EACH = 2 * 4096


class Context:
    """Page-locks what it is asked to, once it may."""

    def __init__(self, refusal: CallFailed | None = None) -> None:
        self.refusal = refusal
        self.may = Event()
        self.may.set()
        self.entered = 0
        self.locked: list[tuple[int, int]] = []

    def enter(self) -> None:
        self.entered += 1

    def lock_pages(self, address: int, nbytes: int) -> None:
        assert self.may.wait(30)
        if self.refusal is not None:
            raise self.refusal
        self.locked.append((address, nbytes))


def begun(pool: PinnedPool, context: Context, count: int = 2) -> None:
    pool.get_ready(count, EACH, None, cast("DeviceContext", context))


def test_they_are_page_locked_whole_by_threads_that_have_entered_the_context() -> None:
    pool, context = PinnedPool(), Context()
    begun(pool, context)
    with pool.lend(2, EACH, None) as slots:
        assert all(slot.locked for slot in slots)
        assert sorted(context.locked) == sorted((slot.address, EACH) for slot in slots)
    assert context.entered == 2


def test_who_borrows_them_waits_until_they_are_ready() -> None:
    pool, context = PinnedPool(), Context()
    context.may.clear()
    begun(pool, context)
    context.may.set()
    with pool.lend(2, EACH, None) as slots:
        assert [slot.locked for slot in slots] == [True, True]


def test_what_is_refused_is_left_to_whoever_uses_them() -> None:
    pool = PinnedPool()
    begun(pool, Context(CallFailed("cuMemHostRegister: no memory (2)", out_of_memory=True)))
    with pool.lend(2, EACH, None) as slots:
        assert [slot.locked for slot in slots] == [False, False]


def test_those_that_are_there_are_not_made_again() -> None:
    pool, context = PinnedPool(), Context()
    begun(pool, context)
    assert pool.missing_bytes(3, EACH, None) == EACH
    begun(pool, context, count=3)
    with pool.lend(3, EACH, None):
        pass
    assert len(context.locked) == 3
