"""Who gets the seats that there are: counts, by priority, and a seat never twice.

Seats are handed out in rounds, each in order of priority:

1. what policies in Hold have: nothing is taken from them
2. every policy's floor: nobody goes below it for another's burst; then what people have ordered to be kept for a while, of what
   is there
3. per priority class: first what a fallback promises to a policy in Hold, then what requests that are here take
   (`present`: nobody's memory of demand keeps a seat from somebody else's request), then what demand calls for now
   (`need`), then what is only kept for a while longer (`keep`: a burst's answer, the demote window), then seats that
   replace lost ones of an answer that may not fall (`answer`)
4. what the short window would like outside burst (`overflow`), from seats that nobody has any use for: with a spare
   seat idle nobody waits for the mean to rise
5. what those who borrow want beyond their floor, from what is left above the spares that people asked for; rounds 1, 3
   and 4 are not for them. Whoever's requests are ended when his seat is wanted keeps a seat that he has until then: it is
   back as soon as an idle one would be, and not while it drains

A policy of which nothing is up anywhere asks in the same rounds for one seat on which a resident can start
(`scaler.core.starting`). What it gets there holds nothing, and is told apart.

So a policy that needs seats gets, in this order and without a word about it: its own, those it can recall, spare and
lent ones, those that an equal keeps only out of caution, and those of lower classes above their floor. Which of them is
taken is the planner's business.

Where a fleet's seats don't all have the same residents up, nobody gets a seat that there isn't for it beside those that
others were given (`scaler.core.fitting`). Of the seats that nobody needs so many stay free then as others lack on which they
could start: what is only kept for a while longer would keep their residents from coming up.

Where a round's wishes exceed a fleet's seats they are met one seat at a time, each for whoever has the smallest share of
what it asked for, weighed in capacity. A seat that a policy had counts half (so that noise moves none), risk to the
objective counts a quarter. Where there are fewer seats than policies they take turns: one that got nothing for a stable
window goes first, the one that has waited longest before others, whoever was fed longest ago makes room, and a first seat is
kept for a turn (`scaler.core.turns`).
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, gt

from scaler.core.placement import COUNT_MAX, Place, Pool, along, count, holding, seats_for
from warmpool.seats import PolicyName

_HOLDER_SHARE = 0.5
_RISK_SHARE = 0.25
_PORTIONS = 1024
"""Seats are shared out one by one up to twice this many, and beyond that in parts as small as this of what is left."""


@dataclass(slots=True)
class Applicant:
    """One policy while seats are handed out.

    Attributes:
        name: the policy.
        priority: higher goes first.
        places: its fleets, in order.
        most: residents that may serve, all fleets together.
        floor: residents that serve at least.
        borrows: beyond its floor it only borrows.
        at_once: its requests on a borrowed seat that is wanted are ended instead of being waited for.
        holding: it is in Hold.
        present: the part of `need` for requests that are here at this moment.
        need: capacity that demand calls for now.
        answer: capacity that may not fall (in burst, and while signals are stale or missing).
        overflow: capacity that the short window would like; 0 where it has no say.
        keep: seats per place that it keeps for a while longer.
        ordered: seats per place that it has and that people have ordered to be kept.
        at_risk: its objective is at risk.
        held: seats that it was given last time.
        overdue: it has needed seats for a whole stable window and got none.
        starving_since: since when it has needed seats and got none; infinity if it has some or needs none.
        sheltered: its turn isn't over (`scaler.core.turns`): it may keep its first seat.
        owed: residents that it has while its signals are missing (the fallback), which its turn gives it.
        fed_since: when it last went from no seat to some.
        starts: nothing of it is up, and its places are those on which a resident could start.
        given: seats per place that it shall serve on, filled in here.
        starting: seats per place that are kept free for a resident to start on, filled in here.
    """

    name: PolicyName
    priority: int
    places: Sequence[Place]
    most: int
    floor: int
    borrows: bool
    at_once: bool
    holding: bool
    present: float
    need: float
    answer: float
    overflow: float
    keep: Sequence[int]
    at_risk: bool
    held: int
    overdue: bool
    starving_since: float
    sheltered: bool
    owed: int
    fed_since: float
    starts: bool
    ordered: Sequence[int] = ()
    given: list[int] = field(default_factory=list)
    starting: list[int] = field(default_factory=list)
    seats: int = 0
    capacity: float = 0.0

    def take(self, index: int, seats: int) -> int:
        """Give `seats` of place `index`, or as many of them as there are for it, and return how many that are."""
        place = self.places[index]
        pool = place.pool
        if pool.fit is not None:
            seats = pool.fit.give(self.name, seats, starts=self.starts)
        before = self.given[index]
        after = self.given[index] = before + seats
        if after > place.idle:
            pool.displaced += after - max(place.idle, before)
        self.seats += seats
        self.capacity += seats * place.target
        pool.left -= seats
        return seats

    def tell_apart(self) -> None:
        """Tell the seats that a resident starts on from seats that it serves on, once all are handed out."""
        self.given, self.starting = [0] * len(self.places), self.given
        self.seats, self.capacity = 0, 0.0


@dataclass(slots=True)
class _Ask:
    """What one policy asks for in one round.

    Attributes:
        applicant: who.
        capacity: until its seats hold this much; 0 in an ask for seats.
        seats: until it has this many; 0 in an ask for capacity.
        limits: seats per place that it may have at most.
        weight: what its share is measured against, > 0: worked out once it has to be shared.
    """

    applicant: Applicant
    capacity: float
    seats: int
    limits: Sequence[int]
    weight: float = 1.0

    def weigh(self) -> None:
        """Work out the weight."""
        if not self.seats:
            self.weight = max(self.capacity, 1e-9)
        else:
            asked = min(self.seats, sum(self.limits))
            self.weight = max(1.0, float(asked * self.applicant.places[0].target))

    def exhaust(self, index: int) -> None:
        """Ask for no more of place `index`: what is left there is of no use to it."""
        self.limits = [*self.limits[:index], self.applicant.given[index], *self.limits[index + 1 :]]

    def rank(self, heaviest: float) -> tuple[int, float, float, float, str]:
        """Return its place in the queue for the next seat: the smallest goes first.

        Args:
            heaviest: the largest weight in the round. What a bonus is worth doesn't depend on how much is asked for, or
                whoever asks for little would always be first to have a seat.
        """
        who = self.applicant
        bonus = (_HOLDER_SHARE if who.seats < who.held else 0.0) + (_RISK_SHARE if who.at_risk else 0.0)
        share = who.capacity / self.weight - bonus * who.places[0].target / heaviest
        turn = 2 if who.seats else 0 if who.sheltered and who.held else 1 if who.overdue else 2
        return (turn, who.starving_since if turn == 1 else 0.0, share, -who.fed_since, who.name)


def allocate(applicants: Sequence[Applicant]) -> None:
    """Hand out the seats of all pools: fills every applicant's `given` and `starting`.

    Σ of both over the policies on a fleet never exceeds the fleet's usable seats, and no policy gets more on a fleet
    than it can reach there.
    """
    for applicant in applicants:
        applicant.given = [0] * len(applicant.places)
    if len(applicants) == 1 and _is_alone(applicants[0]):
        _take_alone(applicants[0])
    else:
        _in_rounds(applicants)


def _in_rounds(applicants: Sequence[Applicant]) -> None:
    everyone = sorted([a for a in applicants if a.places], key=_by_priority)
    ordered = [a for a in everyone if not a.borrows]
    ranks = _classes(everyone)
    classes = ranks if len(ordered) == len(everyone) else _classes(ordered)
    _round([_seats_ask(a, COUNT_MAX, [place.own for place in a.places]) for a in ordered if a.holding])
    for rivals in ranks:
        _round([_seats_ask(a, a.floor, _reaches(a)) for a in rivals if a.floor > a.seats])
    _round([_seats_ask(a, COUNT_MAX, a.ordered) for a in everyone if a.ordered and any(a.ordered)])
    for rivals in classes:
        _round([_seats_ask(a, a.owed, _reaches(a)) for a in rivals if a.owed > a.seats])
        if len(rivals) > 1:  # one alone takes what is here before what it calls for in any case
            _round([_capacity_ask(a, a.present, _reaches(a)) for a in rivals if a.present > a.capacity])
        if needy := [a for a in rivals if a.need > a.capacity]:
            _round([_capacity_ask(a, a.need, _reaches(a)) for a in needy])
            _leave_to_start(needy)
        _keep(rivals, ordered)
        _round([_capacity_ask(a, a.answer, _idles(a)) for a in rivals if a.answer > a.capacity])
    for rivals in classes:
        _round([_capacity_ask(a, a.overflow, _idles(a)) for a in rivals if a.overflow > a.capacity])
    if len(ordered) < len(everyone):
        _lend([a for a in everyone if a.borrows and not a.starts])
    for applicant in applicants:
        if applicant.starts:
            applicant.tell_apart()


def _is_alone(applicant: Applicant) -> bool:
    """Whether a policy has its fleets to itself, so that nothing that it asks for has to be compared with anything."""
    if applicant.borrows or applicant.starts:
        return False
    for place in applicant.places:
        pool = place.pool
        if pool.fit is not None or pool.left < pool.usable or place.reach > place.idle:
            return False
    return True


def _take_alone(applicant: Applicant) -> None:
    """Go through the rounds for a policy that is alone: without their asks, which halves what that costs most policies."""
    if len(applicant.places) == 1:
        applicant.take(0, _alone_on_one(applicant, applicant.places[0]))
        return
    idles = _idles(applicant)
    if applicant.holding:
        _take_each(applicant, _missing_seats(applicant, COUNT_MAX, [place.own for place in applicant.places]))
    if applicant.floor > applicant.seats:
        _take_each(applicant, _missing_seats(applicant, applicant.floor, idles))
    if applicant.ordered and any(applicant.ordered):
        _take_each(applicant, _missing_seats(applicant, COUNT_MAX, applicant.ordered))
    if applicant.owed > applicant.seats:
        _take_each(applicant, _missing_seats(applicant, applicant.owed, idles))
    if applicant.need > applicant.capacity:
        _take_each(applicant, _missing_capacity(applicant, applicant.need, idles))
    if any(map(gt, applicant.keep, applicant.given)):
        _take_each(applicant, _missing_seats(applicant, COUNT_MAX, applicant.keep))
    if applicant.answer > applicant.capacity:
        _take_each(applicant, _missing_capacity(applicant, applicant.answer, idles))
    if applicant.overflow > applicant.capacity:
        _take_each(applicant, _missing_capacity(applicant, applicant.overflow, idles))


def _alone_on_one(applicant: Applicant, place: Place) -> int:
    """Return the seats that the same rounds give to whoever has one fleet: none of them has to be told from another."""
    most = applicant.most
    seats = min(max(applicant.floor, applicant.owed), place.idle)
    if applicant.holding and place.own > seats:
        seats = place.own
    if applicant.ordered and applicant.ordered[0] > seats:
        seats = applicant.ordered[0]
    seats = _filled(seats if seats < most else max(0, most), applicant.need, place, most)
    if (keep := min(applicant.keep[0], most)) > seats:
        seats = keep
    seats = _filled(seats, applicant.answer, place, most)
    return _filled(seats, applicant.overflow, place, most)


def _filled(seats: int, capacity: float, place: Place, most: int) -> int:
    """Return `seats` and as many idle ones beyond them as it takes to hold `capacity`."""
    short, free = capacity - seats * place.target, place.idle - seats
    if short <= 0.0 or free <= 0:
        return seats
    return seats + holding(place.target, free, short, most - seats)


def _take_each(applicant: Applicant, missing: Sequence[int]) -> None:
    for index, more in enumerate(missing):
        if more:
            applicant.take(index, more)


def _missing_seats(applicant: Applicant, seats: int, limits: Sequence[int]) -> list[int]:
    """Return the seats per place that a policy would take, if it were alone, until it has so many."""
    given, more = applicant.given, []
    short = min(seats, applicant.most) - applicant.seats
    for index, limit in enumerate(limits):
        room = limit - given[index]
        here = 0 if short <= 0 or room <= 0 else min(short, room)
        more.append(here)
        short -= here
    return more


def _missing_capacity(applicant: Applicant, capacity: float, limits: Sequence[int]) -> list[int]:
    """Return the seats per place that a policy would take, if it were alone, until they hold so much."""
    given = applicant.given
    rooms = [limit - given[i] if limit > given[i] else 0 for i, limit in enumerate(limits)]
    return along(applicant.places, rooms, capacity - applicant.capacity, applicant.most - applicant.seats)


def _classes(ordered: Sequence[Applicant]) -> list[list[Applicant]]:
    """Return the applicants of each priority, the highest first."""
    if not ordered or ordered[0].priority == ordered[-1].priority:
        return [list(ordered)] if ordered else []
    return [list(members) for _priority, members in groupby(ordered, key=attrgetter("priority"))]


def _lend(borrowers: Sequence[Applicant]) -> None:
    """Lend what nobody else has any use for, and keep the spares that people asked for."""
    classes = _classes(borrowers)
    pools = {id(place.pool): place.pool for a in borrowers for place in a.places}
    going = _withhold([(pool, pool.going + pool.unlent) for pool in pools.values() if pool.going])
    for rivals in classes:
        _round([_kept_ask(a) for a in rivals if a.at_once and _wish(a) > a.capacity])
    unlent = _withhold([(pool, pool.unlent) for pool in pools.values() if not pool.going])
    for rivals in classes:
        _round([_borrowing_ask(a) for a in rivals if _wish(a) > a.capacity])
    for rivals in classes:
        _round([_seats_ask(a, COUNT_MAX, a.keep) for a in rivals])
    _give_back(going + unlent)


def _withhold(wanted: Sequence[tuple[Pool, int]]) -> list[tuple[Pool, int]]:
    """Take seats out of what is left of the pools, and return how many of each."""
    withheld = [(pool, min(pool.left, seats)) for pool, seats in wanted]
    for pool, seats in withheld:
        pool.left -= seats
    return withheld


def _give_back(withheld: Sequence[tuple[Pool, int]]) -> None:
    for pool, seats in withheld:
        pool.left += seats


def _kept_ask(applicant: Applicant) -> _Ask:
    """Ask for the seats that a borrower has already, whose requests end as soon as somebody wants one."""
    return _capacity_ask(applicant, _wish(applicant), [place.own for place in applicant.places])


def _borrowing_ask(applicant: Applicant) -> _Ask:
    return _capacity_ask(applicant, _wish(applicant), _idles(applicant))


def _wish(applicant: Applicant) -> float:
    return max(applicant.need, applicant.answer, applicant.overflow)


def _keep(rivals: Sequence[Applicant], everyone: Sequence[Applicant]) -> None:
    """Let each keep what it has for a while longer, but not the very seats that others were just told to take over."""
    keepers = [a for a in rivals if any(map(gt, a.keep, a.given))]
    if not keepers:
        return
    pools = {id(place.pool): place.pool for a in rivals for place in a.places if place.pool.displaced > 0}
    members: dict[int, list[tuple[Applicant, int]]] = {key: [] for key in pools}
    for a in everyone if pools else ():
        for index, place in enumerate(a.places):
            if id(place.pool) in members:
                members[id(place.pool)].append((a, index))
    surplus = []
    for pool in pools.values():
        vacated = sum(max(0, a.places[index].own - a.given[index]) for a, index in members[id(pool)])
        surplus.append((pool, max(0, pool.left - max(0, vacated - pool.displaced))))
    withheld = _withhold(surplus)
    _round([_seats_ask(a, COUNT_MAX, a.keep) for a in keepers])
    _give_back(withheld)


def _leave_to_start(needy: Sequence[Applicant]) -> None:
    """Leave seats free, beyond what is needed, on which residents could start of whoever needs more than it is up on."""
    for a in needy:
        short = a.need - a.capacity
        if short <= 0.0 or a.starts:
            continue
        for place in a.places:
            if place.pool.fit is None:
                continue
            could = count(place.supply.startable) + count(place.supply.blocked)
            seats = min(seats_for(short, place.target), could, place.pool.left)
            place.pool.left -= seats
            short -= seats * place.target


def _by_priority(applicant: Applicant) -> tuple[int, str]:
    return (-applicant.priority, applicant.name)


def _reaches(applicant: Applicant) -> list[int]:
    return [place.reach for place in applicant.places]


def _idles(applicant: Applicant) -> list[int]:
    return [place.idle for place in applicant.places]


def _capacity_ask(applicant: Applicant, capacity: float, limits: Sequence[int]) -> _Ask:
    return _Ask(applicant, capacity, 0, limits)


def _seats_ask(applicant: Applicant, seats: int, limits: Sequence[int]) -> _Ask:
    return _Ask(applicant, 0.0, seats, limits)


def _round(asks: Sequence[_Ask]) -> None:
    """Meet the asks of one round: wholly if the seats suffice, else by fair shares."""
    if not asks:
        return
    asked: dict[int, int] = {}
    wishes = []
    lacking = False
    for ask in asks:
        places = ask.applicant.places
        missing = (
            _missing_seats(ask.applicant, ask.seats, ask.limits)
            if ask.seats
            else _missing_capacity(ask.applicant, ask.capacity, ask.limits)
        )
        for index, seats in enumerate(missing):
            if seats:
                pool = places[index].pool
                asked[id(pool)] = together = asked.get(id(pool), 0) + seats
                lacking = lacking or together > pool.left or pool.fit is not None
                wishes.append((ask, index, seats))
    if lacking:
        _share_out(list({id(ask): ask for ask, _index, _seats in wishes}.values()))
        return
    for ask, index, seats in wishes:
        ask.applicant.take(index, seats)


def _share_out(asks: Sequence[_Ask]) -> None:
    for ask in asks:
        ask.weigh()
    heaviest = max(ask.weight for ask in asks)
    queue = [(ask.rank(heaviest), number, ask) for number, ask in enumerate(asks)]
    heapq.heapify(queue)
    while queue:
        _rank, number, ask = queue[0]
        index = _next_place(ask)
        if index is None:
            heapq.heappop(queue)
            continue
        if not ask.applicant.take(index, _portion(ask, index)):
            ask.exhaust(index)
        heapq.heapreplace(queue, (ask.rank(heaviest), number, ask))


def _portion(ask: _Ask, index: int) -> int:
    """Return how many seats to hand over at once: one, but of a very large fleet a small part of what is left."""
    who, place = ask.applicant, ask.applicant.places[index]
    at_once = place.pool.left // _PORTIONS
    if at_once <= 1:
        return 1
    short = max(seats_for(ask.capacity - who.capacity, place.target), ask.seats - who.seats)
    return max(1, min(at_once, short, ask.limits[index] - who.given[index], who.most - who.seats))


def _next_place(ask: _Ask) -> int | None:
    """Return the first place that still has a seat for the ask, or None if it is met or has none."""
    who = ask.applicant
    if who.seats >= who.most or (who.capacity >= ask.capacity - 1e-9 and who.seats >= ask.seats):
        return None
    for index, place in enumerate(who.places):
        if who.given[index] < ask.limits[index] and place.pool.left > 0:
            return index
    return None
