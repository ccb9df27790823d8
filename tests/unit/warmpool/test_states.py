"""The transition table: every pair of states, against a table written down independently."""

import pytest

from warmpool.errors import IllegalTransition
from warmpool.states import COMPUTING, PROMOTABLE, TRANSITIONS, ResidentState, transition

EXPECTED = """
Starting    Loading Failed Quarantined Terminating
Loading     Warming Failed Quarantined Terminating
Warming     Proving Loading Failed Quarantined Terminating
Proving     Paused Promoting Loading Failed Quarantined Terminating
Paused      Promoting Proving Parking Failed Quarantined Terminating
Promoting   Serving Paused Failed Quarantined Terminating
Serving     Draining Failed Quarantined Terminating
Draining    Paused Serving Failed Quarantined Terminating
Parking     Parked Paused Failed Quarantined Terminating
Parked      Unparking Failed Quarantined Terminating
Unparking   Paused Parked Failed Quarantined Terminating
Failed      Starting Quarantined Terminating
Quarantined Paused Starting Failed Terminating
Terminating
"""
ALLOWED = {line.split()[0]: set(line.split()[1:]) for line in EXPECTED.strip().splitlines()}


@pytest.mark.parametrize("current", list(ResidentState))
def test_exactly_the_expected_states_follow(current: ResidentState) -> None:
    assert {str(state) for state in TRANSITIONS[current]} == ALLOWED[str(current)]


@pytest.mark.parametrize("current", list(ResidentState))
@pytest.mark.parametrize("following", list(ResidentState))
def test_transition_agrees_with_the_table_in_both_directions(
    current: ResidentState, following: ResidentState
) -> None:
    if str(following) in ALLOWED[str(current)]:
        assert transition(current, following) is following
    else:
        with pytest.raises(IllegalTransition, match=rf"from {current} to {following}"):
            transition(current, following)


def test_the_error_names_what_would_be_allowed() -> None:
    with pytest.raises(IllegalTransition, match=r"from there: Draining, Failed, Quarantined, Terminating"):
        transition(ResidentState.SERVING, ResidentState.PAUSED)


def test_nothing_leaves_terminating() -> None:
    assert TRANSITIONS[ResidentState.TERMINATING] == frozenset()


def test_every_state_can_be_reached_from_starting() -> None:
    reached = {ResidentState.STARTING}
    frontier = [ResidentState.STARTING]
    while frontier:
        following = TRANSITIONS[frontier.pop()] - reached
        reached |= following
        frontier.extend(following)
    assert reached == set(ResidentState)


def test_what_is_promotable_does_not_compute() -> None:
    assert not PROMOTABLE & COMPUTING


def test_only_paused_and_a_running_proof_lead_to_promoting() -> None:
    before = {state for state, following in TRANSITIONS.items() if ResidentState.PROMOTING in following}
    assert before == {ResidentState.PAUSED, ResidentState.PROVING}


def test_rotation_is_left_through_a_drain_or_a_failure_only() -> None:
    after = TRANSITIONS[ResidentState.SERVING]
    assert after - {ResidentState.FAILED, ResidentState.QUARANTINED, ResidentState.TERMINATING} == {
        ResidentState.DRAINING
    }
