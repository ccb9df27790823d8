"""Tiers of a seat: figures worked out by hand, and laws over seats as nobody would build them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.tiers import Footprint, Part, Room, Tier

GIB = 2**30
A, P, K, C = Tier.AWAKE, Tier.PAUSED, Tier.PARKED, Tier.COLD


def model(policy: str, weights: int, kv: int = 0, *, parkable: bool = True, left: int = 0) -> Footprint:
    """A resident in GiB."""
    return Footprint(
        policy=policy,
        paused=weights * GIB,
        compute=kv * GIB,
        parked=left * GIB,
        host=weights * GIB,
        parkable=parkable,
    )


def room(*residents: Footprint, device: int | None = 100, host: int = 0, exclusive: bool = True) -> Room:
    return Room(
        footprints=residents,
        device_bytes=None if device is None else device * GIB,
        host_bytes=host * GIB,
        exclusive=exclusive,
    )


THREE = (model("a", 20, 38), model("b", 20, 30), model("c", 20, 30))


@pytest.mark.parametrize(
    ("tiers", "exclusive", "held", "compute"),
    [
        pytest.param((P, P, P), True, 60, 38, id="whoever takes most may compute"),
        pytest.param((C, P, P), True, 40, 30, id="a cold one takes nothing"),
        pytest.param((K, P, P), True, 41, 30, id="a parked one takes what is left of it"),
        pytest.param((A, P, P), True, 60, 38, id="the one that computes is counted once"),
        pytest.param((A, A, P), True, 60, 68, id="a start-up computes beside the one that serves"),
        pytest.param((P, P, P), False, 60, 98, id="all may compute at once"),
    ],
)
def test_a_budget_adds_up(tiers: Sequence[Tier], exclusive: bool, held: int, compute: int) -> None:  # noqa: FBT001 (a row of the table)
    seat = room(
        model("a", 20, 38, left=1), model("b", 20, 30), model("c", 20, 30), exclusive=exclusive, host=100
    )
    budget = seat.budget(dict(zip("abc", tiers, strict=True)))
    assert (budget.paused_bytes, budget.largest_compute_bytes) == (held * GIB, compute * GIB)
    assert budget.reserve_bytes == 2 * GIB
    assert budget.free_bytes == (100 - held - compute - 2) * GIB
    assert budget.fits is (held + compute <= 98)


def test_the_figures_are_in_the_words() -> None:
    words = str(room(*THREE).budget(dict.fromkeys("abc", P)))
    assert words == "61440 MiB held + 38912 MiB for computing + 2048 MiB reserve of 102400 MiB device memory"


def test_nothing_is_refused_for_a_figure_that_nobody_has() -> None:
    seat = room(*THREE, device=None)
    assert seat.filled() == dict.fromkeys("abc", P)
    assert seat.budget(seat.filled()).free_bytes is None
    assert room(Footprint(policy="a"), device=1).filled() == {"a": P}


@pytest.mark.parametrize(
    ("seat", "expected"),
    [
        pytest.param(room(*THREE), (P, P, P), id="all fit to the byte"),
        pytest.param(room(*THREE, device=99), (P, P, C), id="no host memory, so the least needed is cold"),
        pytest.param(
            room(*THREE, device=99, host=40), (P, P, K), id="the least needed is parked, with room to swap"
        ),
        pytest.param(
            room(*THREE, device=99, host=20), (P, P, C), id="host memory for one leaves no room to swap"
        ),
        pytest.param(
            room(*THREE[:2], model("c", 20, 30, parkable=False), device=99, host=40),
            (P, P, C),
            id="one that can't be parked is cold",
        ),
        pytest.param(
            room(model("a", 90, 17, parkable=False), *THREE[1:], device=110, host=500),
            (P, C, C),
            id="nobody is parked for ever: beside the first's weights the others could never come back",
        ),
        pytest.param(
            room(model("a", 60, 40), model("b", 5, 5), device=100),
            (C, P),
            id="one that never fits holds up nobody",
        ),
        pytest.param(
            room(*(model(each, 20, 30, left=1) for each in "abcdef"), device=100, host=200),
            (P, P, P, K, K, K),
            id="what parked ones still hold is counted",
        ),
    ],
)
def test_tiers_fill_by_need(seat: Room, expected: Sequence[Tier]) -> None:
    assert tuple(seat.filled().values()) == expected


@pytest.mark.parametrize(
    ("tiers", "order", "expected"),
    [
        pytest.param((P, P, C), None, (), id="there is room"),
        pytest.param((P, P, P), None, ("c",), id="the least needed first"),
        pytest.param((P, P, P), ("a", "b"), ("a",), id="in the order that was asked for"),
        pytest.param((P, P, P), (), None, id="nobody may be parked"),
        pytest.param((P, P, A), None, ("b",), id="one that computes stays"),
        pytest.param((A, A, A), None, None, id="all compute"),
        pytest.param((P, P, P), ("d", "x", "b"), ("b",), id="itself and strangers are passed over"),
    ],
)
def test_room_is_made_by_parking(
    tiers: Sequence[Tier], order: Sequence[str] | None, expected: Sequence[str] | None
) -> None:
    seat = room(*(model(each, 20, 20) for each in "abcd"), device=100, host=80)
    now = {**dict(zip("abc", tiers, strict=True)), "d": K}
    assert seat.displaced(now, "d", P, order) == expected


def test_nobody_is_parked_for_nothing() -> None:
    now = {"a": C, "big": P, "small": P}
    little = room(model("a", 10), model("big", 40), model("small", 5), device=52, host=200)
    assert little.displaced(now, "a", P) == ("small",)
    much = room(model("a", 40), model("big", 40), model("small", 5), device=52, host=200)
    assert much.displaced(now, "a", P) == ("big",)


def test_the_one_that_comes_back_is_in_host_memory_while_another_goes_there() -> None:
    residents = (model("a", 40, 10), model("b", 40, 10))
    assert room(*residents, device=60, host=80).displaced({"a": P, "b": K}, "b", P) == ("a",)
    assert room(*residents, device=60, host=79).displaced({"a": P, "b": K}, "b", P) is None


def test_a_copy_that_an_engine_keeps_takes_host_memory_and_makes_parking_it_again_free() -> None:
    kept = Footprint(policy="a", paused=40 * GIB, compute=10 * GIB, host=40 * GIB, copy=40 * GIB)
    new = model("b", 40, 10)
    assert room(kept, new, device=60, host=40).displaced({"a": P, "b": C}, "b", P) == ("a",)
    three = room(kept, new, model("c", 40, 10), device=95, host=79)
    assert three.displaced({"a": P, "b": P, "c": C}, "c", P) == ("a",)


# -------------------------------------------------------------------- laws

sizes = st.integers(0, 12)


@st.composite
def rooms(draw: st.DrawFn) -> Room:
    count = draw(st.integers(1, 5))
    footprints = [
        Footprint(
            policy=policy,
            paused=(paused := draw(sizes)),
            compute=draw(sizes),
            parked=draw(st.integers(0, paused)),
            host=(host := draw(sizes)),
            copy=draw(st.just(0) | st.just(host)),
            parkable=draw(st.booleans()),
        )
        for policy in "abcde"[:count]
    ]
    return Room(
        footprints=footprints,
        device_bytes=draw(st.none() | st.integers(0, 50)),
        host_bytes=draw(st.integers(0, 30)),
        exclusive=draw(st.booleans()),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[Room, dict[str, Tier]]:
    """A seat and tiers that are within its budgets."""
    seat = draw(rooms())
    tiers = dict.fromkeys((each.policy for each in seat.footprints), C)
    for each in seat.footprints:
        trial = {**tiers, each.policy: draw(st.sampled_from(Tier))}
        if seat.fits(trial) and seat.hosts(trial):
            tiers = trial
    return seat, tiers


@given(rooms())
def test_a_filled_seat_is_never_above_its_budgets(seat: Room) -> None:
    tiers = seat.filled()
    assert seat.fits(tiers)
    assert seat.hosts(tiers)
    if K in tiers.values():
        assert seat.parked_bytes(tiers) <= seat.host_bytes


@given(rooms())
def test_the_most_needed_are_placed_first(seat: Room) -> None:
    """What a resident gets depends on those before it alone."""
    tiers = seat.filled()
    for count in range(1, len(seat.footprints) + 1):
        first = Room(
            footprints=seat.footprints[:count],
            device_bytes=seat.device_bytes,
            host_bytes=seat.host_bytes,
            exclusive=seat.exclusive,
        )
        assert first.filled() == {each.policy: tiers[each.policy] for each in seat.footprints[:count]}


@given(rooms())
def test_the_same_figures_give_the_same_tiers(seat: Room) -> None:
    assert seat.filled() == seat.filled()


@given(rooms())
def test_whoever_is_parked_can_come_back_within_the_budgets(seat: Room) -> None:
    tiers = seat.filled()
    for policy in [policy for policy, tier in tiers.items() if tier is K]:
        moving = dict(tiers)
        displaced = seat.displaced(tiers, policy, P)
        assert displaced is not None
        for other in displaced:
            moving[other] = K
            assert seat.hosts(moving)
        moving[policy] = P
        assert seat.fits(moving)
        assert seat.hosts(moving)


@given(situations(), st.data())
def test_room_is_made_by_paused_ones_that_were_named_and_by_no_more_than_needed(
    situation: tuple[Room, dict[str, Tier]], data: st.DataObject
) -> None:
    seat, tiers = situation
    policies = [each.policy for each in seat.footprints]
    wanted = data.draw(st.sampled_from(policies))
    order = data.draw(st.none() | st.permutations(policies).map(lambda names: names[:3]))
    displaced = seat.displaced(tiers, wanted, A, order)
    assert displaced == seat.displaced(dict(reversed(tiers.items())), wanted, A, order)
    allowed = list(reversed(policies)) if order is None else list(order)
    if displaced is None:
        return
    after = {**tiers, **dict.fromkeys(displaced, K), wanted: A}
    assert seat.fits(after)
    assert seat.hosts({**tiers, **dict.fromkeys(displaced, K)})
    assert wanted not in displaced
    assert all(tiers[policy] is P and seat.footprint(policy).parkable for policy in displaced)
    assert [policy for policy in allowed if policy in displaced] == list(displaced)
    for spared in displaced[:-1]:
        assert not seat.fits({**after, spared: P})


@given(situations(), st.data())
def test_room_is_refused_only_if_parking_all_that_host_memory_takes_makes_none(
    situation: tuple[Room, dict[str, Tier]], data: st.DataObject
) -> None:
    seat, tiers = situation
    wanted = data.draw(st.sampled_from([each.policy for each in seat.footprints]))
    if seat.displaced(tiers, wanted, P) is not None:
        return
    everyone = dict(tiers)
    for each in reversed(seat.footprints):
        trial = {**everyone, each.policy: K}
        if each.policy != wanted and everyone[each.policy] is P and each.parkable and seat.hosts(trial):
            everyone = trial
            assert not seat.fits({**everyone, wanted: P})


# -------------------------------------------------------------------- several GPUs


def on_two(*gpus: tuple[int, int, Sequence[Footprint]]) -> Room:
    """A seat whose GPUs have so many GiB, of which the stage daemon takes so many, and residents that take so much there."""
    parts = [
        Part(gpu=f"g{number}", footprints=there, device_bytes=device * GIB, stage_bytes=stage * GIB)
        for number, (device, stage, there) in enumerate(gpus)
    ]
    together = [
        Footprint(
            policy=same[0].policy,
            paused=sum(each.paused for each in same),
            compute=sum(each.compute for each in same),
        )
        for same in zip(*(part.footprints for part in parts), strict=True)
    ]
    return Room(
        footprints=together,
        device_bytes=sum(part.device_bytes or 0 for part in parts),
        stage_bytes=sum(part.stage_bytes for part in parts),
        parts=parts,
    )


@pytest.mark.parametrize(
    ("gpus", "free", "fits"),
    [
        pytest.param(
            [
                (100, 0, [model("a", 40, 20), model("b", 20, 20)]),
                (100, 0, [model("a", 40, 20), model("b", 20, 20)]),
            ],
            2 * (100 - 60 - 20 - 2),
            True,
            id="equal parts are the sum",
        ),
        pytest.param(
            [(100, 0, [model("a", 70, 20), model("b", 20)]), (100, 0, [model("a", 10), model("b", 20)])],
            2 * (100 - 90 - 20 - 2),
            False,
            id="one is too full, and the other one's room doesn't help",
        ),
        pytest.param(
            [(100, 50, [model("a", 40, 20)]), (100, 0, [model("a", 40, 20)])],
            2 * (100 - 40 - 20 - 50 - 2),
            False,
            id="the stage daemon holds a copy on one of them",
        ),
        pytest.param(
            [(60, 0, [model("a", 40, 20)]), (140, 0, [model("a", 40, 20)])],
            None,
            False,
            id="one is smaller",
        ),
        pytest.param(
            [(100, 0, [model("a", 60, 30), model("b", 0)]), (100, 0, [model("a", 0), model("b", 60, 30)])],
            2 * (100 - 60 - 30 - 2),
            True,
            id="each has one of its own, which both compute with their own memory",
        ),
    ],
)
def test_the_sum_must_hold_on_each_gpu(
    gpus: list[tuple[int, int, Sequence[Footprint]]],
    free: int | None,
    fits: bool,  # noqa: FBT001 (a row of the table)
) -> None:
    seat = on_two(*gpus)
    tiers = dict.fromkeys((each.policy for each in seat.footprints), P)
    budget = seat.budget(tiers)
    assert seat.fits(tiers) is fits
    assert (budget.fits, "MiB more than there are" in str(budget)) == (fits, not fits)
    if free is not None:
        assert budget.free_bytes == free * GIB


def test_who_gives_way_is_chosen_by_the_gpu_that_is_too_full() -> None:
    """`b` takes the other GPU alone, so parking it makes no room where room is wanted."""
    first = [model("a", 60), model("b", 0), model("c", 60)]
    second = [model("a", 0), model("b", 60), model("c", 0)]
    seat = on_two((100, 0, first), (100, 0, second))
    roomy = Room(
        footprints=[model(policy, 60) for policy in "abc"],
        device_bytes=seat.device_bytes,
        host_bytes=500 * GIB,
        parts=seat.parts,
    )
    assert roomy.displaced({"a": C, "b": P, "c": P}, "a", P, ["b", "c"]) == ("c",)
