"""Orders of people, within the loop: taken at once, carried out by the next tick as actions like all others.

What an order leaves behind stands beside what policies say, and the loop reads it at each look: a drained seat takes no promotion, a
frozen fleet keeps its size, and who was promoted by order is kept for the policy's stable window. What the rules refuse
(`scaler.runtime.order_rules`) has changed nothing. An order is judged when it is given, and once more by the tick that carries it out,
since a seat may have changed in between.
"""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final, Protocol

from scaler.cluster.port import Stock
from scaler.core.ledger import ORDERED
from scaler.core.model import Decision, Ordered
from scaler.runtime.clock import Clock
from scaler.runtime.events import EventLog
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.order_rules import (
    PROMOTIONS,
    Order,
    OrderRefused,
    Sight,
    drain_of,
    freeze_of,
    judge,
    leaving,
    meant,
    present_on,
)
from scaler.runtime.order_words import Operation
from scaler.store.standing_orders import Drain, Freeze, OfFleet, Standing
from warmpool.plan import Action, Demote, Plan, Promote, SeatAction, Switch
from warmpool.seats import FleetName, PolicyName, Seat, SeatName
from warmpool.states import ResidentState
from warmpool.warmth import Place

_REMEMBERED: Final = 1000
"""Orders whose ids are remembered: of more than these the oldest are forgotten, and would be taken for new ones."""
_UNTOLD: Final = ""
"""The uid of a seat whose agent hasn't told it yet."""
_MOST_WAITING: Final = 64
"""Orders that the next tick may have to carry out; more are refused."""


class Actions(Protocol):
    """What carries actions out."""

    def works_on(self, seat: SeatName) -> bool:
        """Whether an action is under way on a seat."""


