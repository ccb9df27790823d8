"""What a server may answer, good and odd, and what each answer reads as: a fake one, for no real one answers so."""

import asyncio
import base64
import json
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scaler.errors import SignalError
from scaler.policy.signals import Authorization, Basic, Measures, Prometheus, Tls
from scaler.signals.port import Part
from scaler.signals.prometheus import (
    LARGEST_IN_FLIGHT,
    PrometheusServer,
    PrometheusServers,
    PrometheusSource,
    ServerSettings,
)
from scaler.signals.prometheus_http import LARGEST_ANSWER_BYTES
from tests.integration.signals.rig import Word, certificate, key, running

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TIMEOUT = 20.0


@asynccontextmanager
async def serving(handler: Handler, **site: Any) -> AsyncIterator[str]:
    """Serve queries; yield the base URL."""
    app = web.Application()
    app.router.add_get("/api/v1/query", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        tcp = web.TCPSite(runner, "127.0.0.1", 0, **site)
        await tcp.start()
        port = runner.addresses[0][1]
        yield f"{'https' if site else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def answering(
    body: Any = None, *, status: int = 200, kind: str = "application/json", **headers: str
) -> Handler:
    """Return a handler that always answers the same."""

    async def handler(_: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(body=text, status=status, headers={"Content-Type": kind, **headers})

    return handler


def success(result: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def vector(*values: str, at: float | None = None) -> dict[str, Any]:
    now = time.time() if at is None else at
    return success([{"metric": {"n": str(i)}, "value": [now, value]} for i, value in enumerate(values)])


def signal(url: str | None, measures: Measures = Measures.REQUESTS, **fields: Any) -> Prometheus:
    fields = {"query": "sum(x)", "interval_seconds": 1, "timeout_seconds": 1, **fields}
    return Prometheus(type="Prometheus", name="queue", server=url, measures=measures, **fields)


async def word(url: str | None, servers: PrometheusServers | None = None, **fields: Any) -> Word:
    """Return the first thing that a source says, however long the server takes."""
    patient = {"interval_seconds": 20, "timeout_seconds": 20, **fields}
    source = PrometheusSource(key(), signal(url, **patient), servers or PrometheusServers())
    async with running(source) as heard:
        return await heard.until(lambda _: True, "a word")


async def why(url: str, **fields: Any) -> str:
    """Return why there is no reading, without the server's name."""
    found = await word(url, **fields)
    assert found.parts is None
    return found.why.removeprefix(f"{url.partition('//')[2]}: ")


def settings(url: str, authorization: Authorization | None = None, tls: Tls | None = None) -> ServerSettings:
    return ServerSettings(url=url, authorization=authorization or Authorization(), tls=tls or Tls())


@asynccontextmanager
async def server_at(url: str, **how: Any) -> AsyncIterator[PrometheusServer]:
    server = PrometheusServer(settings(url, **how))
    try:
        yield server
    finally:
        await server.close()


# ------------------------------------------------------------------ good answers


@pytest.mark.parametrize(
    ("measures", "part"),
    [
        (Measures.REQUESTS, Part.REQUESTS),
        (Measures.QUEUE_DEPTH, Part.QUEUED),
        (Measures.QUEUE_AGE_SECONDS, Part.OLDEST_WAIT_SECONDS),
        (Measures.TTFT_SHARE_OVER_OBJECTIVE, Part.LATE_SHARE),
    ],
)
async def test_a_number_becomes_what_it_measures(measures: Measures, part: Part) -> None:
    async with serving(answering(vector("0.25"))) as url:
        assert (await word(url, measures=measures)).parts == {part: 0.25}


async def test_a_scalar_and_a_vector_of_one_are_the_same() -> None:
    async with serving(answering(success([time.time(), "3"]))) as url:
        assert (await word(url)).parts == {Part.REQUESTS: 3.0}


async def test_a_reading_is_as_old_as_the_sample() -> None:
    asked = time.monotonic()
    async with serving(answering(vector("3", at=time.time() - 100))) as url:
        found = await word(url)
    assert found.at == pytest.approx(asked - 100, abs=3)


async def test_the_query_and_the_time_that_it_may_take_are_sent_and_connections_are_kept() -> None:
    asked: list[tuple[dict[str, str], tuple[str, int]]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append((dict(request.query), request.transport.get_extra_info("peername")))  # type: ignore[union-attr]
        return await answering(vector("1"))(request)

    async with serving(handler) as url, server_at(f"{url}/") as server:
        for _ in range(3):
            await server.ask('sum(x{a="b&c"})', TIMEOUT)
    queries, peers = zip(*asked, strict=True)
    assert {query["query"] for query in queries} == {'sum(x{a="b&c"})'}
    assert {query["partial_response"] for query in queries} == {"false"}
    assert all(1000 < int(query["timeout"].removesuffix("ms")) <= 20_000 for query in queries)
    assert len(set(peers)) == 1


# ------------------------------------------------------------------ who asks


async def headers_of(authorization: Authorization, rotate: Callable[[], object]) -> list[str | None]:
    """Ask, rotate the secret, and ask again."""
    headers: list[str | None] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        headers.append(request.headers.get("Authorization"))
        return await answering(vector("1"))(request)

    async with serving(handler) as url, server_at(url, authorization=authorization) as server:
        await server.ask("x", TIMEOUT)
        rotate()
        await server.ask("x", TIMEOUT)
    return headers


async def test_a_bearer_token_is_read_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    headers = await headers_of(Authorization(bearer_token_file=str(file)), lambda: file.write_text("second"))
    assert headers == ["Bearer first", "Bearer second"]


async def test_a_password_is_read_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("erst€\n", encoding="utf-8")
    authorization = Authorization(basic=Basic(username="us", password_file=str(file)))
    headers = await headers_of(authorization, lambda: file.write_text("zweit"))
    assert [base64.b64decode((header or "").removeprefix("Basic ")).decode() for header in headers] == [
        "us:erst€",
        "us:zweit",
    ]


async def test_without_authorization_none_is_sent_whatever_the_environment_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    assert await headers_of(Authorization(), lambda: None) == [None, None]


async def test_a_token_that_cannot_be_read_is_named_and_nothing_is_asked(tmp_path: Path) -> None:
    asked = 0

    async def handler(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response()

    file = tmp_path / "token"
    async with serving(handler) as url:
        said = await why(url, authorization=Authorization(bearer_token_file=str(file)))
    assert said == f"{file} can't be read: no such file or directory"
    assert asked == 0


async def test_a_secret_that_a_server_repeats_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cr3t")

    async def handler(request: web.Request) -> web.StreamResponse:
        body = {"status": "error", "error": f"no user s3cr3t with {request.headers['Authorization']}"}
        return await answering(body, status=400)(request)

    async with serving(handler) as url:
        said = await why(url, authorization=Authorization(basic=Basic(username="u", password_file=str(file))))
    assert said == "answers 400 Bad Request: no user … with Basic …"


async def test_credentials_in_an_address_are_never_shown() -> None:
    async with serving(answering({}, status=500)) as url:
        servers = PrometheusServers(url.replace("http://", "http://us:s3cr3t@"))  # as `--prometheus` has it
        found = await word(None, servers)
    assert found.why.startswith(f"{url.partition('//')[2]}: ")


async def test_no_cookie_is_sent_back() -> None:
    cookies: list[str | None] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        cookies.append(request.headers.get("Cookie"))
        return await answering(vector("1"), **{"Set-Cookie": "session=1"})(request)

    async with serving(handler) as url, server_at(url) as server:
        for _ in range(2):
            await server.ask("x", TIMEOUT)
    assert cookies == [None, None]


# ------------------------------------------------------------------ answers that are no reading


async def test_an_answer_without_one_number_is_no_reading() -> None:
    async with serving(answering(success([]))) as url:
        assert "the query gives no series, which is not zero" in await why(url)
    async with serving(answering(vector("1", "2"))) as url:
        assert "the query gives 2 series and one is wanted" in await why(url)
    async with serving(answering(vector("NaN"))) as url:
        assert "the query gives NaN, as 0/0 does" in await why(url)


async def test_an_answer_of_a_clock_that_is_wrong_is_refused() -> None:
    async with serving(answering(vector("1", at=time.time() - 3600))) as url:
        assert "s old by its own time: do the clocks here and on the server agree?" in await why(url)
    async with serving(answering(vector("1", at=time.time() + 3600))) as url:
        assert "s ahead by its own time: do the clocks here and on the server agree?" in await why(url)


async def test_a_share_of_nothing_is_no_reading_and_no_failure() -> None:
    async with serving(answering(vector("NaN"))) as url:
        assert (await word(url, measures=Measures.TTFT_SHARE_OVER_OBJECTIVE)).parts == {}


ERROR = {"status": "error", "errorType": "bad_data", "error": "parse error:\n unexpected\t'}'"}


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        pytest.param(answering(ERROR, status=400), "answers 400 Bad Request: parse error: unexpected '}'", id="bad query"),
        pytest.param(answering(ERROR, status=422), "answers 422 Unprocessable Entity: parse error: unexpected '}'", id="422"),
        pytest.param(answering({**ERROR, "error": "x" * 999}, status=400), f"answers 400 Bad Request: {'x' * 199}…", id="long"),
        pytest.param(answering({**ERROR, "error": "query timed out"}, status=503), "answers 503 Service Unavailable: query timed out", id="503"),
        pytest.param(answering(ERROR), "answers with an error: parse error: unexpected '}'", id="error with 200"),
        pytest.param(answering(b"<html>", status=502, kind="text/html"), "answers 502 Bad Gateway, as text/html", id="502"),
        pytest.param(answering(b"<html>", kind="text/html; charset=utf-8"), "answers text/html and not JSON: is this a Prometheus?", id="html"),
        pytest.param(answering(b"{", kind="application/json"), "the answer is broken JSON: is this a Prometheus?", id="broken"),
        pytest.param(answering(b"[" * 100_000), "the answer is JSON that is nested too deeply: is this a Prometheus?", id="deep"),
        pytest.param(answering({"status": "success"}), "the answer is JSON of something else: is this a Prometheus?", id="other"),
        pytest.param(answering([1]), "the answer is JSON of something else: is this a Prometheus?", id="list"),
        pytest.param(answering(b"", status=401), "answers 401 Unauthorized: does the policy's authorization fit?", id="401"),
        pytest.param(answering(b"", status=404, kind="text/plain"), "answers 404 Not Found: is there a Prometheus at this path?", id="404"),
        pytest.param(answering(b"", status=429, kind="text/plain", **{"Retry-After": "30"}), "answers 429 Too Many Requests, as text/plain", id="429"),
        pytest.param(
            answering(b"", status=302, Location="http://us:pw@elsewhere:1/login?token=t"),
            "answers 302 and points to http://elsewhere:1/login: name that one as the server, if it is the right one",
            id="redirect",
        ),
        pytest.param(
            answering(b" " * (LARGEST_ANSWER_BYTES + 1)),
            "the answer is larger than 1 MiB, and one number is wanted: put sum(…) around the query",
            id="huge",
        ),
    ],
)  # fmt: skip
async def test_answers_that_are_no_good_ones(handler: Handler, said: str) -> None:
    async with serving(handler) as url:
        assert await why(url) == said


async def test_nothing_is_asked_twice_within_one_round() -> None:
    asked = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await answering(b"", status=503, **{"Retry-After": "0"})(request)

    async with serving(handler) as url, server_at(url) as server:
        with pytest.raises(SignalError, match="503"):
            await server.ask("x", TIMEOUT)
    assert asked == 1


async def test_an_answer_that_breaks_off_is_none() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"status":')
        request.transport.close()  # type: ignore[union-attr]
        return response

    async with serving(handler) as url:
        assert (await why(url)).startswith("the answer breaks off: ")


async def test_a_refused_connection_and_an_unknown_name() -> None:
    assert await why("http://127.0.0.1:1") == "no connection: connection refused"
    assert "no connection: " in await why("http://no-such-host.invalid:9090")


async def test_without_any_server_each_round_says_so() -> None:
    source = PrometheusSource(key(), signal(None), PrometheusServers())
    async with running(source) as heard:
        for _ in range(2):
            await heard.failure(
                "nobody says which Prometheus: give the signal a server, or the controller --prometheus"
            )


async def test_the_controllers_server_is_asked_where_a_signal_names_none() -> None:
    async with serving(answering(vector("2"))) as url:
        assert (await word(None, PrometheusServers(default=url))).parts == {Part.REQUESTS: 2.0}


# ------------------------------------------------------------------ TLS


async def test_tls_trusts_what_the_policy_says(tmp_path: Path) -> None:
    file, secret = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, secret)
    async with serving(answering(vector("1")), ssl_context=context) as url:
        for tls in (Tls(ca_file=str(file)), Tls(skip_verify=True)):
            assert (await word(url, tls=tls)).parts == {Part.REQUESTS: 1.0}
        assert await why(url) == "no connection: its certificate isn't trusted: self-signed certificate"


# ------------------------------------------------------------------ servers that hang


class Hanging:
    """A server that accepts and says nothing, or one byte at a time, until it is let go."""

    def __init__(self, drip: bytes = b"", status: int = 200) -> None:
        self.asked = 0
        self.answers = False
        self._drip = drip
        self._status = status
        self._let_go = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.answers:
            return await answering(vector("1"))(request)
        if self._drip:
            headers = {"Content-Type": "application/json", "Location": "/"}
            response = web.StreamResponse(status=self._status, headers=headers)
            await response.prepare(request)
            while not self._let_go.is_set():
                await response.write(self._drip)
                await asyncio.sleep(0.02)  # a slow server
            return response
        await self._let_go.wait()
        return web.Response()

    def let_go(self) -> None:
        self._let_go.set()


def query_threads() -> int:
    return sum(thread.name.startswith("query to") for thread in threading.enumerate())


async def until_threads(count: int) -> None:
    async with asyncio.timeout(30):
        while query_threads() != count:
            await asyncio.sleep(0.01)  # between two looks


@pytest.mark.wall_clock
@pytest.mark.parametrize(("drip", "status"), [(b"", 200), (b" ", 200), (b" ", 302)])
async def test_a_server_that_hangs_costs_its_timeout_and_no_more(drip: bytes, status: int) -> None:
    hanging = Hanging(drip, status)
    async with serving(hanging.handle) as url, server_at(url) as server:
        begun = time.monotonic()
        with pytest.raises(SignalError, match=r"no (whole )?answer within"):
            await server.ask("x", 0.8)  # long enough for a busy machine to connect in
        assert 0.75 < time.monotonic() - begun < 1.6
        await until_threads(0)  # whether it still hangs or not
        hanging.let_go()


async def test_a_hang_exhausts_no_threads_and_skipped_rounds_are_counted() -> None:
    hanging = Hanging()
    async with serving(hanging.handle) as url, server_at(url) as server:
        asks = [asyncio.ensure_future(server.ask("x", 2.0)) for _ in range(LARGEST_IN_FLIGHT)]  # noqa: TID251
        async with asyncio.timeout(30):
            while hanging.asked < LARGEST_IN_FLIGHT:
                await asyncio.sleep(0.01)  # between two looks
        with pytest.raises(
            SignalError, match=r"round skipped \(1 so far\), 4 earlier queries are unanswered"
        ):
            await server.ask("x", 0.1)
        assert server.skipped == 1
        assert query_threads() == hanging.asked == LARGEST_IN_FLIGHT
        results = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(result) for result in results] == [SignalError] * LARGEST_IN_FLIGHT
        await until_threads(0)
        hanging.answers = True
        assert (await server.ask("x", TIMEOUT)).result
        hanging.let_go()


