import json

import pytest
from multidict import CIMultiDict

from scaler.gateway.messages import (
    RequestRefused,
    answer_headers,
    guard_closed,
    model_of,
    request_headers,
    request_id,
    routable,
    unknown_model,
)


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
    ("body", "code"),
    [
        pytest.param(b"", "invalid_json", id="empty"),
        pytest.param(b"{", "invalid_json", id="cut"),
        pytest.param(b"\xff", "invalid_json", id="no text"),
        pytest.param(b"[" * 100_000, "invalid_json", id="too deep"),
        pytest.param(b"[]", "missing_model", id="a list"),
        pytest.param(b"{}", "missing_model", id="no model"),
        pytest.param(b'{"model": 7}', "missing_model", id="a number"),
        pytest.param(b'{"model": ""}', "missing_model", id="an empty name"),
    ],
)
def test_a_body_without_a_model_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        model_of(body)
    assert (refused.value.status, refused.value.code) == (400, code)


def test_the_model_is_read() -> None:
    assert model_of(b'{"messages": [], "model": "llama"}') == "llama"


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
            *(("X-Many", "2"), ("TE", "trailers"), ("Upgrade", "h2c"), ("Expect", "100-continue")),
        ]
    )
    assert sorted(request_headers(headers, "id-1").items()) == [
        ("Accept-Encoding", "identity"),
        ("Authorization", "Bearer x"),
        ("Content-Type", "application/json"),
        ("X-Many", "1"),
        ("X-Many", "2"),
        ("X-Request-Id", "id-1"),
    ]


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
    ("status", "body", "closed"),
    [
        pytest.param(503, b'{"error": {"code": "ResidentNotServing"}}', True, id="the guard"),
        pytest.param(500, b'{"error": {"code": "ResidentNotServing"}}', False, id="another status"),
        pytest.param(503, b'{"error": {"code": "Overloaded"}}', False, id="another reason"),
        pytest.param(503, b"ResidentNotServing", False, id="no JSON"),
        pytest.param(503, b'{"error": "ResidentNotServing"}', False, id="another shape"),
    ],
)
def test_a_guards_refusal_is_known(status: int, body: bytes, closed: bool) -> None:  # noqa: FBT001
    assert guard_closed(status, body) is closed
