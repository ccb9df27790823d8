"""Which orders of people may be carried out, and why another may not. PURE: time and all that is known are arguments.

An order is judged by what the loop itself saw last: it may do nothing that the loop couldn't do, and takes nothing from anybody
below its floor.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from scaler.core.model import NO_FLOOR, NO_SUPPLY, Decision, FleetSpec, Mode, PolicySpec, Snapshot
from scaler.core.placement import bounds
from scaler.errors import ScalerError
from scaler.runtime.order_words import LONGEST_FREEZE_SECONDS, Operation
from scaler.store.standing_orders import MOST_DRAINED, Drain, Freeze
from warmpool.claim import in_force
from warmpool.seats import FleetName, PolicyName, Seat, SeatName, Verdict
from warmpool.states import COMPUTING, PROMOTABLE, ResidentState

_CLOCKS_DIFFER_SECONDS: Final = 60.0
"""What the clock of whoever orders may be ahead of ours."""
_LONGEST_TEXT: Final = {"id": 128, "reason": 200, "by": 64}
_LONGEST_NAME: Final = 253
_SOMEBODY: Final = "whoever shows EMBERPOOL_AGENT_TOKEN"
_ENOUGH: Final = 1e-9
_MOST_NAMED: Final = 8
_NO_SEAT: Final = SeatName("")
_NO_FLEET: Final = FleetName("")
_NOBODY: Final = PolicyName("")


_OF_FLEETS: Final = (Operation.FREEZE, Operation.THAW)
PROMOTIONS: Final = (Operation.PROMOTE, Operation.SWITCH)
"""Orders after which somebody serves who didn't."""


class OrderRefused(ScalerError):
    """An order isn't carried out, and nothing has happened.

    Attributes:
        code: which refusal.
        hint: what to do about it; may be empty.
        status: as HTTP says it.
    """

    def __init__(
        self, code: str, message: str, *, hint: str = "", status: HTTPStatus = HTTPStatus.CONFLICT
    ) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order.

    Attributes:
        id: unique; the same one again is the same order.
        operation: what to do.
        seat: to which seat; empty for orders about fleets.
        fleet: to which fleet; empty for orders about seats.
        uid: the seat that is meant, if only a certain one of that name is; may be empty.
        namespace: where it is; empty where that is not said.
        policy: whose resident.
        leaving: whose resident leaves the seat (Switch); empty: whoever serves there.
        until: Unix time at which a freeze ends.
        reason: why, in the words of whoever ordered it.
        by: who ordered it, in their own words.
        dry_run: say what would be done, and do nothing.
    """

    id: str
    operation: Operation
    seat: SeatName = _NO_SEAT
    fleet: FleetName = _NO_FLEET
    uid: str = ""
    namespace: str = ""
    policy: PolicyName = _NOBODY
    leaving: PolicyName = _NOBODY
    until: float = 0.0
    reason: str = ""
    by: str = _SOMEBODY
    dry_run: bool = False

    @property
    def subject(self) -> str:
        """What it is about, as `kind/name`."""
        return f"fleet/{self.fleet}" if self.fleet else f"seat/{self.seat}"

    @property
    def why(self) -> str:
        """Who wanted it and why, as the record of an action says it."""
        return f"{self.operation} ordered by {self.by}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What an order is judged by.

    Attributes:
        wall: Unix time.
        policies: the policies in force.
        fleets: the fleets in force.
        namespaces: where fleets are, as far as known.
        snapshot: what was seen last.
        decision: what was decided last.
        seats: all seats; drained ones are marked so.
        occupied: seats that an action is under way on, or that rest after a failed promotion.
        freezes: fleets that people have frozen.
        drained: per fleet, how many of its seats are drained.
    """

    wall: float
    policies: Mapping[PolicyName, PolicySpec]
    fleets: Mapping[FleetName, FleetSpec]
    snapshot: Snapshot
    decision: Decision
    seats: Mapping[SeatName, Seat]
    namespaces: Mapping[FleetName, str] = field(default_factory=lambda: MappingProxyType({}))
    occupied: Collection[SeatName] = ()
    freezes: Mapping[FleetName, Freeze] = field(default_factory=lambda: MappingProxyType({}))
    drained: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))


