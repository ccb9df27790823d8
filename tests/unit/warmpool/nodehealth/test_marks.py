"""From verdicts to marks on nodes: ours alone, as few as are needed, and taken away again."""

from dataclasses import replace

import pytest

from scaler.cluster.kube.nodes import GPU_CONDITION, GPU_TAINT
from tests.unit.warmpool.nodehealth.history import T0, A, B, History
from warmpool.nodehealth.breaker import BreakerLimits, BreakerState
from warmpool.nodehealth.marks import (
    CONDITION,
    TAINT_KEY,
    Act,
    Fleet,
    NodeMarks,
    Plan,
    condition_of,
    gpus_of,
    owned_value,
    ownership,
    plan_marks,
)
from warmpool.nodehealth.records import Rules
from warmpool.nodehealth.verdicts import NodeVerdict

FREE = BreakerLimits(max_percent=100)
WELL = History().judged()
BAD = History(judges=False).xid(79).judged()
SUSPECT = History(judges=False).xid(63).judged()
CLEAN = NodeMarks()
TOLD = NodeMarks(condition=(True, "Healthy"))
MARKED = NodeMarks(taint="Xid79", owned="Xid79", condition=(False, "Xid79"))


def plan(
    verdicts: dict[str, NodeVerdict],
    marks: dict[str, NodeMarks],
    limits: BreakerLimits = FREE,
    *,
    dry: bool = False,
) -> Plan:
    fleet = Fleet(verdicts=verdicts, marks=marks, since=dict.fromkeys(marks, T0 - 100))
    return plan_marks(fleet, BreakerState(), limits, now=T0, dry=dry)[0]


def test_the_names_are_those_that_the_cluster_writes() -> None:
    assert (TAINT_KEY, CONDITION) == (GPU_TAINT, GPU_CONDITION)


def test_a_bad_node_gets_a_taint_an_owner_and_a_condition() -> None:
    (marking,) = plan({"n": BAD}, {"n": TOLD}).markings
    assert (marking.act, marking.taint) == (Act.EXCLUDE, "Xid79")
    assert owned_value(marking.annotation) == "Xid79"
    assert (marking.condition.healthy, marking.condition.reason) == (False, "Xid79")
    assert marking.condition.message == f"{A} is Bad: Xid 79: The GPU has fallen off the bus"


@pytest.mark.parametrize(
    ("verdict", "marks", "acts"),
    [
        pytest.param(WELL, TOLD, [], id="well and told"),
        pytest.param(WELL, CLEAN, [Act.TELL], id="well and not told"),
        pytest.param(BAD, MARKED, [], id="bad and marked"),
        pytest.param(
            BAD, replace(MARKED, taint="Old", owned="Old"), [Act.EXCLUDE], id="bad for another reason"
        ),
        pytest.param(SUSPECT, TOLD, [Act.TELL], id="suspect gets no taint"),
        pytest.param(SUSPECT, MARKED, [Act.RECOVER], id="suspect loses it"),
        pytest.param(WELL, MARKED, [Act.RECOVER], id="well loses it"),
        pytest.param(
            WELL, NodeMarks(owned="Xid79", condition=(True, "Healthy")), [Act.RECOVER], id="annotation alone"
        ),
        pytest.param(BAD, NodeMarks(owned="Xid79"), [Act.EXCLUDE], id="taint taken away"),
    ],
)
def test_what_is_written_follows_the_verdict(verdict: NodeVerdict, marks: NodeMarks, acts: list[Act]) -> None:
    assert [marking.act for marking in plan({"n": verdict}, {"n": marks}).markings] == acts


@pytest.mark.parametrize(
    ("gpu", "acts"),
    [pytest.param(A, [], id="the one that was Bad"), pytest.param(B, [Act.RECOVER], id="another")],
)
def test_a_node_is_not_readmitted_because_the_gpu_that_was_bad_is_unknown(gpu: str, acts: list[Act]) -> None:
    gpus = tuple(replace(each, known=each.uuid != gpu) for each in WELL.gpus)
    marks = replace(MARKED, gpus=frozenset({A}))
    assert [each.act for each in plan({"n": replace(WELL, gpus=gpus)}, {"n": marks}).markings] == acts


def test_a_mark_says_which_gpus_it_is_for_and_is_written_anew_when_they_are_others() -> None:
    both = History(judges=False).xid(79).xid(79, uuid=B).judged()
    (marking,) = plan({"n": both}, {"n": replace(MARKED, gpus=frozenset({A}))}).markings
    assert (marking.act, gpus_of(marking.annotation)) == (Act.EXCLUDE, {A, B})
    assert plan({"n": both}, {"n": replace(MARKED, gpus=frozenset({A, B}))}).markings == ()


