"""Reading Prometheus: instant queries through `prometheus_api_client`, in threads that a hang can't exhaust.

The library blocks. Each query runs in a thread of its own, a few at most per server, and a round that finds all of them
waiting for a server that hangs is given up and counted. They are daemon threads, because a pool's threads would hold up
the end of the process for as long as the server hangs.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import urllib3
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.exceptions import InsecureRequestWarning
from urllib3.util.retry import Retry

from scaler.errors import SignalError
from scaler.policy.signals import Authorization, Prometheus, Tls
from scaler.signals.port import SignalKey, Sink
from scaler.signals.prometheus_answer import age_of, parts_of, sample_of
from scaler.signals.prometheus_http import BoundedSession, FileAuthorization, signal_error
from scaler.signals.rounds import Observation, Rounds, failing
from scaler.signals.sharing import Shared

LARGEST_IN_FLIGHT: Final = 4
"""Queries that one server is asked at once. An instant query takes a healthy server milliseconds: four in flight are
hundreds a second, far more than signals ask for, and few enough to hurt nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What makes two signals ask the same server in the same way.

    Attributes:
        url: base URL.
        authorization: how to say who asks.
        tls: how the server proves itself.
    """

    url: str
    authorization: Authorization
    tls: Tls


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered.

    Attributes:
        result: `data.result` of its JSON.
        asked: monotonic seconds at which it was asked.
        asked_wall: the same as Unix time.
    """

    result: object
    asked: float
    asked_wall: float


class PrometheusServer:
    """One server, as all signals use it that ask it in the same way.

    Args:
        settings: which server, and how.

    Attributes:
        skipped: rounds that were given up because all queries in flight were waiting for an answer.
    """

    def __init__(self, settings: ServerSettings) -> None:
        if settings.tls.skip_verify:
            urllib3.disable_warnings(InsecureRequestWarning)  # the policy says so, and who wrote it knows
        self.skipped = 0
        self._slots = asyncio.Semaphore(LARGEST_IN_FLIGHT)
        self._session = BoundedSession(settings.tls)
        self._api = PrometheusConnect(
            url=settings.url.rstrip("/"),
            auth=FileAuthorization(settings.authorization),  # type: ignore[arg-type]  # requests takes any callable
            session=self._session,
            retry=Retry(total=0, redirect=False),  # the next round is the retry
        )
        self._name = urlsplit(settings.url).netloc.rpartition("@")[2]

    async def ask(self, query: str, timeout: float) -> Answer:  # noqa: ASYNC109 - it bounds a thread, too
        """Ask an instant query.

        Args:
            query: PromQL.
            timeout: seconds until it is given up, the wait for a free slot included.

        Raises:
            SignalError: there was no good answer in time.
        """
        deadline = time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self._slots.acquire()
        except TimeoutError:
            self.skipped += 1
            raise SignalError(
                f"{self._name}: round skipped ({self.skipped} so far), "
                f"{LARGEST_IN_FLIGHT} earlier queries are unanswered"
            ) from None
        remaining = max(0.001, deadline - time.monotonic())
        answer = self._start(partial(self._query, query, remaining))
        try:
            async with asyncio.timeout(remaining):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise SignalError(f"{self._name}: no answer within {timeout:g} s") from None

    async def close(self) -> None:
        """Let go of the connections; a query that hangs ends with its own timeout."""
        self._session.close()

    def _start(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run `work` in a thread, and free the slot when the thread ends, whoever still waits for it."""
        loop = asyncio.get_running_loop()
        done: Future[Answer] = Future()

        def free() -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._slots.release)

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                done.set_exception(SignalError(f"{self._name}: {signal_error(error)}"))
            finally:
                free()

        done.set_running_or_notify_cancel()  # from here on it can't be cancelled, only forgotten
        try:
            threading.Thread(target=run, name=f"query to {self._name}", daemon=True).start()
        except RuntimeError as error:
            self._slots.release()
            raise SignalError("no thread can be started") from error
        return done

    def _query(self, query: str, timeout: float) -> Answer:
        asked, asked_wall = time.monotonic(), time.time()
        result = self._api.custom_query(
            query,
            params={
                "timeout": f"{math.ceil(timeout * 1000)}ms",  # the server needn't go on for longer than we wait
                "partial_response": "false",  # of Thanos: an error rather than a sum without those who are silent
            },
            timeout=timeout,  # type: ignore[arg-type]  # requests takes a float
        )
        return Answer(result=result, asked=asked, asked_wall=asked_wall)


@dataclass(slots=True)
class PrometheusServers:
    """All servers that signals ask.

    Attributes:
        default: base URL of the one that is asked where a signal names none (`--prometheus`); None: there is none.
    """

    default: str | None = None
    _shared: Shared[ServerSettings, PrometheusServer] = field(
        default_factory=lambda: Shared(PrometheusServer)
    )

    def settings(self, signal: Prometheus) -> ServerSettings:
        """Return how `signal` asks.

        Raises:
            SignalError: nobody says which server.
        """
        url = signal.server or self.default
        if url is None:
            raise SignalError(
                "nobody says which Prometheus: give the signal a server, or the controller --prometheus"
            )
        return ServerSettings(url=url, authorization=signal.authorization, tls=signal.tls)

    def lease(self, settings: ServerSettings) -> AbstractAsyncContextManager[PrometheusServer]:
        """Have the server for as long as the block runs; its connections are shared with whoever else has it."""
        return self._shared.lease(settings)


class PrometheusSource:
    """Reads one signal of type `Prometheus`.

    Args:
        key: whose readings they are.
        signal: what to ask, and how often.
        servers: where servers are shared.
    """

    def __init__(self, key: SignalKey, signal: Prometheus, servers: PrometheusServers) -> None:
        self._signal = signal
        self._servers = servers
        self._rounds = Rounds(key, float(signal.interval_seconds))

    async def run(self, sink: Sink) -> None:
        """See `Source.run`."""
        try:
            settings = self._servers.settings(self._signal)
        except SignalError as error:
            await self._rounds.run(failing(error), sink)
            return
        async with self._servers.lease(settings) as server:
            await self._rounds.run(partial(self._read, server), sink)

    async def _read(self, server: PrometheusServer) -> Observation:
        answer = await server.ask(self._signal.query, float(self._signal.timeout_seconds))
        sample = sample_of(answer.result)
        age = age_of(sample, answer.asked_wall)
        return Observation(parts_of(self._signal.measures, sample.value), answer.asked - age)
