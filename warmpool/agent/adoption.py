"""Taking up engines that an earlier agent has left: where in its life each of them is.

Nobody's word is taken for what can be asked of the engine itself. What it can't tell (whether it was proven) counts only if the
earlier agent noted it and the engine is as that note says; else it is warmed up and proven again, which takes no restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from warmpool.engines.port import GuardState
from warmpool.states import ResidentState

_S = ResidentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What an agent has the launcher keep of a resident.

    Attributes:
        state: its state; None if none was noted.
        proven_at: Unix time of its last proof; None if it has none.
        kv_released: its KV memory has been given back.
    """

    state: ResidentState | None = None
    proven_at: float | None = None
    kv_released: bool = False

    def to_json(self) -> dict[str, Any]:
        """Render it for the launcher."""
        return {
            "state": None if self.state is None else str(self.state),
            "provenAt": self.proven_at,
            "kvReleased": self.kv_released,
        }

    @classmethod
    def from_json(cls, note: Mapping[str, Any]) -> Self:
        """Read it; what isn't there, or is otherwise than this version writes it, counts as not noted."""
        state, proven_at = note.get("state"), note.get("provenAt")
        return cls(
            state=ResidentState(state) if isinstance(state, str) and state in set(ResidentState) else None,
            proven_at=proven_at if isinstance(proven_at, float) else None,
            kv_released=note.get("kvReleased") is True,
        )


def state_of(note: Note, guard: GuardState, *, paused: bool) -> ResidentState:
    """Return the state of a resident whose engine has loaded its weights.

    Args:
        note: what the earlier agent has noted.
        guard: what the engine's guard says.
        paused: its scheduler is off.

    Returns:
        `Serving`, `Draining` or `Paused`; `Loading` if it has to be warmed up and proven.
    """
    if guard.is_open:
        return _S.LOADING if paused else _S.SERVING  # a paused engine holds requests in silence
    if guard.in_flight > 0:
        return _S.DRAINING
    return _S.PAUSED if paused and note.state is _S.PAUSED and note.proven_at is not None else _S.LOADING
