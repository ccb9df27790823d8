"""What fleets have learned and must outlive a restart: how fast demand rose, and how long seats took to start.

With a file that can't be understood the fleets begin anew, which costs a day of learning and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from scaler.core.encoding import decode, encode
from scaler.core.rises import Rises
from scaler.store import state_file
from warmpool.seats import FleetName

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What one fleet has learned.

    Attributes:
        rises: how fast demand rose, in the time of the law.
        starts: seconds of its seats' last starts, oldest first.
    """

    rises: Rises = field(default_factory=Rises)
    starts: tuple[float, ...] = ()


def save(path: Path, histories: Mapping[FleetName, History], now: float, wall: float) -> None:
    """Write what fleets have learned.

    Args:
        path: the file.
        histories: per fleet.
        now: the law's clock.
        wall: the same moment as Unix time.

    Raises:
        OSError: the file can't be written.
    """
    state_file.write(path, to_json(histories, now, wall))


def load(path: Path, now: float, wall: float) -> Mapping[FleetName, History]:
    """Read what fleets had learned, in the time of the clock that runs now; nothing where there is no such file.

    Args:
        path: the file.
        now: the law's clock.
        wall: the same moment as Unix time.

    Raises:
        OSError: the file is there and can't be read.
    """
    parse = partial(from_json, now=now, wall=wall)
    return state_file.read(path, parse, "the fleets' history can't be read and begins anew") or {}


def to_json(histories: Mapping[FleetName, History], now: float, wall: float) -> dict[str, Any]:
    """Return what fleets have learned as JSON; see `save`."""
    return {
        "format": _FORMAT,
        "savedAt": wall,
        "clock": now,
        "fleets": {name: encode(history) for name, history in histories.items()},
    }


def from_json(data: Any, now: float, wall: float) -> Mapping[FleetName, History]:  # noqa: ANN401 - JSON is what it is
    """Read what `to_json` has returned, in the time of the clock that runs now.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is something else.
    """
    if data["format"] != _FORMAT:
        raise ValueError(f"format {data['format']}, and {_FORMAT} is known")
    moved = (now - float(data["clock"])) - (wall - float(data["savedAt"]))
    histories = {}
    for name, entry in data["fleets"].items():
        history = decode(History, entry)
        histories[FleetName(str(name))] = History(rises=history.rises.moved(moved), starts=history.starts)
    return histories
