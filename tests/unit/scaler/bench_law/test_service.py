import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.runtime.bench.law.arrivals import Arrival, Trace
from scaler.runtime.bench.law.case import Case, Model
from scaler.runtime.bench.law.service import MOST_IN_FLIGHT, Gpu, Service
from warmpool.seats import PolicyName


def test_a_request_takes_its_share_of_prefill_and_its_tokens() -> None:
    service = Service(prefill=32_000.0, per_token=0.02)
    assert service.seconds(Arrival(0.0, 2000, 50)) == pytest.approx(2.0 + 1.0)


@pytest.mark.parametrize(
    ("gigabytes", "residents", "slots"),
    [
        (16.0, 1, 32),
        (16.0, 6, 32),  # 141 × 0.98 − 96 = 42.2 GB, and 32 requests of 7,458 tokens take 31.3
        (16.0, 7, 26),
        (16.0, 8, 10),
        (20.0, 6, 18),
        (8.0, 8, 32),
        (24.0, 6, 0),  # the weights alone take more than there is
    ],
)
def test_slots_are_what_the_memory_holds(gigabytes: float, residents: int, slots: int) -> None:
    assert Gpu().in_flight([gigabytes] * residents, 7458) == slots


@given(st.lists(st.floats(0.0, 80.0), max_size=8), st.integers(0, 20_000), st.floats(0.0, 80.0))
def test_one_resident_more_never_makes_room(weights: list[float], tokens: int, more: float) -> None:
    gpu = Gpu()
    before, after = gpu.in_flight(weights, tokens), gpu.in_flight([*weights, more], tokens)
    assert 0 <= after <= before <= MOST_IN_FLIGHT


def test_a_case_counts_the_longest_usual_request_for_each_slot() -> None:
    usual = [Arrival(float(at), 900, 100) for at in range(200)]
    trace = Trace("t", (*usual, Arrival(200.0, 90_000, 0)), 201.0)
    model = Model(name=PolicyName("m"), trace=trace, gigabytes=16.0)
    case = Case(groups=[[model]], gpu=Gpu(gigabytes=20.0, kv_bytes=131_072))
    assert case.slots(model) == int((20.0 * 0.98 - 16.0) / (1000 * 131_072 / 1e9))


def test_a_run_begins_with_the_end_of_the_same_requests() -> None:
    trace = Trace("t", tuple(Arrival(float(at), 800, 0) for at in (0, 100, 350, 399)), 400.0)
    case = Case(groups=[[Model(name=PolicyName("m"), trace=trace)]])
    times = [at for at, _ in case.requests(case.models[0])]
    assert times == [-300.0, -50.0, -1.0, 0.0, 100.0, 350.0, 399.0]
