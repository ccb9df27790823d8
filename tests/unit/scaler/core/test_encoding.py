"""Values of the law as JSON and back."""

import json
import math
from dataclasses import dataclass, replace

import pytest

from scaler.core.encoding import decode, encode
from scaler.core.memory import Coming, Memory, Order, PolicyMemory, Seen, Service, Start
from scaler.core.model import ChangeLimit, FleetSpec, Load, Pace, PolicySpec, Select
from tests.unit.scaler.core.world import Run, fleet, load, policy, simple
from warmpool.seats import FleetName


def there_and_back(value: object) -> object:
    return decode(type(value), json.loads(json.dumps(encode(value), allow_nan=False)))


def test_a_memory_comes_back_as_it_was() -> None:
    run = Run(
        [policy("a"), policy("b", fleets=(("spares", 8), ("other", 4)))],
        [
            fleet(),
            fleet("other", scale_down=Pace(limits=(ChangeLimit(value=1, percent=False, period=60.0),))),
        ],
    )
    for tick in range(120):
        seats = {"spares": simple({"a": 1 + tick % 2, "b": 1}, 1 - tick % 2), "other": simple({"b": 1}, 1)}
        loads = {"a": load(4 + tick % 9, tick % 3, completions=2), "b": Load() if tick % 7 else load(3)}
        run.step(loads, seats, after=0.4)
    assert there_and_back(run.memory) == run.memory


def test_what_few_policies_remember_comes_back_too() -> None:
    memory = replace(
        PolicyMemory.initial(5.0),
        service=Service(4.0, 6.0, 30.0, 5.0, 4.5, 40.0),
        coming=(Coming(5.2, 8.0), Coming(9.0, 16.0)),
        order=Order(4.0, 40.0, 8.0),
        start=Start(3.0, 1),
        kept={FleetName("spares"): 2},
    )
    assert there_and_back(memory) == memory


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(policy("a", priority=-5, serving_max=7), id="policy"),
        pytest.param(
            fleet(
                scale_down=Pace(
                    limits=(ChangeLimit(value=50, percent=True, period=60.0),),
                    select=Select.MIN,
                    tolerance=0.1,
                    window=0.0,
                )
            ),
            id="fleet",
        ),
    ],
)
def test_a_spec_comes_back_as_it_was(spec: PolicySpec | FleetSpec) -> None:
    assert there_and_back(spec) == spec


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_number_that_is_not_finite_comes_back(value: float) -> None:
    assert there_and_back(Seen(queued=value)) == Seen(queued=value)


def test_nan_comes_back_as_nan() -> None:
    back = decode(Memory, json.loads(json.dumps(encode(Memory(at=math.nan)), allow_nan=False)))
    assert math.isnan(back.at)


def test_keys_are_in_lower_camel_case() -> None:
    assert {"freshAt", "observedAt", "startingSince"} - encode(PolicyMemory.initial(1.0)).keys() == {
        "startingSince"
    }


def test_a_field_that_an_older_version_did_not_write_takes_its_default() -> None:
    written = encode(fleet())
    del written["replenish"]
    assert decode(FleetSpec, written) == fleet()


def test_parts_at_the_end_that_an_older_version_did_not_write_take_their_default() -> None:
    assert decode(Service, [4.0, 6.0]) == Service(4.0, 6.0, 0.0, 0.0, 0.0, 0.0)
    for data in ([4.0], [0.0] * 7):
        with pytest.raises(ValueError, match="not a Service"):
            decode(Service, data)


def test_a_field_of_a_newer_version_is_ignored() -> None:
    assert decode(FleetSpec, {**encode(fleet()), "tomorrow": 1}) == fleet()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"maxSeats": "3"}, id="text-for-a-number"),
        pytest.param({"maxSeats": True}, id="a-truth-for-a-number"),
        pytest.param({"maxSeats": 3.5}, id="a-fraction-of-a-seat"),
        pytest.param({"scaleDown": []}, id="a-list-for-a-mapping"),
        pytest.param({"scaleDown": {"select": "Sometimes"}}, id="no-such-choice"),
    ],
)
def test_what_is_no_such_value_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not a FleetSpec|not a valid Select"):
        decode(FleetSpec, {**encode(fleet()), **changes})


def test_a_value_without_its_required_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="not a Memory"):
        decode(Memory, {})


@dataclass(frozen=True)
class Odd:
    part: bytes


def test_a_type_without_a_form_is_refused() -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        encode(Odd(b""))
