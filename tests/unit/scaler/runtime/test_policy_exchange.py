"""Sets on their way from the process that reads them: whole in the end, and no more of them than has changed."""

import io
import pickle
import time
from dataclasses import fields
from types import MappingProxyType

from scaler.errors import PolicyFault
from scaler.policy.compile import PolicySet
from scaler.policy.reading import Place
from scaler.runtime.policy_exchange import LENGTH, Answer, changes, frame, joined, pieces_of
from tests.unit.scaler.runtime.policy_sets import compiled, fleet, policy

OLD = compiled(fleet(), policy("chat"), policy("code"))
NEW = compiled(fleet(), policy("math"), policy("code", minServing="2"), policy("chat"))


def received(value: object) -> object:
    stream = io.BytesIO(frame(value))
    (length,) = LENGTH.unpack(stream.read(LENGTH.size))
    raw = stream.read()
    assert len(raw) == length
    return pickle.loads(raw)


def sent(new: PolicySet, known: PolicySet | None, there: PolicySet) -> PolicySet:
    return joined([received(piece) for piece in pieces_of(new, known)], there)  # type: ignore[misc]


def same(one: PolicySet, other: PolicySet) -> bool:
    names = {field.name for field in fields(PolicySet)} - {"calendar"}
    return all(getattr(one, name) == getattr(other, name) for name in names)


def test_a_set_arrives_as_it_was_sent_and_in_its_order() -> None:
    for known in (OLD, None):
        arrived = sent(NEW, known, OLD)
        assert same(arrived, NEW)
        assert list(arrived.policies) == ["math", "code", "chat"]
        assert isinstance(arrived.policies, MappingProxyType)


def test_what_has_not_changed_is_not_sent() -> None:
    arrived = sent(NEW, OLD, OLD)
    assert arrived.policies["chat"] is OLD.policies["chat"]
    assert arrived.fleets["spares"] is OLD.fleets["spares"]
    assert sent(NEW, None, OLD).policies["chat"] is not OLD.policies["chat"]


def test_what_the_clock_says_has_been_worked_out_before() -> None:
    now = time.time()
    expected = NEW.calendar.at(now, 0.0)
    assert sent(NEW, OLD, OLD).calendar.at(now, 0.0) == expected
    assert expected.serving_floors


def test_pieces_are_small_however_large_the_set() -> None:
    large = compiled(fleet(maxSeats="200"), *(policy(f"model-{number}") for number in range(100)))
    sizes = [len(frame(piece)) for piece in pieces_of(large, None) if piece[0] != "calendar"]
    assert max(sizes) < 20_000
    assert sum(sizes) > 2 * max(sizes)


def test_an_answer_arrives_with_its_faults_and_places() -> None:
    fault = PolicyFault(file="f", line=1, column=2, path="spec", message="is wrong", hint="mend it")
    answer = Answer(read=True, faults=(fault,), places={("Fleet", "spares"): Place("f", 1, 2)})
    arrived = received(answer)
    assert isinstance(arrived, Answer)
    assert arrived.places == answer.places
    assert [each.as_json() for each in arrived.faults] == [fault.as_json()]


def test_changes_are_told_by_kind_and_name() -> None:
    found = changes(OLD, compiled(fleet(), fleet("own"), policy("chat", minServing="2"), policy("math")))
    assert found.added == ["Fleet/own", "ScalingPolicy/math"]
    assert found.changed == ["ScalingPolicy/chat"]
    assert found.removed == ["ScalingPolicy/code"]
    assert changes(OLD, OLD) == changes(NEW, NEW)
