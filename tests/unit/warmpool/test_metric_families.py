"""Declarations of metrics: names that say what they are, and rows that the Prometheus client can read."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from warmpool.metric_families import (
    Family,
    GroupMetric,
    Kind,
    Label,
    Measured,
    MeasuredMetric,
    RowMetric,
    listed,
    number,
)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        pytest.param({"name": "seats"}, "emberpool_", id="prefix"),
        pytest.param({"name": "emberpool_Seats"}, "lower-case", id="case"),
        pytest.param({"name": "emberpool_seats", "kind": Kind.COUNTER}, "_total", id="counter without total"),
        pytest.param({"name": "emberpool_seats_total"}, "_total", id="gauge with total"),
        pytest.param({"name": "emberpool_age", "unit": "seconds"}, "seconds", id="unit not in the name"),
        pytest.param(
            {"name": "emberpool_x", "kind": Kind.HISTOGRAM}, "buckets", id="histogram without buckets"
        ),
        pytest.param({"name": "emberpool_x", "buckets": (1.0,)}, "buckets", id="gauge with buckets"),
        pytest.param(
            {"name": "emberpool_x", "kind": Kind.HISTOGRAM, "buckets": (2.0, 1.0)}, "ascend", id="descending"
        ),
    ],
)
def test_a_name_against_the_conventions_is_refused(facts: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Family(**({"kind": Kind.GAUGE, "help": "x", "unit": "things"} | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0"), (2.5, "2.5"), (float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN")],
)
def test_numbers_as_the_text_format_writes_them(value: float, text: str) -> None:
    assert number(value) == text


class Fixed:
    """A collector of given metrics."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> tuple[Metric, ...]:
        return self._metrics


def test_rows_and_children_read_back_through_the_client() -> None:
    label = Label("policy", "the policies")
    count = Family(name="emberpool_ends_total", kind=Kind.COUNTER, help="Ends.", unit="ends", labels=(label,))
    took = Family(
        name="emberpool_took_seconds",
        kind=Kind.HISTOGRAM,
        help="Took.",
        unit="seconds",
        labels=(label,),
        buckets=(0.1, 1.0),
    )
    states = Family(
        name="emberpool_rooms",
        kind=Kind.GAUGE,
        help="Rooms.",
        unit="rooms",
        labels=(label, listed("state", ("Free", "Taken"), "states")),
    )
    worked: list[int] = []

    def work() -> Iterator[None]:
        for step in range(2):
            worked.append(step)
            yield

    registry = CollectorRegistry()
    registry.register(
        Fixed(
            RowMetric(count, [(("a",), 3)], work()),
            GroupMetric(states, [(("a",), (1, 2)), (("b",), (0, 4))], work=work()),
            MeasuredMetric(took, [Measured(("a",), (1, 0, 2), 3, 7.5)]),
        )
    )
    text = generate_latest(registry).decode()
    found = {
        (s.name, *sorted(s.labels.values(), key=["a", "b"].__contains__, reverse=True)): s.value
        for f in text_string_to_metric_families(text)
        for s in f.samples
    }
    assert worked == [0, 1, 0, 1]
    assert found == {
        ("emberpool_ends_total", "a"): 3.0,
        ("emberpool_rooms", "a", "Free"): 1.0,
        ("emberpool_rooms", "a", "Taken"): 2.0,
        ("emberpool_rooms", "b", "Free"): 0.0,
        ("emberpool_rooms", "b", "Taken"): 4.0,
        ("emberpool_took_seconds_bucket", "a", "0.1"): 1.0,
        ("emberpool_took_seconds_bucket", "a", "1.0"): 1.0,
        ("emberpool_took_seconds_bucket", "a", "+Inf"): 3.0,
        ("emberpool_took_seconds_count", "a"): 3.0,
        ("emberpool_took_seconds_sum", "a"): 7.5,
    }
