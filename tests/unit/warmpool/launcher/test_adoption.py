"""Where in its life an engine is that an earlier agent has left."""

import json
import math
from dataclasses import replace

import pytest

from warmpool.agent.adoption import Note, state_of
from warmpool.agent.wakes import REMEMBERED
from warmpool.engines.capabilities import Capabilities, Capability, Finding, Ground
from warmpool.engines.port import GuardState
from warmpool.launcher import HELLO_BYTES
from warmpool.states import Depth
from warmpool.states import ResidentState as S
from warmpool.timeline import PHASES, TIERS, CacheUse, PassedOver, StartFacts, WeightLoad

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
        (Note(state=S.PARKED, proven_at=1.0), CLOSED, True, S.PARKED),
        (Note(state=S.PARKED), CLOSED, True, S.PARKED),  # its next promotion has a canary
        (Note(state=S.PARKED, proven_at=1.0), CLOSED, False, S.LOADING),
        (Note(state=S.PARKING, proven_at=1.0), CLOSED, True, S.LOADING),
        (Note(state=S.UNPARKING, proven_at=1.0), CLOSED, True, S.LOADING),
    ],
)
def test_the_engine_itself_counts_more_than_what_was_noted(
    note: Note, guard: GuardState, *, paused: bool, state: S
) -> None:
    assert state_of(note, guard, paused=paused) is state


NOT_HELD = PassedOver(tier="Attached", code="NotHeld", reason="no copy is held on this device")
FULL = Note(
    state=S.PARKED,
    proven_at=1.0,
    kv_released=True,
    loaded=True,
    sizes={"kv": 3, "weights": 2},
    usual={Depth.KV_RELEASED: 5},
    held={Depth.PARKED: 1},
    wakes={Depth.PARKED: (2.5, 0.75), Depth.PAUSED: (0.1,)},
    capabilities=Capabilities(
        kind="VLLM",
        version="0.32.0",
        findings={Capability.KV_RELEASE: Finding(ground=Ground.TRIED, reason="it was done")},
    ),
    phases={str(phase): 1234.5678 for phase in PHASES},
    start=StartFacts(
        at=1767225602.123456,
        told=True,
        weights=WeightLoad(tier="Staged", nbytes=10**15, seconds=1234.5678, passed_over=(NOT_HELD,)),
        compile_cache=CacheUse(hits=10**6, misses=10**6),
        first_request_seconds=1234.5678,
    ),
)


@pytest.mark.parametrize("note", [Note(), PROVEN, Note(state=S.SERVING, proven_at=None), FULL])
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    assert Note.from_json(note.to_json()) == note


def test_a_note_always_has_room_at_its_launcher() -> None:
    long = Finding(ground=Ground.ROUTE_FAILS, reason="\N{SNOWMAN}" * 300)
    found = Capabilities(kind="VLLM", version="1", findings=dict.fromkeys(Capability, long))
    full = dict.fromkeys(Depth, 10**15)
    wordy = tuple(
        PassedOver(tier="\N{SNOWMAN}" * 9, code="NotHeld", reason="\N{SNOWMAN}" * 400) for _ in TIERS
    )
    assert FULL.start is not None
    assert FULL.start.weights is not None
    load = FULL.start.weights
    note = replace(
        FULL,
        start=replace(FULL.start, weights=replace(load, passed_over=wordy)),
        capabilities=found,
        usual=full,
        held=full,
        wakes=dict.fromkeys(Depth, (12345.678901,) * REMEMBERED),
    )
    assert len(json.dumps(note.to_json())) <= HELLO_BYTES
    codes = tuple(replace(each, reason="") for each in wordy)
    start = replace(FULL.start, weights=replace(load, passed_over=codes))
    assert Note.from_json(note.to_json()) == replace(note, capabilities=None, start=start)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"state": "Dreaming", "provenAt": "yesterday", "kvReleased": 1},
        {"state": 3, "provenAt": None, "kvReleased": None},
        {"state": []},
        {"wakes": {"Deep": [1.0], "Paused": 3}, "capabilities": {"kind": 3}},
        {"phases": {"weights": -1.0, "paused": math.nan, "other": "1"}, "start": {"told": True}},
        {"phases": [], "start": []},
        {"loaded": "yes", "sizes": [1], "usual": {"Paused": -1, "Deep": 3}, "held": {"Parked": True}},
    ],
)
def test_what_is_written_otherwise_counts_as_not_noted(raw: dict[str, object]) -> None:
    assert Note.from_json(raw) == Note()
