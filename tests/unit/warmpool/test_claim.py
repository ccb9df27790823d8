"""Who may take a seat, what that does to it, and what becomes of a claim whose holder is gone."""

from dataclasses import replace

import pytest

from warmpool.claim import (
    Errand,
    Resolution,
    Term,
    apply_claim,
    apply_settlement,
    holds,
    in_force,
    leaves,
    may_claim,
    new_claim,
    orphaned,
    refusal,
    resolve_orphan,
)
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import ResidentState as S

A = PolicyName("a")
B = PolicyName("b")
C = PolicyName("c")
NOW = 1000.0
TERM = Term(holder="ctl-1", epoch=5)


def claim(
    operation: Operation, policy: PolicyName = A, *, epoch: int = 5, deadline: float = NOW + 10
) -> Claim:
    return Claim(
        id=f"{operation}-{policy}-{epoch}",
        policy=policy,
        operation=operation,
        holder="ctl-1",
        epoch=epoch,
        since=NOW - 1,
        deadline=deadline,
        leaving=B if operation is Operation.SWITCH else None,
    )


def seat(a: S = S.PAUSED, b: S = S.PAUSED, *, serving: str = "", held: Claim | None = None) -> Seat:
    return Seat(
        name=SeatName("s-0"),
        uid="u",
        version="1",
        fleet=FleetName("f"),
        residents=(Resident(policy=A, state=a, since=0.0), Resident(policy=B, state=b, since=0.0)),
        serving=frozenset(PolicyName(policy) for policy in serving),
        claim=held,
        ready=True,
    )


class TestNewClaim:
    def test_everything_follows_from_the_arguments(self) -> None:
        errand = Errand(operation=Operation.SWITCH, policy=A, leaving=B, displace=(B, C))
        assert new_claim(errand, TERM, number=7, now=NOW, seconds=2.5) == Claim(
            id="ctl-1-5-7",
            policy=A,
            operation=Operation.SWITCH,
            holder="ctl-1",
            epoch=5,
            since=NOW,
            deadline=NOW + 2.5,
            leaving=B,
            displace=(B, C),
        )

    def test_another_number_or_term_is_another_id(self) -> None:
        errand = Errand(operation=Operation.PROMOTE, policy=A)
        terms = (TERM, replace(TERM, epoch=6), replace(TERM, holder="ctl-2"))
        made = [
            new_claim(errand, term, number=number, now=NOW, seconds=1) for term in terms for number in (1, 2)
        ]
        assert len({made_claim.id for made_claim in made}) == len(made)


@pytest.mark.parametrize(
    ("deadline", "epoch", "force", "orphan"),
    [
        pytest.param(NOW + 1, 5, True, False, id="ours"),
        pytest.param(NOW + 1, 4, True, True, id="of-an-earlier-term"),
        pytest.param(NOW + 1, 6, True, False, id="of-a-later-term"),
        pytest.param(NOW, 5, False, True, id="deadline-reached"),
        pytest.param(NOW - 1, 6, False, True, id="of-a-later-term-and-past-its-deadline"),
        pytest.param(float("nan"), 5, False, True, id="a-deadline-that-is-no-time"),
    ],
)
def test_in_force_and_orphaned(*, deadline: float, epoch: int, force: bool, orphan: bool) -> None:
    held = claim(Operation.PROMOTE, epoch=epoch, deadline=deadline)
    assert in_force(held, NOW) is force
    assert orphaned(seat(held=held), NOW, 5) is orphan


def test_no_claim_is_neither_in_force_nor_orphaned() -> None:
    assert not in_force(None, NOW)
    assert not orphaned(seat(), NOW, 5)


P, W, D, R, V = Operation.PROMOTE, Operation.SWITCH, Operation.DEMOTE, Operation.RECALL, Operation.PROVE
K, U = Operation.PARK, Operation.UNPARK


