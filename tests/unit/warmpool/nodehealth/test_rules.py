"""From histories to verdicts: what excludes a GPU, what doesn't, what clears what, and that there is always a way back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.warmpool.nodehealth.history import DAY, HOUR, MINUTE, T0, A, B, History
from warmpool.nodehealth.readings import (
    Canary,
    Clocks,
    Contact,
    Ecc,
    Fabric,
    FabricState,
    Links,
    NodeReading,
    Pages,
    Pcie,
    Rows,
    Source,
    Told,
)
from warmpool.nodehealth.records import MOST_PROOFS, NodeRecord, Rules
from warmpool.nodehealth.rules import undecided, with_canary, with_reading
from warmpool.nodehealth.verdicts import judge
from warmpool.nodehealth.xids import DEFAULT_TABLE, OF_APPLICATIONS, When
from warmpool.seats import Verdict

OK, SUSPECT, BAD = Verdict.OK, Verdict.SUSPECT, Verdict.BAD
FATAL = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"
NONFATAL = "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)"


def old() -> History:
    """A node whose driver has no verdict of its own."""
    return History(judges=False)


# ---------------------------------------------------------------------- when the GPUs are read again


def gone(contact: Contact) -> History:
    return History().read(A, contact=contact)


def missing() -> History:
    history = History()
    del history.gpus[A]
    return history.read()


def missing_since_the_boot() -> History:
    history = History()
    del history.gpus[A]
    return history.reboot()


UNDECIDED = {
    "nothing": (History, False, False),
    "an error that the driver judges": (lambda: History().xid(48), True, False),
    "an error that it doesn't": (lambda: old().xid(48), False, False),
    "lost": (lambda: gone(Contact.LOST), True, False),
    "wants a reset": (lambda: gone(Contact.RESET_REQUIRED), True, False),
    "missing": (missing, True, False),
    "missing since the boot": (missing_since_the_boot, True, False),
    "can't be used": (lambda: History().told(Told.UNAVAILABLE), True, False),
    "a row waits": (lambda: History().read(A, pages=Pages(pending=True)), False, False),
}


@pytest.mark.parametrize(("made", "at_first", "later"), UNDECIDED.values(), ids=UNDECIDED.keys())
def test_gpus_are_read_often_while_a_reading_decides_and_not_for_ever(
    made: Callable[[], History],
    at_first: bool,  # noqa: FBT001
    later: bool,  # noqa: FBT001
) -> None:
    history = made()
    assert undecided(history.record, history.rules, history.now + 1) is at_first
    assert undecided(history.record, history.rules, history.now + 61) is later


# ---------------------------------------------------------------------- errors

CATALOGUE = {
    # Xid: verdict of an older driver after one, and after a second an hour later
    **dict.fromkeys((8, 11, 25, 32, 69, 80), (OK, SUSPECT)),
    **dict.fromkeys((13, 31, 43, 45, 68, 94), (OK, OK)),
    **dict.fromkeys((37, 38, 44, 66, 67, 121, 137, 141, 154, 159, 160, 161, 162, 163, 164, 165), (OK, OK)),
    **dict.fromkeys((63, 92, 157), (SUSPECT, SUSPECT)),
    **dict.fromkeys((46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120), (BAD, BAD)),
    **dict.fromkeys((136, 140, 142, 143, 151, 155, 156, 158, 169), (BAD, BAD)),
    **dict.fromkeys(range(144, 151), (OK, OK)),  # nothing in the message calls them fatal
    109: (OK, BAD),
    1000: (OK, OK),
}


def test_the_catalogue_has_every_code_of_the_table() -> None:
    assert set(DEFAULT_TABLE.rules) <= set(CATALOGUE)


@pytest.mark.parametrize(("xid", "expected"), sorted(CATALOGUE.items()))
def test_an_error_says_what_the_table_says(xid: int, expected: tuple[Verdict, Verdict]) -> None:
    history = old().xid(xid)
    first = history.verdict()
    assert (first, history.silent(HOUR).xid(xid).verdict()) == expected
    assert history.verdict(B) is OK


@pytest.mark.parametrize("xid", sorted(OF_APPLICATIONS))
def test_a_programs_errors_exclude_nobody_however_many_there_are(xid: int) -> None:
    history = old()
    for _ in range(500):
        history.silent(MINUTE).xid(xid)
    assert history.verdict() is OK


def test_equal_errors_in_a_burst_are_one() -> None:
    history = old().xid(109).silent(5).xid(109).silent(5).xid(109)
    assert history.verdict() is OK
    assert history.silent(15).xid(109).verdict() is BAD


def test_errors_that_are_counted_have_to_come_within_their_time() -> None:
    assert old().xid(109).silent(25 * HOUR).xid(109).verdict() is OK


def test_an_error_that_both_sources_tell_of_is_one() -> None:
    history = (
        old()
        .xid(109, source=Source.NVML)
        .silent(2)
        .xid(109, "pid=7, name=x, Ctx switch", source=Source.KERNEL)
    )
    assert history.verdict() is OK
    bad = old().xid(48, source=Source.NVML).silent(2).xid(48, source=Source.KERNEL)
    assert [reason.count for reason in bad.of().reasons] == [1]


@pytest.mark.parametrize("xid", range(144, 151))
@pytest.mark.parametrize(
    ("text", "expected"), [(FATAL, BAD), (NONFATAL, OK), ("", OK), ("NETIR Fatality", OK)]
)
def test_a_fault_of_nvlink_5_excludes_where_the_driver_calls_it_fatal(
    xid: int, text: str, expected: Verdict
) -> None:
    assert old().xid(xid, text).verdict() is expected


def test_the_message_may_come_after_the_code() -> None:
    history = old().xid(149).silent(1).xid(149, FATAL, source=Source.KERNEL)
    assert history.verdict() is BAD
    assert history.of().reasons[0].text == "Xid 149.4: Parts of NVLink 5 (NETIR_LINK_EVT, link 8)"


@pytest.mark.parametrize(("shared", "expected"), [(True, BAD), (False, OK), (None, SUSPECT)])
def test_an_error_of_a_link_hurts_where_a_pod_spans_gpus(shared: bool | None, expected: Verdict) -> None:  # noqa: FBT001
    assert old().read(A, shared=shared).xid(74).verdict() is expected


def test_an_error_that_follows_from_another_counts_for_nothing() -> None:
    assert old().xid(119, "pid=1, name=x, Ch 1 caused by previous Xid 79").verdict() is OK


@pytest.mark.parametrize("xid", [74, 155])
def test_links_to_a_gpu_that_has_just_died_are_no_fault_of_their_own(xid: int) -> None:
    history = old().xid(79, uuid=B).silent(1).xid(xid)
    assert (history.verdict(A), history.verdict(B)) == (OK, BAD)
    assert history.silent(MINUTE).xid(xid).verdict(A) is BAD


def test_a_programs_errors_on_several_gpus_at_once_are_the_programs() -> None:
    history = old()
    for _ in range(5):
        history.silent(HOUR).xid(32, uuid=A).xid(32, uuid=B)
    assert (history.verdict(A), history.verdict(B)) == (OK, OK)
    alone = history.silent(HOUR).xid(32, uuid=A).silent(HOUR).xid(32, uuid=A)
    assert (alone.verdict(A), alone.verdict(B)) == (SUSPECT, OK)


def test_an_event_of_a_gpu_that_nobody_knows_is_about_none() -> None:
    history = old().xid(79, uuid="").xid(79, uuid="GPU-z")
    assert (history.verdict(A), history.verdict(B)) == (OK, OK)


def test_the_table_may_be_another() -> None:
    rules = {
        79: replace(DEFAULT_TABLE.rule(79), verdict=OK),
        13: replace(DEFAULT_TABLE.rule(13), verdict=SUSPECT),
    }
    history = History(rules=Rules(table=replace(DEFAULT_TABLE, rules=rules)), judges=False)
    assert history.xid(79).verdict() is OK
    assert history.xid(13).verdict() is SUSPECT


# ---------------------------------------------------------------------- the driver's word

BAD_XIDS = sorted(
    xid
    for xid, rule in DEFAULT_TABLE.rules.items()
    if rule.verdict is BAD and rule.when is not When.SAYS_FATAL and rule.occurrences == 1 and xid != 79
)


@pytest.mark.parametrize("xid", BAD_XIDS)
def test_a_driver_that_asks_for_nothing_is_believed_before_the_table(xid: int) -> None:
    history = History().xid(xid)
    assert history.verdict() is SUSPECT
    assert "the driver asks for nothing" in history.pass_(15).of().reasons[0].text
    assert history.pass_(11 * MINUTE).codes() == ["Trial"]
    assert history.canary(passed=True).verdict() is OK


@pytest.mark.parametrize("xid", BAD_XIDS)
def test_a_driver_that_asks_for_a_reset_makes_it_bad_until_it_was_reset(xid: int) -> None:
    history = History().xid(xid).silent(11).read(A, recovery=1)
    assert history.verdict() is BAD
    history.pass_(DAY, every=HOUR)
    assert history.verdict() is BAD
    history.gpus[A] = replace(history.gpus[A], recovery=0)
    assert history.reset().codes() == ["Held"]
    assert history.verdict() is BAD
    assert history.pass_(10 * MINUTE).codes() == ["Trial"]
    assert history.verdict() is SUSPECT


def test_a_driver_that_says_nothing_within_a_minute_leaves_it_to_the_table() -> None:
    history = History().xid(119)
    history.gpus[A] = replace(history.gpus[A], contact=Contact.SILENT)
    assert history.pass_(59).verdict() is SUSPECT
    assert history.pass_(1).verdict() is BAD
    history.gpus[A] = replace(history.gpus[A], contact=Contact.ANSWERS)
    assert history.pass_(15).verdict() is SUSPECT  # and is heard late, too


def test_a_driver_that_asks_for_nothing_three_times_a_day_is_not_believed() -> None:
    history = History()
    for _ in range(2):
        history.xid(48).pass_(HOUR)
    assert history.verdict() is SUSPECT
    assert history.xid(48).pass_(HOUR).verdict() is BAD


def test_a_gpu_off_the_bus_is_bad_whatever_the_driver_says() -> None:
    history = History().xid(79)
    assert history.pass_(HOUR).reset().verdict() is BAD
    assert history.reboot().pass_(10 * MINUTE).codes() == ["Trial"]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (0, OK),
        (1, BAD),
        (2, BAD),
        (3, SUSPECT),
        (4, SUSPECT),
        (5, SUSPECT),
        (6, BAD),
        (7, BAD),
        (99, SUSPECT),
    ],
)
def test_what_the_driver_asks_for_decides(action: int, expected: Verdict) -> None:
    assert History().read(A, recovery=action).verdict() is expected


def test_a_change_of_the_drivers_verdict_stops_promotions_until_it_is_read() -> None:
    assert History().told(Told.RECOVERY).codes() == ["RecoveryChanged"]
    assert History().xid(154).codes() == ["RecoveryChanged"]
    assert History().told(Told.RECOVERY).pass_(1).verdict() is OK
    assert old().told(Told.RECOVERY).verdict() is OK


# ---------------------------------------------------------------------- readings


@pytest.mark.parametrize(
    ("changes", "code", "expected"),
    [
        (
            {"rows": Rows(correctable=0, uncorrectable=1, pending=True, failure=False)},
            "RowRemapPending",
            SUSPECT,
        ),
        ({"rows": Rows(correctable=0, uncorrectable=9, pending=False, failure=True)}, "RowRemapFailure", BAD),
        ({"rows": Rows(correctable=300, uncorrectable=200, pending=False, failure=False)}, "", OK),
        ({"pages": Pages(pending=True)}, "PageRetirementPending", SUSPECT),
        ({"repair_pending": True}, "RepairPending", SUSPECT),
        ({"ecc": Ecc(sram_threshold_exceeded=True)}, "SramThreshold", BAD),
        ({"links": Links(active=17, inactive=1)}, "LinksDown", SUSPECT),
        ({"links": Links(active=17, inactive=1), "shared": False}, "", OK),
        ({"links": Links(active=17, inactive=1), "shared": None}, "", OK),
        ({"links": Links(active=0, inactive=18)}, "LinksDown", SUSPECT),
        ({"links": Links(active=18, inactive=6)}, "", OK),
        ({"contact": Contact.SILENT}, "", OK),
        ({"contact": Contact.LOST}, "Lost", SUSPECT),
        ({"contact": Contact.RESET_REQUIRED}, "ResetRequired", SUSPECT),
        ({"pcie": Pcie(width=8, most_width=16)}, "", OK),
        ({"clocks": Clocks.POWER_CAP}, "", OK),
        ({"millijoules": 0}, "", OK),
    ],
)
def test_a_reading_says_something_by_itself(changes: dict[str, Any], code: str, expected: Verdict) -> None:
    history = History().silent(15).read(A, **changes)
    assert (history.codes(), history.verdict()) == ([code] if code else [], expected)


@pytest.mark.parametrize("contact", [Contact.LOST, Contact.RESET_REQUIRED])
def test_a_gpu_that_stays_lost_is_bad_and_comes_back_with_its_answer(contact: Contact) -> None:
    history = History().silent(15).read(A, contact=contact).silent(5).read()
    assert history.verdict() is BAD
    history.silent(MINUTE).read(A, contact=Contact.ANSWERS)
    assert (history.codes(), history.verdict()) == (["Held"], BAD)
    assert history.pass_(10 * MINUTE).canary(passed=True).verdict() is OK


@pytest.mark.parametrize(
    ("changes", "well", "seconds"),
    [
        ({"pcie": Pcie(width=8, most_width=16)}, {"pcie": Pcie(width=16, most_width=16)}, 600),
        (
            {"fabric": Fabric(state=FabricState.IN_PROGRESS)},
            {"fabric": Fabric(state=FabricState.COMPLETED)},
            300,
        ),
        (
            {"fabric": Fabric(state=FabricState.COMPLETED, ailments=("degraded bandwidth",))},
            {"fabric": Fabric(state=FabricState.COMPLETED)},
            300,
        ),
    ],
)
def test_what_may_pass_has_to_last(changes: dict[str, Any], well: dict[str, Any], seconds: float) -> None:
    history = History().read(A, **changes).pass_(seconds - 15)
    assert history.verdict() is OK
    assert history.pass_(15).verdict() is SUSPECT
    assert history.silent(15).read(A, **well).verdict() is OK
    assert history.read(A, **changes).pass_(seconds - 15).verdict() is OK  # and is counted anew


def test_hardware_that_slows_down_most_of_the_time_makes_a_gpu_suspect_while_it_does() -> None:
    history = History()
    for turn in range(60):
        history.silent(15).read(A, clocks=Clocks.HARDWARE_THERMAL if turn % 3 else Clocks.POWER_CAP)
    assert history.codes() == ["Throttled"]
    assert history.read(A, clocks=Clocks(0)).pass_(10 * MINUTE).verdict() is OK
    for turn in range(60):
        history.silent(15).read(A, clocks=Clocks(0) if turn % 2 else Clocks.POWER_BRAKE)
    assert history.verdict() is OK


def test_what_a_gpu_brings_along_is_no_fault() -> None:
    ecc = Ecc(corrected=10**6, uncorrected=50, corrected_ever=10**9, uncorrected_ever=5000)
    history = History().silent(1)
    history.gpus["GPU-new"] = replace(history.gpus[A], uuid="GPU-new", ecc=ecc)
    assert history.pass_(HOUR).verdict("GPU-new") is OK


@pytest.mark.parametrize(("errors", "expected"), [(1, OK), (2, SUSPECT), (9, SUSPECT), (10, BAD)])
def test_uncorrected_errors_count_by_what_came_within_a_day(errors: int, expected: Verdict) -> None:
    history = old()
    for count in range(1, errors + 1):
        ecc = Ecc(uncorrected=count, uncorrected_ever=2 + count)
        history.silent(HOUR).read(A, ecc=ecc)
    assert history.verdict() is expected


def test_uncorrected_errors_that_are_days_apart_do_not_add_up() -> None:
    history = old()
    for count in range(1, 30):
        history.silent(1.1 * DAY).read(A, ecc=Ecc(uncorrected_ever=2 + count))
    assert history.verdict() is OK


def test_a_counter_that_falls_began_anew_and_what_it_says_then_has_come_since() -> None:
    history = old()
    history.record = replace(history.record, gpus={})
    history.read(A, ecc=Ecc(uncorrected=100))
    assert history.silent(15).read(A, ecc=Ecc(uncorrected=1)).verdict() is OK
    assert history.silent(15).read(A, ecc=Ecc(uncorrected=2)).verdict() is SUSPECT


def test_very_many_corrected_errors_within_an_hour_make_a_gpu_suspect_for_an_hour() -> None:
    history = History()
    for turn in range(4):
        history.silent(5 * MINUTE).read(A, ecc=Ecc(corrected_ever=3 + 2500 * (turn + 1)))
    assert history.codes() == ["CorrectableErrors"]
    assert history.pass_(HOUR).verdict() is OK
    assert History().told(Told.STORM).pass_(HOUR - 1).codes() == ["CorrectableErrors"]


def test_a_link_that_did_not_come_back_makes_a_shared_gpu_suspect_for_an_hour() -> None:
    history = History().silent(15).read(A, links=Links(active=18, inactive=0, failed_recoveries=1))
    assert history.codes() == ["LinkFailures"]
    assert history.pass_(HOUR).verdict() is OK


def test_what_a_gpu_does_not_tell_is_neither_found_nor_gone() -> None:
    pending = Rows(correctable=0, uncorrectable=1, pending=True, failure=False)
    history = History().read(A, rows=pending).silent(15).read(A, rows=None)
    assert history.codes() == ["RowRemapPending"]
    nothing = {"recovery": None, "ecc": Ecc(), "rows": None, "pcie": Pcie(), "links": None, "fabric": None}
    assert History().silent(15).read(A, **nothing, millijoules=None).pass_(HOUR).verdict() is OK


# ---------------------------------------------------------------------- silence


def test_silence_is_unknown_and_no_sickness() -> None:
    history = History()
    history.gpus[A] = replace(history.gpus[A], contact=Contact.SILENT, reason="a call has not returned")
    found = history.pass_(7 * DAY, every=HOUR).of()
    assert (found.verdict, found.word, found.known) == (OK, "Unknown", False)
    assert found.notes == ("it can't be read: a call has not returned",)
    assert history.judged().verdict is OK
    assert history.of(B).word == "Ok"


def test_a_gpu_is_known_for_a_minute_after_it_answered() -> None:
    assert History().silent(59).of().word == "Ok"
    assert History().silent(60).of().word == "Unknown"


def test_what_was_found_before_the_silence_stays() -> None:
    history = old().xid(48)
    history.gpus[A] = replace(history.gpus[A], contact=Contact.SILENT)
    found = history.pass_(DAY, every=HOUR).of()
    assert (found.verdict, found.word) == (BAD, "Bad")


# ---------------------------------------------------------------------- missing GPUs


def test_a_gpu_that_is_not_listed_any_more_is_bad_until_it_is_back() -> None:
    history = History()
    gone = history.gpus.pop(B)
    assert history.silent(15).read().codes(B) == ["Missing"]
    assert history.verdict(B) is SUSPECT
    assert history.silent(15).read().verdict(B) is BAD
    assert (history.verdict(A), history.judged().verdict) == (OK, BAD)
    assert (history.judged().expected, history.judged().listed) == (2, 1)
    history.gpus[B] = gone
    assert history.pass_(15).codes(B) == ["Held"]


def test_a_gpu_that_does_not_come_back_with_a_boot_costs_the_others_nothing() -> None:
    history = History()
    del history.gpus[B]
    history.pass_(MINUTE).reboot()
    assert (history.verdict(B), history.judged().verdict) == (SUSPECT, SUSPECT)
    assert history.pass_(DAY, every=HOUR).codes(B) == ["Missing"]


def test_a_gpu_that_was_replaced_is_forgotten() -> None:
    history = old().xid(64, uuid=B)
    del history.gpus[B]
    history.gpus["GPU-new"] = replace(history.gpus[A], uuid="GPU-new")
    history.reboot()
    assert history.judged().gpu(B) is None
    assert history.judged().verdict is OK


def test_a_gpu_that_does_not_say_who_it_is_is_not_missing() -> None:
    history = History()
    told = {A: history.gpus[A]}
    for _ in range(10):
        history.silent(15)
        reading = NodeReading(at=history.now, boot=history.boot, gpus=told, silent=1)
        history.record = with_reading(history.record, reading, history.rules)
    assert history.of(B).word == "Unknown"


def test_a_driver_that_lists_nothing_says_nothing() -> None:
    history = History().silent(MINUTE)
    reading = NodeReading(at=history.now, boot=history.boot, listed=False, reason="NVML is closed")
    history.record = with_reading(history.record, reading, history.rules)
    assert [gpu.word for gpu in history.judged().gpus] == ["Unknown", "Unknown"]
    assert history.judged().reason == "NVML is closed"


@pytest.mark.parametrize(("expected", "verdict"), [(1, OK), (2, OK), (8, SUSPECT)])
def test_a_node_with_fewer_gpus_than_it_should_have_says_so(expected: int, verdict: Verdict) -> None:
    history = History(rules=Rules(expected=expected))
    assert (history.judged().verdict, history.judged().expected) == (verdict, expected)


# ---------------------------------------------------------------------- ways back


def test_a_boot_clears_everything_and_holds_what_was_bad() -> None:
    history = old().xid(48).xid(79, uuid=B)
    history.reboot()
    assert (history.codes(A), history.codes(B)) == (["Held"], ["Held"])
    assert history.pass_(10 * MINUTE).codes(A) == ["Trial"]
    assert history.of().until == history.now + HOUR
    assert history.pass_(HOUR).verdict() is OK


def test_a_boot_during_which_the_driver_was_late_clears_it_all_the_same() -> None:
    history = old().xid(48)
    history.boot += "+"
    history.silent(MINUTE)
    closed = NodeReading(at=history.now, boot=history.boot, listed=False, reason="closed")
    history.record = with_reading(history.record, closed, history.rules)
    assert history.verdict() is BAD
    assert history.silent(MINUTE).read().codes() == ["Held"]


def test_a_counter_that_fell_is_a_reset_only_where_the_driver_asks_for_nothing() -> None:
    assert old().xid(48).reset().verdict() is BAD
    history = History().xid(48).pass_(15).xid(48).silent(20).xid(48).pass_(15)
    assert history.of().reasons[0].clears == "a reset of the GPU, or a boot of the node"
    history = History().read(A, recovery=1).xid(48).silent(15).read()
    assert history.silent(15).reset().codes() == ["RecoveryAction", "Xid48"]


def test_a_hold_begins_anew_with_each_thing_that_is_cleared() -> None:
    history = History().read(A, recovery=1).silent(15).read(A, recovery=0)
    history.pass_(5 * MINUTE).read(A, recovery=1).silent(15).read(A, recovery=0)
    assert history.pass_(9 * MINUTE).codes() == ["Held"]
    assert history.pass_(MINUTE).codes() == ["Trial"]


def test_a_canary_that_fails_makes_a_gpu_suspect_for_a_day_or_until_one_passes() -> None:
    history = History().canary(passed=False)
    assert history.codes() == ["CanaryFailed"]
    assert history.silent(DAY - 1).read().verdict() is SUSPECT
    assert history.silent(1).read().verdict() is OK
    assert History().canary(passed=False).canary(passed=True).verdict() is OK


@pytest.mark.parametrize(
    ("passed_on", "failed_on", "found"),
    [
        ([], [A], []),
        ([A], [A], ["CanaryFailed"]),
        ([B], [A], ["CanaryFailed"]),
        ([B], [B, A], []),
        ([A, B], [B, A], []),
    ],
    ids=["never passed", "passed here", "passed elsewhere", "failed elsewhere too", "fails on both"],
)
def test_a_failed_proof_counts_where_the_same_has_passed_and_fails_nowhere_else(
    passed_on: list[str], failed_on: list[str], found: list[str]
) -> None:
    history = History()
    for uuid in passed_on:
        history.canary(passed=True, uuid=uuid, proof="p")
    history.canary(passed=True, uuid=B, proof="another")
    for uuid in failed_on:
        history.canary(passed=False, uuid=uuid, proof="p")
    assert history.codes(A) == found


def test_a_proof_that_passes_after_a_failure_counts_anew() -> None:
    history = History().canary(passed=True, proof="p").canary(passed=False, uuid=B, proof="p")
    assert history.canary(passed=False, proof="p").codes() == []
    assert history.canary(passed=True, proof="p").canary(passed=False, proof="p").codes() == ["CanaryFailed"]


def test_a_seat_of_several_gpus_that_answers_wrong_makes_all_of_them_suspect() -> None:
    history = History().canary(passed=True, proof="p")
    told = Canary(at=history.now, gpus=frozenset({A, B}), passed=False, proof="p")
    history.record = with_canary(history.record, told, history.rules)
    assert (history.codes(A), history.codes(B)) == (["CanaryFailed"], ["CanaryFailed"])


def test_a_gpu_that_computes_wrong_now_and_then_stays_suspect_for_a_day() -> None:
    history = History()
    for _ in range(2):
        assert history.canary(passed=False).pass_(MINUTE).canary(passed=True).verdict() is OK
    assert history.canary(passed=False).canary(passed=True).verdict() is SUSPECT
    assert history.silent(DAY - 1).read().verdict() is SUSPECT
    assert history.silent(1).read().canary(passed=True).verdict() is OK


def test_only_so_many_proofs_are_remembered() -> None:
    history = History()
    for number in range(MOST_PROOFS + 1):
        history.canary(passed=True, proof=f"p{number}")
    assert history.canary(passed=False, proof="p0").codes() == []
    assert history.canary(passed=False, proof="p1").codes() == ["CanaryFailed"]


def test_a_canary_ends_no_hold_and_no_latch() -> None:
    assert old().xid(48).canary(passed=True).verdict() is BAD
    assert old().xid(48).reboot().canary(passed=True).verdict() is BAD


def test_a_trial_does_not_end_while_the_gpu_is_silent() -> None:
    history = old().xid(48).reboot()
    history.pass_(10 * MINUTE)
    history.gpus[A] = replace(history.gpus[A], contact=Contact.SILENT)
    assert history.pass_(DAY, every=HOUR).codes() == ["Trial"]
    history.gpus[A] = replace(history.gpus[A], contact=Contact.ANSWERS)
    assert history.pass_(30).verdict() is OK


def test_since_stays_where_only_reasons_change() -> None:
    history = old().silent(15).xid(48)
    began = history.now
    history.pass_(MINUTE).xid(95).pass_(MINUTE)
    assert history.of().since == began
    history.reboot()
    assert (history.verdict(), history.of().since) == (BAD, began)


def test_162_says_that_a_163_before_it_is_over() -> None:
    rules = {163: replace(DEFAULT_TABLE.rule(163), verdict=SUSPECT)}
    history = History(rules=Rules(table=replace(DEFAULT_TABLE, rules=rules)), judges=False)
    assert history.xid(163).codes() == ["Xid163"]
    assert "Xid163" not in history.silent(60).xid(162).codes()


def test_a_clock_that_is_set_back_takes_what_is_remembered_with_it() -> None:
    history = old().xid(48).reboot()
    history.now = T0 - 10 * 365 * DAY
    assert history.read().codes() == ["Held"]
    assert history.pass_(10 * MINUTE).codes() == ["Trial"]
    assert history.pass_(HOUR).verdict() is OK


def test_what_was_lost_is_unknown_and_never_ok_by_the_loss() -> None:
    lost = NodeRecord(lost=True)
    history = History(judges=False, record=lost)
    assert history.of().word == "Unknown"
    assert history.pass_(59 * MINUTE).of().word == "Unknown"
    assert history.pass_(MINUTE + 15).of().word == "Ok"
    assert History(judges=False, record=lost).canary(passed=True).of().word == "Ok"
    assert History(record=lost).of().word == "Ok"  # the driver knows, and asks for nothing
    assert History(record=NodeRecord()).of().word == "Ok"


def test_a_node_of_which_nothing_was_read_yet_is_nothing() -> None:
    found = judge(NodeRecord(), Rules(), T0)
    assert (found.verdict, found.gpus, found.listed) == (OK, (), 0)
