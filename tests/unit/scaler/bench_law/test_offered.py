"""What requests would take if each were served at once."""

import pytest

from scaler.runtime.bench.law.arrivals import synthetic
from scaler.runtime.bench.law.case import Case, Model
from scaler.runtime.bench.law.offered import Offered, offered
from warmpool.seats import PolicyName


def model(name: str, rate: float, begin: float = 0.0, end: float = 600.0) -> Model:
    trace = synthetic(name, lambda at: rate if begin <= at < end else 0.0, 600.0, 1600, 0)
    return Model(name=PolicyName(name), trace=trace)


def test_a_seat_is_busy_for_as_long_as_one_request_is() -> None:
    """A request of two seconds each ten seconds."""
    found = offered(Case(groups=[[model("a", 0.1)]]))
    assert found.mean == pytest.approx(0.2, abs=0.01)
    assert found.most == 1


def test_one_model_has_a_seat_at_a_time() -> None:
    """32 in flight fill a seat; the second model takes another, with a single request."""
    found = offered(Case(groups=[[model("a", 20.0), model("b", 1.0)]]))
    assert found.most == 3
    assert found.mean == pytest.approx(3.0, abs=0.05)


def test_groups_add_up() -> None:
    apart = [[model("a", 1.0, 0.0, 100.0)], [model("b", 1.0, 300.0, 400.0)]]
    assert offered(Case(groups=apart)).most == 1
    assert offered(Case(groups=[[model("a", 1.0)], [model("b", 1.0)]])).most == 2


def test_nothing_takes_nothing() -> None:
    assert offered(Case(groups=[[model("a", 0.0)]])) == Offered(0.0, 0)
