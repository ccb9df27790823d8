"""The node agent's own cost: what the table says, and that it is measured on a whole node agent."""

import pytest

from warmpool.nodehealth.bench.agent import Phase, Probes, main, probe_table, table

MB = 10**6
ALONE = Phase("nobody asks", seconds=100.0, processor=0.5, resident=[40 * MB, 50 * MB])


@pytest.mark.parametrize(
    ("processor", "resident", "within"),
    [(1.0, 80, True), (1.1, 80, False), (1.0, 81, False)],
    ids=["just", "too busy", "too large"],
)
def test_it_keeps_within_what_it_may_take(processor: float, resident: int, within: bool) -> None:  # noqa: FBT001
    phase = Phase("asked", seconds=100.0, processor=processor, resident=[MB, resident * MB])
    assert phase.keeps_within is within


def test_the_table_has_a_line_for_each_phase() -> None:
    asked = Phase("8 seats ask", seconds=100.0, processor=0.9, resident=[MB], unanswered=1)
    asked.answers = [0.001, 0.002, 0.003]
    lines = table([ALONE, asked]).splitlines()
    assert lines[-2] == "| nobody asks | 100 | 0.50 % | 50.0 MB | – | – | – |"
    assert lines[-1] == "| 8 seats ask | 100 | 0.90 % | 1.0 MB | 3 | 2.0 / 3.0 ms | 1 |"


@pytest.mark.parametrize(
    ("seconds", "silent", "within"),
    [([0.05] * 100, 0, True), ([0.01] * 90 + [0.06] * 10, 0, False), ([0.01] * 100, 1, False)],
    ids=["just", "too slow", "one doesn't answer"],
)
def test_probes_are_answered_and_quick(seconds: list[float], silent: int, within: bool) -> None:  # noqa: FBT001
    assert Probes(gpus=8, seconds=seconds, silent=silent).keeps_within is within


def test_the_calls_that_take_the_most_come_first() -> None:
    probes = Probes(gpus=1, seconds=[0.02, 0.03])
    probes.calls["nvmlDeviceGetEccMode"] += [0.001, 0.001]
    probes.calls["nvmlDeviceGetFieldValues"] += [0.002, 0.004]
    *_, most, other = probe_table(probes).splitlines()
    assert most == "| nvmlDeviceGetFieldValues | 2 | 3.00 ms | 3.00 / 3.98 ms | 4.00 ms |"
    assert other == "| nvmlDeviceGetEccMode | 2 | 1.00 ms | 1.00 / 1.00 ms | 1.00 ms |"
    assert "| 2 | 25.0 / 29.9 ms | 30.0 ms | 2 | – |" in probe_table(probes)


@pytest.mark.long
def test_a_whole_node_agent_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "--seconds",
            "4",
            "--seats",
            "2",
            "--probes",
            "3",
            "--library",
            "tests.unit.warmpool.nodehealth.eight_gpus",
        ]
    )
    said = capsys.readouterr().out
    assert "3 probes of 8 GPUs" in said
    *_, alone, asked = said.splitlines()
    assert alone.startswith("| nobody asks | 2 |")
    assert asked.startswith("| 2 seats ask, Prometheus reads | 2 |")
