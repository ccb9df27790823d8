"""What residents have agreed on, per policy: expectations that must outlive them, or a lone survivor could never be proven.

Residents of one policy that run with another engine version, dtype or split are compared with an expectation of their own, so
a policy has several; the oldest go.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scaler.store import state_file
from warmpool.expectations import Recording
from warmpool.seats import PolicyName
from warmpool.wire import recording_from_json, recording_to_json

MOST: Final = 8
"""Expectations of one policy that are kept: the engine versions of a rollout and of the one before it, on two kinds of GPU."""
_FORMAT: Final = 1

Recordings = Mapping[PolicyName, Sequence[Recording]]
"""Per policy, what its residents have agreed on, the oldest first."""


def save(path: Path, recordings: Recordings) -> None:
    """Write what residents have agreed on.

    Raises:
        OSError: the file can't be written.
    """
    state_file.write(path, to_json(recordings))


def load(path: Path) -> Recordings:
    """Read what residents have agreed on; nothing where there is no such file, or it can't be understood.

    Raises:
        OSError: the file is there and can't be read.
    """
    return (
        state_file.read(path, from_json, "what residents agreed on can't be read, and they agree anew") or {}
    )


def added(recordings: Recordings, policy: PolicyName, recording: Recording) -> Recordings:
    """Return the recordings with one more, the newest of its policy."""
    return {**recordings, policy: (*recordings.get(policy, ()), recording)[-MOST:]}


def to_json(recordings: Recordings) -> dict[str, Any]:
    """Return what residents have agreed on as JSON."""
    return {
        "format": _FORMAT,
        "policies": {name: [recording_to_json(each) for each in kept] for name, kept in recordings.items()},
    }


def from_json(data: Mapping[str, Any]) -> Recordings:
    """Read what `to_json` has returned.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, BadOrder: it is something else.
    """
    if data["format"] != _FORMAT:
        raise ValueError(f"format {data['format']}, and this is {_FORMAT}")
    return {
        PolicyName(str(name)): tuple(recording_from_json(each) for each in kept)[-MOST:]
        for name, kept in data["policies"].items()
    }
