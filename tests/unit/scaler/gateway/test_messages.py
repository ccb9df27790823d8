import json

import pytest
from multidict import CIMultiDict

from scaler.gateway.messages import (
    RequestRefused,
    answer_headers,
    check_framing,
    guard_refusal,
    priority,
    request_headers,
    request_id,
    routable,
    unknown_model,
)
from scaler.gateway.routes import Failure


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio/speech", "/v1/a.b/c-d_e:f"],
)
def test_plain_paths_below_v1_are_passed(path: str) -> None:
    assert routable(path)


@pytest.mark.parametrize(
    "path",
    [
        *("/pause", "/v1", "/v1/", "/v1/../pause", "/v1/./pause", "/v1//pause", "/v1/%2e%2e/pause"),
        *("/v1/a/..", "/v1/a\\b", "/v1x/a", "/V1/a", "/v1/a/", "/v1/a b", "/v1/a\n"),
    ],
)
def test_paths_that_might_lead_elsewhere_are_not(path: str) -> None:
    assert not routable(path)


@pytest.mark.parametrize(
    ("version", "encodings"),
    [((1, 1), ()), ((1, 0), ()), ((1, 1), ("chunked",)), ((1, 1), (" Chunked",))],
)
def test_a_request_without_coding_or_in_chunks_is_taken(
    version: tuple[int, int], encodings: tuple[str, ...]
) -> None:
    check_framing(version, encodings)


@pytest.mark.parametrize(
    ("version", "encodings", "status"),
    [
        ((1, 1), ("gzip, chunked",), 501),
        ((1, 1), ("gzip", "chunked"), 501),
        ((1, 1), ("chunked, chunked",), 501),
        ((1, 1), ("gzip",), 400),
        ((1, 1), ("chunked, gzip",), 400),
        ((1, 0), ("chunked",), 400),
        ((0, 9), (), 505),
    ],
)
def test_another_framing_is_refused_and_ends_its_connection(
    version: tuple[int, int], encodings: tuple[str, ...], status: int
) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_framing(version, encodings)
    assert (refused.value.status, refused.value.close) == (status, True)


def test_an_unknown_model_names_the_valid_ones_in_openai_style() -> None:
    refused = unknown_model("nope", ["a", "b"])
    error = json.loads(refused.body())["error"]
    assert refused.status == 404
    assert error == {
        "message": "The model `nope` does not exist. Valid models: a, b.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_only_end_to_end_headers_go_to_the_engine() -> None:
    headers = CIMultiDict(
        [
            *(("Host", "gateway"), ("Authorization", "Bearer x"), ("Connection", "close, X-Private")),
            *(("X-Private", "1"), ("Transfer-Encoding", "chunked"), ("Content-Length", "3")),
            *(("Accept-Encoding", "gzip"), ("Content-Type", "application/json"), ("X-Many", "1")),
            *(("X-Many", "2"), ("TE", "gzip"), ("Upgrade", "h2c"), ("Expect", "100-continue")),
        ]
    )
    assert sorted(request_headers(headers, "id-1", stream=False).items()) == [
        ("Accept-Encoding", "gzip"),
        ("Authorization", "Bearer x"),
        ("Content-Type", "application/json"),
        ("X-Many", "1"),
        ("X-Many", "2"),
        ("X-Request-Id", "id-1"),
    ]


def test_a_stream_is_asked_for_uncompressed() -> None:
    headers = request_headers(CIMultiDict({"Accept-Encoding": "gzip, br"}), "id-1", stream=True)
    assert headers.getall("Accept-Encoding") == ["identity"]


@pytest.mark.parametrize(
    ("takes", "asked"),
    [("trailers", True), ("gzip, Trailers", True), ("gzip", False), ("trailers;q=0", False)],
)
def test_trailers_are_asked_for_where_the_client_takes_them(*, takes: str, asked: bool) -> None:
    headers = request_headers(CIMultiDict({"TE": takes, "Connection": "TE"}), "x", stream=False)
    assert (headers.get("TE"), headers.get("Connection")) == (("trailers", "TE") if asked else (None, None))


def test_trace_context_goes_on() -> None:
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "x=1", "baggage": "k=v"}
    sent = request_headers(CIMultiDict(trace), "id-1", stream=True)
    assert {name: sent[name] for name in trace} == trace


@pytest.mark.parametrize(
    ("text", "read"),
    [(None, 0), ("", 0), ("7", 7), ("-3", -3), ("+1000", 1000)],
)
def test_a_priority_is_read(text: str | None, read: int) -> None:
    assert priority(text) == read


@pytest.mark.parametrize("text", ["high", "1.5", "1001", "-1001", "9" * 5000, "١", " 1"])
def test_a_priority_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        priority(text)
    assert (refused.value.status, refused.value.code) == (400, "invalid_priority")


@pytest.mark.parametrize(("whole", "length"), [(True, None), (False, "7")])
def test_an_answers_length_goes_on_only_with_its_own_body(whole: bool, length: str | None) -> None:  # noqa: FBT001
    headers = CIMultiDict({"Content-Length": "7", "Keep-Alive": "timeout=5", "X-Request-Id": "other"})
    forwarded = answer_headers(headers, "id-1", whole=whole)
    assert forwarded.get("Content-Length") == length
    assert "Keep-Alive" not in forwarded
    assert forwarded.getall("X-Request-Id") == ["id-1"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param("abc-123", True, id="sane"),
        pytest.param("", False, id="empty"),
        pytest.param("a b", False, id="a space"),
        pytest.param("x" * 129, False, id="too long"),
    ],
)
def test_a_sane_request_id_is_kept(given: str, kept: bool) -> None:  # noqa: FBT001
    identity = request_id(CIMultiDict({"x-request-id": given}))
    assert identity
    assert (identity == given) is kept


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        pytest.param(503, b'{"error": {"code": "ResidentNotServing"}}', Failure.NOT_SERVING, id="closed"),
        pytest.param(503, b'{"error": {"code": "EngineUnreachable"}}', Failure.NOT_CONNECTED, id="no engine"),
        pytest.param(500, b'{"error": {"code": "ResidentNotServing"}}', None, id="another status"),
        pytest.param(503, b'{"error": {"code": "Overloaded"}}', None, id="another reason"),
        pytest.param(503, b"ResidentNotServing", None, id="no JSON"),
        pytest.param(503, b'{"error": "ResidentNotServing"}', None, id="another shape"),
    ],
)
def test_a_guards_refusal_is_known(status: int, body: bytes, failure: Failure | None) -> None:
    assert guard_refusal(status, body) is failure
