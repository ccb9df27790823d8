import subprocess
import sys

import psutil
import pytest

from scaler.drill.cpu import CpuMeter, CpuSample, ProcessTree, stage_cpu
from scaler.drill.scenario import Scenario
from scaler.drill.schedule import windows


def test_a_sample_belongs_to_the_stage_of_its_middle(scenario: Scenario) -> None:
    samples = [
        CpuSample(at=20.4, seconds=1.0, machine=50.0, product=20.0, drill=1.0),
        CpuSample(at=21.4, seconds=1.0, machine=90.0, product=60.0, drill=3.0),
        CpuSample(at=22.4, seconds=3.0, machine=30.0, product=10.0, drill=1.0),
    ]
    rows = {row.stage: row for row in stage_cpu(samples, windows(scenario.spec))}
    assert rows["baseline"].mean_percent == 50.0
    assert rows["burst"].mean_percent == 45.0  # 1 s of 90 and 3 s of 30
    assert rows["burst"].max_percent == 90.0
    assert rows["hold"].mean_percent is None


@pytest.mark.wall_clock
def test_a_busy_child_shows_as_the_product() -> None:
    busy = "import sys, time\nsys.stdout.write('up'); sys.stdout.flush()\nend = time.monotonic() + 5\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(2)
        tree = ProcessTree.of(process.pid)
        meter = CpuMeter(tree)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        sample = meter.sample(1.0)
        process.kill()
    assert sample.product > 5 / (psutil.cpu_count() or 1)
    assert sample.product <= sample.machine + 20
    assert 0.4 < sample.seconds < 5


def test_descendants_are_remembered_after_their_parent_died() -> None:
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "sys.stdout.write('up'); sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(2)
        tree = ProcessTree.of(process.pid)
        tree.look()
        process.kill()
    alive = tree.alive()
    assert [one.pid != process.pid for one in alive] == [True]
    for one in alive:
        one.kill()
        psutil.wait_procs([one], 5)
    assert tree.alive() == []
