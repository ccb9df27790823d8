from typing import Any

import pytest

from scaler.drill.faults import choose


def seat(name: str, serving: list[str], *residents: tuple[str, int | None, int]) -> dict[str, Any]:
    return {
        "name": name,
        "serving": serving,
        "residents": [
            {"policy": policy, "pid": pid, "inFlight": in_flight} for policy, pid, in_flight in residents
        ],
    }


@pytest.mark.parametrize(
    ("seats", "expected"),
    [
        pytest.param(
            [seat("a", ["chat"], ("chat", 1, 2)), seat("b", ["chat"], ("chat", 2, 7))],
            ("b", 2),
            id="the-busiest",
        ),
        pytest.param(
            [seat("a", ["code"], ("chat", 1, 9), ("code", 3, 9)), seat("b", ["chat"], ("chat", 2, 0))],
            ("b", 2),
            id="only-in-rotation",
        ),
        pytest.param([seat("a", ["chat"], ("chat", None, 3))], None, id="no-process-to-be-seen"),
        pytest.param([seat("a", [], ("chat", 1, 0))], None, id="nobody-serves"),
        pytest.param([], None, id="no-seats"),
    ],
)
def test_the_engine_with_most_to_lose_is_chosen(
    seats: list[dict[str, Any]], expected: tuple[str, int] | None
) -> None:
    found = choose(seats, "chat")
    assert (None if found is None else (found[0]["name"], found[1])) == expected
