"""Which single GPUs should bear which marks: Bad ones of nodes that keep the others, through the breaker, and no longer than that."""

from dataclasses import replace

import pytest

from warmpool.nodehealth.breaker import BreakerLimits, BreakerState
from warmpool.nodehealth.device_marks import (
    Device,
    DeviceMark,
    DevicePlan,
    Gpus,
    plan_device_marks,
    seeded,
)
from warmpool.nodehealth.marks import ownership, since_of
from warmpool.nodehealth.verdicts import GpuVerdict, NodeVerdict, Reason
from warmpool.seats import Verdict

NOW = 1000.0
LIMITS = BreakerLimits(max_percent=20, at_least=1)
BAD, OK, SUSPECT = Verdict.BAD, Verdict.OK, Verdict.SUSPECT


def gpu(uuid: str, verdict: Verdict = OK, *, code: str = "Xid95", known: bool = True) -> GpuVerdict:
    reason = Reason(code=code, verdict=verdict, since=1.0, until=None, count=1, text="why", clears="")
    return GpuVerdict(
        uuid=uuid,
        verdict=verdict,
        known=known,
        since=1.0,
        until=None,
        age_seconds=1.0,
        reasons=() if verdict is OK else (reason,),
        notes=(),
    )


def node(*gpus: GpuVerdict) -> NodeVerdict:
    return NodeVerdict(
        at=NOW, boot="b", verdict=BAD, gpus=gpus, expected=len(gpus), listed=len(gpus), reason=""
    )


def device(uuid: str, pool: str = "n1") -> Device:
    return Device(driver="gpu.nvidia.com", pool=pool, name=f"gpu-{uuid[-1]}")


def mark(uuid: str, value: str = "Xid95") -> DeviceMark:
    return DeviceMark(gpu=uuid, device=device(uuid), value=value)


EIGHT = {f"GPU-{place}": device(f"GPU-{place}") for place in range(8)}


def planned(*gpus: GpuVerdict, marks: tuple[DeviceMark, ...] = (), spared: bool = True) -> DevicePlan:
    known = Gpus(
        verdicts={"n1": node(*gpus)},
        spared={"n1"} if spared else (),
        devices=EIGHT,
        marks={each.gpu: each for each in marks},
    )
    return plan_device_marks(known, BreakerState(), LIMITS, NOW)[0]


def test_one_bad_gpu_of_eight_is_marked_and_the_others_are_not() -> None:
    plan = planned(*(gpu(uuid, BAD if uuid == "GPU-3" else OK) for uuid in EIGHT))
    (made,) = plan.marks
    assert (made.gpu, made.value, made.device) == ("GPU-3", "Xid95", EIGHT["GPU-3"])
    assert made.name == "emberpool-gpu-3"
    assert "GPU-3 is Bad: why" in made.annotation
    assert (plan.unmarks, plan.nameless) == ((), ())


@pytest.mark.parametrize(
    ("said", "spared", "marked", "unmarked"),
    [
        (gpu("GPU-1", BAD), True, [], []),
        (gpu("GPU-1", BAD, code="Xid79"), True, ["GPU-1"], []),
        (gpu("GPU-1", OK), True, [], ["GPU-1"]),
        (gpu("GPU-1", SUSPECT), True, [], ["GPU-1"]),
        (gpu("GPU-1", OK, known=False), True, [], []),
        (gpu("GPU-2", OK), True, [], []),
        (gpu("GPU-1", BAD), False, [], ["GPU-1"]),
    ],
    ids=[
        "still bad",
        "for another reason",
        "well",
        "suspect",
        "unknown",
        "nobody tells",
        "its node is tainted",
    ],
)
def test_a_mark_stays_as_long_as_its_gpu_is_bad_or_unknown(
    said: GpuVerdict,
    spared: bool,  # noqa: FBT001 - a column of the table
    marked: list[str],
    unmarked: list[str],
) -> None:
    plan = planned(said, marks=(mark("GPU-1"),), spared=spared)
    assert [each.gpu for each in plan.marks] == marked
    assert [each.gpu for each in plan.unmarks] == unmarked


def test_a_gpu_that_dra_does_not_hand_out_is_told_of_and_not_marked() -> None:
    plan = planned(gpu("GPU-99", BAD))
    assert (plan.marks, plan.nameless) == ((), ("GPU-99",))