# ------------------------------------------------------------------ reading one


def parse(body: object) -> Order:
    """Read an order.

    Raises:
        OrderRefused: it is none.
    """
    if not isinstance(body, dict):
        raise _bad("an order is a JSON object")
    try:
        operation = Operation(_text(body, "operation"))
    except ValueError as error:
        known = ", ".join(Operation)
        raise _bad(f"operation {body.get('operation')!r} is not known; there are {known}") from error
    dry_run = body.get("dryRun", False)
    if not isinstance(dry_run, bool):
        raise _bad("dryRun is true or false")
    order = Order(
        id=_text(body, "id"),
        operation=operation,
        seat=SeatName(_text(body, "seat")),
        fleet=FleetName(_text(body, "fleet")),
        uid=_text(body, "uid"),
        namespace=_text(body, "namespace"),
        policy=PolicyName(_text(body, "policy")),
        leaving=PolicyName(_text(body, "leaving")),
        until=_moment(_text(body, "until")) if operation is Operation.FREEZE else 0.0,
        reason=_text(body, "reason"),
        by=_text(body, "by") or _SOMEBODY,
        dry_run=dry_run,
    )
    _check_complete(order)
    return order


def _check_complete(order: Order) -> None:
    wanted, other = ("fleet", "seat") if order.operation in _OF_FLEETS else ("seat", "fleet")
    if not order.id:
        raise _bad("id is missing", "a new one for each order: the same id again is the same order")
    if not getattr(order, wanted):
        raise _bad(f"{wanted} is missing")
    if getattr(order, other):
        raise _bad(f"{order.operation} is about a {wanted}, and no {other} goes with it")
    if order.operation in {*PROMOTIONS, Operation.DEMOTE} and not order.policy:
        raise _bad("policy is missing")
    if order.operation is Operation.FREEZE and not order.reason:
        raise _bad("reason is missing", "whoever finds the fleet frozen at night wants to know why")


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _bad(f"{key} is a text")
    most = _LONGEST_TEXT.get(key, _LONGEST_NAME)
    if len(value) > most:
        raise _bad(f"{key} is longer than {most} characters")
    if not value.isprintable():
        raise _bad(f"{key} holds characters that can't be printed")
    return value


