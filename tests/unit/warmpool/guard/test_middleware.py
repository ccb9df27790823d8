"""The middleware between a server and an app that are both played by the test: what no real server can be made to do at will."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.guard_middleware import LONGEST_EVENT_BYTES, ClientGone, Guard, Settings

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
PATH = "/v1/completions"
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
STREAM: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream")],
}
LAST: Message = {"type": "http.response.body", "body": b"end", "more_body": False}


def piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


class Client:
    """A client, as its server knows it."""

    def __init__(self, guard: Guard, *, path: str = PATH, **scope: Any) -> None:
        self.guard = guard
        self.said: list[Message] = []
        self.stuck = False
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._scope = {"type": "http", "path": path, "headers": [], "method": "POST", "http_version": "1.1"}
        self._scope |= scope

    def sends(self, body: bytes = b"", *, more: bool = False) -> "Client":
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    def leaves(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})

    async def asks(self) -> list[Message]:
        await self.guard(self._scope, self._messages.get, self._hears)
        return self.said

    async def _hears(self, message: Message) -> None:
        while self.stuck:
            await asyncio.Event().wait()
        self.said.append(message)

    @property
    def status(self) -> int:
        return int(self.said[0]["status"])

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.said[1:])


def guard_of(app: App, **settings: Any) -> Guard:
    guard = Guard(app, Settings(control="unix:/nowhere/guard.sock", **settings))
    guard.gate.open()
    return guard


@asynccontextmanager
async def asking(client: Client) -> AsyncIterator["asyncio.Task[list[Message]]"]:
    """Let a client ask, and go on once its request is inside or has ended."""
    task = asyncio.get_running_loop().create_task(client.asks())
    for _ in range(5):
        await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def for_ever(_scope: Any, _receive: Any, _send: Any) -> None:
    await asyncio.Event().wait()


# ---------------------------------------------------------------- scopes


async def test_a_scope_that_nobody_knows_does_not_pass() -> None:
    with pytest.raises(ValueError, match="carrier-pigeon"):
        await guard_of(for_ever)({"type": "carrier-pigeon"}, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "root", "status"),
    [
        ("/engine/v1/completions", "/engine", 200),
        ("/v1/completions", "/engine", 200),
        ("/engine/pause", "/engine", 404),
        ("/enginev1/completions", "/engine", 404),
        ("/engine", "/engine", 404),
    ],
)
async def test_an_app_that_is_mounted_somewhere_has_its_routes_there(
    path: str, root: str, status: int
) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(START)
        await send(LAST)

    client = Client(guard_of(app), path=path, root_path=root).sends()
    await client.asks()
    assert client.status == status


async def test_a_refusal_over_http_2_closes_no_connection() -> None:
    guard = guard_of(for_ever)
    guard.gate.close()
    client = Client(guard, http_version="2")
    await client.asks()
    assert client.status == 503
    assert b"connection" not in {name for name, _ in client.said[0]["headers"]}


async def test_an_app_without_a_life_of_its_own_gets_a_control_side_all_the_same(tmp_path: Any) -> None:
    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        assert scope["type"] != "lifespan"

    guard = Guard(app, Settings(control=f"unix:{tmp_path}/guard.sock"))
    messages: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message] = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(guard({"type": "lifespan"}, messages.get, said.put))
        messages.put_nowait({"type": "lifespan.startup"})
        assert (await said.get())["type"] == "lifespan.startup.complete"
        assert (tmp_path / "guard.sock").is_socket()
        messages.put_nowait({"type": "lifespan.shutdown"})
        assert (await said.get())["type"] == "lifespan.shutdown.complete"
    assert not (tmp_path / "guard.sock").exists()


async def test_an_app_that_fails_to_start_says_so_itself() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no weights"})
        raise RuntimeError("no weights")

    said: list[Message] = []

    async def hears(message: Message) -> None:
        said.append(message)

    async def startup() -> Message:
        return {"type": "lifespan.startup"}

    with pytest.raises(RuntimeError, match="no weights"):
        await guard_of(app)({"type": "lifespan"}, startup, hears)
    assert said == [{"type": "lifespan.startup.failed", "message": "no weights"}]


# ---------------------------------------------------------------- how an end is told


async def test_an_app_hears_of_an_abort_as_of_its_client_s_leaving() -> None:
    heard: list[str] = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        heard.append((await receive())["type"])
        heard.append((await receive())["type"])
        with pytest.raises(ClientGone):
            await send(START)

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
    assert heard == ["http.disconnect", "http.disconnect"]
    assert client.status == 503
    assert client.guard.gate.in_flight == 0


async def test_a_request_that_has_been_sent_ends_at_once() -> None:
    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    client = Client(guard_of(app), headers=[(b"content-length", b"2")]).sends(b"{}")
    async with asking(client) as task:
        client.guard.gate.abort()
        for _ in range(20):
            await asyncio.sleep(0)
        assert task.done(), "nothing more of it is waited for"
    assert client.status == 503


async def test_a_listener_in_another_task_hears_of_it_too() -> None:
    left = asyncio.Event()

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        async def listens() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(listens())

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
    assert left.is_set()
    assert client.status == 503


async def test_an_app_that_waits_for_something_else_is_cancelled_after_a_moment() -> None:
    client = Client(guard_of(for_ever)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
        assert task.cancelling() == 0
    assert client.status == 503


async def test_an_app_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed = 0

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if swallowed:
                    raise
                swallowed += 1

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
    assert (swallowed, client.status) == (1, 503)


async def test_an_app_that_answers_a_cancellation_by_returning_is_no_fault() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
        assert task.cancelling() == 0
    assert client.status == 503


async def test_who_cancels_the_call_from_outside_cancels_it() -> None:
    client = Client(guard_of(for_ever)).sends()
    async with asking(client) as task:
        assert client.guard.gate.in_flight == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (client.said, client.guard.gate.in_flight) == ([], 0)


async def test_who_cancels_the_call_while_it_is_aborted_cancels_it() -> None:
    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while True:
            await receive()

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (client.said, client.guard.gate.in_flight) == ([], 0)


async def test_what_the_app_complains_of_after_an_abort_is_no_fault() -> None:
    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        raise RuntimeError("the client has gone")

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
    assert client.status == 503


async def test_an_app_s_own_fault_reaches_the_server() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("the app's own")

    client = Client(guard_of(app)).sends()
    with pytest.raises(RuntimeError, match="the app's own"):
        await client.asks()
    assert (client.said, client.guard.gate.in_flight) == ([], 0)


async def test_an_abort_after_the_last_byte_changes_nothing() -> None:
    ends = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(START)
        await send(LAST)
        await ends.wait()

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        assert client.guard.gate.in_flight == 1, "what the app does after its answer is inside too"
        client.guard.gate.abort()
        ends.set()
        await task
    assert client.said == [START, LAST]


async def test_a_stream_that_has_begun_ends_with_one_event_more() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(STREAM)
        await send(piece(b"data: 1\n\n"))
        await receive()

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
    assert client.text.startswith(b"data: 1\n\ndata: {")
    assert client.text.count(b"\n\n") == 2
    assert not client.said[-1]["more_body"]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-type", b"application/json")],
        [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")],
        [(b"content-type", b"text/event-stream"), (b"content-length", b"99")],
        [],
    ],
)
async def test_an_answer_into_which_nothing_can_be_put_stays_incomplete(headers: Any) -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(piece(b"half"))
        await receive()

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
    assert client.text == b"half"
    assert client.said[-1]["more_body"]


async def test_an_event_that_has_passed_in_pieces_stays_incomplete() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(STREAM)
        for _ in range(3):
            await send(piece(b"x" * (LONGEST_EVENT_BYTES // 2)))
        await receive()

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
    assert client.text == b"x" * (LONGEST_EVENT_BYTES // 2 * 3)
    assert client.said[-1]["more_body"]


async def test_a_memory_view_passes_as_bytes_do() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(STREAM)
        await send({"type": "http.response.body", "body": memoryview(b"data: 1\n\nda"), "more_body": True})
        await send({"type": "http.response.body"})

    client = Client(guard_of(app)).sends()
    await client.asks()
    assert client.text == b"data: 1\n\nda"


async def test_a_client_that_takes_nothing_holds_neither_abort_nor_count() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(STREAM)
        client.stuck = True
        await send(piece(b"data: 1\n\n"))

    client = Client(guard_of(app)).sends()
    async with asking(client) as task:
        client.guard.gate.abort()
        await task
    assert (client.said, client.guard.gate.in_flight) == ([STREAM], 0)


# ---------------------------------------------------------------- the law


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "step", "die", "end", "leave", "kill", "open", "close", "abort"]),
            st.integers(0, 50),
        ),
        max_size=60,
    )
)
def test_in_flight_is_what_was_admitted_and_has_not_ended(actions: list[tuple[str, int]]) -> None:
    asyncio.run(_Play().run(actions))


class _Play:
    """Requests whose apps, clients and server do what they are told, one thing at a time."""

    def __init__(self) -> None:
        self.orders: list[asyncio.Queue[str]] = []
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[list[Message]]] = []
        self.refused = 0

    async def run(self, actions: list[tuple[str, int]]) -> None:
        guard = guard_of(self.app)
        for what, which in actions:
            self.act(guard, what, which)
            for _ in range(12):
                await asyncio.sleep(0)
            begun = len(self.orders)
            ended = sum(task.done() for task in self.tasks) - self.refused
            assert guard.gate.in_flight == begun - ended
            assert len(self.tasks) == begun + self.refused
        guard.gate.abort()
        async with asyncio.timeout(10):
            await asyncio.gather(*self.tasks, return_exceptions=True)
        assert guard.gate.in_flight == 0
        assert all(
            client.said for client, task in zip(self.clients, self.tasks, strict=True) if not _failed(task)
        )

    def act(self, guard: Guard, what: str, which: int) -> None:
        if what in {"open", "close", "abort"}:
            getattr(guard.gate, what)()
        elif what == "ask":
            self.refused += not guard.gate.is_open
            client = Client(guard).sends()
            self.clients.append(client)
            self.tasks.append(asyncio.get_running_loop().create_task(client.asks()))
        elif self.orders and what in {"step", "die", "end"}:
            self.orders[which % len(self.orders)].put_nowait(what)
        elif self.tasks and what == "leave":
            self.clients[which % len(self.clients)].leaves()
        elif self.tasks and what == "kill":
            self.tasks[which % len(self.tasks)].cancel()

    async def app(self, _scope: Any, receive: Any, send: Any) -> None:
        orders: asyncio.Queue[str] = asyncio.Queue()
        self.orders.append(orders)
        await receive()
        begun = False
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(receive())
            try:
                while True:
                    order = tasks.create_task(orders.get())
                    await asyncio.wait({leaving, order}, return_when=asyncio.FIRST_COMPLETED)
                    if leaving.done():
                        order.cancel()
                        return
                    if order.result() == "die":
                        raise RuntimeError("told to die")
                    if not begun:
                        begun = True
                        await send(STREAM)
                    if order.result() == "end":
                        await send(LAST)
                        return
                    await send(piece(b"data: 1\n\n"))
            finally:
                leaving.cancel()


def _failed(task: "asyncio.Task[list[Message]]") -> bool:
    """Whether the app died before an answer, its client left before one, or the server gave the request up."""
    return task.cancelled() or task.exception() is not None or not task.result()
