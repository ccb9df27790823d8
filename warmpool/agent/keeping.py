"""What outlives an agent beside its engines: the highest term that was seen, and what residents have agreed on.

A small file. Without it an agent that comes back would obey a controller that has been superseded. It counts only for the seat that
has written it; a new seat in the same place begins anew.
"""

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from warmpool.agent.config import CONTAINER, AgentConfig
from warmpool.errors import BadOrder
from warmpool.expectations import Recording
from warmpool.wire import recording_from_json, recording_to_json

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept.

    Attributes:
        epoch: the highest term that was seen.
        recordings: what residents have agreed on, by policy.
    """

    epoch: int = 0
    recordings: Mapping[str, Recording] = field(default_factory=lambda: MappingProxyType({}))


class Keeper:
    """The file of one seat.

    Args:
        path: where.
        uid: the seat's identity.
    """

    def __init__(self, path: Path, uid: str) -> None:
        self._path = path
        self._uid = uid
        self._kept = Kept()
        self._fails = False

    def read(self) -> Kept:
        """Return what an earlier agent of this seat has kept. What can't be read counts as nothing."""
        try:
            raw = json.loads(self._path.read_text(encoding="utf-8"))
            self._kept = _kept(raw) if raw["uid"] == self._uid else Kept()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, BadOrder) as error:
            _LOG.warning("%s can't be read, so the highest term is not known: %r", self._path, error)
        return self._kept

    def write(self, kept: Kept) -> None:
        """Keep this from now on. Nothing is written if nothing has changed. What can't be written is told once, and tried again."""
        if kept == self._kept:
            return
        text = json.dumps(
            {
                "uid": self._uid,
                "epoch": kept.epoch,
                "recordings": {
                    policy: recording_to_json(recording) for policy, recording in kept.recordings.items()
                },
            }
        )
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            if not self._fails:
                _LOG.warning(
                    "%s can't be written, so the next agent won't know the term: %s", self._path, error
                )
            self._fails = True
        else:
            self._kept, self._fails = kept, False


def keeper_of(config: AgentConfig) -> Keeper:
    """Return where a seat's agents keep what outlives them: beside the launchers' sockets, else with the engines' logs.

    Where each container has a folder of its own for its socket, it is the folder of these: no engine can write there.
    """
    if config.launcher is not None:
        path = config.launcher.with_name(f"{config.launcher.name}.agent.json")
        if config.apart:
            above = next(each for each in config.launcher.parents if CONTAINER not in str(each))
            path = above / "agent.json"
    else:
        assert config.log_directory is not None
        path = config.log_directory / f"agent-{config.seat}.json"
    return Keeper(path, config.uid)


def _kept(raw: Mapping[str, Any]) -> Kept:
    epoch = raw["epoch"]
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
        raise ValueError(f"{epoch!r} is no term")
    recordings = {str(policy): recording_from_json(each) for policy, each in raw["recordings"].items()}
    return Kept(epoch=epoch, recordings=MappingProxyType(recordings))