def _moment(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError("no zone")
        return at.timestamp()
    except (ValueError, OverflowError) as error:
        raise _bad(f"until {text!r} is no time", "write it as 2026-12-24T18:00:00Z") from error


def _bad(message: str, hint: str = "") -> OrderRefused:
    return OrderRefused("BadOrder", message, hint=hint, status=HTTPStatus.BAD_REQUEST)


# ------------------------------------------------------------------ judging one


def judge(order: Order, sight: Sight) -> str:
    """Say what an order does.

    Raises:
        OrderRefused: it can't be carried out now.
    """
    return _JUDGES[order.operation](order, sight)


def meant(order: Order, sight: Sight) -> Seat:
    """Return the seat that an order is about, free to be promoted on where the order ends its drain.

    Raises:
        OrderRefused: there is none, or its fleet isn't ours to act on.
    """
    seat = sight.seats.get(order.seat)
    if seat is None:
        raise _absent(f"there is no seat {order.seat}", sorted(sight.seats))
    if order.uid and order.uid != seat.uid:
        raise OrderRefused(
            "AnotherSeat",
            f"seat {seat.name} is another one by now: its uid is {seat.uid}",
            hint="look at it again, and order it if you mean this one",
        )
    fleet = _fleet(seat.fleet, order, sight)
    if fleet.observe:
        raise OrderRefused(
            "Observed",
            f"fleet {fleet.name} is in mode Observe: nothing is done on its seats",
            hint="set mode: Enforce in the fleet",
        )
    return replace(seat, drained=False) if order.operation in PROMOTIONS and seat.drained else seat


def leaving(order: Order, seat: Seat) -> PolicyName:
    """Return who leaves a seat by a switch.

    Raises:
        OrderRefused: nobody does, or several could, or another than was named serves.
    """
    serving = sorted(seat.serving)
    if not serving:
        raise OrderRefused(
            "NotServing", f"seat {seat.name} serves nobody", hint="promote instead of switching"
        )
    if len(serving) > 1:
        raise OrderRefused(
            "Crowded", f"seat {seat.name} serves {' and '.join(serving)}", hint="demote one first"
        )
    if order.leaving and order.leaving != serving[0]:
        raise OrderRefused("NotServing", f"seat {seat.name} serves {serving[0]}, and not {order.leaving}")
    return serving[0]


def _promote(order: Order, sight: Sight) -> str:
    seat = meant(order, sight)
    _check_free(seat, sight)
    _check_coming(order.policy, seat, sight)
    if seat.serving:
        others = ", ".join(sorted(seat.serving))
        raise OrderRefused(
            "Occupied", f"seat {seat.name} serves {others}", hint="switch instead of promoting"
        )
    _check_alone(seat, {order.policy})
    _check_floors(order.policy, seat, sight)
    ends = "; that ends its drain" if sight.seats[seat.name].drained else ""
    return f"promotes {order.policy} on {seat.name} and {_kept(order.policy, sight)}{ends}"


def _switch(order: Order, sight: Sight) -> str:
    seat = meant(order, sight)
    _check_free(seat, sight)
    who = leaving(order, seat)
    _check_coming(order.policy, seat, sight)
    _check_alone(seat, {order.policy, who})
    _check_going(who, seat, sight)
    ends = "; that ends its drain" if sight.seats[seat.name].drained else ""
    return (
        f"drains {who} on {seat.name}, promotes {order.policy} there and {_kept(order.policy, sight)}{ends}"
    )


def _kept(policy: PolicyName, sight: Sight) -> str:
    seconds = sight.policies[policy].burst.stable_window
    return f"keeps it for {seconds:g} s at least; then the load decides again"


def _demote(order: Order, sight: Sight) -> str:
    seat = meant(order, sight)
    _check_claim(seat, sight)
    if order.policy not in seat.serving:
        serving = ", ".join(sorted(seat.serving)) or "nobody"
        raise OrderRefused("NotServing", f"seat {seat.name} serves {serving}, and not {order.policy}")
    _check_going(order.policy, seat, sight)
    return f"drains {order.policy} on {seat.name} and pauses it; then the load decides again"


def _drain(order: Order, sight: Sight) -> str:
    seat = meant(order, sight)
    if seat.terminating:
        raise OrderRefused("Terminating", f"seat {seat.name} is going already, and is handed over")
    if seat.drained:
        raise OrderRefused(
            "Drained", f"seat {seat.name} is drained already", hint="a promotion there by order ends it"
        )
    if sight.drained.get(seat.fleet, 0) >= MOST_DRAINED:
        raise OrderRefused(
            "TooManyDrained",
            f"{MOST_DRAINED} seats of fleet {seat.fleet} are drained already",
            hint="replace their pods, or end some drains by promoting there",
        )
    begins = f"gives {seat.name} no promotion until one is ordered or its pod is gone"
    if not seat.serving:
        return f"{begins}; it serves nobody"
    names, alone = ", ".join(sorted(seat.serving)), []
    for policy in sorted(seat.serving):
        others = (each for each in sight.seats.values() if each.name != seat.name)
        if not any(each.promotable(policy) and not each.serving for each in others):
            alone.append(policy)
    waits = (
        f"; at present no other seat is free for {', '.join(alone)}, which serves on until one is"
        if alone
        else ""
    )
    return f"{begins}; {names} leaves it once others serve in its place{waits}"


def _freeze(order: Order, sight: Sight) -> str:
    _fleet(order.fleet, order, sight)
    if not order.until > sight.wall:
        raise _bad(f"until {_date(order.until)} is over already", "name a moment to come")
    if order.until > sight.wall + LONGEST_FREEZE_SECONDS + _CLOCKS_DIFFER_SECONDS:
        raise _bad(
            f"until {_date(order.until)} is more than {LONGEST_FREEZE_SECONDS / 86400:g} days ahead",
            "what is to last longer is written into the fleet (spec.frozen)",
        )
    instead = " instead of the freeze that was ordered before" if order.fleet in sight.freezes else ""
    return f"leaves the size of {order.fleet} as it is until {_date(order.until)}{instead}; residents go on being promoted"


def _thaw(order: Order, sight: Sight) -> str:
    _fleet(order.fleet, order, sight)
    if order.fleet not in sight.freezes:
        raise OrderRefused(
            "NotFrozen",
            f"nobody has ordered a freeze of {order.fleet}",
            hint="one that the fleet's policy has (spec.frozen) is ended there",
        )
    return f"ends the freeze of {order.fleet}"


_JUDGES: Final = {
    Operation.PROMOTE: _promote,
    Operation.SWITCH: _switch,
    Operation.DEMOTE: _demote,
    Operation.DRAIN: _drain,
    Operation.FREEZE: _freeze,
    Operation.THAW: _thaw,
}


# ------------------------------------------------------------------ what stands against one


def _fleet(name: FleetName, order: Order, sight: Sight) -> FleetSpec:
    fleet = sight.fleets.get(name)
    if fleet is None:
        raise _absent(f"there is no fleet {name} in the policies in force", sorted(sight.fleets))
    where = sight.namespaces.get(name, "")
    if order.namespace and where and order.namespace != where:
        raise OrderRefused(
            "OtherNamespace",
            f"fleet {name} of this controller is in namespace {where}, and not in {order.namespace}",
            hint=f"ask the controller of namespace {order.namespace}",
            status=HTTPStatus.NOT_FOUND,
        )
    return fleet


def _absent(message: str, known: Sequence[str]) -> OrderRefused:
    more = len(known) - _MOST_NAMED
    some = ", ".join(known[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return OrderRefused("NotFound", message, hint=f"there are: {some or 'none'}", status=HTTPStatus.NOT_FOUND)


def _check_claim(seat: Seat, sight: Sight) -> None:
    claim = seat.claim
    if claim is not None and in_force(claim, sight.wall):
        raise OrderRefused(
            "Claimed",
            f"seat {seat.name} is claimed for {claim.operation} of {claim.policy}",
            hint=f"wait: the claim ends in {math.ceil(claim.deadline - sight.wall)} s at the latest",
        )


def _check_free(seat: Seat, sight: Sight) -> None:
    """Check that a seat may take a promotion now."""
    _check_claim(seat, sight)
    if seat.terminating:
        raise OrderRefused("Terminating", f"seat {seat.name} is going", hint="choose another seat")
    if not seat.reachable:
        raise OrderRefused("Unreachable", f"the agent of seat {seat.name} is silent", hint="look at its log")
    if seat.verdict is not Verdict.OK:
        raise OrderRefused(
            "UnhealthyGpu",
            f"seat {seat.name} is on a {seat.verdict} GPU",
            hint="choose another seat; `emberpool node get` says what is wrong with the GPU",
        )
    if seat.node_leaving:
        raise OrderRefused(
            "NodeLeaving",
            f"node {seat.node} of seat {seat.name} is being emptied ({seat.node_leaving})",
            hint="choose another seat",
        )
    if seat.name in sight.occupied:
        raise OrderRefused(
            "Occupied",
            f"an action is under way on seat {seat.name}, or it rests after a failed promotion",
            hint="wait some seconds, or choose another seat",
        )


def _check_coming(policy: PolicyName, seat: Seat, sight: Sight) -> None:
    """Check that a policy's resident can be promoted on a seat."""
    spec = sight.policies.get(policy)
    if spec is None:
        raise _absent(f"there is no policy {policy} in force", sorted(sight.policies))
    if all(share.fleet != seat.fleet for share in spec.fleets):
        raise OrderRefused(
            "NotOnFleet",
            f"policy {policy} doesn't name fleet {seat.fleet}",
            hint="add it to spec.fleets of the policy",
        )
    resident = seat.resident(policy)
    if resident is None:
        known = ", ".join(each.policy for each in seat.residents) or "none"
        raise OrderRefused(
            "NotResident", f"seat {seat.name} has no resident of {policy}", hint=f"there are: {known}"
        )
    if policy in seat.serving:
        raise OrderRefused("Serving", f"seat {seat.name} serves {policy} already")
    if resident.state not in PROMOTABLE:
        why = f": {resident.failure or resident.waiting}" if resident.failure or resident.waiting else ""
        failed = resident.state is ResidentState.FAILED
        raise OrderRefused(
            "NotPromotable",
            f"{policy} is {resident.state} on seat {seat.name}{why}",
            hint="look at the engine's log"
            if failed
            else "wait until it is Paused or Parked, or choose another seat",
        )
    _floor, most = bounds(spec, sight.snapshot.serving_floors.get(policy, NO_FLOOR))
    if (there := _present(spec, sight)) >= most:
        raise OrderRefused(
            "AtMax",
            f"{there} residents of {policy} serve, and serving.max is {most}",
            hint="demote another first",
        )


def _check_alone(seat: Seat, parties: Collection[PolicyName]) -> None:
    """Check that nobody else computes on a seat: a start or a proof would have to be cut off."""
    for resident in seat.residents:
        if resident.policy not in parties and resident.state in COMPUTING:
            raise OrderRefused(
                "Occupied",
                f"{resident.policy} is {resident.state} on seat {seat.name}",
                hint="wait until it is Paused, or choose another seat",
            )


def _check_going(policy: PolicyName, seat: Seat, sight: Sight) -> None:
    """Check that a policy can do without its resident on a seat: its floor, and what its load needs now."""
    spec, decided = sight.policies.get(policy), sight.decision.policies.get(policy)
    if spec is None or decided is None:
        return  # a policy that is no longer in force needs nothing
    floor, _most = bounds(spec, sight.snapshot.serving_floors.get(policy, NO_FLOOR))
    left = _present(spec, sight) - 1
    if left < floor:
        raise OrderRefused(
            "BelowFloor",
            f"{max(left, 0)} residents of {policy} would serve, and its floor is {floor}",
            hint=f"promote {policy} elsewhere first, or lower serving.min",
        )
    if decided.mode is Mode.HOLD or decided.demand is None:
        raise OrderRefused(
            "LoadUnknown",
            f"what {policy} needs is not known at present",
            hint="`emberpool signals get` says what is missing",
        )
    holds = sum(share.target_in_flight for share in spec.fleets if share.fleet == seat.fleet)
    capacity, needed = decided.capacity - holds, max(decided.needed, decided.demand)
    if capacity < needed - _ENOUGH:
        raise OrderRefused(
            "Needed",
            f"{policy} needs room for {needed:g} requests in flight, and without seat {seat.name} there is room for"
            f" {max(capacity, 0.0):g}",
            hint=f"promote {policy} elsewhere first, or wait until its load is less",
        )


def _check_floors(policy: PolicyName, seat: Seat, sight: Sight) -> None:
    """Check that a spare seat isn't what another policy lacks for its floor."""
    for spec in sight.policies.values():
        if spec.name == policy or not seat.promotable(spec.name):
            continue
        floor, _most = bounds(spec, sight.snapshot.serving_floors.get(spec.name, NO_FLOOR))
        if _present(spec, sight) < floor:
            raise OrderRefused(
                "OthersFloor",
                f"{spec.name} is below its floor of {floor}, and could serve on seat {seat.name}",
                hint="wait until it serves, or choose another seat",
            )


def _present(spec: PolicySpec, sight: Sight) -> int:
    """Return how many residents of a policy are in rotation or on their way there."""
    return sum(
        present_on(spec.name, fleet, sight.snapshot) for fleet in {share.fleet for share in spec.fleets}
    )


def present_on(policy: PolicyName, fleet: FleetName, snapshot: Snapshot) -> int:
    """Return how many residents of a policy are in rotation on a fleet, or on their way there."""
    view = snapshot.fleets.get(fleet)
    supply = NO_SUPPLY if view is None else view.supply.get(policy, NO_SUPPLY)
    return supply.serving + supply.promoting


def drain_of(order: Order, uid: str, wall: float) -> Drain:
    """Return the drain that an order begins."""
    return Drain(uid=uid, reason=order.reason, by=order.by, since=wall)


def freeze_of(order: Order, wall: float) -> Freeze:
    """Return the freeze that an order begins."""
    return Freeze(until=order.until, reason=order.reason, by=order.by, since=wall)


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