@pytest.mark.parametrize(
    ("given", "asked", "says"),
    [
        pytest.param(seat(), claim(P), None, id="free"),
        pytest.param(seat(held=claim(P, B)), claim(P), "claimed for Promote of b", id="held"),
        pytest.param(seat(held=claim(P, B, epoch=4)), claim(P), None, id="take-over-from-an-earlier-term"),
        pytest.param(seat(held=claim(P, B, deadline=NOW)), claim(P), None, id="take-over-after-the-deadline"),
        pytest.param(seat(held=claim(P, B, epoch=6)), claim(P), "term 5 is over", id="a-later-term-holds-it"),
        pytest.param(
            seat(held=claim(P, B, epoch=6, deadline=NOW)), claim(P), None, id="anyone-after-the-deadline"
        ),
        pytest.param(seat(held=claim(P)), claim(P), None, id="the-same-claim-again"),
        pytest.param(seat(a=S.DRAINING, held=claim(D)), claim(R), None, id="recall-ends-a-demotion"),
        pytest.param(
            seat(held=claim(D, B)), claim(W), None, id="a-switch-goes-on-with-the-drain-of-who-leaves"
        ),
        pytest.param(seat(held=claim(D)), claim(W), "Demote of a", id="and-with-no-other"),
        pytest.param(
            seat(held=claim(D, B, epoch=6)), claim(W), "later term", id="no-switch-from-a-term-that-is-over"
        ),
        pytest.param(seat(held=claim(W)), claim(W, C), "Switch of a", id="no-switch-overtakes-another"),
        pytest.param(seat(held=claim(D, B)), claim(R), "Demote of b", id="recall-of-another-than-leaves"),
        pytest.param(seat(held=claim(D)), claim(P), "Demote of a", id="a-promotion-waits-for-a-demotion"),
        pytest.param(
            seat(held=claim(D, epoch=6)), claim(R), "later term", id="no-recall-from-a-term-that-is-over"
        ),
        pytest.param(seat(held=claim(V)), claim(P), "Prove of a", id="a-promotion-waits-for-a-proof"),
        pytest.param(seat(), claim(U), None, id="unparking"),
        pytest.param(seat(held=claim(U)), claim(P), None, id="a-promotion-follows-an-unparking"),
        pytest.param(seat(held=claim(K)), claim(P), None, id="and-a-parking"),
        pytest.param(seat(held=claim(U, B)), claim(P), "Unpark of b", id="not-of-another"),
        pytest.param(seat(held=claim(U)), claim(K), "Unpark of a", id="no-move-overtakes-another"),
        pytest.param(seat(held=claim(U, epoch=6)), claim(P), "later term", id="nor-does-a-term-that-is-over"),
        pytest.param(seat(serving="b"), claim(U), "serves b", id="unparking-beside-who-serves"),
        pytest.param(seat(serving="a"), claim(K), "serves a", id="parking-of-who-serves"),
        pytest.param(
            replace(seat(), verdict=Verdict.SUSPECT), claim(U), "Suspect GPU", id="unparking-on-suspect"
        ),
        pytest.param(seat(serving="b"), claim(P), "serves b", id="promotion-beside-another"),
        pytest.param(seat(serving="a"), claim(P), "serves a", id="promotion-of-what-serves"),
        pytest.param(seat(serving="b"), claim(R), "serves b", id="recall-beside-another"),
        pytest.param(seat(serving="b"), claim(V), "serves b", id="proof-beside-another"),
        pytest.param(seat(serving="b"), claim(W), None, id="switch"),
        pytest.param(seat(b=S.DRAINING), claim(W), None, id="switch-from-one-that-lost-its-label"),
        pytest.param(seat(serving="ab"), claim(W), "serves a", id="switch-where-two-serve"),
        pytest.param(
            seat(serving="b"), replace(claim(W), leaving=None), "must name", id="switch-from-nobody"
        ),
        pytest.param(seat(serving="a"), replace(claim(W), leaving=A), "must name", id="switch-to-itself"),
        pytest.param(seat(serving="a"), claim(D), None, id="demotion"),
        pytest.param(seat(), claim(D), None, id="demotion-without-label"),
        pytest.param(seat(), claim(P, C), "no resident of c", id="unknown-resident"),
        pytest.param(
            replace(seat(), terminating=True), claim(P), "terminating", id="promotion-while-terminating"
        ),
        pytest.param(
            replace(seat(), reachable=False), claim(R), "unreachable", id="recall-where-nobody-answers"
        ),
        pytest.param(
            replace(seat(), verdict=Verdict.SUSPECT), claim(P), "Suspect GPU", id="promotion-on-suspect"
        ),
        pytest.param(replace(seat(), verdict=Verdict.BAD), claim(V), "Bad GPU", id="proof-on-bad"),
        pytest.param(
            replace(seat(), node="n1", node_leaving="cordoned"),
            claim(P),
            "node n1, which is being emptied (cordoned)",
            id="promotion-on-a-leaving-node",
        ),
        pytest.param(
            replace(seat(serving="a"), node_leaving="cordoned"),
            claim(D),
            None,
            id="demotion-on-a-leaving-node",
        ),
        pytest.param(replace(seat(serving="a"), verdict=Verdict.BAD), claim(D), None, id="demotion-on-bad"),
        pytest.param(
            replace(seat(serving="a"), terminating=True), claim(D), None, id="demotion-while-terminating"
        ),
    ],
)
def test_refusal(given: Seat, asked: Claim, says: str | None) -> None:
    answer = refusal(given, asked, NOW)
    assert may_claim(given, asked, NOW) is (says is None)
    if says is None:
        assert answer is None
    else:
        assert answer is not None
        assert says in answer


