"""Laws of GPU health, over random histories of a node."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.warmpool.nodehealth.history import HOUR, A, B, History
from warmpool.nodehealth.copies import MOST_BYTES, copied, restored
from warmpool.nodehealth.latches import from_json, to_json
from warmpool.nodehealth.readings import Clocks, Contact, Ecc, Fabric, FabricState, Links, Pcie, Rows, Told
from warmpool.nodehealth.records import RANK, NodeRecord
from warmpool.nodehealth.xids import CANCELS, DEFAULT_TABLE
from warmpool.seats import Verdict

FATAL = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)"
FAULTS = sorted({*DEFAULT_TABLE.rules, 500} - {*CANCELS, *CANCELS.values()})


@dataclass(frozen=True)
class Step:
    """One thing that happens, some seconds after the one before."""

    after: float
    what: str
    uuid: str = A
    value: Any = None


seconds = st.sampled_from([0.0, 1.0, 5.0, 14.0, 16.0, 61.0, 700.0, 3700.0, 90_000.0])
changes = st.sampled_from(
    [
        {"contact": Contact.SILENT},
        {"contact": Contact.LOST},
        {"contact": Contact.RESET_REQUIRED},
        {"contact": Contact.ANSWERS},
        {"recovery": 0},
        {"recovery": 1},
        {"recovery": 4},
        {"recovery": None},
        {"rows": Rows(correctable=0, uncorrectable=1, pending=True, failure=False)},
        {"rows": Rows(correctable=0, uncorrectable=0, pending=False, failure=True)},
        {"ecc": Ecc(uncorrected=3, uncorrected_ever=9)},
        {"ecc": Ecc(uncorrected=0, uncorrected_ever=40)},
        {"ecc": Ecc(corrected=20_000)},
        {"pcie": Pcie(width=4, most_width=16)},
        {"links": Links(active=17, inactive=1, failed_recoveries=1)},
        {"fabric": Fabric(state=FabricState.IN_PROGRESS)},
        {"clocks": Clocks.HARDWARE_THERMAL},
        {"millijoules": 1},
        {"shared": None},
        {"shared": False},
    ]
)
faults = st.builds(
    Step, after=seconds, what=st.just("xid"), uuid=st.sampled_from([A, B]), value=st.sampled_from(FAULTS)
)
steps = st.one_of(
    faults,
    faults,
    st.builds(Step, after=seconds, what=st.just("read"), uuid=st.sampled_from([A, B]), value=changes),
    st.builds(Step, after=seconds, what=st.just("again")),
    st.builds(Step, after=seconds, what=st.just("told"), value=st.sampled_from([*Told][1:])),
    st.builds(Step, after=seconds, what=st.just("canary"), value=st.booleans()),
    st.builds(Step, after=seconds, what=st.just("reset")),
    st.builds(Step, after=seconds, what=st.just("reboot")),
)
histories = st.lists(steps, max_size=25)


def take(history: History, step: Step) -> None:
    history.silent(step.after)
    match step.what:
        case "xid":
            history.xid(step.value, FATAL, uuid=step.uuid)
        case "read":
            history.read(step.uuid, **step.value)
        case "again":
            history.read()
        case "told":
            history.told(step.value)
        case "canary":
            history.canary(passed=step.value)
        case "reset":
            history.reset()
        case "reboot":
            history.reboot()


def tell(told: Sequence[Step], *, judges: bool) -> History:
    history = History(judges=judges)
    for step in told:
        take(history, step)
    return history


@given(histories, st.booleans())
def test_there_is_always_a_way_back(told: list[Step], judges: bool) -> None:  # noqa: FBT001
    history = tell(told, judges=judges)
    well = History().gpus
    history.gpus = {uuid: replace(gpu, millijoules=1) for uuid, gpu in well.items()}
    history.reboot().pass_(10 * 60, every=300).pass_(HOUR + 60, every=300)
    assert [history.of(uuid).word for uuid in (A, B)] == ["Ok", "Ok"]


@given(st.lists(seconds, max_size=20), st.booleans())
def test_silence_excludes_nobody(pauses: list[float], judges: bool) -> None:  # noqa: FBT001
    history = History(judges=judges)
    for place, pause in enumerate(pauses):
        contact = Contact.SILENT if place % 3 else Contact.ANSWERS
        history.silent(pause).read(A, contact=contact, reason="it hangs")
        assert history.verdict() is Verdict.OK
    assert history.silent(10**8).verdict() is Verdict.OK


@given(histories, st.booleans(), st.integers(0, 25))
def test_a_restart_forgets_nothing(told: list[Step], judges: bool, place: int) -> None:  # noqa: FBT001
    through = tell(told, judges=judges)
    halted = tell(told[:place], judges=judges)
    halted.record = from_json(NodeRecord, to_json(halted.record))
    for step in told[place:]:
        take(halted, step)
    assert halted.judged() == through.judged()


def without_file(history: History) -> History:
    """The same node, seen by an agent that remembers nothing and has asked controllers for what they keep."""
    anew = replace(history, record=NodeRecord(lost=True))
    anew.record = restored(anew.record, copied(history.record), history.rules, history.now)
    return anew


@given(histories, st.booleans())
def test_the_loss_of_the_file_makes_no_verdict_better(told: list[Step], judges: bool) -> None:  # noqa: FBT001
    history = tell(told, judges=judges)
    anew = without_file(history).read()
    history.read()
    for uuid in (A, B):
        few = history.codes(uuid) == [
            "Throttled"
        ]  # what follows from ten minutes' readings alone is read again
        assert few or RANK[anew.verdict(uuid)] >= RANK[history.verdict(uuid)]
    assert len(copied(history.record)) <= MOST_BYTES


@given(histories, st.booleans())
def test_after_the_loss_of_the_file_there_is_a_way_back_too(told: list[Step], judges: bool) -> None:  # noqa: FBT001
    history = without_file(tell(told, judges=judges))
    history.gpus = {uuid: replace(gpu, millijoules=1) for uuid, gpu in History().gpus.items()}
    history.reboot().pass_(10 * 60, every=300).pass_(HOUR + 60, every=300)
    assert [history.of(uuid).word for uuid in (A, B)] == ["Ok", "Ok"]


@given(histories, st.booleans())
def test_the_same_history_gives_the_same_verdict(told: list[Step], judges: bool) -> None:  # noqa: FBT001
    first, second = tell(told, judges=judges), tell(told, judges=judges)
    assert first.record == second.record
    assert first.judged() == second.judged()


@given(histories, st.booleans(), st.integers(0, 25), st.sampled_from(FAULTS))
def test_more_faults_of_a_gpu_never_make_its_verdict_better(
    told: list[Step],
    judges: bool,  # noqa: FBT001
    place: int,
    xid: int,
) -> None:
    fewer, more = History(judges=judges), History(judges=judges)
    for step in told[:place]:
        take(fewer, step)
        take(more, step)
    more.xid(xid, FATAL)
    assert RANK[more.verdict()] >= RANK[fewer.verdict()]
    for step in told[place:]:
        take(fewer, step)
        take(more, step)
        assert RANK[more.verdict()] >= RANK[fewer.verdict()]


@given(histories, st.booleans())
def test_time_alone_makes_nothing_worse_but_what_the_driver_has_not_answered(
    told: list[Step],
    judges: bool,  # noqa: FBT001
) -> None:
    history = tell(told, judges=judges)
    waits = any(latch.asked is not None for gpu in history.record.gpus.values() for latch in gpu.latches)
    before = history.verdict()
    for _ in range(5):
        after = history.silent(1000).verdict()
        assert waits or RANK[after] <= RANK[before]
        before = after


@given(histories, st.booleans())
def test_what_isnt_ok_has_a_reason_with_what_clears_it(told: list[Step], judges: bool) -> None:  # noqa: FBT001
    history = tell(told, judges=judges)
    for gpu in history.judged().gpus:
        assert (gpu.verdict is Verdict.OK) == (not gpu.reasons)
        assert all(reason.text and reason.clears for reason in gpu.reasons)
        worst = max((RANK[reason.verdict] for reason in gpu.reasons), default=0)
        assert worst == RANK[gpu.verdict]


@given(histories)
def test_what_is_remembered_is_bounded(told: list[Step]) -> None:
    history = History()
    for _ in range(3):
        for step in told:
            take(history, step)
    for gpu in history.record.gpus.values():
        assert len(gpu.counts) <= 256 + 41
        assert len(gpu.latches) <= 80
