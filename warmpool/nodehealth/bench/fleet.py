"""Who is excluded rightly, wrongly and late: our rules, a device plugin's, and a taint on any error, over the same simulated year.

    python -m warmpool.nodehealth.bench.fleet --nodes 100 --days 365 --seeds 3

Time is virtual and everything follows from the seed. What breaks is drawn once per seed and happens to each rule alike; what follows
depends on the rule. Somebody looks after whatever a rule excludes: four hours later the node is booted, and the fault mended, for
hardware after two days. What no rule excludes is found by hand after three days. Ours is there twice: with no resident ever starting on
a GPU that is tried after a repair, so that the trial takes its longest, and with one that starts and passes its proof.
"""

import argparse
import heapq
import itertools
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from warmpool.nodehealth.bench.rivals import AnyXid, DevicePlugin, Gpu, Node, Ours, Rival
from warmpool.nodehealth.bench.script import (
    HARDWARE,
    MUTE,
    SOFT,
    Errors,
    Fault,
    Hang,
    Happening,
    Kind,
    Restart,
    Size,
    script,
)

_HOUR = 3600.0
_OPERATOR_SECONDS = 4 * _HOUR
_HARDWARE_SECONDS = 48 * _HOUR
_BY_HAND_SECONDS = 72 * _HOUR
_LATE_SECONDS = 300.0
_PROOF_SECONDS = 300.0
_SOON_SECONDS = (1.0, 15.0)
_SAME_SECONDS = 2.0
_XIDS: dict[Kind, tuple[tuple[float, int, str], ...]] = {
    Kind.OFF_THE_BUS: ((0.0, 79, "GPU has fallen off the bus"),),
    Kind.STOPPED: ((0.0, 62, ""), (2.0, 45, "")),
    Kind.SWITCHING: ((0.0, 109, "CTX SWITCH TIMEOUT"), (2 * _HOUR, 109, "CTX SWITCH TIMEOUT")),
    Kind.UNCONTAINED: ((0.0, 95, "Uncontained ECC error"), (1.0, 45, "")),
    Kind.CONTAINED: (
        (0.0, 94, "Contained ECC error"),
        (0.5, 63, "Row Remapper: New row marked for remapping"),
    ),
    Kind.ROW_FAILURE: ((0.0, 64, "Row Remapper Error"),),
    Kind.SRAM: ((0.0, 48, "DBE"), (1.0, 45, "")),
    Kind.SYSTEM_PROCESSOR: ((0.0, 119, "Timeout after 6s of waiting for RPC response"), (30.0, 120, "")),
    Kind.HEAT: (),
    Kind.SILENT: (),
}
"""What the driver tells of each fault: after how long, which code, and its words."""


@dataclass(slots=True)
class Tally:
    """What came of a rule.

    Attributes:
        right: seconds from a fault to its GPU's exclusion, for each that was excluded.
        missed: faults that told of themselves and were not excluded before somebody found them by hand.
        soft: faults after which work has to end and no more than that, and that got it.
        soft_missed: those that didn't.
        mute: faults of which nothing tells, and which no rule finds.
        wrong: GPUs excluded with nothing wrong.
        withheld_hours: hours in which healthy GPUs got no new work.
        offered_hours: hours in which broken ones were given more.
        recovery: seconds from a repair until the GPU gets work again.
        wrongly: seconds from a wrong exclusion until then.
        boots: boots that were asked of somebody.
        waited: looks at which an exclusion waited for the breaker.
    """

    right: list[float] = field(default_factory=list)
    missed: int = 0
    soft: int = 0
    soft_missed: int = 0
    mute: int = 0
    wrong: int = 0
    withheld_hours: float = 0.0
    offered_hours: float = 0.0
    recovery: list[float] = field(default_factory=list)
    wrongly: list[float] = field(default_factory=list)
    boots: int = 0
    waited: int = 0