@pytest.mark.parametrize("owned", [None, "Xid48"])
@pytest.mark.parametrize("verdict", [WELL, BAD])
def test_a_taint_that_is_not_ours_is_left_alone(verdict: NodeVerdict, owned: str | None) -> None:
    found = plan({"n": verdict}, {"n": NodeMarks(taint="Xid79", owned=owned)})
    assert (found.markings, found.foreign) == ((), ("n",))


@pytest.mark.parametrize(
    ("marks", "acts"),
    [
        (TOLD, [Act.TELL]),
        (NodeMarks(condition=(False, "Xid79")), []),
        (MARKED, [Act.RECOVER]),
    ],
    ids=["it is told", "it was told", "it was tainted before"],
)
def test_a_node_that_keeps_its_other_gpus_is_told_of_and_not_tainted(
    marks: NodeMarks, acts: list[Act]
) -> None:
    fleet = Fleet(verdicts={"n": BAD, "m": BAD}, marks={"n": marks, "m": TOLD}, spared={"n"})
    found = plan_marks(fleet, BreakerState(), BreakerLimits(max_percent=50), now=T0)[0]
    of_it = [marking for marking in found.markings if marking.node == "n"]
    assert [marking.act for marking in of_it] == acts
    assert all(not marking.condition.healthy for marking in of_it)
    assert found.admission.admitted == ("m",)


def test_a_node_of_which_nothing_is_known_keeps_what_it_has() -> None:
    assert plan({}, {"n": MARKED, "m": TOLD}).markings == ()


def test_the_breaker_freezes_exclusions_and_never_recoveries() -> None:
    names = [f"n{place}" for place in range(10)]
    verdicts = {name: BAD if place else WELL for place, name in enumerate(names)}
    marks = {name: TOLD if place else MARKED for place, name in enumerate(names)}
    found = plan(verdicts, marks, BreakerLimits())
    assert [(marking.act, marking.node) for marking in found.markings[:3]] == [
        (Act.RECOVER, "n0"),
        (Act.EXCLUDE, "n1"),
        (Act.EXCLUDE, "n2"),
    ]
    assert {marking.act for marking in found.markings[3:]} == {Act.TELL}
    assert found.admission.waiting == tuple(names[3:])
    assert "waits to be excluded" in found.markings[3].why
    closed = plan(verdicts, marks, BreakerLimits(max_percent=0))
    assert [marking.act for marking in closed.markings if marking.act is not Act.TELL] == [Act.RECOVER]


def test_who_is_bad_the_longest_is_excluded_first() -> None:
    later = History(judges=False).silent(60).xid(79).judged()
    found = plan({"a": later, "b": BAD, "c": WELL}, dict.fromkeys("abc", TOLD), BreakerLimits())
    assert found.admission.admitted == ("b",)


def test_a_dry_run_says_what_would_be_written() -> None:
    found = plan({"a": BAD, "b": WELL}, {"a": TOLD, "b": MARKED}, dry=True)
    assert all(marking.dry for marking in found.markings)
    assert [marking.why for marking in found.markings] == [
        "would be no longer excluded",
        f"would be excluded: {A} is Bad: Xid 79: The GPU has fallen off the bus",
    ]


def test_a_conditions_message_says_the_worst_first_and_is_bounded() -> None:
    both = History(judges=False).xid(63).silent(1).xid(79, uuid=B).judged()
    condition = condition_of(both)
    assert condition.reason == "Xid79"
    assert condition.message.startswith(f"{B} is Bad")
    assert f"{A} is Suspect" in condition.message
    many = replace(both, gpus=both.gpus * 50)
    assert len(condition_of(many).message) == 1024


def test_a_node_that_lacks_gpus_says_so() -> None:
    found = condition_of(History(rules=Rules(expected=8)).judged())
    assert (found.healthy, found.reason, found.message) == (False, "DeviceCount", "2 of 8 GPUs are there")


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null", "{}", '{"taint": 7}'])
def test_an_annotation_that_makes_no_sense_owns_nothing(text: str | None) -> None:
    assert owned_value(text) is None
    assert gpus_of(text) == frozenset()


def test_an_annotation_says_whose_and_since_when() -> None:
    assert ownership("Xid79", 12.4, "why") == '{"since": 12, "taint": "Xid79", "why": "why"}'
