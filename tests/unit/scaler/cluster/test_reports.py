"""Agents' reports put in order, and the addresses under which their engines are reached."""

from dataclasses import replace

import pytest

from scaler.cluster.reports import Life, Report, follow, parse, routable
from warmpool.errors import BadOrder
from warmpool.seats import PolicyName, Resident, Verdict, worst_of
from warmpool.states import ResidentState

BODY = {
    "seat": "seat-0",
    "fleet": "spares",
    "uid": "u",
    "agent": "http://0.0.0.0:9081",
    "pid": 7,
    "epoch": 3,
    "seq": 5,
    "at": 100.0,
    "gpus": ["0"],
    "residents": [],
}
REPORT = Report(
    seat="seat-0",
    fleet="spares",
    uid="u",
    pid=7,
    epoch=3,
    sequence=5,
    at=100.0,
    gpus=("0",),
    residents=(),
    agent="http://0.0.0.0:9081",
)
LIFE = Life(uid="u", pid=7, sequence=5, at=100.0, base=1000)


def test_a_report_is_read() -> None:
    assert parse(BODY) == REPORT


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"seq": "many"}, id="text"),
        pytest.param({"residents": None}, id="nothing"),
        pytest.param({"residents": [{"policy": "chat"}]}, id="half a resident"),
    ],
)
def test_a_malformed_report_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadOrder):
        parse({**BODY, **change})


@pytest.mark.parametrize(
    ("change", "begun", "number"),
    [
        pytest.param({"sequence": 6, "at": 101.0}, False, 1006, id="the next"),
        pytest.param({"at": 102.0}, False, 1005, id="a heartbeat without a change"),
        pytest.param({"sequence": 0, "at": 101.0}, True, 1006, id="a container's agent that began anew"),
        pytest.param({"sequence": 9, "pid": 8}, True, 1015, id="another process"),
        pytest.param({"sequence": 0, "uid": "v"}, True, 1006, id="another seat of the name"),
        pytest.param({"sequence": 0, "pid": 8, "at": 1.0}, True, 1006, id="begun anew, its clock set back"),
    ],
)
def test_reports_are_numbered_over_all_lives_of_an_agent(
    change: dict[str, object],
    begun: bool,  # noqa: FBT001 - a case's value
    number: int,
) -> None:
    placed = follow(LIFE, replace(REPORT, **change))  # type: ignore[arg-type]
    assert placed is not None
    assert (placed[1], placed[0].number) == (begun, number)


def test_a_report_that_was_overtaken_is_dropped() -> None:
    assert follow(LIFE, replace(REPORT, sequence=4, at=99.0)) is None


def test_the_first_report_begins_a_life() -> None:
    assert follow(None, REPORT) == (replace(LIFE, base=0), True)


@pytest.mark.parametrize(
    ("address", "host", "reached"),
    [
        pytest.param("http://0.0.0.0:5000", "seat-0", "http://seat-0:5000", id="all addresses"),
        pytest.param("http://[::]:5000", "fd00::7", "http://[fd00::7]:5000", id="IPv6"),
        pytest.param("http://10.0.0.9:5000", "seat-0", "http://10.0.0.9:5000", id="its own"),
        pytest.param("http://127.0.0.1:5000", "localhost", "http://127.0.0.1:5000", id="one machine"),
        pytest.param("", "seat-0", "", id="unknown yet"),
    ],
)
def test_engines_get_the_address_by_which_gateways_reach_them(address: str, host: str, reached: str) -> None:
    resident = Resident(policy=PolicyName("chat"), state=ResidentState.PAUSED, since=1.0, address=address)
    assert routable(resident, host, "seat-0").address == reached


def test_an_engine_on_loopback_of_another_machine_is_refused_with_the_mend() -> None:
    resident = Resident(
        policy=PolicyName("chat"), state=ResidentState.PAUSED, since=1.0, address="http://127.0.0.1:5000"
    )
    with pytest.raises(BadOrder, match="its agent's configuration"):
        routable(resident, "seat-0", "seat-0")


def test_what_a_node_said_of_a_gpu_too_long_ago_is_unknown() -> None:
    said = [
        {"uuid": "GPU-a", "verdict": "Bad", "reason": "Xid 79", "ageMilliseconds": 900},
        {"uuid": "GPU-b", "verdict": "Bad", "reason": "Xid 79", "ageMilliseconds": 31_000},
        {"uuid": "GPU-c", "verdict": "Dreadful", "ageMilliseconds": 1},
    ]
    words = parse({**BODY, "gpuHealth": said}).gpu_words
    assert [(each.uuid, each.word) for each in words] == [
        ("GPU-a", "Bad"),
        ("GPU-b", "Unknown"),
        ("GPU-c", "Unknown"),
    ]
    assert worst_of(words[1:]) is Verdict.OK


@pytest.mark.parametrize("said", [[{"uuid": "GPU-a"}], [{"verdict": "Bad"}], ["GPU-a"], 7])
def test_words_on_gpus_that_make_no_sense_are_refused(said: object) -> None:
    with pytest.raises(BadOrder):
        parse({**BODY, "gpuHealth": said})