@dataclass(slots=True)
class _Keep:
    """A resident that is kept since its promotion was ordered.

    Attributes:
        uid: of which seat.
        fleet: the seat's fleet.
        seats: residents of the policy that are kept there.
        until: time of the law's clock; None while the promotion is under way.
    """

    uid: str
    fleet: FleetName
    seats: int
    until: float | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was said to an order that was accepted."""

    order: Order
    sentence: str


async def _kept_nowhere(_: FleetName) -> None:
    """Keep nothing."""


class Orders:
    """Takes orders, and says what stands.

    Args:
        clock: time.
        events: every order is recorded there, with what came of it.
        mailbox: wakes the loop.

    Attributes:
        hurry: called when something begins or ends to stand that must outlive this process.
        urge: called with the fleet when that is because an order is carried out.
        keep: returns once what stands for a fleet would outlive this process; raises NotKept if it can't be kept now.
    """

    def __init__(self, clock: Clock, events: EventLog, mailbox: Mailbox) -> None:
        self._clock = clock
        self._events = events
        self._mailbox = mailbox
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._drains: dict[SeatName, tuple[FleetName, Drain]] = {}
        self._freezes: dict[FleetName, tuple[Freeze, float]] = {}  # with its end on the law's clock
        self._keeps: dict[Place, _Keep] = {}
        self._waiting: list[Order] = []
        self._begun: dict[SeatName, tuple[FleetName, Order]] = {}
        self._touched: set[FleetName] = set()
        self._newer: set[FleetName | SeatName] = (
            set()
        )  # whose freeze or drain has begun or ended since it leads
        self._notes: list[str] = []
        self._marked: dict[FleetName, tuple[Sequence[Seat], frozenset[SeatName], Sequence[Seat]]] = {}
        self.hurry: Callable[[], None] = lambda: None
        self.urge: Callable[[FleetName], None] = lambda _fleet: None
        self.keep: Callable[[FleetName], Awaitable[None]] = _kept_nowhere

    # -------------------------------------------------------------- giving one

    def give(self, order: Order, sight: Sight) -> str:
        """Take an order and say what it does; one that was taken before is only answered again.

        Raises:
            OrderRefused: it can't be carried out; nothing has happened.
        """
        known = self._answers.get(order.id)
        if known is not None and not order.dry_run:
            if known.order != order:
                raise OrderRefused(
                    "IdUsed",
                    f"another order had the id {order.id}",
                    hint="give each order an id of its own",
                )
            return known.sentence
        try:
            self._check_waiting(order)
            sentence = judge(order, sight)
        except OrderRefused as refused:
            if not order.dry_run:
                self._record(order, "Refused", error=str(refused))
            raise
        if not order.dry_run:
            self._take(order, sentence, sight)
        return sentence

    def _check_waiting(self, order: Order) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            raise OrderRefused(
                "TooManyOrders",
                f"{_MOST_WAITING} orders wait to be carried out",
                hint="wait a second",
                status=HTTPStatus.TOO_MANY_REQUESTS,
            )
        if order.seat and (
            order.seat in self._begun or any(each.seat == order.seat for each in self._waiting)
        ):
            raise OrderRefused(
                "Ordered",
                f"another order for seat {order.seat} is being carried out",
                hint="wait until it has ended",
            )

    def _take(self, order: Order, sentence: str, sight: Sight) -> None:
        self._answers[order.id] = _Answer(order, sentence)
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        self._record(order, "Accepted", sentence=sentence)
        match order.operation:
            case Operation.FREEZE:
                freeze = freeze_of(order, sight.wall)
                self._freezes[order.fleet] = freeze, self._on_laws_clock(freeze.until)
                self._stands(order, order.fleet)
            case Operation.THAW:
                self._freezes.pop(order.fleet, None)
                self._stands(order, order.fleet)
            case Operation.DRAIN:
                seat = meant(order, sight)
                self._drains[seat.name] = seat.fleet, drain_of(order, seat.uid, sight.wall)
                self._stands(order, seat.fleet)
            case _:
                self._waiting.append(order)
                self._wake(sight.seats[order.seat].fleet)

    def stands_for(self, order: Order) -> FleetName | None:
        """Return the fleet for which something stands, or stands no longer, since an order was taken; None for other orders."""
        if order.operation is Operation.DRAIN:
            drain = self._drains.get(order.seat)
            return None if drain is None else drain[0]
        return order.fleet or None

    def _stands(self, order: Order, fleet: FleetName) -> None:
        """Something stands from now on, or no longer."""
        self._notes.append(f"{order.subject}: {order.why}")
        self._changed(fleet, order.fleet or order.seat)
        self._wake(fleet)

    def _wake(self, fleet: FleetName) -> None:
        self._mailbox.wake(ORDERED, urgent=True, fleets=(fleet,))

    def _record(self, order: Order, outcome: str, **facts: str) -> None:
        subject = {"fleet": order.fleet} if order.fleet else {"seat": order.seat, "policy": order.policy}
        self._events.record(
            "order",
            id=order.id,
            operation=str(order.operation),
            by=order.by,
            reason=order.reason,
            outcome=outcome,
            **subject,
            **facts,
        )

    def _on_laws_clock(self, wall: float) -> float:
        return self._clock.monotonic() + wall - self._clock.wall()

    # -------------------------------------------------------------- what the loop reads

    def look(
        self, stock: Stock, windows: Mapping[PolicyName, float], actions: Actions | None, now: float
    ) -> None:
        """See what came of orders on these fleets, and forget what is over.

        Args:
            stock: the seats of the fleets that are looked at.
            windows: the stable window of each policy, in seconds.
            actions: what carries actions out; None while nobody does.
            now: the law's clock.
        """
        for fleet, names in self._of_interest().items():
            seats = stock.get(fleet)
            if seats is not None:
                here = {seat.name: seat for seat in seats if seat.name in names}
                self._look(fleet, here, windows, actions, now)
        wall = self._clock.wall()
        for fleet in [name for name, (freeze, _) in self._freezes.items() if freeze.until <= wall]:
            del self._freezes[fleet]
            self._changed(fleet, fleet)

    def _of_interest(self) -> Mapping[FleetName, set[SeatName]]:
        """Return the seats that orders are about, by fleet."""
        found: dict[FleetName, set[SeatName]] = {}
        for name, (fleet, _) in (*self._begun.items(), *self._drains.items()):
            found.setdefault(fleet, set()).add(name)
        for (name, _), keep in self._keeps.items():
            found.setdefault(keep.fleet, set()).add(name)
        return found

    def _look(
        self,
        fleet: FleetName,
        seats: Mapping[SeatName, Seat],
        windows: Mapping[PolicyName, float],
        actions: Actions | None,
        now: float,
    ) -> None:
        for name, (home, order) in list(self._begun.items()):
            seat = seats.get(name)
            busy = seat is not None and seat.claim is not None
            if home == fleet and not busy and not (actions is not None and actions.works_on(name)):
                del self._begun[name]
                self._settle(order, name, seat, windows.get(order.policy, 0.0) + now)
        for place, keep in list(self._keeps.items()):
            if keep.fleet == fleet and _over(keep, place[1], seats.get(place[0]), now):
                del self._keeps[place]
        for name, (home, drain) in list(self._drains.items()):
            if home == fleet and (name not in seats or seats[name].uid not in {drain.uid, _UNTOLD}):
                del self._drains[name]
                self._changed(fleet, name)

    def _settle(self, order: Order, name: SeatName, seat: Seat | None, until: float) -> None:
        """Record what came of an order whose action is over; who was promoted is kept until a time of the law's clock."""
        promoted = order.operation in PROMOTIONS
        done = (seat is not None and order.policy in seat.serving) is promoted
        self._record(order, "Done" if done else "Failed")
        keep = self._keeps.get((name, order.policy))
        if keep is not None and promoted:
            keep.until = until if done else -math.inf

    def _changed(self, fleet: FleetName, of: FleetName | SeatName) -> None:
        """What is kept of a fleet is out of date: its freeze, or the drain of one of its seats."""
        self._touched.add(fleet)
        self._newer.add(of)
        self.hurry()

    def mark(self, stock: Stock) -> Stock:
        """Return the seats, the drained ones marked. What is marked again the same way is the same object as before."""
        if not self._drains:
            return stock
        return {fleet: self._fleet(fleet, seats) for fleet, seats in stock.items()}

    def _fleet(self, fleet: FleetName, seats: Sequence[Seat]) -> Sequence[Seat]:
        drained = frozenset(name for name, (home, _) in self._drains.items() if home == fleet)
        if not drained:
            return seats
        before = self._marked.get(fleet)
        if before is not None and before[0] is seats and before[1] == drained:
            return before[2]
        known = {} if before is None else dict(zip(map(id, before[0]), before[2], strict=True))
        marked = tuple(
            seat
            if seat.name not in drained
            else found
            if (found := known.get(id(seat))) is not None and found.drained
            else replace(seat, drained=True)
            for seat in seats
        )
        self._marked[fleet] = seats, drained, marked
        return marked

    def frozen(self, fleets: Iterable[FleetName]) -> Mapping[FleetName, float]:
        """Return until when fleets keep their size by order, on the law's clock."""
        return {fleet: self._freezes[fleet][1] for fleet in fleets if fleet in self._freezes}

    @property
    def freezes(self) -> Mapping[FleetName, Freeze]:
        """The fleets that people have frozen."""
        return {fleet: freeze for fleet, (freeze, _) in self._freezes.items()}

    @property
    def drained(self) -> Mapping[SeatName, Drain]:
        """The seats that people have drained."""
        return {name: drain for name, (_, drain) in self._drains.items()}

    @property
    def drained_of(self) -> Mapping[FleetName, int]:
        """How many seats of each fleet are drained."""
        homes = [home for home, _ in self._drains.values()]
        return {home: homes.count(home) for home in set(homes)}

    def kept(self, policies: Collection[PolicyName]) -> Mapping[PolicyName, Ordered]:
        """Return what is kept of these policies by order."""
        if not self._keeps:
            return {}
        found: dict[PolicyName, Ordered] = {}
        for (_seat, policy), keep in self._keeps.items():
            if policy not in policies:
                continue
            known = found.get(policy, Ordered(seats={}))
            ends = [until for until in (known.until, keep.until) if until is not None]
            seats = {**known.seats, keep.fleet: max(keep.seats, known.seats.get(keep.fleet, 0))}
            found[policy] = Ordered(seats=seats, until=min(ends, default=None))
        return found

    def places(self, decision: Decision) -> frozenset[Place]:
        """Return the residents that the planner leaves where they are: as many as the law keeps, and no more."""
        if not self._keeps:
            return frozenset()
        found: set[Place] = set()
        counts: dict[tuple[FleetName, PolicyName], int] = {}
        for place, keep in self._keeps.items():
            key = keep.fleet, place[1]
            decided = decision.policies.get(place[1])
            counts[key] = counts.get(key, 0) + 1
            if decided is not None and counts[key] <= decided.serving.get(keep.fleet, 0):
                found.add(place)
        return frozenset(found)

    # -------------------------------------------------------------- carrying them out

    @property
    def waiting(self) -> bool:
        """Whether there is anything to carry out."""
        return bool(self._waiting)

    def carry_out(self, plan: Plan, sight: Sight) -> Plan:
        """Return the plan with the actions that were ordered, which go first on their seats.

        Args:
            plan: what the loop would do.
            sight: what it has just seen and decided; orders on fleets that it didn't look at wait.
        """
        here = [order for order in self._waiting if self._is_seen(order, sight)]
        if not here:
            return plan
        self._waiting = [order for order in self._waiting if order not in here]
        actions = [action for order in here if (action := self._begin(order, sight)) is not None]
        seats = {action.seat.name for action in actions}
        others = [
            each for each in plan.actions if not (isinstance(each, SeatAction) and each.seat.name in seats)
        ]
        return replace(plan, actions=(*actions, *others))

    @staticmethod
    def _is_seen(order: Order, sight: Sight) -> bool:
        seat = sight.seats.get(order.seat)
        return seat is None or seat.fleet in sight.snapshot.fleets or seat.fleet not in sight.fleets

    def _begin(self, order: Order, sight: Sight) -> SeatAction | None:
        """Return the action that an order asks for; None if it can't be carried out any more."""
        try:
            judge(order, sight)
            seat = meant(order, sight)
            action = _action(order, seat)
        except OrderRefused as refused:
            self._record(order, "Lapsed", error=str(refused))
            return None
        self._begun[seat.name] = seat.fleet, order
        if order.operation in PROMOTIONS:
            there = present_on(order.policy, seat.fleet, sight.snapshot)
            seats = max(there, self._coming(order.policy, seat.fleet)) + 1
            self._keeps[seat.name, order.policy] = _Keep(seat.uid, seat.fleet, seats)
            if self._drains.pop(seat.name, None) is not None:
                self._changed(seat.fleet, seat.name)
                self.urge(seat.fleet)
        leaves = action.leaving if isinstance(action, Switch) else order.policy
        if not isinstance(action, Promote):
            self._keeps.pop((seat.name, leaves), None)
        return action

    def _coming(self, policy: PolicyName, fleet: FleetName) -> int:
        """Return how many are kept by orders that are under way, which what was seen may not show yet."""
        return max(
            (
                keep.seats
                for (_seat, kept), keep in self._keeps.items()
                if (kept, keep.fleet, keep.until) == (policy, fleet, None)
            ),
            default=0,
        )

    def notes(self) -> list[str]:
        """Return what was ordered since the last call and needs no action, in words; the ledger has it."""
        notes, self._notes = self._notes, []
        return notes

    # -------------------------------------------------------------- beyond this process

    def lead(self) -> None:
        """Begin anew: another may have led meanwhile, and what stands is read again from where it is kept."""
        self._drains.clear()
        self._freezes.clear()
        self._keeps.clear()
        self._waiting.clear()
        self._begun.clear()
        self._touched.clear()
        self._newer.clear()
        self._answers.clear()

    def stand_by(self) -> None:
        """Another leads from now on: what waits to be carried out isn't."""
        for order in self._waiting:
            self._record(order, "Lapsed", error="this controller leads no longer")
        self._waiting.clear()

    def learn(self, standing: Standing) -> None:
        """Take up what was kept, as far as nothing newer is known."""
        wall = self._clock.wall()
        for fleet, of in standing.items():
            if of.freeze is not None and of.freeze.until > wall and fleet not in self._newer:
                self._freezes[fleet] = of.freeze, self._on_laws_clock(of.freeze.until)
            for name, drain in of.drains.items():
                if name not in self._newer:
                    self._drains[name] = fleet, drain
            self._touched.add(fleet)
            self._wake(fleet)

    @property
    def standing(self) -> Standing:
        """What must outlive this process: fleets whose orders have ended are in it, without any."""
        return {
            fleet: OfFleet(
                freeze=self._freezes[fleet][0] if fleet in self._freezes else None,
                drains={name: drain for name, (home, drain) in self._drains.items() if home == fleet},
            )
            for fleet in sorted(self._touched)
        }


