"""Taking up engines that an earlier agent has left: where in its life each of them is.

Nobody's word is taken for what can be asked of the engine itself. What it can't tell (whether it was proven, what it held when it was
first paused) counts only if the earlier agent noted it and the engine is as that note says; else it is warmed up and proven again,
which takes no restart.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from warmpool.agent.board import Record
from warmpool.engines.capabilities import Capabilities
from warmpool.engines.port import GuardState
from warmpool.errors import BadOrder
from warmpool.expectations import Ownership
from warmpool.states import MOVING, Depth, ResidentState
from warmpool.timeline import PHASES, StartFacts
from warmpool.wire import capabilities_from_json, capabilities_to_json, start_from_json, start_to_json

_S = ResidentState
_CAPABILITIES_BYTES: Final = 4096
"""A launcher takes a note of 8 KiB; the rest of it is 3 KiB at most."""
_START_BYTES: Final = 1280
"""Of which what is known of its start takes so many, unless it has to be told in fewer words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What an agent has the launcher keep of a resident.

    Attributes:
        state: its state; None if none was noted.
        proven_at: Unix time of its last proof; None if it has none.
        kv_released: its KV memory has been given back.
        loaded: its engine has loaded its weights.
        sizes: bytes of its KV memory, its weights and their copy in host memory, as far as its engine told them.
        usual: bytes that it held when it was first measured, by depth.
        held: bytes of device memory that it held when it was last measured, by depth.
        spread: the same on each of the seat's GPUs, as far as that was known.
        wakes: seconds that its last promotions took, by depth.
        capabilities: what its engine was found to be able to do; None if it wasn't asked.
        phases: seconds that each phase of its last completed start took.
        start: what else is known of that start; None before the first.
    """

    state: ResidentState | None = None
    proven_at: float | None = None
    kv_released: bool = False
    loaded: bool = False
    sizes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    usual: Mapping[Depth, int] = field(default_factory=lambda: MappingProxyType({}))
    held: Mapping[Depth, int] = field(default_factory=lambda: MappingProxyType({}))
    spread: Mapping[Depth, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    wakes: Mapping[Depth, Sequence[float]] = field(default_factory=lambda: MappingProxyType({}))
    capabilities: Capabilities | None = None
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    start: StartFacts | None = None

    @property
    def parked(self) -> bool:
        """Whether its weights were in host memory, or on their way there or back."""
        return self.state is _S.PARKED or self.state in MOVING

    def to_json(self) -> dict[str, Any]:
        """Render it for the launcher."""
        return {
            "state": None if self.state is None else str(self.state),
            "provenAt": self.proven_at,
            "kvReleased": self.kv_released,
            "loaded": self.loaded,
            "sizes": dict(self.sizes),
            "usual": {str(depth): size for depth, size in self.usual.items()},
            "held": {str(depth): size for depth, size in self.held.items()},
            "spread": {str(depth): list(sizes) for depth, sizes in self.spread.items()},
            "wakes": {
                str(depth): [round(each, 6) for each in seconds] for depth, seconds in self.wakes.items()
            },
            "capabilities": _noted(self.capabilities),
            "phases": {phase: round(seconds, 4) for phase, seconds in self.phases.items()},
            "start": None if self.start is None else _noted_start(self.start),
        }

    @classmethod
    def from_json(cls, note: Mapping[str, Any]) -> Self:
        """Read it; what isn't there, or is otherwise than this version writes it, counts as not noted."""
        state, proven_at = note.get("state"), note.get("provenAt")
        return cls(
            state=ResidentState(state) if isinstance(state, str) and state in set(ResidentState) else None,
            proven_at=proven_at if isinstance(proven_at, float) else None,
            kv_released=note.get("kvReleased") is True,
            loaded=note.get("loaded") is True,
            sizes=_sizes(note.get("sizes")),
            usual=_by_depth(note.get("usual")),
            held=_by_depth(note.get("held")),
            spread=_spread(note.get("spread")),
            wakes=_wakes(note.get("wakes")),
            capabilities=_capabilities(note.get("capabilities")),
            phases=_phases(note.get("phases")),
            start=_start(note.get("start")),
        )

    def recall(self, record: Record) -> None:
        """Give a resident back what was known of it; sizes only where its engine doesn't tell them now."""
        record.proven_at = self.proven_at
        record.kv_released = self.kv_released
        if record.kv_bytes is None:
            record.kv_bytes = self.sizes.get("kv")
        if record.weights_bytes is None:
            record.weights_bytes = self.sizes.get("weights")
        record.parked_bytes = record.parked_bytes or self.sizes.get("copy", 0)
        record.usual.update(self.usual)
        record.held.update(self.held)
        record.spread.update(self.spread)
        for depth, seconds in self.wakes.items():
            for each in seconds:
                record.wakes.note(depth, each)
        record.phases, record.start = MappingProxyType(dict(self.phases)), self.start
        record.capabilities = self.capabilities
        if self.capabilities is not None:
            record.running = record.running.completed(Ownership(engine_version=self.capabilities.version))


