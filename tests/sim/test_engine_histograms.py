"""Engines' own metrics pages in a closed loop: what an engine did before it came into rotation says nothing of the load.

A new seat's engine answers warm-up requests that take half a minute, and its histogram of first tokens keeps them for as
long as the process lives. Under a flat load a seat that is replaced, or that a replenish has made, must move nothing.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from scaler.core.model import Load, ReasonCode
from scaler.runtime.mailbox import Mailbox
from scaler.signals.engine_page import read_page
from scaler.signals.engine_sum import EngineSum
from scaler.signals.engine_targets import EngineTarget, in_rotation
from scaler.signals.port import Part
from tests.fakes.memory_cluster import MemoryCluster
from tests.sim.world import Request, Traffic, World, fresh, world
from tests.unit.scaler.core.world import fleet, policy
from warmpool.seats import FleetName, PolicyName, SeatName

pytestmark = pytest.mark.looptime

CHAT, FLEET = PolicyName("chat"), FleetName("spares")
OBJECTIVE = 1.0
WARM_UPS, WARM_UP_SECONDS = 20, 30.0
EDGES = (0.1, 0.5, 1.0, 2.5, 40.0)
FRESHNESS = 1.0
RATE, SERVICE = 3.0, 4.0
"""Twelve in flight: two seats of eight."""


class Pages(Traffic):
    """Traffic of which nobody tells but the engines.

    Attributes:
        prefill: seconds that an engine takes for a first token.
    """

    prefill = 0.05

    def __init__(self, cluster: MemoryCluster, slots: Mapping[PolicyName, int], mailbox: Mailbox) -> None:
        super().__init__(cluster, slots, mailbox)
        self.first_tokens: dict[str, list[float]] = defaultdict(lambda: [WARM_UP_SECONDS] * WARM_UPS)
        self._sum = EngineSum(OBJECTIVE)

    async def _serve(self, request: Request, seat: SeatName, seconds: float) -> None:
        uid = next(one.uid for one in self._cluster.seats() if one.name == seat)
        self.first_tokens[uid].append(request.waited + self.prefill)
        await super()._serve(request, seat, seconds)

    def load(self, policy: PolicyName, now: float) -> Load:
        targets = in_rotation(self._cluster.seats()).get(policy, ())
        self._sum.follow(targets, now)
        for target in targets:
            self._sum.answered(target, read_page(self._page(target, policy)), now)
        taken = self._sum.taken(now, FRESHNESS)
        if taken is None:
            return Load()
        told = {"engines": fresh(taken.parts[Part.REQUESTS])}
        if Part.LATE_SHARE in taken.parts:
            told["late_share"] = fresh(taken.parts[Part.LATE_SHARE])
        return Load(**told)

    def _page(self, target: EngineTarget, policy: PolicyName) -> bytes:
        seconds = sorted(self.first_tokens[target.uid])
        lines = [
            f"vllm:num_requests_running {self._held(SeatName(target.seat), policy)}",
            "vllm:num_requests_waiting 0",
            *(
                f'vllm:time_to_first_token_seconds_bucket{{le="{edge}"}} {bisect_right(seconds, edge)}'
                for edge in EDGES
            ),
            f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {len(seconds)}',
        ]
        return "\n".join([*lines, ""]).encode()


class SlowPages(Pages):
    """Engines that are slow in earnest."""

    prefill = 3.0


def told(on: World) -> Iterator[Mapping[str, dict]]:  # type: ignore[type-arg]
    """Every decision of the ledger: its policy's part and its fleet's."""
    for line in on.ledger:
        decision = line.get("decision")
        if isinstance(decision, dict) and CHAT in decision["policies"]:
            yield {"policy": decision["policies"][CHAT], "fleet": decision["fleets"][FLEET]}


def reasons(on: World) -> set[str]:
    return {reason["code"] for each in told(on) for reason in each["policy"]["reasons"]}


ONE = policy(CHAT, serving_min=1, ttft_objective=OBJECTIVE)
WIDE = fleet(max_seats=9, spare_target=1)


@pytest.mark.long
async def test_replaced_and_replenished_seats_with_warm_up_requests_in_their_histograms_move_nothing() -> (
    None
):
    async with world([ONE], [WIDE], signals=Pages) as on:
        await on.until(lambda: on.serving(CHAT) == 1)
        await on.constant(CHAT, RATE, SERVICE, 30)
        settled, served = len(on.ledger), set()
        for _ in range(5):  # in the end none of the seats that serve has been there from the beginning
            leaving = next(seat for seat in on.cluster.seats() if seat.serving)
            await on.cluster.delete(leaving, reason="its node went away")
            await on.constant(CHAT, RATE, SERVICE, 40)
            served |= {seat.uid for seat in on.cluster.seats() if seat.serving}
            assert (on.serving(CHAT), len(on.cluster.seats())) == (2, 3)
        del on.ledger[:settled]
        assert len(served) >= 5
        assert {sum(each["policy"]["wanted"].values()) for each in told(on)} == {2}
        assert {each["fleet"]["total"] for each in told(on)} == {3}
        assert ReasonCode.TTFT_LATE not in reasons(on)


async def test_first_tokens_that_are_late_in_rotation_do_count() -> None:
    """The same world, so that the one above shows something."""
    async with world([ONE], [WIDE], signals=SlowPages) as on:
        await on.until(lambda: on.serving(CHAT) == 1)
        await on.constant(CHAT, RATE, SERVICE, 60)
        assert ReasonCode.TTFT_LATE in reasons(on)
        assert max(each["fleet"]["total"] for each in told(on)) > 3