class Run:
    """One rule over one script.

    Args:
        rule: the rule.
        size: the cluster.
        seed: of which nodes have an older driver.
    """

    def __init__(self, rule: Rival, size: Size, seed: int) -> None:
        draw = random.Random(seed)
        self._rule = rule
        self._nodes = [
            Node(place, [Gpu() for _ in range(size.gpus)], draw.randrange(100) < size.old_percent)
            for place in range(size.nodes)
        ]
        self._size = size
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._reads: dict[int, list[float]] = {}
        self._handled: set[int] = set()
        self._excluded: set[tuple[int, int]] = set()
        self._withheld: set[tuple[int, int]] = set()
        self._since: dict[tuple[int, int], float] = {}
        self._mended: dict[tuple[int, int], float] = {}
        self._wrongly: dict[tuple[int, int], float] = {}
        self._caught: set[tuple[int, int]] = set()
        self.tally = Tally()

    def take(self, happenings: Sequence[Happening]) -> Tally:
        """Have everything happen; return what came of it."""
        for each in happenings:
            self._at(each.at, partial(self._happen, each))
        while self._queue and self._queue[0][0] <= self._size.seconds:
            now, _, act = heapq.heappop(self._queue)
            act(now)
        for node in self._nodes:
            for gpu in range(self._size.gpus):
                self._account(node, gpu, self._size.seconds)
        return self.tally

    def _at(self, at: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._queue, (at, next(self._numbers), act))

    # ------------------------------------------------------------------ what happens

    def _happen(self, it: Happening, now: float) -> None:
        match it:
            case Fault():
                self._break(it, now)
            case Errors():
                node = self._nodes[it.node]
                for gpu in it.gpus:
                    for place, (xid, text) in enumerate(it.xids):
                        self._later_error(node, gpu, (now + 0.2 * place, xid, text))
                self._look_soon(node, now)
            case Hang():
                node = self._nodes[it.node]
                node.gpus[it.gpu].hung_until = now + it.seconds
                self._look_soon(node, now)
                self._at(now + it.seconds, lambda at: self._look(node, at))
            case Restart():
                self._rule.restarted(self._nodes, now)
                for node in self._nodes:
                    self._follow(node, now)

    def _break(self, fault: Fault, now: float) -> None:
        node = self._nodes[fault.node]
        gpu = node.gpus[fault.gpu]
        if gpu.fault is not None:
            return
        key = (fault.node, fault.gpu)
        self._account(node, fault.gpu, now)
        gpu.fault, gpu.began = fault.kind, now
        gpu.uncorrected += fault.kind in {Kind.UNCONTAINED, Kind.CONTAINED, Kind.SRAM}
        if fault.kind is Kind.SYSTEM_PROCESSOR:
            gpu.hung_until = now + self._size.seconds
        self._caught.discard(key)
        if key in self._excluded and fault.kind not in SOFT | MUTE:
            self._caught.add(key)  # it was excluded already, rightly or wrongly
            self.tally.right.append(0.0)
        if fault.kind in MUTE:
            self.tally.mute += 1
        for after, xid, text in _XIDS[fault.kind]:
            self._later_error(node, fault.gpu, (now + after, xid, text))
        if fault.kind is Kind.OFF_THE_BUS:
            for peer in range(self._size.gpus):
                if peer != fault.gpu:
                    self._later_error(node, peer, (now + 1.0, 74, "NVLink: fatal error detected"))
        self._look_soon(node, now)
        self._follow(node, now)
        began = now
        self._at(now + _BY_HAND_SECONDS, lambda at: self._found(node, fault.gpu, began, at))

    def _later_error(self, node: Node, gpu: int, error: tuple[float, int, str]) -> None:
        at, xid, text = error

        def tell(now: float) -> None:
            self._rule.error(node, gpu, xid, text, now)
            self._follow(node, now)
            self._look_soon(node, now)

        self._at(at, tell)

    def _found(self, node: Node, gpu: int, began: float, now: float) -> None:
        """A fault that no rule has acted on is found by hand."""
        broken = node.gpus[gpu]
        if broken.fault is None or broken.began != began:
            return
        key = (node.place, gpu)
        if key not in self._caught and broken.fault not in MUTE:
            if broken.fault in SOFT:
                self.tally.soft_missed += key not in self._withheld
            else:
                self.tally.missed += 1
        self._boot(node, now)

    # ------------------------------------------------------------------ looking, and what follows

    def _look_soon(self, node: Node, now: float) -> None:
        for after in _SOON_SECONDS:
            self._want(node, now + after)

    def _want(self, node: Node, at: float) -> None:
        """Have a node read then, unless it is read within two seconds after that anyway."""
        planned = self._reads.setdefault(node.place, [])
        if any(0 <= each - at < _SAME_SECONDS for each in planned):
            return
        planned.append(at)
        self._at(at, lambda now: self._look(node, now))

    def _look(self, node: Node, now: float) -> None:
        self._reads[node.place] = [each for each in self._reads.get(node.place, ()) if each > now]
        for gpu in node.gpus:
            gpu.energy += 1
        again = self._rule.read(node, now)
        self._follow(node, now)
        if again is not None:
            self._want(node, again)

    def _follow(self, node: Node, now: float) -> None:
        """Account for what the rule says of a node's GPUs now."""
        withheld, excluded = self._rule.withheld(node), self._rule.excluded(node)
        for gpu in range(self._size.gpus):
            key = (node.place, gpu)
            if (gpu in withheld) != (key in self._withheld):
                self._account(node, gpu, now)
                self._turn(key, now)
            if gpu in withheld and node.gpus[gpu].fault in SOFT and key not in self._caught:
                self._caught.add(key)
                self.tally.soft += 1
            if gpu in excluded and key not in self._excluded:
                self._newly_excluded(node, gpu, now)
            (self._excluded.add if gpu in excluded else self._excluded.discard)(key)
        if excluded and node.place not in self._handled:
            self._handled.add(node.place)
            self._at(now + _OPERATOR_SECONDS, lambda at: self._operator(node, at))

    def _newly_excluded(self, node: Node, gpu: int, now: float) -> None:
        key, state = (node.place, gpu), node.gpus[gpu]
        if state.fault is None:
            if key not in self._mended:  # else it is still held after a repair
                self.tally.wrong += 1
                self._wrongly[key] = now
        elif key not in self._caught and state.fault not in SOFT:
            self._caught.add(key)
            self.tally.right.append(now - state.began)

    def _turn(self, key: tuple[int, int], now: float) -> None:
        """Note that a GPU gets no more work, or gets some again."""
        if key not in self._withheld:
            self._withheld.add(key)
            return
        self._withheld.discard(key)
        for begun, seconds in ((self._mended, self.tally.recovery), (self._wrongly, self.tally.wrongly)):
            if key in begun:
                seconds.append(now - begun.pop(key))

    def _account(self, node: Node, gpu: int, now: float) -> None:
        """Add up what has been since the last change of a GPU."""
        key, fault = (node.place, gpu), node.gpus[gpu].fault
        hours = (now - self._since.get(key, 0.0)) / _HOUR
        self._since[key] = now
        if fault is None and key in self._withheld:
            self.tally.withheld_hours += hours
        elif fault is not None and fault not in MUTE and key not in self._withheld:
            self.tally.offered_hours += hours

    # ------------------------------------------------------------------ repairs

    def _operator(self, node: Node, now: float) -> None:
        """Somebody looks after a node that is excluded."""
        self._handled.discard(node.place)
        if not self._rule.excluded(node):
            return
        hardware = any(gpu.fault in HARDWARE for gpu in node.gpus)
        wait = (
            max(0.0, min(gpu.began for gpu in node.gpus if gpu.fault in HARDWARE) + _HARDWARE_SECONDS - now)
            if hardware
            else 0.0
        )
        if wait:
            self._handled.add(node.place)
            self._at(now + wait, lambda at: self._operator(node, at))
            return
        self._boot(node, now)

    def _boot(self, node: Node, now: float) -> None:
        self.tally.boots += 1
        node.boot += 1
        for place, gpu in enumerate(node.gpus):
            key = (node.place, place)
            if gpu.fault is not None:
                self._account(node, place, now)
                gpu.fault = None
                if key in self._withheld:
                    self._mended[key] = now
            gpu.energy, gpu.hung_until = 1, 0.0
        self._rule.booted(node, now)
        self._look(node, now)


