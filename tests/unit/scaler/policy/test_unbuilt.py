"""What is accepted and not acted on is told, and what is told exists."""

from pathlib import Path

import pytest

from scaler.policy.compile import KINDS, load_policies
from scaler.policy.document import parse_documents
from scaler.policy.unbuilt import EACH, UNBUILT, NotActedOn, Unbuilt, not_acted_on
from scaler.policy.wording import schema_at, schema_of

FLEET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec:
  maxSeats: 3
  spare: {min: 1, replenish: {maxPerNode: 1, perMinute: 6}, parked: {hostMemoryMiB: 9}}
"""


@pytest.mark.parametrize("entry", UNBUILT, ids=lambda entry: f"{entry.kind}:{entry.path[-1]}")
def test_every_entry_is_about_a_field_that_there_is(entry: Unbuilt) -> None:
    path = entry.path[: entry.path.index(EACH)] if EACH in entry.path else entry.path
    assert schema_at(schema_of(KINDS[entry.kind]), path).get("description") is not None


def test_each_value_is_told_at_its_place() -> None:
    (document,) = parse_documents(FLEET, "f.yaml")
    assert [found.path for found in not_acted_on(document.data)] == [
        ("spec", "spare", "replenish", "maxPerNode"),
    ]


def test_nothing_is_told_of_what_works() -> None:
    file = Path(__file__).parents[4] / "policies" / "drills" / "default-policies.yaml"
    for document in parse_documents(file.read_text("utf-8"), file.name):
        assert list(not_acted_on(document.data)) == []


def test_a_compiled_set_knows_what_it_does_not_act_on(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "apiVersion: emberpool.dev/v1alpha1\nkind: Fleet\nmetadata: {name: spares}\n"
        "spec: {maxSeats: 3, spare: {replenish: {maxPerNode: 1}}}\n"
    )
    (found,) = load_policies([tmp_path]).not_acted_on()
    assert found == (
        "Fleet",
        "spares",
        NotActedOn(
            ("spec", "spare", "replenish", "maxPerNode"),
            "is not acted on yet: seats that are starting are not counted by node",
        ),
    )
