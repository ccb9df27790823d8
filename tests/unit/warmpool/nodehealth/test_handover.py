"""Who serves on a Bad GPU: handed over where its answers are as right as before, and out of rotation at once where they may not be."""

from collections.abc import Callable

import pytest

from tests.unit.warmpool.nodehealth.history import A, History
from warmpool.nodehealth.client import seat_health
from warmpool.nodehealth.handover import STOPS, stops
from warmpool.nodehealth.readings import Contact, Ecc, Rows
from warmpool.nodehealth.records import XID, Code
from warmpool.nodehealth.wire import HealthAnswer, health_to_json
from warmpool.nodehealth.xids import DEFAULT_TABLE
from warmpool.seats import Verdict

OF_XIDS = {xid for xid, rule in DEFAULT_TABLE.rules.items() if rule.verdict is Verdict.BAD}


def old() -> History:
    return History(judges=False)


def gone(contact: Contact) -> History:
    return History().read(A, contact=contact).silent(15).read()


def missing() -> History:
    history = History()
    del history.gpus[A]
    return history.read().silent(15).read()


FOUND: dict[str, tuple[Callable[[], History], bool]] = {
    "lost": (lambda: gone(Contact.LOST), True),
    "wants a reset before anything": (lambda: gone(Contact.RESET_REQUIRED), True),
    "missing": (missing, True),
    "uncontained": (lambda: old().xid(95), True),
    "off the bus": (lambda: old().xid(79), True),
    "a firmware that hangs": (lambda: old().xid(119), False),
    "the driver wants a reset": (lambda: History().read(A, recovery=1), False),
    "a row has failed": (
        lambda: History().read(A, rows=Rows(correctable=0, uncorrectable=1, pending=False, failure=True)),
        False,
    ),
    "over NVIDIA's threshold": (lambda: History().read(A, ecc=Ecc(sram_threshold_exceeded=True)), False),
    "held after it was gone": (lambda: gone(Contact.LOST).silent(5).read(A, contact=Contact.ANSWERS), False),
}


@pytest.mark.parametrize(("made", "stopped"), FOUND.values(), ids=FOUND.keys())
def test_what_is_bad_stops_who_serves_where_the_gpu_is_gone_or_may_compute_wrong(
    made: Callable[[], History],
    stopped: bool,  # noqa: FBT001
) -> None:
    found = made().of()
    assert found.verdict is Verdict.BAD
    assert stops(found) is stopped


def test_nothing_stops_anybody_before_it_is_bad() -> None:
    for history in (History().read(A, contact=Contact.LOST), History().xid(95), History()):
        assert history.verdict() is not Verdict.BAD
        assert not stops(history.of())


def test_the_table_has_codes_that_can_be_bad_alone() -> None:
    of_readings = {Code.LOST, Code.MISSING, Code.RESET_REQUIRED}
    assert STOPS.keys() <= of_readings | {f"{XID}{xid}" for xid in OF_XIDS}


@pytest.mark.parametrize(("xid", "stopped"), [(95, True), (119, False)])
def test_an_agent_is_told(xid: int, stopped: bool) -> None:  # noqa: FBT001
    node = old().xid(xid).judged()
    answer = HealthAnswer(node=node, gpus=[A], epoch=1, reason="", sources={})
    (word,) = seat_health(health_to_json(answer)).words
    assert (word.word, word.stops) == ("Bad", stopped)
