"""The policies and options that a bench starts `emberpool local` with."""

from pathlib import Path

import pytest

from scaler.drill.bench.layout import Layout
from scaler.policy.compile import load_policies
from scaler.policy.fleet import KvWhenPaused
from warmpool.states import Depth


def layout(depth: Depth, *, device: str = "cpu", parked_bytes: int = 0) -> Layout:
    return Layout(
        depth=depth,
        seats=2,
        residents=2,
        device=device,
        sequences=8,
        length=256,
        parked_bytes=parked_bytes,
    )


@pytest.mark.parametrize(
    ("depth", "kept"),
    [
        (Depth.PAUSED, KvWhenPaused.KEEP),
        (Depth.KV_RELEASED, KvWhenPaused.RELEASE),
        (Depth.PARKED, KvWhenPaused.RELEASE),
    ],
)
def test_each_seat_is_a_fleet_whose_models_rest_as_deep_as_wanted(
    depth: Depth, kept: KvWhenPaused, tmp_path: Path
) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text(layout(depth, parked_bytes=1 << 30).documents(), "utf-8")
    found = load_policies([path])
    assert {name: list(found.policies_on(name)) for name in found.fleets} == {
        "pool-0": ["model-0-0", "model-0-1"],
        "pool-1": ["model-1-0", "model-1-1"],
    }
    assert {fleet.spec.seat.kv_when_paused for fleet in found.fleets.values()} == {kept}
    assert {fleet.spec.spare.parked.host_memory_mib for fleet in found.fleets.values()} == {1024}
    assert {policy.serving_min for policy in found.policy_specs.values()} == {0}


def test_seats_share_the_gpu_and_models_the_checkpoint() -> None:
    options = layout(Depth.PAUSED, device="cuda").options(Path("/c"), Path("/p"), Path("/s"))
    assert options[options.index("--seats-per-gpu") + 1] == "2"
    assert [text for text in options if text.startswith("model-")] == [
        f"model-{seat}-{number}=/c" for seat in (0, 1) for number in (0, 1)
    ]
