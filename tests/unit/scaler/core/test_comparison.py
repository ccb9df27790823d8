"""Ledgers decided again across reloads and restarts."""

from typing import Any

from scaler.core.comparison import verify, what_if
from scaler.core.ledger import Reader
from scaler.core.model import Burst, Mode, Snapshot
from tests.unit.scaler.core.world import fleet, load, policy, simple
from tests.unit.scaler.core.writer import Rules, Writer

ONE = Rules([policy("a")], [fleet()], hash="one")
TWO = Rules([policy("a", serving_min=2)], [fleet()], hash="two")


def snapshot(in_flight: float = 4) -> Snapshot:
    return Snapshot(loads={"a": load(in_flight)}, fleets={"spares": simple({"a": 1}, 2)})  # type: ignore[dict-item]


def reloaded() -> list[dict[str, Any]]:
    """Thirty ticks under one set, then ten under another, with the law's memory kept."""
    writer = Writer(ONE)
    for tick in range(40):
        writer.rules = ONE if tick < 30 else TWO
        writer.tick(snapshot(), after=0.5)
    return writer.lines


def test_a_reload_is_replayed_with_the_policies_of_its_time() -> None:
    found = verify(Reader().steps(reloaded()))
    assert (found.ticks, found.difference) == (40, None)


def test_other_policies_stay_in_force_across_a_reload() -> None:
    effects = what_if(Reader().steps(reloaded()), TWO, lambda step: step.snapshot)
    assert effects.policies["a"].different == 30


def test_other_policies_keep_their_own_past_until_a_restart() -> None:
    """Under a longer stable window the burst of the start goes on for longer, whatever the ledger's starts remember."""
    slow = Rules(
        [policy("a", burst=Burst(window=2.0, stable_window=100.0, demote_after=3.0))],
        [fleet()],
        hash="slow",
    )
    writer = Writer(ONE)
    for _ in range(160):
        writer.tick(snapshot(), after=0.5)
    assert sum("start" in line for line in writer.lines) == 2
    effect = what_if(Reader().steps(writer.lines), slow, lambda step: step.snapshot).policies["a"]
    assert (
        effect.burst_seconds == 69.5
    )  # from 10 s after the first tick, where the recorded burst ended, to the end
    assert effect.first is not None
    assert (effect.first.field, effect.first.replayed) == ("mode", Mode.BURST)


def test_a_memory_that_the_ticks_do_not_lead_to_is_a_difference() -> None:
    writer = Writer(ONE)
    for _ in range(130):
        writer.tick(snapshot(), after=0.5)
    late = [line for line in writer.lines if "start" in line][1]
    late["start"]["memory"]["fleets"]["spares"]["total"] += 1
    found = verify(Reader().steps(writer.lines)).difference
    assert found is not None
    assert (found.number, found.subject, found.field) == (late["number"], "fleet spares", "memory")