def test_the_breaker_counts_gpus_and_never_stops_recoveries() -> None:
    bad = [gpu(f"GPU-{place}", BAD) for place in range(4)]
    plan = planned(*bad, gpu("GPU-7"), marks=(mark("GPU-7"),))
    assert [each.gpu for each in plan.marks] == ["GPU-0", "GPU-1"]
    assert plan.admission.waiting == ("GPU-2", "GPU-3")
    assert [each.gpu for each in plan.unmarks] == ["GPU-7"]


def test_a_device_of_another_name_is_marked_anew() -> None:
    moved = replace(mark("GPU-1"), device=device("GPU-1", pool="n2"))
    plan = planned(gpu("GPU-1", BAD), marks=(moved,))
    assert [each.device.pool for each in plan.marks] == ["n1"]


@pytest.mark.parametrize(
    ("said", "value"),
    [(gpu("GPU-1", BAD), "Xid95"), (gpu("GPU-1", known=False), "Xid95"), (gpu("GPU-2"), "Xid95")],
    ids=["still bad", "unknown", "nobody tells"],
)
def test_a_mark_follows_its_gpu_to_another_name(said: GpuVerdict, value: str) -> None:
    moved = replace(mark("GPU-1"), device=replace(EIGHT["GPU-1"], name="gpu-0"), annotation="{}")
    (made,) = planned(said, marks=(moved,)).marks
    assert (made.gpu, made.device, made.value) == ("GPU-1", EIGHT["GPU-1"], value)


@pytest.mark.parametrize(("name", "gone"), [("gpu-3", True), ("gpu-9", False)], ids=["another's", "nobody's"])
def test_a_mark_whose_name_has_become_another_gpus_is_taken_away(name: str, *, gone: bool) -> None:
    lost = DeviceMark(gpu="GPU-9", device=replace(EIGHT["GPU-3"], name=name), value="Lost")
    plan = planned(gpu("GPU-9", BAD, code="Lost"), marks=(lost,))
    assert [each.gpu for each in plan.unmarks] == (["GPU-9"] if gone else [])
    assert (plan.marks, plan.nameless) == ((), ("GPU-9",))


def test_a_mark_that_is_set_anew_says_since_when_its_gpu_has_been_out() -> None:
    there = replace(mark("GPU-1"), annotation=ownership("Xid95", 400.0, "why"))
    (made,) = planned(gpu("GPU-1", BAD, code="Xid79"), marks=(there,)).marks
    assert (made.value, since_of(made.annotation)) == ("Xid79", 400.0)


def test_a_breaker_that_has_seen_nothing_counts_the_marks_that_are_there() -> None:
    there = {
        f"GPU-{place}": replace(mark(f"GPU-{place}"), annotation=ownership("Xid95", since, "why"))
        for place, since in ((0, NOW - 100), (1, NOW - 2_000))
    }
    known = Gpus(
        verdicts={"n1": node(*(gpu(f"GPU-{place}", BAD) for place in range(4)))},
        spared={"n1"},
        devices=EIGHT,
        marks=there,
    )
    plan, _ = plan_device_marks(known, seeded(there, NOW), LIMITS, NOW)
    assert (plan.admission.allowed, plan.admission.used) == (2, 2)
    assert [each.gpu for each in plan.marks] == ["GPU-2"]
    assert plan.admission.waiting == ("GPU-3",)


def test_what_was_excluded_counts_while_dra_lists_nothing_for_a_moment() -> None:
    bad = node(*(gpu(f"GPU-{place}", BAD) for place in range(4)))
    known = Gpus(verdicts={"n1": bad}, spared={"n1"}, devices=EIGHT, marks={})
    plan, state = plan_device_marks(known, BreakerState(), LIMITS, NOW)
    there = {each.gpu: each for each in plan.marks}
    _, state = plan_device_marks(replace(known, devices={}, marks=there), state, LIMITS, NOW + 1)
    plan, _ = plan_device_marks(replace(known, marks=there), state, LIMITS, NOW + 2)
    assert (plan.marks, plan.admission.waiting) == ((), ("GPU-2", "GPU-3"))
