"""The simulated fleet: the same seed gives the same year, and what it says of our rules holds on a small one."""

import pytest

from warmpool.nodehealth.bench.fleet import Run, Tally, main, table
from warmpool.nodehealth.bench.rivals import AnyXid, DevicePlugin, Ours, Rival
from warmpool.nodehealth.bench.script import MUTE, SOFT, Errors, Fault, Hang, Kind, Restart, Size, script

SIZE = Size(nodes=4, gpus=4, days=6, old_percent=0)
OLD = Size(nodes=4, gpus=4, days=6, old_percent=100)
HOUR = 3600.0
LOUD = [kind for kind in Kind if kind not in MUTE | SOFT]


def ours(*happenings: Fault | Errors | Hang | Restart, size: Size = SIZE) -> Tally:
    return Run(Ours(size.nodes), size, 0).take(happenings)


def test_a_year_follows_from_its_seed() -> None:
    size = Size(nodes=100, days=60)
    assert script(size, 1) == script(size, 1)
    assert script(size, 1) != script(size, 2)
    assert [each.at for each in script(size, 1)] == sorted(each.at for each in script(size, 1))


def test_faults_are_as_many_as_the_study_counted() -> None:
    found = [sum(isinstance(each, Fault) for each in script(Size(days=365), seed)) for seed in range(5)]
    assert sum(found) / 5 == pytest.approx(268 / 2424 * 800, rel=0.2)


@pytest.mark.parametrize("size", [SIZE, OLD], ids=["with the driver's word", "without"])
@pytest.mark.parametrize("kind", LOUD)
def test_each_fault_that_tells_of_itself_is_excluded_and_its_gpu_comes_back(kind: Kind, size: Size) -> None:
    tally = ours(Fault(HOUR, 1, 2, kind), size=size)
    late = 3 * HOUR if kind is Kind.SWITCHING and size is OLD else 1000
    assert len(tally.right) == 1
    assert tally.right[0] < late
    assert len(tally.recovery) == 1
    assert tally.recovery[0] < 1.3 * HOUR
    assert (tally.wrong, tally.missed) == (0, 0)


@pytest.mark.parametrize("kind", sorted(SOFT))
def test_a_gpu_that_may_finish_its_work_is_not_excluded(kind: Kind) -> None:
    tally = ours(Fault(HOUR, 1, 2, kind))
    assert (tally.soft, tally.right, tally.wrong) == (1, [], 0)


def test_a_programs_end_excludes_nobody_and_withholds_nothing() -> None:
    storm = [
        Errors(HOUR * (1 + each), each % 4, (0, 1, 2, 3), ((31, ""), (43, ""), (45, "")))
        for each in range(40)
    ]
    tally = ours(*storm, size=OLD)
    assert (tally.wrong, tally.withheld_hours, tally.boots) == (0, 0.0, 0)


def test_a_proof_ends_the_trial_after_a_repair() -> None:
    rule = Ours(4, proof_seconds=300)
    (took,) = Run(rule, SIZE, 0).take([Fault(HOUR, 1, 2, Kind.STOPPED)]).recovery
    assert took == pytest.approx(900, abs=10)


def test_a_hang_excludes_nobody() -> None:
    tally = ours(Hang(HOUR, 0, 0, 6 * HOUR))
    assert (tally.wrong, tally.withheld_hours) == (0, 0.0)


@pytest.mark.parametrize(("rule", "wrong"), [(Ours(4), 0), (DevicePlugin(), 16), (AnyXid(), 16)])
def test_a_driver_that_calls_healthy_gpus_hung_is_believed_or_not(rule: Rival, wrong: int) -> None:
    storm = [Errors(HOUR + node, node, (0, 1, 2, 3), ((119, ""),)) for node in range(4)]
    assert Run(rule, SIZE, 0).take(storm).wrong == wrong


def test_the_breaker_holds_a_storm_of_older_drivers_back() -> None:
    storm = [Errors(HOUR + node, node, (0, 1, 2, 3), ((119, ""),)) for node in range(4)]
    rule = Ours(4)
    Run(rule, OLD, 0).take(storm)
    assert rule.waited > 0


def test_a_plugin_that_starts_anew_gives_broken_gpus_work() -> None:
    broken = (Fault(HOUR, 0, 0, Kind.STOPPED), Restart(2 * HOUR))
    plugin = Run(DevicePlugin(), SIZE, 0).take(broken)
    mine = ours(*broken)
    assert plugin.offered_hours > 1
    assert mine.offered_hours < 0.1


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes", "6", "--days", "20", "--seeds", "1"]) == 0
    said = capsys.readouterr().out
    assert (
        "| | Emberpool | Emberpool, a proof 5 min after the hold | device plugin | taint on any Xid |" in said
    )
    assert said.count("\n|") > 10


def test_a_table_of_nothing_says_nothing() -> None:
    assert "| – |" in table({"x": Tally()})
