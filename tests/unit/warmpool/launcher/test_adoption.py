"""Where in its life an engine is that an earlier agent has left."""

import pytest

from warmpool.agent.adoption import Note, state_of
from warmpool.engines.port import GuardState
from warmpool.states import ResidentState as S

PROVEN = Note(state=S.PAUSED, proven_at=1.0, kv_released=True)
OPEN, BUSY = GuardState(is_open=True, in_flight=0), GuardState(is_open=True, in_flight=2)
CLOSED, DRAINING = GuardState(is_open=False, in_flight=0), GuardState(is_open=False, in_flight=2)


@pytest.mark.parametrize(
    ("note", "guard", "paused", "state"),
    [
        (PROVEN, CLOSED, True, S.PAUSED),
        (Note(state=S.PAUSED), CLOSED, True, S.LOADING),  # never proven
        (PROVEN, CLOSED, False, S.LOADING),  # a promotion or proof had begun
        (Note(state=S.PROVING, proven_at=1.0), CLOSED, True, S.LOADING),  # its KV memory may be anywhere
        (Note(), CLOSED, True, S.LOADING),
        (Note(), CLOSED, False, S.LOADING),
        (Note(state=S.SERVING, proven_at=1.0), OPEN, False, S.SERVING),
        (PROVEN, OPEN, False, S.SERVING),  # the engine's word counts, not the note's
        (Note(), BUSY, False, S.SERVING),
        (PROVEN, OPEN, True, S.LOADING),  # it would hold requests in silence
        (Note(state=S.SERVING, proven_at=1.0), DRAINING, False, S.DRAINING),
        (PROVEN, DRAINING, True, S.DRAINING),
    ],
)
def test_the_engine_itself_counts_more_than_what_was_noted(
    note: Note, guard: GuardState, *, paused: bool, state: S
) -> None:
    assert state_of(note, guard, paused=paused) is state


@pytest.mark.parametrize("note", [Note(), PROVEN, Note(state=S.SERVING, proven_at=None)])
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    assert Note.from_json(note.to_json()) == note


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"state": "Dreaming", "provenAt": "yesterday", "kvReleased": 1},
        {"state": 3, "provenAt": None, "kvReleased": None},
        {"state": []},
    ],
)
def test_what_is_written_otherwise_counts_as_not_noted(raw: dict[str, object]) -> None:
    assert Note.from_json(raw) == Note()
