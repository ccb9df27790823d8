"""Lines of decisions: what is told is heard, with its age; what is none is refused."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import FallbackBehavior
from scaler.keda.published import FleetFigures, PolicyFigures
from scaler.runtime.told_decisions import HEARTBEAT, Told, ToldRejected, from_line, to_line

counts = st.integers(0, 10_000)
ages = st.floats(0, 10_000)
readings = st.none() | st.floats(0, 1e9)


def fleets(now: float) -> st.SearchStrategy[FleetFigures]:
    return st.builds(
        FleetFigures,
        at=ages.map(lambda age: now - age),
        total=counts,
        serving=counts,
        spare=counts,
        fallback=counts,
    )


def policies(now: float) -> st.SearchStrategy[PolicyFigures]:
    return st.builds(
        PolicyFigures,
        at=ages.map(lambda age: now - age),
        serving=counts,
        promoting=counts,
        queued=readings,
        oldest_wait=readings,
        fallback=st.sampled_from(FallbackBehavior),
        fallback_serving=counts,
    )


@given(
    told=st.builds(
        Told,
        term=counts,
        holder=st.text(),
        fleets=st.dictionaries(st.text(), fleets(500.0), max_size=3),
        policies=st.dictionaries(st.text(), policies(500.0), max_size=3),
    ),
    clocks_apart=st.floats(-1e6, 1e6),
)
def test_what_is_told_is_heard_and_is_as_old_on_another_clock(told: Told, clocks_apart: float) -> None:
    heard = from_line(to_line(told, 500.0), 500.0 + clocks_apart)
    assert heard is not None
    assert (heard.term, heard.holder) == (told.term, told.holder)
    assert (heard.fleets.keys(), heard.policies.keys()) == (told.fleets.keys(), told.policies.keys())
    for mine, theirs in [
        *((told.fleets[name], each) for name, each in heard.fleets.items()),
        *((told.policies[name], each) for name, each in heard.policies.items()),
    ]:
        assert theirs.at == pytest.approx(mine.at + clocks_apart, abs=0.01)
        assert {**_facts(theirs), "at": 0.0} == {**_facts(mine), "at": 0.0}


def _facts(figures: FleetFigures | PolicyFigures) -> dict[str, object]:
    return {name: getattr(figures, name) for name in figures.__dataclass_fields__}


def test_a_heartbeat_tells_nothing() -> None:
    assert from_line(HEARTBEAT, 1.0) is None


def test_what_is_no_number_is_told_as_unknown() -> None:
    figures = PolicyFigures(at=0.0, serving=1, queued=math.nan, oldest_wait=math.inf)
    heard = from_line(to_line(Told(term=1, holder="a", fleets={}, policies={"chat": figures}), 1.0), 1.0)
    assert heard is not None
    assert (heard.policies["chat"].queued, heard.policies["chat"].oldest_wait) == (None, None)


FLEET = {"age": 1, "total": 2, "serving": 1, "spare": 1, "fallback": 0}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{",
        b'{"term": 1}',
        *(
            json.dumps(
                {"term": 1, "holder": "a", "fleets": {"f": {**FLEET, **wrong}}, "policies": {}}
            ).encode()
            for wrong in ({"total": -1}, {"total": True}, {"total": 1.5}, {"age": "1"}, {"age": -1.0})
        ),
        b'{"term": 1, "holder": "a", "fleets": {"f": {"age": NaN}}, "policies": {}}',
        b'{"term": 1, "holder": "a", "fleets": [], "policies": {}}',
    ],
)
def test_what_is_no_line_is_refused(line: bytes) -> None:
    with pytest.raises(ToldRejected):
        from_line(line, 1.0)