# ---------------------------------------------------------------------- the table


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m warmpool.nodehealth.bench.fleet", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--nodes", type=int, default=100, help="GPU nodes (default: 100)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each (default: 8)")
    parser.add_argument("--days", type=int, default=365, help="simulated days (default: 365)")
    parser.add_argument("--seeds", type=int, default=3, help="simulated clusters (default: 3)")
    parser.add_argument(
        "--old-percent",
        type=int,
        default=25,
        help="nodes whose driver has no verdict of its own (default: 25)",
    )
    options = parser.parse_args(arguments)
    size = Size(nodes=options.nodes, gpus=options.gpus, days=options.days, old_percent=options.old_percent)
    sums: dict[str, Tally] = {}
    faults = events = 0
    for seed in range(options.seeds):
        happenings = script(size, seed)
        faults += sum(isinstance(each, Fault) for each in happenings)
        events += len(happenings)
        proven = Ours(
            size.nodes, proof_seconds=_PROOF_SECONDS, name="Emberpool, a proof 5 min after the hold"
        )
        rules: tuple[Rival, ...] = (Ours(size.nodes), proven, DevicePlugin(), AnyXid())
        for rule in rules:
            tally = Run(rule, size, seed).take(happenings)
            tally.waited = rule.waited if isinstance(rule, Ours) else 0
            sums[rule.name] = _together(sums.get(rule.name, Tally()), tally)
    sys.stdout.write(
        f"{options.seeds} clusters of {size.nodes} nodes with {size.gpus} GPUs, {size.days} days each: {faults} faults, "
        f"{events} happenings. Sums over all; virtual time.\n\n{table(sums)}"
    )
    return 0


