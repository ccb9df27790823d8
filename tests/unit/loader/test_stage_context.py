import subprocess
import sys
from dataclasses import replace

import pytest

from loader.cuda.nvml import Basis, ContextCost, Usage, cost_between, usage_of
from loader.stage.connection import DeviceUse

BEFORE = Usage(nbytes=1000, by_process={7: 300})


@pytest.mark.parametrize(
    ("after", "nbytes", "basis"),
    [
        pytest.param(
            Usage(nbytes=9000, by_process={7: 4000, 12: 500}), 500, Basis.PROCESS, id="others took memory too"
        ),
        pytest.param(
            Usage(nbytes=1600, by_process={7: 300}), 600, Basis.DIFFERENCE, id="not told by process"
        ),
        pytest.param(
            Usage(nbytes=1900, by_process={7: 300, 8: 1, 9: 2}), 900, Basis.DIFFERENCE, id="two came"
        ),
        pytest.param(Usage(nbytes=400, by_process={}), 0, Basis.DIFFERENCE, id="others gave more back"),
        pytest.param(None, None, Basis.UNKNOWN, id="nobody tells"),
    ],
)
def test_what_a_context_costs(after: Usage | None, nbytes: int | None, basis: Basis) -> None:
    assert cost_between(BEFORE, after) == ContextCost(nbytes=nbytes, basis=basis)


def test_without_a_device_there_is_nobody_to_ask() -> None:
    assert usage_of("00" * 16) is None


def test_who_plans_with_it_needs_no_torch() -> None:
    code = "import sys, loader.stage.connection; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_taken_is_context_and_copies() -> None:
    use = DeviceUse(
        device="00", ordinal=0, context_bytes=5, context_basis="Process", held_bytes=70, budget_bytes=100
    )
    assert (use.taken_bytes, replace(use, context_bytes=None).taken_bytes) == (75, 70)
