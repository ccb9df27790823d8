from pathlib import Path

import pytest

from scaler.errors import UserError
from scaler.keda.intent import intent_of
from scaler.keda.objects import Target
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyFiles


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    return PolicyFiles((Path(__file__).parents[4] / "policies" / "keda.yaml",)).read().set


def test_a_fleet_wants_its_floors_and_least_spares_and_all_its_seats(policies: PolicySet) -> None:
    found = intent_of(policies, "summarizer", 5)
    assert found.workload == Target(kind="Deployment", name="summarizer")
    assert (found.namespace, found.max_seats, found.floor, found.by_keda) == ("serving", 12, 3, True)
    assert (found.down_window, found.running) == (300.0, 5)


def test_a_fleet_that_no_file_has_is_told_with_those_that_there_are(policies: PolicySet) -> None:
    with pytest.raises(UserError, match="no policy file has a fleet named x") as caught:
        intent_of(policies, "x")
    assert caught.value.hint == "the files have: summarizer"