@pytest.mark.parametrize(
    ("operation", "leaver"),
    [
        pytest.param(P, None, id="promote"),
        pytest.param(R, None, id="recall"),
        pytest.param(V, None, id="prove"),
        pytest.param(K, None, id="park"),
        pytest.param(U, None, id="unpark"),
        pytest.param(D, A, id="demote"),
        pytest.param(W, B, id="switch"),
    ],
)
def test_a_claim_takes_its_leaver_out_of_rotation_and_nobody_else(
    operation: Operation, leaver: PolicyName | None
) -> None:
    asked = claim(operation)
    assert leaves(asked) == leaver
    taken = apply_claim(seat(serving="abc"), asked)
    assert taken.claim == asked
    assert taken.serving == {A, B, C} - {leaver}


def test_a_seat_is_lent_no_longer_when_the_borrower_leaves() -> None:
    borrowed = replace(seat(serving="b"), lent=True)
    assert not apply_claim(borrowed, claim(W)).lent
    assert apply_claim(borrowed, claim(P)).lent


class TestSettlement:
    def test_puts_the_resident_into_rotation_and_clears_the_claim(self) -> None:
        held = seat(a=S.SERVING, held=claim(P))
        settled = apply_settlement(held, claim(P), A)
        assert settled == replace(held, claim=None, serving=frozenset({A}))

    def test_with_nobody_adds_nobody(self) -> None:
        settled = apply_settlement(seat(held=claim(D)), claim(D), None)
        assert settled.claim is None
        assert settled.serving == frozenset()

    def test_leaves_a_seat_alone_that_another_claim_holds(self) -> None:
        held = seat(held=claim(R))
        assert not holds(held, claim(D))
        assert apply_settlement(held, claim(D), None) is held

    def test_is_idempotent(self) -> None:
        once = apply_settlement(seat(held=claim(P)), claim(P), A)
        assert apply_settlement(once, claim(P), A) == once


OLD = NOW - 1
LATE = NOW + 10


def orphan(operation: Operation, *, deadline: float = OLD) -> Claim:
    return claim(operation, epoch=4, deadline=deadline)


