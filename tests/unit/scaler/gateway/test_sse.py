import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.sse import MAX_EVENT_BYTES, EventBuffer, EventKind, classify, count_events, error_event


def data(event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


ROLE = data({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
USAGE = data({"choices": [], "usage": {"prompt_tokens": 1}})


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        pytest.param(b"", EventKind.NOTHING, id="nothing"),
        pytest.param(b": ping\n\n", EventKind.NOTHING, id="a comment"),
        pytest.param(ROLE, EventKind.NOTHING, id="a role"),
        pytest.param(USAGE, EventKind.NOTHING, id="usage alone"),
        pytest.param(data({"choices": [{"text": ""}]}), EventKind.NOTHING, id="empty text"),
        pytest.param(data({"choices": [None]}), EventKind.NOTHING, id="a choice that is none"),
        pytest.param(data({"choices": [{"text": "="}]}), EventKind.CONTENT, id="text"),
        pytest.param(data({"choices": [{"delta": {"content": "a"}}]}), EventKind.CONTENT, id="delta"),
        pytest.param(data({"choices": [{"delta": {"reasoning": "a"}}]}), EventKind.CONTENT, id="reasoning"),
        pytest.param(data({"choices": [{"delta": {"tool_calls": [{}]}}]}), EventKind.CONTENT, id="tool call"),
        pytest.param(data({"choices": [{"finish_reason": "stop"}]}), EventKind.CONTENT, id="an end"),
        pytest.param(b"data: [DONE]\n\n", EventKind.CONTENT, id="done"),
        pytest.param(data({"type": "response.created"}), EventKind.CONTENT, id="another protocol"),
        pytest.param(data({"error": {"code": 500}}), EventKind.FAILED, id="an engine's failure"),
        pytest.param(data({"error": {"code": 400}}), EventKind.CONTENT, id="a client's mistake"),
        pytest.param(ROLE + data({"choices": [{"text": "a"}]}), EventKind.CONTENT, id="role, then text"),
        pytest.param(ROLE.replace(b"\n", b"\r\n"), EventKind.NOTHING, id="carriage returns"),
        pytest.param(b"event: x\ndata: {\ndata: }\n\n", EventKind.CONTENT, id="data on two lines"),
    ],
)
def test_events_are_told_apart(events: bytes, kind: EventKind) -> None:
    assert classify(events) is kind


@given(st.lists(st.binary(max_size=20), max_size=8), st.sampled_from([b"\n\n", b"\r\n\r\n"]), st.data())
def test_bytes_pass_unchanged_and_in_whole_events(
    events: list[bytes], boundary: bytes, draw: st.DataObject
) -> None:
    stream = (
        b"".join(b"e" + event.replace(b"\n", b"").replace(b"\r", b"") + boundary for event in events)
        + b"tail"
    )
    buffer = EventBuffer()
    passed = b""
    rest = stream
    while rest:
        size = draw.draw(st.integers(1, len(rest)))
        chunk, rest = rest[:size], rest[size:]
        passed += buffer.feed(chunk)
        assert passed == b"" or passed.endswith(boundary)
    assert passed == stream[: -len(b"tail")]
    assert passed + buffer.flush() == stream


def test_an_endless_event_is_not_held() -> None:
    buffer = EventBuffer()
    assert buffer.feed(b"x" * MAX_EVENT_BYTES) == b""
    assert len(buffer.feed(b"x")) == MAX_EVENT_BYTES + 1


def test_events_are_counted() -> None:
    assert count_events(ROLE + USAGE + b": ping\n\n") == 2


def test_an_error_event_is_one_whole_event_that_clients_can_read() -> None:
    event = error_event("cut\n\noff", kind="server_error", code="StreamCut")
    assert event.startswith(b"data: ")
    assert event.count(b"\n\n") == 1
    assert json.loads(event[6:])["error"]["code"] == "StreamCut"
