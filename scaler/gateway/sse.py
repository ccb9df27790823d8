"""Server-sent events as they pass: whole events, and whether one of them carries content.

Streams go on event by event, so that a stream that breaks can be ended with an event of our own. PURE: bytes in,
bytes out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

MAX_EVENT_BYTES: Final = 1024 * 1024
"""An event longer than this goes on in pieces: nothing is held without bound."""

_PRELUDES: Final = frozenset(
    {
        *("response.created", "response.queued", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *("response.reasoning_part.added", "response.reasoning_summary_part.added"),
        *("message_start", "content_block_start", "ping"),
    }
)
"""Types of events that come before any content: of OpenAI's Responses API (its reference, "Streaming events") and of
Anthropic's Messages API (its documentation, "Streaming messages"), which engines serve as well."""
_FAILED_TYPES: Final = frozenset({"error", "response.failed"})
"""Types of events of the same two that say that the engine failed."""
_MISTAKES: Final = frozenset(
    {
        *("invalid_request_error", "invalid_prompt", "not_found_error", "authentication_error"),
        *("permission_error", "request_too_large", "BadRequestError", "NotFoundError", "Bad Request"),
    }
)
"""Types and codes of errors that are the client's own: OpenAI's, Anthropic's, vLLM's and SGLang's words for a bad request."""
_DONE: Final = b"[DONE]"
"""What ends a stream of events without a type."""
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "message_stop"})
"""Types of events that end a stream, of the same two APIs."""
_LONGEST_END: Final = 256 * 1024
"""An event that ends a stream may hold the whole answer once more; one that is longer isn't looked for."""
_TYPED_PATHS: Final = ("/responses", "/messages")
"""Ends of paths whose streams have events with a type, errors among them."""


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
        if not self._tail and chunk.endswith(b"\n\n"):
            return chunk  # nearly every chunk of nearly every engine
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
    """No content yet: comments, roles, usage, announcements."""
    CONTENT = "Content"
    """The first content, an end without any, or the client's own mistake."""
    FAILED = "Failed"
    """The engine failed before any content."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What the events of a stream's beginning say.

    Attributes:
        kind: in a word.
        error: the engine's error, where it failed.
    """

    kind: EventKind
    error: Mapping[str, Any] | None = None


_NOTHING: Final = Begun(EventKind.NOTHING)
_CONTENT: Final = Begun(EventKind.CONTENT)


def classify(events: bytes) -> Begun:
    """Say what whole events carry; the first that is not NOTHING counts.

    Content is a choice with text or a non-empty delta (its role aside). A finish reason, `[DONE]` and events of unknown
    protocols count as content too: there is nothing to wait for after them. So does an error that names a mistake of the
    client, for no other engine would take the request; any other error is the engine's failure.
    """
    for data in _data(events):
        begun = _begun(data)
        if begun.kind is not EventKind.NOTHING:
            return begun
    return _NOTHING


def _data(events: bytes) -> Iterator[bytes]:
    """Yield the data of each event; lines of one event are joined."""
    for event in events.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if lines:
            yield b"\n".join(lines)


def _begun(data: bytes) -> Begun:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return _CONTENT  # [DONE], or nothing that we could wait for more of
    if not isinstance(event, dict):
        return _CONTENT
    error = _error(event)
    if error is not None:
        return _CONTENT if _is_mistake(error) else Begun(EventKind.FAILED, error)
    choices = event.get("choices")
    if isinstance(choices, list):
        return _CONTENT if any(map(_has_content, choices)) else _NOTHING
    return _NOTHING if event.get("type") in _PRELUDES else _CONTENT


def _error(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the error that an event tells of, as an object with at least a message, or None."""
    told = event.get("error")
    if not told and event.get("type") == "response.failed":
        response = event.get("response")
        told = response.get("error") if isinstance(response, dict) else None
    if isinstance(told, dict):
        return told
    if told or event.get("type") in _FAILED_TYPES or event.get("object") == "error":
        # an error whose event is the error itself, or a mere sentence
        return {**event, "message": told if isinstance(told, str) else event.get("message", "")}
    return None


def _is_mistake(error: Mapping[str, Any]) -> bool:
    """Whether an error is the client's: its code is a status from 400 to 499, or it has a name for such mistakes."""
    code = error.get("code")
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    if isinstance(code, int):
        return 400 <= code < 500  # noqa: PLR2004 - HTTP
    return code in _MISTAKES or error.get("type") in _MISTAKES


def _has_content(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    carried = isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")
    return bool(choice.get("text") or carried or choice.get("finish_reason"))


def ends_stream(events: bytes) -> bool:
    """Whether the last of some whole events is the one that ends its stream: nothing of the answer can be missing then."""
    last = list(_data(events[-_LONGEST_END:]))[-1:]
    if last == [_DONE]:
        return True
    try:
        event = json.loads(b"".join(last))
    except (ValueError, RecursionError):
        return False
    return isinstance(event, dict) and event.get("type") in _ENDS


def count_events(events: bytes) -> int:
    """Count events with data, about: the number of lines that begin one."""
    return events.count(b"\ndata:") + events.startswith(b"data:")


def error_event(error: Mapping[str, Any], path: str) -> bytes:
    """Make the event that ends a broken stream; no `[DONE]` follows it, for the answer is not whole.

    Args:
        error: in OpenAI's style, with `message`, `type`, `param` and `code`.
        path: the request's; streams of typed events get one with the type `error`, which clients of both APIs read.
    """
    if path.partition("?")[0].endswith(_TYPED_PATHS):
        typed = {"type": "error", "message": error["message"], "code": error["code"], "error": error}
        return b"event: error\ndata: " + _json(typed) + b"\n\n"
    return b"data: " + _json({"error": error}) + b"\n\n"


def comment(text: str) -> bytes:
    """Make a comment, which clients ignore and which keeps connections alive."""
    return f": {text}\n\n".encode()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
