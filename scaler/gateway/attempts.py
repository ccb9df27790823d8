"""A request on its way to its first content: through the queue to an endpoint, and to another one when that fails."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp

from scaler.gateway.messages import RequestRefused
from scaler.gateway.observe import GatewayMetrics, GatewayObserver, Outcome
from scaler.gateway.queue import Lease, Refusal
from scaler.gateway.routes import Failure, RouteTable
from scaler.gateway.settings import GatewaySettings
from scaler.gateway.slots import Place, Slots
from scaler.gateway.upstream import Answer, AttemptFailed, Held, Outgoing, answers, attempt
from warmpool.seats import PolicyName

LOOKS: Final = 4
"""How often a hanging engine is looked for in the time after which it is one."""
ENGINE_FAILED: Final = "EngineFailed"
"""Code of the error when engines failed a request as often as may be, and none gave an answer."""


class Call:
    """One request on its way: its place, its slot, and what it holds.

    Attributes:
        policy: whose endpoints it wants.
        request: what goes to the engine; None once nobody will send it again.
        place: its place in the queue.
        identity: its id.
        stream: the client asked for a stream.
        received_at: monotonic seconds at which it had been received whole.
        once: it is not repeated once an engine may have worked on it.
        lease: its slot; None before the first.
        held: the answer that brought its first content.
        failed_attempts: how often engines may have worked on it and failed it.
        deadline: what ends its way to its first content; None while it isn't on it.
        hung: the engine of the present attempt brings nobody a byte any more, and the attempt is given up.
        ended: the gateway ends, and gives it up.
        problem: what went wrong with the last attempt, for the log; empty: nothing did.
    """

    def __init__(
        self,
        policy: PolicyName,
        request: Outgoing,
        place: Place,
        *,
        identity: str,
        stream: bool,
        once: bool,
    ) -> None:
        self.policy = policy
        self.identity = identity
        self.stream = stream
        self.request: Outgoing | None = request
        self.place = place
        self.received_at = place.ticket.arrived_at
        self.once = once
        self.lease: Lease | None = None
        self.held: Held | None = None
        self.failed_attempts = 0
        self.deadline: asyncio.Timeout | None = None
        self.hung = False
        self.ended = False
        self.problem = ""

    @property
    def quiet_since(self) -> float:
        """Monotonic seconds since which nobody has heard of the engine, as far as this request can tell."""
        assert self.lease is not None
        return max(self.lease.granted_at, self.lease.pulse.at)

    def end(self) -> None:
        """Give it up: what has no content yet is refused, and an answer that its engine hasn't ended is cut."""
        self.ended = True
        self.problem = "the gateway ended"
        if self.held is not None:
            self.held.response.close()
        if self.deadline is not None and not self.deadline.expired():
            self.deadline.reschedule(asyncio.get_running_loop().time())


class _Watched(NamedTuple):
    """An attempt's deadline, and the loop's time at which it passes by itself."""

    deadline: asyncio.Timeout
    due: float | None


