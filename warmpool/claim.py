"""The claim: who may take a seat, what taking and settling do to it, and what a claim means whose holder is gone.

A claim is written with a compare-and-swap, so of two that try one wins; this module holds the rules that come before
and after that write, so that every store applies the same ones. PURE: no I/O, no clock, no randomness.
"""

from dataclasses import dataclass, replace

from warmpool.seats import Claim, Operation, PolicyName, Resident, Seat, Verdict
from warmpool.states import MOVING, ResidentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One controller's time as the leader.

    Attributes:
        holder: instance id of the controller.
        epoch: number of the term; a later term has a higher one.
    """

    holder: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a seat is wanted for, before anybody has taken it.

    Attributes:
        operation: what for.
        policy: the resident that gets the seat (for a demotion: the one that leaves).
        leaving: the policy whose resident is drained first (`Switch` only).
        displace: policies whose paused residents may be parked to make room, the first first; None leaves it to the agent.
    """

    operation: Operation
    policy: PolicyName
    leaving: PolicyName | None = None
    displace: tuple[PolicyName, ...] | None = None


def new_claim(errand: Errand, term: Term, *, number: int, now: float, seconds: float) -> Claim:
    """Make a claim whose id follows from its arguments alone.

    Args:
        errand: what the seat is wanted for.
        term: in whose name.
        number: unique within the term; a counter will do.
        now: Unix time.
        seconds: how long the claim is in force.
    """
    return Claim(
        id=f"{term.holder}-{term.epoch}-{number}",
        policy=errand.policy,
        operation=errand.operation,
        holder=term.holder,
        epoch=term.epoch,
        since=now,
        deadline=now + seconds,
        leaving=errand.leaving,
        displace=errand.displace,
    )


def in_force(claim: Claim | None, now: float) -> bool:
    """Whether there is a claim and its deadline lies ahead."""
    return claim is not None and now < claim.deadline


def orphaned(seat: Seat, now: float, epoch: int) -> bool:
    """Whether the seat has a claim that nobody carries out any more, as far as the term `epoch` may conclude.

    That is a claim past its deadline, or one of an earlier term.
    """
    return seat.claim is not None and (not in_force(seat.claim, now) or seat.claim.epoch < epoch)


def leaves(claim: Claim) -> PolicyName | None:
    """Return the policy that loses its serving label with this claim, or None."""
    match claim.operation:
        case Operation.DEMOTE:
            return claim.policy
        case Operation.SWITCH:
            return claim.leaving
        case _:
            return None


def refusal(seat: Seat, claim: Claim, now: float) -> str | None:
    """Say why `claim` may not be put on the seat now; None if it may.

    The seat's own version decides a race; this decides what may be tried at all.
    """
    if (held := _held_by_another(seat, claim, now)) is not None:
        return held
    if claim.operation is Operation.DEMOTE:
        return None  # taking a resident out of rotation is right on any seat, a sick or leaving one above all
    if not seat.usable:
        return f"seat {seat.name} takes no promotion: it is {_unusable(seat)}"
    if seat.resident(claim.policy) is None:
        return f"seat {seat.name} has no resident of {claim.policy}"
    return _crowded(seat, claim)


def overtakes(errand: Errand, operation: Operation, policy: PolicyName | None) -> bool:
    """Whether an errand may take a seat over from an operation on one of its residents that is under way.

    A burst may come during a drain: the resident that leaves is the warmest of all, and where others need the seat at once a
    switch goes on with the drain, in less time. A resident whose weights are on their way has its seat already, and its agent
    goes on with the promotion when they have arrived.

    Args:
        errand: what the seat is wanted for.
        operation: what is under way.
        policy: on whose resident.
    """
    own = errand.leaving if errand.operation is Operation.SWITCH else errand.policy
    return own is not None and own == policy and (errand.operation, operation) in _OVERTAKING


def may_claim(seat: Seat, claim: Claim, now: float) -> bool:
    """Whether `claim` may be put on the seat now; `refusal` says why not."""
    return refusal(seat, claim, now) is None


def apply_claim(seat: Seat, claim: Claim) -> Seat:
    """Return the seat with the claim on it and the leaving resident out of rotation; the version is the store's."""
    serving = seat.serving - {leaving} if (leaving := leaves(claim)) is not None else seat.serving
    return replace(seat, claim=claim, serving=serving, lent=seat.lent and bool(serving))


def holds(seat: Seat, claim: Claim) -> bool:
    """Whether it is this claim, by its id, that the seat carries."""
    return seat.claim is not None and seat.claim.id == claim.id


def apply_settlement(seat: Seat, claim: Claim, serving: PolicyName | None) -> Seat:
    """Return the seat with the claim ended and `serving` in rotation (None: nobody is added).

    A seat that carries another claim, or none, is returned as it is; ask `holds` to tell these apart.
    """
    if not holds(seat, claim):
        return seat
    added = frozenset() if serving is None else frozenset({serving})
    return replace(seat, claim=None, serving=seat.serving | added)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """How to end an orphaned claim.

    Attributes:
        claim: the orphan, to be settled as it stands on the seat.
        serving: who goes into rotation with the settlement; None for nobody.
        demote: whose engine is left resumed and out of rotation. It is to be drained and paused under a claim of one's
            own; left alone, the next plan recalls it if it is wanted and demotes it if not.
        why: the finding in words.
    """

    claim: Claim
    serving: PolicyName | None
    demote: PolicyName | None
    why: str


