"""All seats of a namespace, in memory: pods, what their agents tell, and what nodes say, kept joined.

Nothing here waits or asks. Whoever brings news is told whether a seat has become another by it; that its pod's version alone
has changed is kept, since claims need it, and is no news.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from scaler.cluster.kube.joining import Heard, Known, agent_url, counted, heard, joined
from scaler.cluster.kube.lowering import Standing
from scaler.cluster.kube.views import Node, Pod
from scaler.cluster.reports import HighestTerm, Report, follow, parse
from scaler.cluster.shelf import Shelf
from warmpool.errors import BadOrder
from warmpool.nodehealth.others import Heeded
from warmpool.seats import FleetName, Seat, SeatName, Verdict
from warmpool.wire import budget_from_json

REPORT_MAX_AGE_SECONDS: Final = 6.0
"""Three missed heartbeats of an agent; a seat that is silent for longer is no candidate."""


class Roster:
    """The seats.

    Args:
        wall: Unix seconds.
        clock: monotonic seconds.

    Attributes:
        shelf: the seats, joined.
        term: the highest term that agents have told of.
        touched: seats that have changed since somebody emptied this.
    """

    def __init__(self, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self._wall = wall
        self._clock = clock
        self.shelf = Shelf()
        self.term = HighestTerm()
        self.touched: set[SeatName] = set()
        self._pods: dict[SeatName, Pod] = {}
        self._of_uid: dict[str, SeatName] = {}
        self._heard: dict[str, Heard] = {}
        self._last: dict[str, float] = {}
        self._silent: set[str] = set()
        self._nodes: dict[str, Node] = {}
        self._on_node: dict[str, set[SeatName]] = {}
        self._marks: dict[SeatName, tuple[str, str, float]] = {}
        self._aging: set[SeatName] = set()
        self._verdicts: Mapping[str, Verdict] = MappingProxyType({})
        self._observed: frozenset[FleetName] = frozenset()
        self._fenced: frozenset[str] = frozenset()
        self._heeded = Heeded()

    # ------------------------------------------------------------ what there is

    def pod(self, name: SeatName) -> Pod | None:
        """Return a pod; None if there is none of this name."""
        return self._pods.get(name)

    def pods(self) -> Collection[Pod]:
        """Return all pods, seats or not."""
        return self._pods.values()

    def aging(self) -> Iterator[tuple[Pod, Seat]]:
        """Yield the seats, with their pods, of which more is true the longer they are as they are: stuck, unschedulable."""
        for name in self._aging:
            seat = self.shelf.get(name)
            if seat is not None:
                yield self._pods[name], seat

    def standings(self, fleet: FleetName) -> list[Standing]:
        """Return a fleet's seats as its workload's controller sees them; `marked_at` is on the clock."""
        return [
            Standing(pod=self._pods[seat.name], seat=seat, marked_at=self._marks[seat.name][2])
            for seat in self.shelf.stock().get(fleet, ())
        ]

    def agent(self, pod: Pod) -> str:
        """Return where a pod's agent is reached, as far as is known."""
        told = self._heard.get(pod.seat.uid)
        return agent_url(pod) if told is None else told.agent

    def silent(self, seconds: float) -> Iterator[Pod]:
        """Yield the pods whose agents haven't been heard for some seconds, or never."""
        oldest = self._clock() - seconds
        for uid in [uid for uid, at in self._last.items() if at <= oldest]:
            yield self._pods[self._of_uid[uid]]

    # ------------------------------------------------------------ news

    def take_pod(self, name: SeatName, pod: Pod | None) -> bool:
        """Take a pod as it is now; None where it is gone."""
        before = self._pods.get(name)
        if before is not None and (pod is None or pod.seat.uid != before.seat.uid):
            self._forget(name, before)
            before = None
        if pod is None:
            return self.shelf.remove(name)
        self.touched.add(name)
        self._pods[name] = pod
        self._of_uid[pod.seat.uid] = name
        self._last.setdefault(pod.seat.uid, -math.inf)
        if before is None or before.seat.node != pod.seat.node:
            self._place(name, None if before is None else before.seat.node, pod.seat.node)
        mark = self._marks.get(name)
        if mark is None or mark[:2] != (pod.seat.uid, pod.cost):
            self._marks[name] = (pod.seat.uid, pod.cost, self._clock())
        if pod.seat.leaves_by is not None or pod.unschedulable_since is not None:
            self._aging.add(name)
        else:
            self._aging.discard(name)
        return self._join(name)

    def _forget(self, name: SeatName, pod: Pod) -> None:
        del self._pods[name]
        self._of_uid.pop(pod.seat.uid, None)
        self._heard.pop(pod.seat.uid, None)
        self._last.pop(pod.seat.uid, None)
        self._silent.discard(pod.seat.uid)
        self.touched.discard(name)
        self._marks.pop(name, None)
        self._aging.discard(name)
        self._place(name, pod.seat.node, None)

    def _place(self, name: SeatName, before: str | None, now: str | None) -> None:
        if before and (here := self._on_node.get(before)) is not None:
            here.discard(name)
            if not here:
                del self._on_node[before]
        if now:
            self._on_node.setdefault(now, set()).add(name)

    def take_node(self, name: str, node: Node | None) -> bool:
        """Take a node as it is now; None where it is gone."""
        before = self._nodes.get(name)
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        if self._for_pods(before) == self._for_pods(node):
            return False
        return self._join_all(tuple(self._on_node.get(name, ())))

    def report(self, body: Mapping[str, Any]) -> bool:
        """Take an agent's report (the body of its `/v1/state`).

        Raises:
            BadOrder: it is malformed, of a pod that isn't known (yet), or of engines that nobody can reach.
        """
        if self._heartbeat(body):
            return False
        told = parse(body)
        name, pod = self._reported(told)
        self.term.told(told.epoch)
        before = self._heard.get(told.uid)
        placed = follow(None if before is None else before.life, told)
        if placed is not None:
            self._heard[told.uid] = heard(pod, told, placed[0])
        self._last[told.uid] = self._clock()
        self._silent.discard(told.uid)
        return self._join(name)

    def _heartbeat(self, body: Mapping[str, Any]) -> bool:
        """Take a report that says what the last one said, and say whether it does: most do, and needn't be read."""
        uid = body.get("uid")
        before = self._heard.get(uid) if isinstance(uid, str) else None
        if before is None or uid is None or uid in self._silent:
            return False
        life, pod = before.life, self._pods[self._of_uid[uid]]
        if (life.pid, life.sequence) != (body.get("pid"), body.get("seq")) or before.ip != pod.ip:
            return False
        if body.get("fleet") != pod.seat.fleet or body.get("epoch") != before.epoch:
            return False
        memory = body.get("memory")
        if memory is not None and budget_from_json(memory) != before.memory:
            return False
        self._last[uid] = self._clock()
        return True

    def _reported(self, told: Report) -> tuple[SeatName, Pod]:
        name = self._of_uid.get(told.uid)
        pod = None if name is None else self._pods[name]
        if name is None or pod is None:
            raise BadOrder(
                f"seat {told.seat}: no pod of this namespace has the uid {told.uid}, or none that is known yet"
            )
        if told.fleet != pod.seat.fleet:
            raise BadOrder(
                f"seat {told.seat}: its pod's label says fleet {pod.seat.fleet}, and its agent {told.fleet}: mend either"
            )
        if not pod.ip:
            raise BadOrder(f"seat {told.seat}: its pod has no address yet")
        return name, pod

    def judge(self, verdicts: Mapping[str, Verdict]) -> bool:
        """Take what is thought of GPUs, by UUID; a GPU that is missing is Ok."""
        if verdicts == self._verdicts:
            return False
        self._verdicts = MappingProxyType(dict(verdicts))
        return self._join_all(tuple(self._pods))

    def fence(self, gpus: Collection[str]) -> bool:
        """Take the GPUs that the scheduler gives nobody, by UUID."""
        if self._fenced == frozenset(gpus):
            return False
        self._fenced = frozenset(gpus)
        return self._join_all(tuple(self._pods))

    def heed(self, heeded: Heeded) -> bool:
        """Take what others say of nodes that counts."""
        if self._heeded == heeded:
            return False
        self._heeded = heeded
        return self._join_all(tuple(self._pods))

    def observe_health(self, fleets: Collection[FleetName]) -> bool:
        """Take the fleets for which what is said of GPUs is shown and not acted on."""
        if self._observed == frozenset(fleets):
            return False
        self._observed = frozenset(fleets)
        return self._join_all(tuple(self._pods))

    def pass_time(self) -> bool:
        """Let time pass over what was said: agents fall silent, pods are stuck."""
        oldest, stale = self._clock() - REPORT_MAX_AGE_SECONDS, set(self._aging)
        for uid, at in self._last.items():
            if -math.inf < at < oldest and uid not in self._silent:
                self._silent.add(uid)
                stale.add(self._of_uid[uid])
        return self._join_all(stale)

    # ------------------------------------------------------------ joining

    def _join_all(self, names: Iterable[SeatName]) -> bool:
        return sum([self._join(name) for name in names]) > 0

    def _join(self, name: SeatName) -> bool:
        pod, before, now = self._pods[name], self.shelf.get(name), self._wall()
        if not counted(pod, now):
            return self.shelf.remove(name)
        uid = pod.seat.uid
        known = Known(
            node=self._nodes.get(pod.seat.node),
            heard=self._heard.get(uid),
            silent=uid in self._silent,
            verdicts=self._verdicts,
            observed=pod.seat.fleet in self._observed,
            fenced=self._fenced,
            heeded=self._heeded,
            now=now,
        )
        seat = joined(pod, known)
        if seat == before:
            return False
        self.shelf.put(seat)
        self.touched.add(name)
        return before is None or replace(seat, version=before.version) != before

    def _for_pods(self, node: Node | None) -> tuple[str, bool]:
        """Return what a node says of the pods on it: why they are about to go, and whether new ones come."""
        return ("", False) if node is None else (node.leaving(self._heeded), node.fenced)
