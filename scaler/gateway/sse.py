"""Server-sent events as they pass: whole events, and whether one of them carries content.

Streams go on event by event, so that a stream that breaks can be ended with an event of our own. PURE: bytes in,
bytes out.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
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
"""Types of events of the same two that say that the engine failed; engines name events so as well (`event: error`)."""
_FAILED_ENDS: Final = frozenset({"abort", "error"})
"""Reasons to finish by which vLLM and SGLang tell that the engine has given a request up."""
_MISTAKES: Final = frozenset(
    {
        *("invalid_request_error", "invalid_prompt", "not_found_error", "authentication_error"),
        *("permission_error", "request_too_large", "BadRequestError", "NotFoundError", "Bad Request"),
        "validation",
    }
)
"""Types and codes of errors that are the client's own: OpenAI's, Anthropic's, vLLM's, SGLang's and TGI's words for a bad request."""
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
    client, for no other engine would take the request; any other error is the engine's failure, and so is an end
    before any content by which the engine gives the request up.
    """
    for name, data in _events(events):
        begun = _begun(name, data)
        if begun.kind is not EventKind.NOTHING:
            return begun
    return _NOTHING


def _events(events: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of each event that has data; an event's lines of data are joined, and most have no name."""
    for event in (events.replace(b"\r\n", b"\n") if b"\r" in events else events).split(b"\n\n"):
        if event.startswith(b"data:") and b"\n" not in event:  # as nearly all are
            yield "", event[5:].strip()
            continue
        lines = event.split(b"\n")
        data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
        if data:
            names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
            yield b"".join(names[-1:]).decode("utf-8", "replace"), b"\n".join(data)


def _begun(name: str, data: bytes) -> Begun:
    try:
        event = json.loads(data.decode())
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        if name in _FAILED_TYPES:
            return Begun(EventKind.FAILED, {"message": data.decode("utf-8", "replace")})
        return _CONTENT  # [DONE], or nothing that we could wait for more of
    kind = _word(event.get("type")) or name
    error = _error(event, kind)
    if error is not None:
        return _CONTENT if _is_mistake(error) else Begun(EventKind.FAILED, error)
    choices = event.get("choices")
    if isinstance(choices, list):
        return _chosen(choices)
    return _NOTHING if kind in _PRELUDES else _CONTENT


def _error(event: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the error that an event of a type tells of, as an object with at least a message, or None."""
    told = event.get("error")
    if not told and kind == "response.failed":
        response = event.get("response")
        told = response.get("error") if isinstance(response, dict) else None
    if isinstance(told, dict):
        return told
    if told or kind in _FAILED_TYPES or event.get("object") == "error":
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
    return any(_word(said) in _MISTAKES for said in (code, error.get("type"), error.get("error_type")))


def _chosen(choices: Sequence[object]) -> Begun:
    """Say what the choices of one event carry."""
    there = [choice for choice in choices if isinstance(choice, dict)]
    if any(map(_has_content, there)):
        return _CONTENT
    ends = [end for choice in there if (end := choice.get("finish_reason"))]
    if not ends:
        return _NOTHING
    if any(_word(end) not in _FAILED_ENDS for end in ends):
        return _CONTENT
    return Begun(EventKind.FAILED, {"message": f"the engine gave the request up: {ends[0]}"})


def _has_content(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    carried = isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")
    return bool(choice.get("text") or carried)


def ends_stream(events: bytes) -> bool:
    """Whether the last of some whole events is the one that ends its stream: nothing of the answer can be missing then."""
    last = b"".join(data for _, data in list(_events(events[-_LONGEST_END:]))[-1:])
    if last == _DONE:
        return True
    try:
        event = json.loads(last)
    except (ValueError, RecursionError):
        return False
    return isinstance(event, dict) and _word(event.get("type")) in _ENDS


def _word(value: object) -> str:
    """Return what should be a word, or an empty one where it isn't."""
    return value if isinstance(value, str) else ""


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