def note_of(record: Record) -> Note:
    """Return what the next agent has to know of a resident."""
    sizes = {"kv": record.kv_bytes, "weights": record.weights_bytes, "copy": record.parked_bytes}
    return Note(
        state=record.state,
        proven_at=record.proven_at,
        kv_released=record.kv_released,
        loaded=record.loaded,
        sizes={what: size for what, size in sizes.items() if size is not None},
        usual=dict(record.usual),
        held=dict(record.held),
        spread=dict(record.spread),
        wakes=record.wakes.seconds(),
        capabilities=record.capabilities,
        phases=dict(record.phases),
        start=record.start,
    )


def state_of(note: Note, guard: GuardState, *, paused: bool) -> ResidentState:
    """Return the state of a resident whose engine has loaded its weights.

    Args:
        note: what the earlier agent has noted.
        guard: what the engine's guard says.
        paused: its scheduler is off.

    Returns:
        `Serving`, `Draining`, `Paused` or `Parked`; `Loading` if it has to be warmed up and proven.
    """
    if guard.is_open:
        return _S.LOADING if paused else _S.SERVING  # a paused engine holds requests in silence
    if guard.in_flight > 0:
        return _S.DRAINING
    if not paused:
        return _S.LOADING
    if note.state is _S.PARKED:
        return _S.PARKED
    return _S.PAUSED if note.state is _S.PAUSED and note.proven_at is not None else _S.LOADING


def _by_depth(noted: object) -> dict[Depth, int]:
    return {Depth(depth): size for depth, size in _sizes(noted).items() if depth in set(Depth)}


def _spread(noted: object) -> dict[Depth, tuple[int, ...]]:
    return {
        Depth(depth): tuple(sizes)
        for depth, sizes in (noted.items() if isinstance(noted, dict) else ())
        if depth in set(Depth)
        and isinstance(sizes, list)
        and all(type(size) is int and size >= 0 for size in sizes)
    }


def _noted(capabilities: Capabilities | None) -> dict[str, Any] | None:
    """Render them, unless they would take the room of what matters more: the next agent can ask its engine again."""
    if capabilities is None:
        return None
    noted = capabilities_to_json(capabilities)
    return noted if len(json.dumps(noted)) <= _CAPABILITIES_BYTES else None


def _noted_start(start: StartFacts) -> dict[str, Any]:
    """Render it; where why tiers were passed over takes too much room, the words are left out and the codes stay."""
    noted = start_to_json(start)
    if start.weights is None or len(json.dumps(noted)) <= _START_BYTES:
        return noted
    codes = tuple(replace(each, reason="") for each in start.weights.passed_over)
    return start_to_json(replace(start, weights=replace(start.weights, passed_over=codes)))


def _wakes(noted: object) -> dict[Depth, Sequence[float]]:
    if not isinstance(noted, dict):
        return {}
    return {
        Depth(depth): tuple(each for each in seconds if isinstance(each, float) and 0 <= each < math.inf)
        for depth, seconds in noted.items()
        if depth in set(Depth) and isinstance(seconds, list)
    }


def _capabilities(noted: object) -> Capabilities | None:
    try:
        return capabilities_from_json(noted) if isinstance(noted, dict) else None
    except BadOrder:
        return None


def _phases(noted: object) -> dict[str, float]:
    if not isinstance(noted, dict):
        return {}
    return {
        phase: seconds
        for phase, seconds in noted.items()
        if phase in PHASES and isinstance(seconds, float) and 0 <= seconds < math.inf
    }


def _start(noted: object) -> StartFacts | None:
    try:
        return start_from_json(noted) if isinstance(noted, dict) else None
    except BadOrder:
        return None


def _sizes(noted: object) -> dict[str, int]:
    if not isinstance(noted, dict):
        return {}
    return {
        str(what): size
        for what, size in noted.items()
        if isinstance(size, int) and not isinstance(size, bool) and size >= 0
    }