def _together(first: Tally, second: Tally) -> Tally:
    return Tally(**{name: getattr(first, name) + getattr(second, name) for name in Tally.__slots__})


def table(sums: dict[str, Tally]) -> str:
    """Return what came of rules, as a table in Markdown."""
    rows: list[tuple[str, Callable[[Tally], str]]] = [
        (
            "GPUs that had to be excluded: were, with a signal",
            lambda t: f"{len(t.right)} of {len(t.right) + t.missed}",
        ),
        ("from the fault to the exclusion, p50 / p99", lambda t: _spans(t.right)),
        (f"later than {_LATE_SECONDS:.0f} s", lambda t: str(sum(each > _LATE_SECONDS for each in t.right))),
        (
            "GPUs that had to get no more work and no exclusion: got it",
            lambda t: f"{t.soft} of {t.soft + t.soft_missed}",
        ),
        ("faults of which nothing tells", lambda t: str(t.mute)),
        ("GPUs excluded with nothing wrong", lambda t: str(t.wrong)),
        ("hours of healthy GPUs without new work", lambda t: f"{t.withheld_hours:,.0f}"),
        ("hours of broken GPUs with new work", lambda t: f"{t.offered_hours:,.0f}"),
        ("from the repair to work again, p50 / p99", lambda t: _spans(t.recovery)),
        ("from the wrong exclusion to work again, p50 / p99", lambda t: _spans(t.wrongly)),
        ("boots asked of somebody", lambda t: str(t.boots)),
        ("exclusions that waited for the breaker (looks)", lambda t: str(t.waited)),
    ]
    lines = [f"| | {' | '.join(sums)} |", "|---|" + "---|" * len(sums)]
    lines += [f"| {name} | {' | '.join(value(tally) for tally in sums.values())} |" for name, value in rows]
    return "\n".join(lines) + "\n"


def _spans(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:  # noqa: PLR2004 - no distribution
        return "–"
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"{_span(cuts[49])} / {_span(cuts[98])}"


def _span(seconds: float) -> str:
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


if __name__ == "__main__":
    sys.exit(main())