def _over(keep: _Keep, policy: PolicyName, seat: Seat | None, now: float) -> bool:
    """Whether a resident is kept no longer: its time is over, it has left rotation, or its seat is another."""
    if seat is None or seat.uid != keep.uid:
        return True
    return keep.until is not None and (keep.until <= now or policy not in seat.serving)


def _action(order: Order, seat: Seat) -> SeatAction:
    """Return the action that an order asks for.

    Raises:
        OrderRefused: nobody, or somebody else, would leave the seat.
    """
    why = order.why
    match order.operation:
        case Operation.PROMOTE:
            return Promote(seat=seat, policy=order.policy, displace=_displaceable(order, seat), why=why)
        case Operation.SWITCH:
            who = leaving(order, seat)
            displace = (*_displaceable(order, seat), who)
            return Switch(seat=seat, policy=order.policy, leaving=who, displace=displace, why=why)
        case _:
            return Demote(seat=seat, policy=order.policy, why=why)


def _displaceable(order: Order, seat: Seat) -> tuple[PolicyName, ...]:
    """Return who may be parked for a promotion that finds no room: whoever is paused there."""
    return tuple(
        each.policy
        for each in seat.residents
        if each.policy != order.policy and each.state is ResidentState.PAUSED
    )


def whole(actions: Sequence[Action], notes: Sequence[str]) -> list[str]:
    """Return what a tick does, in words, what was ordered first."""
    return [*notes, *(action.why for action in actions)]


def freeze_json(freeze: Freeze) -> Mapping[str, Any]:
    """Render a freeze for those who look at its fleet."""
    return {"until": freeze.until, "reason": freeze.reason, "by": freeze.by, "since": freeze.since}
