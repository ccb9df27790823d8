"""The controller's HTTP: agents' reports in, everything that an operator asks out. Signals have their own: `signal_api`.

Answers come from the last tick and the cluster's cache; no handler waits for anything but its own request body.
"""

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.core.explain import explain
from scaler.core.model import PolicyDecision, Quality, Reason, ReasonCode
from scaler.runtime.agreement import Agreement
from scaler.runtime.controller import Controller, Tick
from scaler.runtime.metrics import Page
from scaler.runtime.orders import freeze_json
from scaler.runtime.push_tokens import PushTokens
from scaler.version import VERSION
from warmpool.errors import BadOrder
from warmpool.seats import FleetName, Resident, Seat, SeatValue
from warmpool.states import PROMOTABLE, ResidentState
from warmpool.wire import seat_to_json

TOKEN_HEADER: Final = "Emberpool-Token"  # noqa: S105 - the name of a header
"""Shows the token, too: a Kubernetes API server that a request comes through keeps `Authorization` for itself."""
_BODY_LIMIT_BYTES = 256 * 1024
"""Reports are a few kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Where what agents tell goes.

    Attributes:
        report: takes an agent's report; raises BadOrder.
        token: bearer token that agents must show; a report can take a seat out of rotation, so not everybody may make one.
        tokens: others of those who may report, and push; None: there are none.
    """

    report: Callable[[Mapping[str, Any]], object]
    token: str
    tokens: PushTokens | None = None

    def takes(self, request: web.Request) -> bool:
        """Whether whoever sends a request may report."""
        if authorized(request, self.token):
            return True
        pusher = None if self.tokens is None else self.tokens.shown_by(request)
        return pusher is not None and pusher.reports


class Api:
    """Handlers over one controller.

    Args:
        controller: whose last tick is shown.
        intake: where reports go.
        registry: what `/metrics` shows.
        agreement: knows where a resident that waits for a witness answers otherwise than others; None where nobody does.
        unready: says why this process can't answer yet though it has decided; empty if it can.
    """

    def __init__(
        self,
        controller: Controller,
        intake: Intake,
        registry: CollectorRegistry,
        agreement: Agreement | None = None,
        unready: Callable[[], str] = lambda: "",
    ) -> None:
        self._controller = controller
        self._intake = intake
        self._agreement = agreement
        self._unready = unready
        self._page = Page(registry)

    def application(self) -> web.Application:
        """Build the aiohttp application."""
        app = web.Application(client_max_size=_BODY_LIMIT_BYTES)
        app.add_routes(
            [
                web.get("/livez", self._live),
                web.get("/readyz", self._ready),
                web.get("/metrics", self._page.handle),
                web.post("/v1/agents", self._agents),
                web.get("/v1/status", self._status),
                web.get("/v1/fleets", self._fleets),
                web.get("/v1/policies", self._policies),
                web.get("/v1/seats", self._seats),
                web.get("/v1/decisions", self._decisions),
            ]
        )
        return app

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        why = "no decision yet" if self._controller.last is None else self._unready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")

    async def _agents(self, request: web.Request) -> web.Response:
        if not self._intake.takes(request):
            self._controller.metrics.reported(accepted=False)
            return unauthorized()
        try:
            body = json.loads(await request.read())
            if not isinstance(body, dict):
                raise BadOrder("a report is a JSON object")
            self._intake.report(body)
        except (BadOrder, ValueError) as error:
            self._controller.metrics.reported(accepted=False)
            return _refused("BadReport", str(error))
        self._controller.metrics.reported(accepted=True)
        return web.Response(status=204)

    async def _status(self, _: web.Request) -> web.Response:
        waiting = waiting_for(self._controller)
        return web.json_response({"ready": not waiting, "waitingFor": waiting, "version": VERSION})

    async def _fleets(self, _: web.Request) -> web.Response:
        tick = self._controller.last
        items = (
            [] if tick is None else [self._fleet(tick, fleet.name) for fleet in self._controller.table.fleets]
        )
        return web.json_response({"items": items})

    def _fleet(self, tick: Tick, name: FleetName) -> dict[str, Any]:
        spec = next(fleet for fleet in self._controller.table.fleets if fleet.name == name)
        decided, view = tick.decision.fleets[name], tick.snapshot.fleets[name]
        values = [seat.value for seat in tick.seats if seat.fleet == name]
        created = [seat.created_at for seat in tick.seats if seat.fleet == name]
        return {
            "name": name,
            "namespace": self._controller.table.namespaces.get(name, ""),
            "mode": "Observe" if spec.observe else "Enforce",
            "frozen": None
            if (freeze := self._controller.orders.freezes.get(name)) is None
            else freeze_json(freeze),
            "maxSeats": spec.max_seats,
            "replicas": view.replicas,
            "total": decided.total,
            "spareTarget": decided.spare,
            "seats": {str(value): values.count(value) for value in SeatValue if value in values},
            "policies": sorted(
                policy.name
                for policy in self._controller.table.policies
                if any(share.fleet == name for share in policy.fleets)
            ),
            "reasons": _reasons(decided.reasons, tick.decision.at),
            "createdAt": min(created, default=None),
        }

    async def _policies(self, _: web.Request) -> web.Response:
        tick = self._controller.last
        items = (
            [] if tick is None else [self._policy(tick, policy) for policy in tick.decision.policies.values()]
        )
        return web.json_response({"items": items})

    def _policy(self, tick: Tick, decided: PolicyDecision) -> dict[str, Any]:
        load = tick.snapshot.loads[decided.policy]
        return {
            "name": decided.policy,
            "models": list(self._controller.table.models.get(decided.policy, ())),
            "mode": str(decided.mode),
            "demand": decided.demand,
            "needed": decided.needed,
            "capacity": decided.capacity,
            "wanted": dict(decided.wanted),
            "serving": dict(decided.serving),
            "queued": load.queued.value if load.queued.known else None,
            "inFlight": load.in_flight.value if load.in_flight.known else None,
            "oldestWaitSeconds": load.oldest_wait.value if load.oldest_wait.known else None,
            "signals": str(_quality(decided)),
            "reasons": _reasons(decided.reasons, tick.decision.at),
        }

    async def _decisions(self, _: web.Request) -> web.Response:
        return web.json_response({"items": list(self._controller.recent)})

    async def _seats(self, _: web.Request) -> web.Response:
        tick = self._controller.last
        return web.json_response({"items": [] if tick is None else [self._seat(seat) for seat in tick.seats]})

    def _seat(self, seat: Seat) -> dict[str, Any]:
        doubts = {} if self._agreement is None else self._agreement.doubts
        residents = [
            replace(each, waiting=f"{each.waiting}; {why}")
            if each.waiting and (why := doubts.get((seat.uid, each.policy)))
            else each
            for each in seat.residents
        ]
        return seat_to_json(replace(seat, residents=tuple(residents)) if doubts else seat)