@pytest.mark.parametrize(
    ("given", "serving", "demote"),
    [
        pytest.param(seat(a=S.SERVING, held=orphan(P)), A, None, id="promoted-and-not-labelled"),
        pytest.param(seat(a=S.SERVING, held=orphan(P, deadline=LATE)), A, None, id="of-an-earlier-term"),
        pytest.param(seat(a=S.SERVING, held=orphan(R)), A, None, id="recalled-and-not-labelled"),
        pytest.param(seat(a=S.SERVING, held=orphan(W)), A, None, id="switched-and-not-labelled"),
        pytest.param(seat(a=S.PAUSED, held=orphan(P)), None, None, id="promotion-never-begun-or-undone"),
        pytest.param(seat(a=S.PROMOTING, held=orphan(P)), None, None, id="promotion-hangs"),
        pytest.param(seat(a=S.FAILED, held=orphan(P)), None, None, id="promotion-failed"),
        pytest.param(seat(a=S.DRAINING, held=orphan(R)), None, A, id="recall-never-begun"),
        pytest.param(seat(b=S.SERVING, held=orphan(W)), B, None, id="switch-whose-drain-never-began"),
        pytest.param(seat(b=S.DRAINING, held=orphan(W)), None, B, id="switch-while-draining"),
        pytest.param(seat(b=S.PAUSED, held=orphan(W)), None, None, id="switch-between-the-two"),
        pytest.param(seat(a=S.SERVING, held=orphan(D)), None, A, id="demotion-whose-drain-never-began"),
        pytest.param(seat(a=S.DRAINING, held=orphan(D)), None, A, id="demotion-while-draining"),
        pytest.param(seat(a=S.PAUSED, held=orphan(D)), None, None, id="demotion-done"),
        pytest.param(seat(a=S.PROVING, held=orphan(V)), None, None, id="proof-hangs"),
        pytest.param(seat(a=S.PAUSED, held=orphan(V)), None, None, id="proof-done"),
        pytest.param(seat(a=S.UNPARKING, held=orphan(U)), None, None, id="unparking-hangs"),
        pytest.param(seat(a=S.PAUSED, held=orphan(U)), None, None, id="unparking-done"),
        pytest.param(seat(a=S.PARKED, held=orphan(K)), None, None, id="parking-done"),
        pytest.param(seat(a=S.UNPARKING, held=orphan(P)), None, None, id="promotion-hangs-in-its-unparking"),
        pytest.param(
            replace(seat(a=S.SERVING, held=orphan(P)), verdict=Verdict.BAD),
            None,
            A,
            id="promoted-on-a-bad-gpu",
        ),
        pytest.param(
            replace(seat(b=S.SERVING, held=orphan(W)), terminating=True),
            None,
            B,
            id="no-undo-on-a-leaving-seat",
        ),
        pytest.param(
            seat(a=S.SERVING, serving="b", held=orphan(P)), None, A, id="another-serves-there-meanwhile"
        ),
        pytest.param(replace(seat(held=orphan(P)), residents=()), None, None, id="the-resident-is-gone"),
    ],
)
def test_an_orphan_is_finished_or_taken_back(
    given: Seat, serving: PolicyName | None, demote: PolicyName | None
) -> None:
    resolution = resolve_orphan(given, NOW, 5)
    assert resolution is not None
    assert (resolution.serving, resolution.demote) == (serving, demote)
    assert resolution.claim == given.claim
    assert resolution.why


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(seat(), id="no-claim"),
        pytest.param(seat(a=S.SERVING, held=claim(P)), id="ours-in-force"),
        pytest.param(seat(a=S.SERVING, held=claim(P, epoch=6)), id="of-a-later-term"),
        pytest.param(seat(a=S.PROMOTING, held=orphan(P, deadline=LATE)), id="the-agent-is-still-promoting"),
        pytest.param(seat(a=S.PROVING, held=orphan(V, deadline=LATE)), id="the-agent-is-still-proving"),
        pytest.param(seat(a=S.UNPARKING, held=orphan(U, deadline=LATE)), id="the-agent-is-still-unparking"),
        pytest.param(seat(a=S.UNPARKING, held=orphan(P, deadline=LATE)), id="on-its-way-to-a-promotion"),
        pytest.param(seat(a=S.PARKING, held=orphan(K, deadline=LATE)), id="the-agent-is-still-parking"),
    ],
)
def test_nothing_to_resolve(given: Seat) -> None:
    assert resolve_orphan(given, NOW, 5) is None


def test_resolving_leads_to_a_seat_without_claim() -> None:
    given = seat(a=S.SERVING, held=orphan(P))
    resolution = resolve_orphan(given, NOW, 5)
    assert isinstance(resolution, Resolution)
    settled = apply_settlement(given, resolution.claim, resolution.serving)
    assert settled.claim is None
    assert resolve_orphan(settled, NOW, 5) is None
