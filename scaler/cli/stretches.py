"""Records of one run under one set of policies: what they tell of together.

A tick looks at the islands on which something happened (`scaler.core.islands`), so one record may tell of a part of all
policies and fleets, and the newest answer of another part stands in an earlier record. As soon as other policies are in
force, or another run begins, what was said before counts no more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

Record: TypeAlias = Mapping[str, Any]
"""A whole record of the ledger, as plain data; nothing of it is taken for granted."""

KINDS: Final = ("policies", "fleets")
_INPUTS: Final = {
    "loads": "policies",
    "servingFloors": "policies",
    "ordered": "policies",
    "fleets": "fleets",
    "seatFloors": "fleets",
    "frozenUntil": "fleets",
}
"""What of the inputs belongs to each policy, or each fleet."""


def stretches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Part records into those of one run under one set of policies each, in order."""
    stretch = list[Record]()
    for record in records:
        if stretch and not _goes_on(stretch[-1], record):
            yield stretch
            stretch = []
        stretch.append(record)
    if stretch:
        yield stretch


def _goes_on(before: Record, record: Record) -> bool:
    if record.get("policyHash") != before.get("policyHash"):
        return False
    number, last = record.get("number"), before.get("number")
    return not isinstance(number, int) or not isinstance(last, int) or number > last


def answers_of(record: Record, kind: str) -> Mapping[str, Any]:
    """Return what a record decided for each policy, or each fleet, by name; nothing where it can't be read."""
    decision = record.get("decision")
    found = decision.get(kind) if isinstance(decision, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def names_in(stretch: Sequence[Record]) -> dict[str, list[str]]:
    """Return the names of all policies and fleets that records tell of."""
    return {
        kind: list(dict.fromkeys(name for record in stretch for name in answers_of(record, kind)))
        for kind in KINDS
    }


def is_part(record: Record) -> bool:
    """Whether a record looked at a part of all policies and fleets."""
    return "looked" in record


def put_together(stretch: Sequence[Record]) -> Record:
    """Return the last record, with the newest answer of every policy and fleet that any of them tells of.

    Each answer has the `number` of the record that it comes from, and `at`, its Unix time; inputs are of the same records.
    What can't be read is returned as it is.
    """
    last = stretch[-1]
    if not any(answers_of(last, kind) for kind in KINDS):
        return last
    answers: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    inputs: dict[str, dict[str, Any]] = {key: {} for key in _INPUTS}
    for record in stretch:
        for kind in KINDS:
            answers[kind] |= {
                name: _from(record, answer) for name, answer in answers_of(record, kind).items()
            }
        for key, kind in _INPUTS.items():
            given = _inputs_of(record).get(key, {})
            for name in answers_of(record, kind):
                if name in given:
                    inputs[key][name] = given[name]
                else:
                    inputs[key].pop(name, None)
    of_all = {key: value for key, value in _inputs_of(last).items() if key != "partial"}
    whole = {**of_all, **inputs} if of_all else {}
    return {**last, "inputs": whole, "decision": {**last["decision"], **answers}}


def _inputs_of(record: Record) -> Mapping[str, Any]:
    found = record.get("inputs")
    return found if isinstance(found, Mapping) else {}


def _from(record: Record, answer: object) -> object:
    if not isinstance(answer, Mapping):
        return answer
    return {**answer, "number": record.get("number"), "at": record.get("at")}
