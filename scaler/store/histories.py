"""What fleets have learned and must outlive a restart: how fast demand rose, and how long seats took to start.

One JSON file, written whole and put in place by a rename, so that a crash leaves the old one or the new one. A file that
can't be read is set aside and told; the fleets begin anew, which costs a day of learning and nothing else.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from scaler.core.encoding import decode, encode
from scaler.core.rises import Rises
from warmpool.seats import FleetName

log = structlog.get_logger(__name__)

_FORMAT: Final = 1
_LARGEST_BYTES: Final = 16 * 1024 * 1024


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
    data = {
        "format": _FORMAT,
        "savedAt": wall,
        "clock": now,
        "fleets": {name: encode(history) for name, history in histories.items()},
    }
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(data, separators=(",", ":"), allow_nan=False), encoding="utf-8")
    part.replace(path)


def load(path: Path, now: float, wall: float) -> Mapping[FleetName, History]:
    """Read what fleets had learned, in the time of the clock that runs now; nothing where there is no such file.

    Args:
        path: the file.
        now: the law's clock.
        wall: the same moment as Unix time.

    Raises:
        OSError: the file is there and can't be read.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"more than {_LARGEST_BYTES} bytes")
        return _parsed(json.loads(path.read_bytes()), now, wall)
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        aside = path.with_suffix(".unreadable")
        path.replace(aside)
        log.warning("the fleets' history can't be read and begins anew", file=str(aside), error=str(error))
        return {}


def _parsed(data: Any, now: float, wall: float) -> Mapping[FleetName, History]:  # noqa: ANN401 - what a file holds
    if data["format"] != _FORMAT:
        raise ValueError(f"format {data['format']}, and {_FORMAT} is known")
    moved = (now - float(data["clock"])) - (wall - float(data["savedAt"]))
    histories = {}
    for name, entry in data["fleets"].items():
        history = decode(History, entry)
        histories[FleetName(str(name))] = History(rises=history.rises.moved(moved), starts=history.starts)
    return histories