async def test_a_server_that_hangs_delays_no_other() -> None:
    hanging = Hanging()
    async with serving(hanging.handle) as stuck, serving(answering(vector("1"))) as good:
        servers = PrometheusServers()
        sources = [PrometheusSource(key(f"stuck{i}"), signal(stuck), servers) for i in range(8)]
        async with running(*sources, PrometheusSource(key("good"), signal(good), servers)) as heard:
            await heard.failure("no answer within 1 s")
            found = await heard.reading(signal="good")
            assert found.parts == {Part.REQUESTS: 1.0}
        hanging.let_go()
        await until_threads(0)


@pytest.mark.wall_clock
async def test_a_source_ends_at_once_while_its_server_hangs() -> None:
    hanging = Hanging()
    async with serving(hanging.handle) as url:
        async with running(PrometheusSource(key(), signal(url), PrometheusServers())):
            async with asyncio.timeout(30):
                while not hanging.asked:
                    await asyncio.sleep(0.01)  # between two looks
            ending = time.monotonic()
        assert time.monotonic() - ending < 0.5
        hanging.let_go()
        await until_threads(0)


SCRIPT = """
import asyncio, sys
from scaler.policy.signals import Authorization, Tls
from scaler.signals.prometheus import PrometheusServer, ServerSettings

async def main():
    settings = ServerSettings(url=sys.argv[1], authorization=Authorization(), tls=Tls())
    asyncio.get_running_loop().add_reader(sys.stdin, asyncio.current_task().cancel)
    await PrometheusServer(settings).ask("x", 300.0)

asyncio.run(main())
"""


async def test_a_process_ends_at_once_while_a_server_hangs() -> None:
    hanging = Hanging()
    async with serving(hanging.handle) as url:
        command = [sys.executable, "-c", SCRIPT, url]
        child = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            async with asyncio.timeout(30):
                while not hanging.asked:
                    await asyncio.sleep(0.01)  # between two looks
            async with asyncio.timeout(30):
                _, said = await child.communicate(b"end")
            assert b"CancelledError" in said
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        hanging.let_go()


async def test_skipping_verification_is_no_warning_each_time() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        await PrometheusServer(settings("https://127.0.0.1:1", tls=Tls(skip_verify=True))).close()
    assert not caught
