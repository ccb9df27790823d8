"""A cold start on a GPU, step by step: what `emberpool coldstart verify` measures, and that its steps are real."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from warmpool.coldstart.measure import Measured, Setup, measure
from warmpool.coldstart.steps import Step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("zygote", [False, True])
async def test_every_step_of_a_cold_start_is_measured(
    made: Callable[[str], Path], tmp_path: Path, *, zygote: bool
) -> None:
    setup = Setup(checkpoint=made("llama-1b"), device="cuda", zygote=zygote, directory=tmp_path)
    found = await measure(setup)
    show(found, zygote=zygote)
    assert found.gpu, "the engine was told to compute on CUDA and says otherwise"
    missing = set(Step) - found.seconds.keys()
    assert not missing, f"not measured: {missing}; notes: {dict(found.notes)}"
    assert found.seconds[Step.CONTEXT] > 0.01, (
        "a context takes longer than that: it was made before this step"
    )
    assert (found.seconds[Step.IMPORT] == 0.0) is zygote, f"notes: {dict(found.notes)}"
    parts = [seconds for step, seconds in found.seconds.items() if step not in {Step.DEVICE, Step.TOTAL}]
    assert sum(parts) == pytest.approx(found.seconds[Step.TOTAL], abs=0.02)


def show(found: Measured, *, zygote: bool) -> None:
    told = ", ".join(f"{step} {found.seconds[step]:.3f} s" for step in Step if step in found.seconds)
    sys.stdout.write(f"cold start, zygote {zygote}: {told}\n")
