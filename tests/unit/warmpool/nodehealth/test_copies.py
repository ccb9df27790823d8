"""What controllers keep of what an agent has found: with it an agent that has lost its file says what it said before."""

import json
from dataclasses import replace
from types import MappingProxyType

import pytest

from tests.unit.warmpool.nodehealth.history import T0, A, B, History, healthy
from tests.unit.warmpool.nodehealth.test_latches import full
from warmpool.nodehealth.copies import MOST_BYTES, Copying, copied, restored
from warmpool.nodehealth.latching import suspect
from warmpool.nodehealth.records import Code, GpuRecord, NodeRecord
from warmpool.seats import Verdict


def begun_anew(before: History) -> History:
    """The same node as an agent sees it that remembers nothing, and has asked for what is kept."""
    anew = History(
        rules=before.rules,
        judges=before.judges,
        now=before.now,
        boot=before.boot,
        record=NodeRecord(lost=True),
        gpus=before.gpus,
    )
    return taken(anew, copied(before.record))


def taken(history: History, text: str) -> History:
    history.record = restored(history.record, text, history.rules, history.now)
    return history


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(History(judges=False).xid(79), id="bad until a boot"),
        pytest.param(History().xid(48).pass_(70), id="the driver's word was awaited"),
        pytest.param(History().xid(48), id="the driver's word is awaited"),
        pytest.param(History(judges=False).xid(63), id="suspect"),
        pytest.param(History().canary(passed=False), id="a canary has failed"),
        pytest.param(History(judges=False).xid(48).reboot(), id="held"),
        pytest.param(History(judges=False).xid(48).reboot().pass_(700), id="tried"),
        pytest.param(History().xid(79, uuid=B).xid(48), id="both"),
    ],
)
def test_what_stands_survives_the_loss_of_the_file(history: History) -> None:
    anew = begun_anew(history)
    assert [(gpu.word, gpu.until, [each.code for each in gpu.reasons]) for gpu in anew.judged().gpus] == [
        (gpu.word, gpu.until, [each.code for each in gpu.reasons]) for gpu in history.judged().gpus
    ]
    assert anew.judged().verdict is not Verdict.OK


def test_since_when_it_stands_is_what_it_was() -> None:
    history = History(judges=False).xid(79).pass_(120)
    assert begun_anew(history).of().reasons == history.of().reasons


@pytest.mark.parametrize("judges", [True, False])
def test_where_nothing_stands_there_is_nothing_to_keep_and_gpus_are_known_by_that(*, judges: bool) -> None:
    history = History(judges=judges)
    assert copied(history.record) == ""
    assert [gpu.word for gpu in begun_anew(history).judged().gpus] == ["Ok", "Ok"]


def test_until_a_controller_answers_a_gpu_without_a_word_of_its_driver_is_unknown() -> None:
    assert History(judges=False, record=NodeRecord(lost=True)).of().word == "Unknown"


def test_a_boot_since_then_clears_what_a_boot_clears() -> None:
    history = History(judges=False).xid(79)
    text = copied(history.record)
    anew = taken(History(judges=False, now=T0 + 60, boot="boot-2", record=NodeRecord(lost=True)), text)
    assert anew.codes() == ["Held"]
    assert anew.pass_(700).codes() == ["Trial"]
    assert anew.canary(passed=True).verdict() is Verdict.OK


def test_what_is_found_before_the_answer_comes_is_kept_too() -> None:
    text = copied(History(judges=False).xid(48).record)
    anew = History(judges=False, record=NodeRecord(lost=True)).xid(63).xid(79, uuid=B)
    taken(anew, text)
    assert (set(anew.codes()), anew.codes(B)) == ({"Xid48", "Xid63"}, ["Xid79"])


def test_a_reset_while_no_agent_ran_is_seen_by_the_counters_that_were_kept() -> None:
    history = History().read(A, recovery=1).xid(95).pass_(80)
    assert history.verdict() is Verdict.BAD
    text = copied(history.record)
    gpus = {A: healthy(A, millijoules=5), B: healthy(B)}
    anew = taken(History(now=history.now + 60, record=NodeRecord(lost=True), gpus=gpus), text)
    assert "Xid95" not in anew.read().codes()
    assert anew.codes() == ["Held"]


def test_a_gpu_that_is_gone_is_missed_and_one_that_was_replaced_is_forgotten() -> None:
    text = copied(History(judges=False).xid(79).record)
    gone = taken(History(record=NodeRecord(lost=True), gpus={B: healthy(B)}), text).read().pass_(10)
    assert (gone.judged().expected, gone.verdict()) == (2, Verdict.BAD)
    other = taken(
        History(record=NodeRecord(lost=True), gpus={B: healthy(B), "GPU-c": healthy("GPU-c")}), text
    )
    assert set(other.read().record.gpus) == {B, "GPU-c"}
    assert other.judged().verdict is Verdict.OK


def test_a_clock_that_was_set_back_moves_what_was_kept() -> None:
    history = History(judges=False).xid(48).reboot()
    held = history.of().until
    assert held is not None
    back = History(judges=False, now=history.now - 5000, boot=history.boot, record=NodeRecord(lost=True))
    assert taken(back, copied(history.record)).of().until == held - 5000


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"gpus": []}', '{"gpus": {"GPU-a": {}}}', "[" * 10_000])
def test_a_copy_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        restored(NodeRecord(), text, History().rules, T0)


def test_a_copy_of_everything_is_small_and_what_is_bad_comes_first() -> None:
    latches = tuple(suspect(f"Xid{code}", T0, "x" * 1000) for code in range(100))
    gpus = {f"GPU-{place:02}": GpuRecord(uuid=f"GPU-{place:02}", latches=latches) for place in range(64)}
    gpus["GPU-63"] = replace(gpus["GPU-63"], verdict=Verdict.BAD)
    text = copied(NodeRecord(at=T0, gpus=MappingProxyType(gpus)))
    assert len(text) <= MOST_BYTES
    assert "GPU-63" in json.loads(text)["gpus"]
    assert len(copied(full().record)) < MOST_BYTES / 4


def test_a_copy_changes_at_once_with_what_stands_and_seldom_with_the_rest() -> None:
    copying, history = Copying(), History(judges=False).xid(48)
    first = copying.of(history.record, 0.0)
    history.pass_(30).xid(48)
    assert copying.of(history.record, 30.0) == first
    assert copying.of(history.record, 61.0) != first
    second = copying.of(history.pass_(30).record, 91.0)
    assert copying.of(history.xid(79).record, 92.0) != second


def test_counts_that_later_verdicts_follow_from_are_kept_and_those_of_each_reading_are_not() -> None:
    history = History().canary(passed=False).canary(passed=False)
    history.pass_(60)
    kept = begun_anew(history).canary(passed=False)
    assert kept.canary(passed=True).codes() == [Code.CANARY_FAILED]  # three within a day
