"""What the law and a tick cost doesn't grow unnoticed.

Costs are told in yardsticks: plain Python that reads old objects from here and there and makes new ones that stay, as a tick does, so
that it takes as long as the machine makes both of them take. It is measured in processor time of this thread right before and
right after each try, and the least ratio of several tries counts: neither a slow machine nor a busy one fails these tests, and
twice the cost does. `make bench-core` measures the same in earnest.
"""

import gc
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from scaler.runtime.bench import core
from scaler.runtime.bench.core import Bench, least, one_policy
from scaler.runtime.bench.estate import Shape

_TRIES = 40
_LAW, _WOKEN, _WHOLE = 0.07, 1.4, 14.0
"""Yardsticks that these took when they were last measured: the law for one policy; a tick woken by one policy, and one over all of
50 policies and 1,000 seats."""
_ALLOWED = 1.5
"""By so much the least of all tries may be off: a machine with six times the work that it can do was seen to add a fifth."""


@dataclass(slots=True)
class _Card:
    number: int
    value: float


class Yardstick:
    """Reads a thousand of many cards, wherever they lie, and writes down what they say."""

    def __init__(self) -> None:
        self._cards = [_Card(number, number / 7.0) for number in range(50_000)]
        random.Random(5).shuffle(self._cards)
        self._next = 0

    def once(self) -> float:
        """Return the seconds that this takes."""
        self._next = (self._next + 1000) % len(self._cards)
        cards = self._cards[self._next : self._next + 1000]
        began, said, highest = time.thread_time(), [], dict[int, float]()
        for card in cards:
            key = card.number % 50
            highest[key] = max(card.value, highest.get(key, 0.0))
            said.append({"number": card.number, "value": (card.value, str(key))})
        return time.thread_time() - began

    def times(self) -> list[float]:
        """Return several such times."""
        return [self.once() for _ in range(7)]


def ratios(cost: Callable[[], float]) -> Iterator[float]:
    """Yield how many yardsticks something was seen to cost, try by try."""
    yardstick = Yardstick()
    for _ in range(_TRIES):
        before, seconds = yardstick.times(), cost()
        yield seconds / statistics.median(before + yardstick.times())


def costs_no_more(yardsticks: float, cost: Callable[[], float]) -> bool:
    """Whether something was seen to cost no more than it should: with the first try nearly always."""
    return any(seen < _ALLOWED * yardsticks for seen in ratios(cost))


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Garbage is collected between ticks (`scaler.runtime.garbage`), and what other tests left behind is none of theirs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def median(spent: Sequence[core.Spent]) -> float:
    """Return the median time on a processor, in seconds: as of yardsticks, so that a busy machine makes both longer alike."""
    return statistics.median(each.processor for each in spent)


def law() -> float:
    return median(one_policy(150)[50:])


def woken(bench: Bench) -> float:
    return median(bench.woken(15))


def whole(bench: Bench) -> float:
    return median(bench.whole(3, changed=False))


def test_the_law_for_one_policy() -> None:
    assert costs_no_more(_LAW, law)


def test_ticks() -> None:
    bench = Bench(Shape(policies=50, seats=1000))
    assert costs_no_more(_WOKEN, lambda: woken(bench))
    assert costs_no_more(_WHOLE, lambda: whole(bench))


def test_the_least_of_each_round_counts() -> None:
    runs = [[core.Spent(3.0, 9.0), core.Spent(2.0, 2.0)], [core.Spent(4.0, 5.0), core.Spent(1.0, 3.0)]]
    assert least(runs) == [core.Spent(3.0, 5.0), core.Spent(1.0, 2.0)]


def test_a_round_of_nothing_is_told_as_such() -> None:
    few = ["--policies", "5", "--seats", "50", "--rounds", "1", "--whole", "0", "--hour", "0"]
    command = [sys.executable, "-m", "scaler.runtime.bench.core", *few]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "ticks by time alone, 0 s: not measured" in said
    assert "tick woken by one policy: processor" in said