def waiting_for(controller: Controller) -> list[str]:
    """Say what stands between now and a warm set of fleets; empty when every floor serves and every spare is proven."""
    tick = controller.last
    if tick is None:
        return ["the first decision"]
    missing = []
    for policy in controller.table.policies:
        supplies = [tick.snapshot.fleets[share.fleet].supply.get(policy.name) for share in policy.fleets]
        serving = sum(supply.serving for supply in supplies if supply is not None)
        if serving < policy.serving_min:
            missing.append(f"policy {policy.name}: {serving} of {policy.serving_min} residents serve")
    for fleet in controller.table.fleets:
        view = tick.snapshot.fleets[fleet.name]
        if view.spare < min(fleet.spare_target, fleet.max_seats - view.serving):
            missing.append(f"fleet {fleet.name}: {view.spare} of {fleet.spare_target} spare seats are warm")
    policies = {policy.name for policy in controller.table.policies}
    for seat in tick.seats:
        if seat.fleet in tick.snapshot.fleets and seat.value in {SeatValue.STARTING, SeatValue.SPARE}:
            if not seat.residents:
                missing.append(f"seat {seat.name}: agent starting")
            missing += [
                f"seat {seat.name}: {resident.policy} {resident.waiting or resident.state}"
                for resident in seat.residents
                if resident.policy in policies and resident.state not in PROMOTABLE and not _cold(resident)
            ]
    return missing


def _cold(resident: Resident) -> bool:
    """Whether a resident has no engine for lack of room: that is how its seat is when it is warm."""
    return resident.state is ResidentState.STARTING and bool(resident.waiting)


def authorized(request: web.Request, *tokens: str) -> bool:
    """Whether a request shows one of the bearer tokens that whoever changes something must show."""
    shown = [request.headers.get("Authorization", ""), f"Bearer {request.headers.get(TOKEN_HEADER, '')}"]
    return any(
        token and hmac.compare_digest(each.encode(errors="replace"), f"Bearer {token}".encode())
        for token in tokens
        for each in shown
    )


def unauthorized(wanted: str = "EMBERPOOL_AGENT_TOKEN of the controller") -> web.Response:
    """Answer a request that shows another token than it is `wanted` to show, or none."""
    message = f"missing or wrong token; {wanted} is the one"
    return web.json_response({"error": {"code": "Unauthorized", "message": message}}, status=401)


def _quality(decided: PolicyDecision) -> Quality:
    """Return how far what is known of a policy's demand can be believed: as the law had it, which knows what was expected."""
    codes = {reason.code for reason in decided.reasons}
    if ReasonCode.SIGNALS_MISSING in codes:
        return Quality.MISSING
    return Quality.STALE if ReasonCode.SIGNALS_STALE in codes else Quality.FRESH


def _reasons(reasons: tuple[Reason, ...], now: float) -> list[dict[str, Any]]:
    return [
        {"code": str(reason.code), "facts": dict(reason.facts), "sentence": explain(reason, now)}
        for reason in reasons
    ]


def _refused(code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=400)
