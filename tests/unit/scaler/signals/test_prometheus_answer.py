"""What answers of a Prometheus stand for."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import SignalError
from scaler.policy.signals import Measures
from scaler.signals.port import Part
from scaler.signals.prometheus_answer import LOOKBACK_SECONDS, Sample, age_of, parts_of, sample_of

SHARE = Measures.TTFT_SHARE_OVER_OBJECTIVE


def series(*values: str) -> list[dict[str, Any]]:
    return [{"metric": {"n": str(i)}, "value": [10.5, value]} for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("result", "value"),
    [
        pytest.param(series("3"), 3.0, id="a vector of one"),
        pytest.param([10.5, "3"], 3.0, id="a scalar"),
        pytest.param([10.5, "+Inf"], math.inf, id="infinity is judged later"),
        pytest.param([{"metric": {}, "value": [10.5, "1e3"]}], 1000.0, id="without labels"),
    ],
)
def test_one_sample(result: object, value: float) -> None:
    assert sample_of(result) == Sample(value=value, time=10.5)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        pytest.param([], "the query gives no series, which is not zero: write `sum(…) or vector(0)`", id="empty"),
        pytest.param(series("1", "2", "3"), "the query gives 3 series and one is wanted: put sum(…) or max(…)", id="several"),
        pytest.param([{"metric": {}, "values": [[1, "2"]]}], "gives a range and one number is wanted", id="range"),
        pytest.param([{"metric": {}, "histogram": [1, {}]}], "gives a native histogram and a number", id="histogram"),
        pytest.param([{"metric": {}}], "the answer holds no sample: {'metric': {}}", id="no sample"),
        pytest.param([10.5, "text"], "the query gives no number: [10.5, 'text']", id="string"),
        pytest.param([10.5, 3], "the query gives no number: [10.5, 3]", id="number that is none"),
        pytest.param([True, "3"], "the query gives no number: [True, '3']", id="time that is none"),
        pytest.param([10.5], "the query gives no number: [10.5]", id="half a pair"),
        pytest.param([None], "the query gives no number: [None]", id="null"),
        pytest.param("3", "the answer holds no result: '3'", id="text"),
        pytest.param(None, "the answer holds no result: None", id="nothing"),
        pytest.param({"a": "b" * 200}, "the answer holds no result: {'a': 'bbb", id="object"),
    ],
)  # fmt: skip
def test_what_is_no_sample_says_why(result: object, why: str) -> None:
    with pytest.raises(SignalError) as caught:
        sample_of(result)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["metric", "value", "values"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_json_is_a_sample_or_says_why(result: object) -> None:
    try:
        sample = sample_of(result)
    except SignalError:
        return
    assert isinstance(sample.value, float)


@pytest.mark.parametrize(
    ("time", "age"),
    [
        (100.0, 0.0),
        (90.0, 10.0),
        (100.2, 0.0),
        (100 + LOOKBACK_SECONDS, 0.0),
        (100 - LOOKBACK_SECONDS, 300.0),
    ],
)
def test_an_age_is_never_below_zero(time: float, age: float) -> None:
    assert age_of(Sample(value=1.0, time=time), asked=100.0) == age


@pytest.mark.parametrize("time", [-201.0, 401.0, math.nan, -math.inf, math.inf])
def test_an_answer_older_than_any_server_gives_or_as_far_ahead_is_a_wrong_clock(time: float) -> None:
    with pytest.raises(SignalError, match="do the clocks here and on the server agree"):
        age_of(Sample(value=1.0, time=time), asked=100.0)


@pytest.mark.parametrize(
    ("measures", "value", "parts"),
    [
        (Measures.REQUESTS, 3.0, {Part.REQUESTS: 3.0}),
        (Measures.QUEUE_DEPTH, 0.0, {Part.QUEUED: 0.0}),
        (Measures.QUEUE_AGE_SECONDS, 0.5, {Part.OLDEST_WAIT_SECONDS: 0.5}),
        (SHARE, 0.0, {Part.LATE_SHARE: 0.0}),
        (SHARE, 1.0, {Part.LATE_SHARE: 1.0}),
        pytest.param(SHARE, 1.0000002, {Part.LATE_SHARE: 1.0}, id="rounding"),
        pytest.param(SHARE, math.nan, {}, id="a share of no requests"),
    ],
)
def test_numbers_as_parts(measures: Measures, value: float, parts: dict[Part, float]) -> None:
    assert parts_of(measures, value) == parts


@pytest.mark.parametrize(
    ("measures", "value", "why"),
    [
        (Measures.REQUESTS, math.nan, "the query gives NaN, as 0/0 does: write `sum(…) > 0 or vector(0)`"),
        (Measures.REQUESTS, math.inf, "the query gives inf and Requests is a finite number from 0 up"),
        (Measures.QUEUE_DEPTH, -1.0, "the query gives -1 and QueueDepth is a finite number from 0 up"),
        (SHARE, 1.1, "the query gives 1.1 and a share lies from 0 to 1"),
        (SHARE, -0.1, "the query gives -0.1 and a share lies from 0 to 1"),
        (SHARE, math.inf, "the query gives inf and a share lies from 0 to 1"),
    ],
)
def test_numbers_that_can_not_be_say_why(measures: Measures, value: float, why: str) -> None:
    with pytest.raises(SignalError) as caught:
        parts_of(measures, value)
    assert str(caught.value).startswith(why)


@given(st.sampled_from(Measures), st.floats())
def test_no_number_becomes_a_part_that_can_not_be(measures: Measures, value: float) -> None:
    try:
        parts = parts_of(measures, value)
    except SignalError:
        return
    assert all(0 <= number < math.inf for number in parts.values())
    assert parts.get(Part.LATE_SHARE, 0) <= 1
