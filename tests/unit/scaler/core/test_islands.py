"""Which policies and fleets have to be decided together."""

from collections.abc import Sequence

import pytest

from scaler.core.islands import Island, islands, together
from scaler.core.model import FleetSpec, PolicySpec
from tests.unit.scaler.core.world import fleet, policy


def names(found: Sequence[Island]) -> list[tuple[str, str]]:
    return [
        (" ".join(p.name for p in island.policies), " ".join(f.name for f in island.fleets))
        for island in found
    ]


def on(name: str, *fleets: str) -> PolicySpec:
    return policy(name, fleets=[(each, 8) for each in fleets])


@pytest.mark.parametrize(
    ("policies", "fleets", "expected"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([], [fleet("x")], [("", "x")], id="a-fleet-that-nobody-names"),
        pytest.param([on("a", "x")], [fleet("x")], [("a", "x")], id="one"),
        pytest.param(
            [on("a", "x"), on("b", "y")], [fleet("x"), fleet("y")], [("a", "x"), ("b", "y")], id="apart"
        ),
        pytest.param([on("a", "x"), on("b", "x")], [fleet("x")], [("a b", "x")], id="rivals"),
        pytest.param(
            [on("a", "x", "spares"), on("b", "y", "spares"), on("c", "z")],
            [fleet("x"), fleet("y"), fleet("z"), fleet("spares")],
            [("a b", "x y spares"), ("c", "z")],
            id="bridges-meet",
        ),
        pytest.param(
            [on("a", "w", "x"), on("b", "y", "z"), on("c", "x", "y")],
            [fleet(name) for name in "wxyz"],
            [("a b c", "w x y z")],
            id="joined-by-a-third",
        ),
        pytest.param(
            [on("a", "gone"), on("b", "gone")], [fleet("x")], [("a b", ""), ("", "x")], id="no-fleet"
        ),
        pytest.param([on("a", "x"), on("a", "y")], [fleet("x")], [("a", "x")], id="the-first-of-a-name"),
    ],
)
def test_islands(
    policies: list[PolicySpec], fleets: list[FleetSpec], expected: list[tuple[str, str]]
) -> None:
    assert names(islands(policies, fleets)) == expected


def test_two_islands_together_hold_what_is_on_both() -> None:
    found = islands([on("a", "x"), on("b", "y")], [fleet("x"), fleet("y")])
    assert names([together(found)]) == [("a b", "x y")]
    assert together(found[:1]) is found[0]
