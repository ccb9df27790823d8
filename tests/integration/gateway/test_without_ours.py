"""Without a gateway of ours: a recorded nginx, in front of guards, goes past a resident that doesn't serve."""

import json

import pytest

from scaler.gateway.bench.client import body_of
from tests.integration.gateway import flow

RECORDED = json.loads(flow.RECORD.read_text("utf-8"))
CHANGING = ("date:", "server:")


def fixed(raw: bytes) -> list[str]:
    """Return an answer's head without what differs from run to run."""
    head, _, _ = raw.partition(b"\r\n\r\n")
    return sorted(
        line.lower() for line in head.decode().split("\r\n") if not line.lower().startswith(CHANGING)
    )


async def test_guards_answer_nginx_as_it_needs_to_go_elsewhere() -> None:
    async with flow.guards() as (_, _, closed, opened):
        refusal = await flow.exchange(closed, RECORDED["toClosed"].encode())
        assert fixed(refusal) == fixed(RECORDED["fromClosed"].encode())
        assert refusal.startswith(b"HTTP/1.1 503 ")
        sent = RECORDED["toOpen"].replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)
        assert body_of(await flow.exchange(opened, sent.encode())) == flow.expected()


def test_the_recorded_client_saw_nothing_of_the_resident_that_did_not_serve() -> None:
    got = RECORDED["got"].encode()
    assert got.startswith(b"HTTP/1.1 200 ")
    assert body_of(got) == flow.expected()


@pytest.mark.skipif(flow.NGINX is None, reason="nginx isn't here")
async def test_nginx_still_does_as_it_did() -> None:
    assert flow.NGINX is not None
    now = await flow.flow(flow.NGINX)
    assert {side: fixed(now[side].encode()) for side in now} == {
        side: fixed(text.encode()) for side, text in RECORDED.items()
    }
    assert body_of(now["got"].encode()) == flow.expected()
