import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.sse import (
    MAX_EVENT_BYTES,
    EventBuffer,
    EventKind,
    classify,
    comment,
    ends_stream,
    error_event,
)


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
        pytest.param(data({"type": "response.created"}), EventKind.NOTHING, id="a response announced"),
        pytest.param(
            data({"type": "response.output_text.delta", "delta": "a"}), EventKind.CONTENT, id="its text"
        ),
        pytest.param(data({"type": "response.failed"}), EventKind.FAILED, id="its failure"),
        pytest.param(data({"type": "message_start", "message": {}}), EventKind.NOTHING, id="a message"),
        pytest.param(data({"type": "content_block_delta"}), EventKind.CONTENT, id="its text too"),
        pytest.param(data({"type": "of another protocol"}), EventKind.CONTENT, id="another protocol"),
        pytest.param(data({"error": {"code": 500}}), EventKind.FAILED, id="an engine's failure"),
        pytest.param(data({"error": {"code": "500"}}), EventKind.FAILED, id="a code in words"),
        pytest.param(data({"error": {"message": "x"}}), EventKind.FAILED, id="a failure without a code"),
        pytest.param(data({"error": {"code": None, "type": "x"}}), EventKind.FAILED, id="a null code"),
        pytest.param(data({"error": {"code": "ResidentNotServing"}}), EventKind.FAILED, id="the guard"),
        pytest.param(data({"error": "out of memory"}), EventKind.FAILED, id="a sentence"),
        pytest.param(data({"object": "error", "message": "x", "code": 500}), EventKind.FAILED, id="itself"),
        pytest.param(data({"type": "error", "message": "x"}), EventKind.FAILED, id="a typed failure"),
        pytest.param(data({"error": {"code": 400}}), EventKind.CONTENT, id="a client's mistake"),
        pytest.param(data({"error": {"code": "400"}}), EventKind.CONTENT, id="the same in words"),
        pytest.param(
            data({"error": {"code": None, "type": "invalid_request_error"}}),
            EventKind.CONTENT,
            id="a mistake by its type",
        ),
        pytest.param(data({"error": None, "choices": [{"text": "a"}]}), EventKind.CONTENT, id="no error"),
        pytest.param(ROLE + data({"error": {"code": 503}}), EventKind.FAILED, id="role, then failure"),
        pytest.param(ROLE + data({"choices": [{"text": "a"}]}), EventKind.CONTENT, id="role, then text"),
        pytest.param(ROLE.replace(b"\n", b"\r\n"), EventKind.NOTHING, id="carriage returns"),
        pytest.param(b"event: x\ndata: {\ndata: }\n\n", EventKind.CONTENT, id="data on two lines"),
        pytest.param(
            b'event: error\ndata: {"message": "x"}\n\n', EventKind.FAILED, id="a failure by its name"
        ),
        pytest.param(b"event: error\ndata: out of memory\n\n", EventKind.FAILED, id="a sentence by its name"),
        pytest.param(b'event: error\ndata: {"code": 400}\n\n', EventKind.CONTENT, id="a mistake by its name"),
        pytest.param(b"event: ping\ndata: {}\n\n", EventKind.NOTHING, id="a ping by its name"),
        pytest.param(
            data({"error": "x", "error_type": "validation"}), EventKind.CONTENT, id="a sentence's kind"
        ),
        pytest.param(
            ROLE + data({"choices": [{"delta": {}, "finish_reason": "abort"}]}),
            EventKind.FAILED,
            id="given up",
        ),
        pytest.param(
            data({"choices": [{"text": "", "finish_reason": "error"}]}),
            EventKind.FAILED,
            id="ended by an error",
        ),
        pytest.param(
            data({"choices": [{"text": "a", "finish_reason": "abort"}]}),
            EventKind.CONTENT,
            id="given up with a text",
        ),
        pytest.param(
            data({"choices": [{"finish_reason": "abort"}, {"finish_reason": "stop"}]}),
            EventKind.CONTENT,
            id="one of two given up",
        ),
        pytest.param(data({"type": {}, "error": {"type": [], "code": {}}}), EventKind.FAILED, id="no words"),
        pytest.param(data({"choices": [{"finish_reason": {}}]}), EventKind.NOTHING, id="an end that is none"),
    ],
)
def test_events_are_told_apart(events: bytes, kind: EventKind) -> None:
    assert classify(events).kind is kind


@pytest.mark.parametrize(
    "event",
    [
        pytest.param({"error": {"message": "why"}}, id="chat"),
        pytest.param({"error": "why"}, id="a sentence"),
        pytest.param({"type": "error", "error": "why"}, id="a typed sentence"),
        pytest.param({"object": "error", "message": "why"}, id="itself"),
        pytest.param({"type": "error", "message": "why"}, id="responses"),
        pytest.param({"type": "response.failed", "response": {"error": {"message": "why"}}}, id="failed"),
        pytest.param({"type": "error", "error": {"type": "api_error", "message": "why"}}, id="messages"),
    ],
)
def test_an_engines_failure_says_why(event: object) -> None:
    error = classify(data(event)).error
    assert error is not None
    assert error["message"] == "why"


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


ERROR = {"message": "cut\n\noff", "type": "server_error", "param": None, "code": "StreamCut"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions?x=/responses", "/v1/responses"])
def test_an_error_event_is_one_whole_event_that_clients_can_read(path: str) -> None:
    event = error_event(ERROR, path)
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    (found,) = [line[6:] for line in event.splitlines() if line.startswith(b"data: ")]
    assert json.loads(found)["error"] == ERROR


def test_an_error_of_a_typed_stream_has_a_type() -> None:
    event = error_event(ERROR, "/v1/responses?a=b")
    assert event.startswith(b"event: error\ndata: ")
    assert json.loads(event.splitlines()[1][6:])["type"] == "error"


def test_an_error_event_is_never_taken_for_content() -> None:
    for path in ("/v1/completions", "/v1/responses", "/v1/messages"):
        assert classify(error_event(ERROR, path)).kind is EventKind.FAILED


def test_a_comment_is_no_event() -> None:
    assert classify(comment("waiting")).kind is EventKind.NOTHING
    assert comment("waiting").endswith(b"\n\n")


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        (ROLE + b"data: [DONE]\n\n", True),
        (b"data: [DONE]\r\n\r\n", True),
        (b"data: [DONE]\n\n: ping\n\n", True),
        (b'event: message_stop\ndata: {"type": "message_stop"}\n\n', True),
        (b'data: {"type": "response.completed", "response": {}}\n\n', True),
        (b"data: [DONE]\n\n" + ROLE, False),
        (ROLE, False),
        (b'data: "[DONE]"\n\n', False),
        (b": ping\n\n", False),
        (b"", False),
        (b"data: {" + b"x" * MAX_EVENT_BYTES + b"\n\n", False),
    ],
)
def test_a_stream_says_itself_where_it_ends(events: bytes, ends: bool) -> None:  # noqa: FBT001
    assert ends_stream(events) is ends