class HangWatch:
    """Gives up attempts at engines that hang, so that the requests go elsewhere while there is time.

    An engine that computes a long prompt for one client says nothing either. So it must have brought nobody a byte for long, and
    have a stream to begin; another one must serve; and a request is moved once, at its first attempt: where it comes then it may
    wait until its deadline.

    Args:
        routes: say who serves.
        seconds: for so long nobody may have heard of an engine; 0: nothing is watched.
    """

    def __init__(self, routes: RouteTable, seconds: float) -> None:
        self._routes = routes
        self._seconds = seconds
        self._watched: dict[Call, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pause = seconds / LOOKS
        self._due = 0.0

    def begin(self, call: Call, deadline: asyncio.Timeout) -> None:
        """Watch an attempt from now on; where its engine hangs, `deadline` passes at once and the call is `hung`."""
        if not self._seconds or call.once or call.failed_attempts:
            return
        self._watched[call] = _Watched(deadline, deadline.when())
        if self._timer is None:
            self._later()

    def end(self, call: Call) -> None:
        """Watch it no longer; one that ended by itself in the turn in which it was given up isn't, unless the gateway ends, too."""
        watched = self._watched.pop(call, None)
        if watched is not None and call.hung and not call.ended and not watched.deadline.expired():
            call.hung = False
            watched.deadline.reschedule(watched.due)

    def _later(self) -> None:
        self._due = time.monotonic() + self._pause
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._watched:
            return
        now = time.monotonic()
        if (
            now - self._due < self._pause
        ):  # else it is we that were held up: what came meanwhile isn't read yet
            for call, watched in self._watched.items():
                if watched.deadline.expired() or call.ended:  # its own end has come in this very turn
                    continue
                if now - call.quiet_since >= self._seconds and self._hangs(call, now):
                    call.hung = True
                    watched.deadline.reschedule(asyncio.get_running_loop().time())
        self._later()

    def _hangs(self, call: Call, now: float) -> bool:
        assert call.lease is not None
        endpoint = call.lease.endpoint
        return (call.stream or self._routes.silent(endpoint)) and self._routes.others_serve(endpoint, now)


class Attempts:
    """Tries endpoints until one brings content.

    Args:
        settings: deadlines, and how often.
        routes: the table, which learns which endpoints do well.
        slots: where slots come from.
        metrics: counts retries and first content.
        observer: is told of first content.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        routes: RouteTable,
        slots: Slots,
        metrics: GatewayMetrics,
        observer: GatewayObserver,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._slots = slots
        self._metrics = metrics
        self._observer = observer
        again = settings.max_failed_attempts > 1
        self._watch = HangWatch(routes, settings.silence_seconds if again else 0.0)

    async def first_content(self, session: aiohttp.ClientSession, call: Call) -> Held | Answer:
        """Try endpoints until one brings content; an `Answer` is the engines' last error.

        Raises:
            RequestRefused: the queue is full, the wait was too long, the deadline has passed, engines broke off, or the
                gateway ends.
        """
        seconds = self._settings.deadline_seconds if call.stream else self._settings.answer_seconds
        if self._routes.cold(call.policy):
            limits = self._routes.limits(call.policy)
            seconds += limits.max_cold_seconds if limits is not None else 0.0
        held: Held | Answer | None = None
        while held is None:
            if call.ended:
                raise self._refused(call, Refusal.CLOSING)
            try:
                async with asyncio.timeout(call.received_at + seconds - time.monotonic()) as deadline:
                    call.deadline = deadline
                    while (held := await self._attempt(session, call, deadline)) is None:
                        pass
            except TimeoutError:
                if call.ended:
                    raise self._refused(call, Refusal.CLOSING) from None
                if not call.hung:
                    raise await self._late(session, call, seconds) from None
                self._give_up(call)
            finally:
                call.deadline = None
        if isinstance(held, Held) and held.response.status < 400:  # noqa: PLR2004 - HTTP
            self._observe_first(call)
        return held

    async def _attempt(
        self, session: aiohttp.ClientSession, call: Call, deadline: asyncio.Timeout
    ) -> Held | Answer | None:
        """Wait for a slot and try it; None when the request goes once more."""
        assert call.request is not None
        given = await self._slots.lease(call.place)
        if isinstance(given, Refusal):
            raise self._refused(call, given)
        call.lease, call.problem = given, ""
        self._watch.begin(call, deadline)
        try:
            call.held = await attempt(session, call.request, given.endpoint, pulse=given.pulse)
        except AttemptFailed as failed:
            return self._failed(call, given, failed)
        finally:
            self._watch.end(call)
        self._slots.succeed(given)
        return call.held

    def _give_up(self, call: Call) -> None:
        """Have a request go elsewhere whose engine hangs."""
        lease = call.lease
        assert lease is not None
        call.hung = False
        call.failed_attempts += 1
        call.place.ticket.avoid.add(lease.endpoint.key)
        self._slots.fail(lease, Failure.SILENT, since=call.quiet_since)
        self._metrics.retried(call.policy, Failure.SILENT)

    async def _late(self, session: aiohttp.ClientSession, call: Call, seconds: float) -> RequestRefused:
        """Return what the client gets at the deadline; who had the request then and doesn't seem to work is left alone."""
        lease, message = call.lease, f"The engine gave no content within {seconds:g} s; try again."
        code, outcome = "DeadlineExceeded", Outcome.DEADLINE_EXCEEDED
        if lease is None:
            message = f"No capacity became free within {seconds:g} s; try again."
            code, outcome = f"Queue{Refusal.TOO_OLD.value}", Outcome.EXPIRED
        elif lease.released:
            count = call.place.ticket.attempts
            message = (
                f"{'1 attempt' if count == 1 else f'{count} attempts'} failed, and no other capacity became free "
                f"within {seconds:g} s; try again."
            )
        elif call.stream:
            self._slots.fail(lease, Failure.SILENT)
        else:
            message = (
                f"The answer took longer than the {seconds:g} s in which one that is no stream must be whole; "
                "ask for a stream, or have the gateway's --answer-seconds raised."
            )
            if not await self._works(session, lease, seconds):
                self._slots.fail(lease, Failure.SILENT)
        late = RequestRefused(503, message, code=code, outcome=outcome)
        late.wait_seconds = self._slots.worth_while(call.policy)
        return late

    async def _works(self, session: aiohttp.ClientSession, lease: Lease, seconds: float) -> bool:
        """Whether an engine seems to work that hasn't given an answer in time which is no stream.

        It may only take long, and where it is alone nothing comes for anybody meanwhile. So one is believed to work that has
        brought somebody something since, or in as long a time before and answers when it is asked.
        """
        if lease.pulse.at > lease.granted_at:
            return True
        lately = lease.pulse.at > lease.granted_at - seconds
        return lately and await answers(session, lease.endpoint, seconds=self._settings.connect_seconds)

    def _refused(self, call: Call, refusal: Refusal) -> RequestRefused:
        message, outcome = _REFUSALS[refusal]
        code, closing = f"Queue{refusal.value}", refusal is Refusal.CLOSING
        refused = RequestRefused(503, message, code=code, outcome=outcome, close=closing)
        refused.wait_seconds = self._slots.worth_while(call.policy)
        return refused

    def _failed(self, call: Call, lease: Lease, failed: AttemptFailed) -> Answer | None:
        """Note a failed attempt; return what the client gets when there is none left.

        Raises:
            RequestRefused: there is none left, and no engine gave an answer.
        """
        call.problem = str(failed)
        if failed.failure.reached_engine:
            call.failed_attempts += 1
            call.place.ticket.avoid.add(lease.endpoint.key)
        self._slots.fail(lease, failed.failure)
        most = 1 if call.once else self._settings.max_failed_attempts
        if call.failed_attempts < most:
            self._metrics.retried(call.policy, failed.failure)
            return None
        if failed.answer is not None:
            return failed.answer
        raise _EngineFailed(call.failed_attempts, failed) from failed

    def _observe_first(self, call: Call) -> None:
        lease = call.lease
        assert lease is not None
        now, unix = time.monotonic(), time.time()
        seconds, waited = now - call.received_at, lease.waited_seconds
        counts, promise = (
            self._slots.dispatcher.counts(call.policy),
            self._routes.ttft_seconds(call.policy),
        )
        counts.answered += 1
        counts.late += 0.0 < promise < seconds
        counts.first_seconds += seconds
        self._metrics.first_content(call.policy, ttft=seconds, waited=waited)
        dispatched_at = unix - (now - lease.granted_at)
        self._observer.first_content(call.policy, lease.endpoint, dispatched_at, unix, waited)


class _EngineFailed(RequestRefused):
    """Engines failed a request as often as may be. Nothing was sent, so the client gets a status and the engine's own words."""

    def __init__(self, count: int, failed: AttemptFailed) -> None:
        told = failed.error or {}
        code = told.get("code")
        status = code if isinstance(code, int) and 500 <= code < 600 else 502  # noqa: PLR2004 - HTTP
        engines = "1 engine" if count == 1 else f"{count} engines"
        message = str(told.get("message") or f"{engines} broke off before any content.")
        super().__init__(status, message, code=ENGINE_FAILED, outcome=Outcome.ENGINE_ERROR)
        self.retry = False


_REFUSALS: Mapping[Refusal, tuple[str, Outcome]] = {
    Refusal.TOO_MANY: ("The queue for this model is full; try again.", Outcome.REFUSED),
    Refusal.TOO_LARGE: ("The queue for this model is full; try again.", Outcome.REFUSED),
    Refusal.TENANT_TOO_MANY: (
        "Too many of your requests wait for this model already; try again.",
        Outcome.REFUSED,
    ),
    Refusal.TOO_OLD: ("No capacity became free in time; try again.", Outcome.EXPIRED),
    Refusal.GONE: ("This model is no longer served here.", Outcome.GONE),
    Refusal.CLOSING: ("This gateway is shutting down; try again.", Outcome.CLOSED),
}
