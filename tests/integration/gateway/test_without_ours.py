"""Without a gateway of ours: nginx and Envoy, as recorded and as they are here, go past a resident that doesn't serve."""

import json
import shutil
from typing import Any

import pytest

from scaler.gateway.bench.client import body_of
from tests.integration.gateway import flow
from tests.integration.gateway.mortal import Death, Mortal

CHANGING = ("date:", "server:", "x-request-id:", "x-envoy-upstream-service-time:")
recorded = pytest.mark.parametrize("name", list(flow.FRONTS))
live = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} isn't here"))
        for name in flow.FRONTS
    ],
)
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def record(name: str) -> dict[str, Any]:
    return dict(json.loads(flow.record(name).read_text("utf-8")))


def fixed(raw: bytes) -> list[str]:
    """Return an answer's head without what differs from run to run."""
    head, _, _ = raw.partition(b"\r\n\r\n")
    return sorted(
        line.lower() for line in head.decode().split("\r\n") if not line.lower().startswith(CHANGING)
    )


@recorded
async def test_guards_answer_as_it_needs_to_go_elsewhere(name: str) -> None:
    known = record(name)
    async with flow.guards() as (_, _, closed, opened):
        refusal = await flow.exchange(closed, known["toClosed"].encode())
        assert fixed(refusal) == fixed(known["fromClosed"].encode())
        assert refusal.startswith(b"HTTP/1.1 503 ")
        sent = known["toOpen"].replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)
        assert body_of(await flow.exchange(opened, sent.encode())) == flow.expected()


@recorded
def test_the_recorded_client_saw_nothing_of_the_resident_that_did_not_serve(name: str) -> None:
    got = record(name)["got"].encode()
    assert got.startswith(b"HTTP/1.1 200 ")
    assert body_of(got) == flow.expected()


@live
async def test_it_still_does_as_it_did(name: str) -> None:
    known, now = record(name), await flow.flow(name)
    assert {side: fixed(now[side].encode()) for side in now} == {
        side: fixed(text.encode()) for side, text in known.items()
    }
    assert body_of(now["got"].encode()) == flow.expected()


@live
async def test_an_engine_that_breaks_off_before_it_answers_is_one_of_several_for_nginx_alone(
    name: str,
) -> None:
    """What docs/gateway.md says of computing twice."""
    async with Mortal(b"", Death.ORDERLY).serve() as dying, Mortal(WHOLE).serve() as living:
        async with flow.front(name, dying.port, living.port) as port:
            answers = [await flow.first_answer(port)]
            while not dying.asked:
                answers.append(await flow.exchange(port, flow.ASKED))
        statuses = [int(each[9:12]) for each in answers]
        if name == "nginx":
            assert set(statuses) == {200}
            assert living.asked == len(answers), "the one that broke off was asked as well"
        else:
            assert statuses[-1] == 503
            assert living.asked == len(answers) - 1, "nobody computed it twice"


@pytest.mark.skipif(shutil.which("envoy") is None, reason="envoy isn't here")
@pytest.mark.parametrize(("mib", "status"), [(0.5, 200), (1.5, 503)])
async def test_envoy_tries_a_prompt_again_as_far_as_its_buffer_goes(mib: float, status: int) -> None:
    body = json.dumps({"model": "m", "prompt": "x" * int(mib * 2**20), "seed": 7, "max_tokens": 1}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    async with flow.guards() as (_, _, closed, opened), flow.front("envoy", closed, opened) as port:
        await flow.first_answer(port)
        answers = {int((await flow.exchange(port, head % len(body) + body))[9:12]) for _ in range(2)}
    assert answers == {200, status}
