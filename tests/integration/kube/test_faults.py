"""Promotions and demotions while the server misbehaves and two controllers each think that they lead: what holds afterwards.

Whatever went wrong, the next term brings every seat to where its agent is: who serves is in rotation or leaves, and nobody else.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from scaler.cluster.kube.cluster import KubeCluster
from scaler.cluster.kube.election import Leadership
from scaler.errors import ClusterError
from tests.contract.kube_rig import NAMESPACE_NAME, Stage, fleet_of, stage, until
from tests.fakes.kube_api import Call, Cut
from tests.fakes.kube_api import patches as patching
from tests.fakes.kube_api.api import Target as Object
from tests.fakes.kube_api.faults import Answer
from tests.fakes.kube_api.kinds import POD
from warmpool.claim import Errand, Term, new_claim, resolve_orphan
from warmpool.errors import WarmpoolError
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Seat
from warmpool.states import ResidentState as S

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")
SEATS, SECONDS = 4, 4.0


class Leader:
    """A controller that promotes, demotes, proves and parks at random, and minds nothing but its own claims."""

    def __init__(self, made: Stage, cluster: KubeCluster, epoch: int, seed: int) -> None:
        self._made = made
        self._cluster = cluster
        self._term = Term(holder=f"controller-{epoch}", epoch=epoch)
        self._random = Random(seed)
        self._numbers = itertools.count(1)
        self.promoted = 0

    def _claim(self, operation: Operation, policy: PolicyName, leaving: PolicyName | None = None) -> Claim:
        errand = Errand(operation=operation, policy=policy, leaving=leaving)
        return new_claim(errand, self._term, number=next(self._numbers), now=time.time(), seconds=5)

    async def act(self) -> None:
        """Do one thing on one seat; what fails is left as it is, as if this process had died then."""
        await asyncio.sleep(self._random.uniform(0, 0.05))
        seats = self._cluster.seats()
        if not seats:
            return
        seat = self._random.choice(list(seats))
        policy = self._random.choice([CHAT, CODE])
        with contextlib.suppress(ClusterError, WarmpoolError):
            if not seat.serving and self._random.random() < 0.3:
                await self._change_depth(seat, policy)
            elif not seat.serving:
                await self._promote(seat, policy)
            elif self._random.random() < 0.5:
                await self._demote(seat, min(seat.serving))
            else:
                await self._switch(seat, min(seat.serving))

    async def _promote(self, seat: Seat, policy: PolicyName) -> None:
        claim = self._claim(Operation.PROMOTE, policy)
        claimed = await self._cluster.claim(seat, claim)
        await self._made.orders.resume(claimed, claim, policy, deadline=3)
        await self._cluster.settle(seat.name, claim, serving=policy)
        self.promoted += 1

    async def _change_depth(self, seat: Seat, policy: PolicyName) -> None:
        operation = self._random.choice([Operation.PROVE, Operation.PARK, Operation.UNPARK])
        claim = self._claim(operation, policy)
        claimed = await self._cluster.claim(seat, claim)
        order = getattr(self._made.orders, operation.lower())
        await order(claimed, claim, policy, deadline=3)
        await self._cluster.settle(seat.name, claim, serving=None)

    async def _demote(self, seat: Seat, policy: PolicyName) -> None:
        claim = self._claim(Operation.DEMOTE, policy)
        claimed = await self._cluster.claim(seat, claim)
        await self._made.orders.drain(claimed, claim, policy, deadline=1)
        await self._made.orders.pause(claimed, claim, policy, deadline=3)
        await self._cluster.settle(seat.name, claim, serving=None)

    async def _switch(self, seat: Seat, leaving: PolicyName) -> None:
        policy = CODE if leaving == CHAT else CHAT
        claim = self._claim(Operation.SWITCH, policy, leaving)
        claimed = await self._cluster.claim(seat, claim)
        await self._made.orders.drain(claimed, claim, leaving, deadline=1)
        await self._made.orders.pause(claimed, claim, leaving, deadline=3)
        await self._made.orders.resume(claimed, claim, policy, deadline=3)
        await self._cluster.settle(seat.name, claim, serving=policy)
        self.promoted += 1

    async def act_until(self, ends: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(self._go_on(ends))

    async def _go_on(self, ends: float) -> None:
        while time.monotonic() < ends:
            await self.act()

    # ------------------------------------------------------------ cleaning up

    async def put_in_order(self) -> None:
        """End orphaned claims, and pause whoever is left resumed out of rotation; again until there is nothing to do."""
        async with asyncio.timeout(30):
            while not _in_order(self._cluster.seats()):
                for seat in self._cluster.seats():
                    with contextlib.suppress(ClusterError, WarmpoolError):
                        await self._mend(seat)
                await asyncio.sleep(0.1)

    async def _mend(self, seat: Seat) -> None:
        resolution = resolve_orphan(seat, time.time(), self._term.epoch)
        if resolution is not None:
            await self._cluster.settle(seat.name, resolution.claim, serving=resolution.serving)
        elif seat.claim is None:
            for policy in sorted(_resumed(seat) ^ seat.serving):
                claim = self._claim(Operation.DEMOTE, policy)
                claimed = await self._cluster.claim(seat, claim)
                if policy in _resumed(seat):
                    await self._made.orders.drain(claimed, claim, policy, deadline=1)
                    await self._made.orders.pause(claimed, claim, policy, deadline=3)
                await self._cluster.settle(seat.name, claim, serving=None)
                return


def _resumed(seat: Seat) -> frozenset[PolicyName]:
    return frozenset(r.policy for r in seat.residents if r.state in {S.SERVING, S.DRAINING})


def _in_order(seats: Sequence[Seat]) -> bool:
    return all(seat.claim is None and seat.serving == _resumed(seat) for seat in seats)


def spoil(made: Stage, random: Random) -> None:
    """All faults at once, each now and then."""
    faults = made.api.faults

    def write(call: Call) -> bool:
        return call.verb in {"patch", "update"} and call.resource == "pods"

    def kubelet(call: Call) -> bool:
        if write(call) and random.random() < 0.2:
            target = Object(kind=POD, namespace=NAMESPACE_NAME, name=call.name, subresource="status")
            made.api.patch(target, patching.MERGE, {"status": {"message": f"{random.random()}"}}, {})
        if random.random() < 0.02:
            faults.drop_watches()
        if random.random() < 0.01:
            made.api.store.compact()
        return False

    faults.delay(0.0, kubelet)
    faults.delay(0.1, lambda call: call.verb != "watch" and random.random() < 0.1)
    faults.answer(Answer(status=429, retry_after="0.1"), lambda call: write(call) and random.random() < 0.1)
    faults.answer(Answer(status=500), lambda call: write(call) and random.random() < 0.05)
    faults.answer(Answer(status=502, html=True), lambda call: call.verb == "get" and random.random() < 0.1)
    faults.cut(Cut.BEFORE, lambda call: write(call) and random.random() < 0.05)
    faults.cut(Cut.AFTER, lambda call: write(call) and random.random() < 0.1)


def leading(epoch: int) -> Leadership:
    return Leadership(Term(holder=f"controller-{epoch}", epoch=epoch), lambda _: True)


@contextlib.asynccontextmanager
async def led(made: Stage, epoch: int, seed: int) -> AsyncIterator[tuple[KubeCluster, Leader]]:
    async with made.controller([fleet_of(FLEET)], leading(epoch)) as cluster:
        yield cluster, Leader(made, cluster, epoch, seed)


def all_warm(seats: Sequence[Seat]) -> bool:
    return len(seats) == SEATS and all(
        len(seat.residents) == 2 and all(r.state is S.PAUSED for r in seat.residents) for seat in seats
    )


def rotations(made: Stage) -> Callable[[], dict[str, frozenset[str]]]:
    def read() -> dict[str, frozenset[str]]:
        prefix = "serving.emberpool.dev/"
        pods = made.api.store.all(POD, NAMESPACE_NAME)
        return {
            item.body["metadata"]["name"]: frozenset(
                key.removeprefix(prefix)
                for key, value in item.body["metadata"]["labels"].items()
                if key.startswith(prefix) and value == "true"
            )
            for item in pods
        }

    return read


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_every_seat_ends_where_its_agent_is_whatever_went_wrong(tmp_path: Path, seed: int) -> None:
    async with stage(tmp_path, FLEET, [CHAT, CODE]) as made:
        async with led(made, 1, seed) as (first, zombie):
            await first.resize(FLEET, SEATS)
            await until(first, all_warm)
            spoil(made, Random(seed))
            async with led(made, 2, seed + 100) as (_, leader):
                ends = time.monotonic() + SECONDS
                await asyncio.gather(zombie.act_until(ends), leader.act_until(ends))
        made.api.faults.clear()
        async with led(made, 3, seed + 200) as (cluster, last):
            await last.put_in_order()
            states = {seat.name: _resumed(seat) for seat in cluster.seats()}
        agents = {
            seat.name: frozenset(r.policy for r in seat.residents if r.state is S.SERVING)
            for seat in made.agents.objects.all()
        }
        assert rotations(made)() == states == agents
        assert all(len(policies) <= 1 for policies in states.values())
        assert zombie.promoted + leader.promoted > 0
