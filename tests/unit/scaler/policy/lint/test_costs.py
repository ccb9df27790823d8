"""What spares cost a day, and what sharing them saves."""

import pytest

from scaler.policy.lint.costs import amount, fleet_costs
from tests.unit.scaler.policy.lint.sets import Tree, fleet, policy, subject

PRICE = {"costPerGpuHour": {"cents": 250, "currency": "EUR"}}
AUTO = {"mode": "Auto", "min": 1, "max": 3}


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        pytest.param(
            [fleet(seat={"gpus": 2}, spare={"min": 2}), policy()],
            {"spare seats": "96 GPU-hours", "all of maxSeats": "192 GPU-hours"},
            id="gpu-hours",
        ),
        pytest.param(
            [fleet(spare={"min": 2}, **PRICE), policy()],
            {"spare seats": "120 EUR", "all of maxSeats": "240 EUR"},
            id="money",
        ),
        pytest.param(
            [fleet(spare=AUTO), policy()],
            {
                "spare seats": "24 GPU-hours",
                "spare seats, at most": "72 GPU-hours",
                "all of maxSeats": "96 GPU-hours",
            },
            id="auto",
        ),
        pytest.param(
            [fleet(maxSeats=5, spare={"min": 2}), policy(), policy("a"), policy("b")],
            {
                "spare seats": "48 GPU-hours",
                "all of maxSeats": "120 GPU-hours",
                "saved by sharing": "96 GPU-hours",
            },
            id="three-models-on-two-spares-in-place-of-six",
        ),
        pytest.param(
            [fleet(spare={"min": 2}), policy(), policy("batch", preemptible=True)],
            {"spare seats": "48 GPU-hours", "all of maxSeats": "96 GPU-hours"},
            id="who-borrows-would-have-none-of-its-own",
        ),
        pytest.param(
            [fleet(spare={"min": 0}), policy()], {"all of maxSeats": "96 GPU-hours"}, id="no-spares"
        ),
        pytest.param([fleet(seat={"gpus": 0}), policy()], {}, id="cpu"),
    ],
)
def test_a_day_costs_seats_times_gpus_times_hours_times_price(
    trees: list[Tree], expected: dict[str, str]
) -> None:
    looked_at = subject(*trees)
    figures = fleet_costs(looked_at, looked_at.fleet("own"))
    assert {figure.name: amount(figure) for figure in figures} == expected