def resolve_orphan(seat: Seat, now: float, epoch: int) -> Resolution | None:
    """Decide what becomes of a claim that nobody carries out any more, from the states that the agent reports.

    Work that was finished is kept (the resident serves, only the label was missing), a drain that had not begun is
    undone, and everything else is taken back.

    Args:
        seat: the seat as it is now.
        now: Unix time.
        epoch: the term that asks.

    Returns:
        What to do; None if the claim is no orphan, or if the agent is about to end its step by itself and the claim's
        deadline has not passed.
    """
    claim = seat.claim
    if claim is None or not orphaned(seat, now, epoch):
        return None
    resident = seat.resident(claim.policy)
    if in_force(claim, now) and _ends_by_itself(resident):
        return None
    if (
        claim.operation in _PROMOTING
        and _state(resident) is ResidentState.SERVING
        and _may_serve(seat, claim.policy)
    ):
        return Resolution(
            claim=claim,
            serving=claim.policy,
            demote=None,
            why=f"{claim.policy} serves; only its label is missing",
        )
    if claim.operation is Operation.SWITCH:
        return _resolve_switch(seat, claim)
    return _take_back(claim, resident)


_OVERTAKING = (
    (Operation.RECALL, Operation.DEMOTE),
    (Operation.SWITCH, Operation.DEMOTE),
    (Operation.PROMOTE, Operation.UNPARK),
    (Operation.PROMOTE, Operation.PARK),
)
_PROMOTING = frozenset({Operation.PROMOTE, Operation.SWITCH, Operation.RECALL})
_ENDING = MOVING | {ResidentState.PROMOTING, ResidentState.PROVING}
"""States that an agent leaves without another order."""


def _resolve_switch(seat: Seat, claim: Claim) -> Resolution:
    """End a switch whose promotion didn't get as far as serving."""
    leaving = None if claim.leaving is None else seat.resident(claim.leaving)
    if leaving is not None and leaving.state is ResidentState.SERVING and _may_serve(seat, leaving.policy):
        return Resolution(
            claim=claim,
            serving=leaving.policy,
            demote=None,
            why=f"the drain of {leaving.policy} had not begun; it goes back into rotation",
        )
    return _take_back(claim, leaving if _resumed(leaving) else seat.resident(claim.policy))


def _take_back(claim: Claim, resident: Resident | None) -> Resolution:
    """End a claim with nobody in rotation, and name the resident that it leaves resumed."""
    if resident is None or not _resumed(resident):
        state = "gone" if resident is None else resident.state
        return Resolution(
            claim=claim, serving=None, demote=None, why=f"{claim.policy} is {state}; taken back"
        )
    return Resolution(
        claim=claim,
        serving=None,
        demote=resident.policy,
        why=f"{resident.policy} is {resident.state} and out of rotation",
    )


def _held_by_another(seat: Seat, claim: Claim, now: float) -> str | None:
    """Say which claim in force stands against `claim`; None if none does."""
    held = seat.claim
    if held is None or held.id == claim.id or now >= held.deadline or held.epoch < claim.epoch:
        return None
    if held.epoch > claim.epoch:
        return f"seat {seat.name} is claimed by the later term {held.epoch}; term {claim.epoch} is over"
    errand = Errand(operation=claim.operation, policy=claim.policy, leaving=claim.leaving)
    if overtakes(errand, held.operation, held.policy):
        return None
    return f"seat {seat.name} is claimed for {held.operation} of {held.policy} ({held.id})"


def _crowded(seat: Seat, claim: Claim) -> str | None:
    """Say who is in rotation where `claim` needs the seat for itself; None if nobody is."""
    leaving = claim.leaving if claim.operation is Operation.SWITCH else None
    if claim.operation is Operation.SWITCH and leaving in {None, claim.policy}:
        return f"a switch to {claim.policy} must name another policy that leaves"
    others = seat.serving - {leaving} if leaving is not None else seat.serving
    if others:
        return f"seat {seat.name} serves {', '.join(sorted(others))}"
    return None


def _may_serve(seat: Seat, policy: PolicyName) -> bool:
    """Whether a settlement may put `policy` into rotation here: a sound seat that serves nobody else."""
    return seat.usable and seat.serving <= {policy}


def _unusable(seat: Seat) -> str:
    """Name what makes the seat unusable."""
    if seat.terminating:
        return "terminating"
    if seat.drained:
        return "drained by an order"
    if not seat.reachable:
        return "unreachable"
    if seat.verdict is not Verdict.OK:
        return f"on a {seat.verdict} GPU"
    return f"on node {seat.node}, which is being emptied ({seat.node_leaving})"


def _state(resident: Resident | None) -> ResidentState | None:
    return None if resident is None else resident.state


def _resumed(resident: Resident | None) -> bool:
    """Whether the engine runs out of rotation and only an order will pause it."""
    return _state(resident) in {ResidentState.SERVING, ResidentState.DRAINING}


def _ends_by_itself(resident: Resident | None) -> bool:
    """Whether the agent is within a step that ends without another order."""
    return _state(resident) in _ENDING
