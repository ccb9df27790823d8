"""When a workload may be asked for fewer pods, held against how a ReplicaSet picks those that go."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.cluster.kube.lowering import MARK_SECONDS, Standing, refusal
from tests.fakes.control_plane.replica_sets import ranked
from tests.unit.scaler.cluster.kube.pods import CHAT, CODE, pod, resident, seat
from warmpool.seats import DELETION_COST, Claim, Operation, Seat, SeatValue
from warmpool.states import ResidentState as S

NOW, WALL = 100.0, 1000.0


def standing(of: Seat, *, age: float = 60.0, **changes: Any) -> Standing:
    cost = str(DELETION_COST[of.value])
    return Standing(pod=pod(of, **{"cost": cost, **changes}), seat=of, marked_at=NOW - age)


def claimed(operation: Operation, deadline: float = WALL + 1) -> Claim:
    return Claim(id="c", policy=CODE, operation=operation, holder="h", epoch=1, since=WALL, deadline=deadline)


def serving(name: str = "seat-9", **changes: Any) -> Seat:
    return seat(name, **{"serving": frozenset({CHAT}), "residents": (resident(state=S.SERVING),), **changes})


SPARE, OTHER = standing(seat("seat-1")), standing(seat("seat-2"))


@pytest.mark.parametrize(
    ("fleet", "total", "why"),
    [
        pytest.param([SPARE, OTHER, standing(serving())], 1, None, id="spares go"),
        pytest.param([SPARE, standing(serving())], 0, "is Serving", id="who serves would go"),
        pytest.param([SPARE, standing(serving(ready=False))], 1, "isn't Ready", id="who serves isn't Ready"),
        pytest.param(
            [SPARE, standing(serving(ready=False, terminating=True))],
            0,
            None,
            id="who serves leaves anyway",
        ),
        pytest.param(
            [SPARE, standing(serving(), cost="0")], 1, "is Serving", id="who serves isn't marked yet"
        ),
        pytest.param(
            [SPARE, standing(serving(), age=MARK_SECONDS / 2)], 1, "less than", id="marked a moment ago"
        ),
        pytest.param([standing(seat("seat-1"), cost="100"), OTHER], 1, "doesn't say", id="a stale mark"),
        pytest.param(
            [SPARE, standing(seat("seat-3", claim=claimed(Operation.PROMOTE)))], 1, "in flight", id="claimed"
        ),
        pytest.param(
            [SPARE, standing(seat("seat-3", residents=(resident(state=S.PROMOTING),)))],
            1,
            "in flight",
            id="its agent promotes",
        ),
        pytest.param(
            [SPARE, standing(seat("seat-3", claim=claimed(Operation.PROMOTE, WALL)))],
            1,
            None,
            id="a claim that has run out promotes nobody",
        ),
        pytest.param([SPARE, standing(seat("seat-3", template="u"))], 1, "rollout", id="two templates"),
        pytest.param(
            [
                standing(serving("seat-0"), owner="StatefulSet"),
                standing(seat("seat-10"), owner="StatefulSet"),
            ],
            1,
            None,
            id="the highest ordinal goes",
        ),
        pytest.param(
            [
                standing(serving("seat-10"), owner="StatefulSet"),
                standing(seat("seat-9"), owner="StatefulSet"),
            ],
            1,
            "is Serving",
            id="the highest ordinal serves",
        ),
        pytest.param(
            [standing(serving(), owner="Group"), standing(seat("seat-1"), owner="Group")],
            1,
            "is Serving",
            id="nobody knows who would go",
        ),
        pytest.param([SPARE], 1, None, id="its workload has yet to make what isn't wanted any more"),
        pytest.param([], 0, None, id="there are none"),
        pytest.param(
            [SPARE, standing(seat("seat-3", claim=claimed(Operation.PROVE)))], 1, None, id="a proof"
        ),
    ],
)
def test_when_a_size_may_be_lowered(fleet: list[Standing], total: int, why: str | None) -> None:
    found = refusal(fleet, total, now=NOW, wall=WALL)
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert why in found


def object_of(each: Standing) -> dict[str, Any]:
    """The pod as a ReplicaSet's controller reads it."""
    read = each.pod
    return {
        "metadata": {
            "name": read.seat.name,
            "uid": read.seat.uid,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": read.cost} if read.cost else {},
        },
        "spec": {"nodeName": read.seat.node} if read.seat.node else {},
        "status": {
            "phase": read.phase,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if each.seat.ready else "False",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        },
    }


def some_seats() -> st.SearchStrategy[Standing]:
    residents = st.sampled_from([S.PAUSED, S.SERVING, S.DRAINING, S.LOADING, S.FAILED])

    def build(number: int, state: S, *, in_rotation: bool, ready: bool, node: str, cost: str) -> Standing:
        made = seat(
            f"seat-{number}",
            residents=(resident(state=state),),
            serving=frozenset({CHAT}) if in_rotation and state is S.SERVING else frozenset(),
            ready=ready,
            node=node,
        )
        mirrored = standing(made)
        return mirrored if cost == "right" else replace(mirrored, pod=replace(mirrored.pod, cost=cost))

    return st.builds(
        build,
        st.integers(0, 10**9),
        residents,
        in_rotation=st.booleans(),
        ready=st.booleans(),
        node=st.sampled_from(["", "a", "b"]),
        cost=st.sampled_from(["right", "right", "right", "0", "100", ""]),
    )


@given(st.lists(some_seats(), max_size=8, unique_by=lambda each: each.seat.name), st.integers(0, 8))
def test_nobody_who_serves_or_drains_is_among_those_that_a_replica_set_removes(
    fleet: list[Standing], total: int
) -> None:
    if refusal(fleet, total, now=NOW, wall=WALL) is not None:
        return
    by_name = {each.seat.name: each.seat for each in fleet}
    pods = [object_of(each) for each in fleet]
    for gone in ranked(pods, WALL)[: max(0, len(pods) - total)]:
        value = by_name[gone["metadata"]["name"]].value
        assert value not in {SeatValue.SERVING, SeatValue.DRAINING, SeatValue.PROMOTING}
