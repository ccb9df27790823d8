"""Server-sent events as they pass: whole events, and whether one of them carries content.

Streams go on event by event, so that a stream that breaks can be ended with an event of our own. PURE: bytes in,
bytes out.
"""

import json
from collections.abc import Iterator
from enum import StrEnum

MAX_EVENT_BYTES = 1024 * 1024
"""An event longer than this goes on in pieces: nothing is held without bound."""


class EventBuffer:
    """Holds back the part of a stream after the last whole event."""

    def __init__(self) -> None:
        self._tail = b""

    @property
    def tail(self) -> bytes:
        """What has come of an event that is not whole yet."""
        return self._tail

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes and return all whole events that have not been returned yet; may be empty."""
        data = self._tail + chunk if self._tail else chunk
        end = _last_boundary(data)
        if end == 0 and len(data) > MAX_EVENT_BYTES:
            end = len(data)
        self._tail = data[end:]
        return data[:end]

    def flush(self) -> bytes:
        """Return what is held back, for a stream that ended by itself."""
        tail, self._tail = self._tail, b""
        return tail


def _last_boundary(data: bytes) -> int:
    """Return the index after the last blank line, or 0."""
    end = data.rfind(b"\n\n") + 2
    carriage = data.rfind(b"\r\n\r\n") + 4
    return max(end if end > 1 else 0, carriage if carriage > 3 else 0)  # noqa: PLR2004 - a miss is −1 plus length


class EventKind(StrEnum):
    """What the events of a stream's beginning say."""

    NOTHING = "Nothing"
    """No content yet: comments, roles, usage."""
    CONTENT = "Content"
    """The first content, or an end without any."""
    FAILED = "Failed"
    """The engine failed (code 500 or above) before any content."""


def classify(events: bytes) -> EventKind:
    """Say what whole events carry; the first that is not NOTHING counts.

    Content is a choice with text or a non-empty delta (its role aside). A finish reason, `[DONE]` and events of other
    protocols (without `choices`) count as content too: there is nothing to wait for after them.
    """
    for data in _data(events):
        kind = _kind(data)
        if kind is not EventKind.NOTHING:
            return kind
    return EventKind.NOTHING


def _data(events: bytes) -> Iterator[bytes]:
    """Yield the data of each event; lines of one event are joined."""
    for event in events.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if lines:
            yield b"\n".join(lines)


def _kind(data: bytes) -> EventKind:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return EventKind.CONTENT  # [DONE], or nothing that we could wait for more of
    if not isinstance(event, dict):
        return EventKind.CONTENT
    if isinstance(event.get("error"), dict):
        code = event["error"].get("code")
        return EventKind.FAILED if isinstance(code, int) and code >= 500 else EventKind.CONTENT  # noqa: PLR2004 - HTTP
    choices = event.get("choices")
    if not isinstance(choices, list):
        return EventKind.CONTENT
    return EventKind.CONTENT if any(map(_has_content, choices)) else EventKind.NOTHING


def _has_content(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    carried = isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")
    return bool(choice.get("text") or carried or choice.get("finish_reason"))


def count_events(events: bytes) -> int:
    """Count events with data, about: the number of lines that begin one."""
    return events.count(b"\ndata:") + events.startswith(b"data:")


def error_event(message: str, *, kind: str, code: str) -> bytes:
    """Make the event that ends a broken stream; no `[DONE]` follows it, for the answer is not whole."""
    error = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return b"data: " + json.dumps(error, separators=(",", ":")).encode() + b"\n\n"
