"""What the law and a tick cost doesn't grow unnoticed.

Costs are told in yardsticks, a loop of plain Python that takes as long as the machine makes it, in processor time of this thread,
and the least of several tries counts: neither a slow machine nor a busy one fails these tests, and only twice the cost does.
`make bench-core` measures the same in earnest.
"""

import gc
import statistics
import time
from collections.abc import Iterator

import pytest

from scaler.runtime.bench import core
from scaler.runtime.bench.core import Bench, least, one_policy
from scaler.runtime.bench.estate import Shape

_TRIES = 5
_LAW, _WOKEN, _WHOLE = 0.8, 7.0, 70.0
"""Yardsticks that these took when they were last measured: the law for one policy; a tick woken by one policy, and one over all of
50 policies and 1,000 seats."""
_ALLOWED = 2.0


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Garbage is collected between ticks (`scaler.runtime.garbage`), and what other tests left behind is none of theirs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def yardstick() -> float:
    """Return the seconds that a thousand calls, comparisons and assignments take."""
    seconds = []
    for _ in range(5 * _TRIES):
        began, kept = time.thread_time(), {}
        for number in range(1000):
            kept[number % 50] = max(number, abs(number))
        seconds.append(time.thread_time() - began)
    return min(seconds)


def law() -> float:
    runs = [one_policy(300) for _ in range(_TRIES)]
    return statistics.median(each.processor for each in least(runs)[100:])


def woken(bench: Bench) -> float:
    runs = [bench.woken(40) for _ in range(_TRIES)]
    return min(statistics.median(each.processor for each in run) for run in runs)


def whole(bench: Bench) -> float:
    return min(each.processor for each in bench.whole(2 * _TRIES, changed=False))


def test_the_law_for_one_policy() -> None:
    assert law() < _ALLOWED * _LAW * yardstick()


def test_ticks() -> None:
    bench = Bench(Shape(policies=50, seats=1000))
    cost = yardstick()
    assert woken(bench) < _ALLOWED * _WOKEN * cost
    assert whole(bench) < _ALLOWED * _WHOLE * cost


def test_the_least_of_each_round_counts() -> None:
    runs = [[core.Spent(3.0, 9.0), core.Spent(2.0, 2.0)], [core.Spent(4.0, 5.0), core.Spent(1.0, 3.0)]]
    assert least(runs) == [core.Spent(3.0, 5.0), core.Spent(1.0, 2.0)]
