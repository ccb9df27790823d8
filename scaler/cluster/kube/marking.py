"""Nodes marked as what is said of their GPUs wants it: the leader alone, through the breaker, which sees all nodes.

A look makes a plan from the newest reports and the nodes as they are, and writes it. A node on which only fleets stand that observe is
told of and not tainted. What people have ordered stands on the node and goes before what is said of its GPUs. What can't be written is
left to the next look.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import structlog

from scaler.cluster.kube import events
from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.hand_marks import (
    EXCLUDED_BY_HAND,
    HandMark,
    NodeMark,
    hand_mark,
    node_mark,
)
from scaler.cluster.kube.nodes import GPU_CONDITION, GPU_TAINT, NodeWriter
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import NODE
from scaler.cluster.kube.views import Node
from scaler.cluster.node_reports import NodeReports
from scaler.errors import ClusterError, NotFound
from warmpool.nodehealth.breaker import BreakerLimits, BreakerState
from warmpool.nodehealth.marks import (
    Act,
    Fleet,
    Marking,
    NodeMarks,
    Plan,
    gpus_of,
    owned_value,
    plan_marks,
    since_of,
)
from warmpool.nodehealth.verdicts import NodeVerdict
from warmpool.seats import Verdict

log = structlog.get_logger(__name__)

_COALESCE_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 1.0
"""How often is looked whatever has changed: reports age, holds and windows end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What marking works with.

    Attributes:
        nodes: the cluster's nodes.
        reports: what is said of them.
        writer: writes them.
        limits: what the breaker allows at present.
        observed: which of some nodes are only told of, and not tainted.
        spared: which of some nodes keep their other GPUs when one is Bad, and aren't tainted.
        writes: whether anything at all may be written.
        tell: takes Events.
        record: takes what was done, for the audit trail.
        wall: Unix seconds.
    """

    nodes: Reflector[Node]
    reports: NodeReports
    writer: NodeWriter
    limits: Callable[[], BreakerLimits]
    observed: Callable[[Collection[str]], Collection[str]]
    spared: Callable[[Collection[str]], Collection[str]]
    writes: Callable[[], bool]
    tell: Callable[[events.Event], None]
    record: Callable[..., None]
    wall: Callable[[], float] = time.time


class NodeMarking:
    """Marks nodes; `run` inside the leader's TaskGroup.

    Args:
        post: what it works with.

    Attributes:
        plan: what was last wanted of nodes that may be tainted; None before the first look.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._changed = asyncio.Event()
        self._state = BreakerState()
        self._dry_state = BreakerState()
        self._said: dict[str, tuple[Act, str, str]] = {}
        self._shown: dict[str, tuple[Act, str, str]] = {}  # of what is only told, as conditions have it
        self._complaint = ""
        self.plan: Plan | None = None

    def changed(self) -> None:
        """Look again soon."""
        self._changed.set()

    @property
    def excluded(self) -> Collection[str]:
        """Nodes that have our taint."""
        return [node.name for node in self._post.nodes.values() if owned_value(node.gpu_mark) is not None]

    @property
    def orders(self) -> Mapping[str, NodeMark]:
        """Why nodes are out, or kept in by a person: what is written beside our taints, by node."""
        marks = {node.name: node_mark(node.gpu_mark) for node in self._post.nodes.values()}
        return {name: mark for name, mark in marks.items() if mark is not None}

    async def run(self) -> None:
        """Mark until cancelled. What was excluded lately, by whichever leader, counts for the breaker."""
        self._begin()
        while True:
            self._changed.clear()
            await self.look()
            await asyncio.sleep(_COALESCE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()

    def _begin(self) -> None:
        excluded = {
            node.name: since
            for node in self._post.nodes.values()
            if owned_value(node.gpu_mark) is not None
            and hand_mark(node.gpu_mark) is None
            and (since := since_of(node.gpu_mark)) is not None
        }
        self._state, self._dry_state = BreakerState(excluded=MappingProxyType(excluded)), BreakerState()
        self._said, self._shown = {}, {}

    async def look(self) -> None:
        """Look at all nodes, and write what is to be written."""
        post, now = self._post, self._post.wall()
        verdicts = post.reports.verdicts
        nodes = {node.name: node for node in post.nodes.values() if _has_gpus(node, verdicts)}
        ordered = {name for name, node in nodes.items() if await self._keep_order(node, verdicts.get(name))}
        observed = set(post.observed(nodes.keys()))
        enforced = _without(verdicts, ordered | observed)
        fleet = replace(_fleet(nodes, enforced), spared=frozenset(post.spared(nodes.keys())))
        self.plan, self._state = plan_marks(fleet, self._state, post.limits(), now=now)
        dry = replace(fleet, verdicts=_without(verdicts, ordered | (nodes.keys() - observed)))
        told, self._dry_state = plan_marks(dry, self._dry_state, post.limits(), now=now, dry=True)
        if post.writes():
            for marking in (*self.plan.markings, *told.markings):
                await self._do(marking)
            await self._keep_copies(nodes)

    async def _do(self, marking: Marking) -> None:
        """Write one node's marks; what is said of it is said once, whether its condition can be written or not."""
        gist = (marking.act, marking.condition.reason, marking.why)
        if marking.dry and self._shown.get(marking.node) == gist:
            return
        writer, condition = self._post.writer, marking.condition
        try:
            if marking.act is Act.EXCLUDE and not marking.dry:
                await writer.mark(marking.node, marking.taint, marking.annotation)
            elif marking.act is Act.RECOVER and not marking.dry:
                await writer.unmark(marking.node)
            if self._said.get(marking.node) != gist:
                self._say(marking)
            self._said[marking.node] = gist
            await writer.condition(
                marking.node,
                GPU_CONDITION,
                status=condition.healthy,
                reason=condition.reason,
                message=condition.message,
            )
            self._shown[marking.node] = gist
        except Withheld:
            return
        except ClusterError as error:
            self._complain(str(error) or type(error).__name__)

    async def _keep_copies(self, nodes: Mapping[str, Node]) -> None:
        """Keep what node agents want to be kept of what they have found."""
        for name, copy in self._post.reports.copies.items():
            node = nodes.get(name)
            if node is None or node.gpu_latches == copy:
                continue
            try:
                await self._post.writer.keep(name, copy)
            except Withheld:
                return
            except ClusterError as error:
                self._complain(str(error) or type(error).__name__)

    def kept(self, name: str) -> str | None:
        """Return what is kept for a node's agent; empty: nothing is; None: the nodes aren't known yet."""
        if not self._post.nodes.synced:
            return None
        node = self._post.nodes.get(name)
        return "" if node is None else node.gpu_latches

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            log.warning("a node can't be marked", error=why)

    def _say(self, marking: Marking) -> None:
        if marking.act is Act.TELL and marking.condition.healthy:
            return
        log.warning("node", node=marking.node, act=str(marking.act), dry=marking.dry, why=marking.why)
        self._post.record("node", node=marking.node, act=str(marking.act), dry=marking.dry, why=marking.why)
        about = self._subject(marking.node)
        if marking.act is Act.RECOVER:
            self._post.tell(events.readmitted(about, marking.why))
        elif not marking.condition.healthy:
            self._post.tell(events.quarantined(about, marking.why))

    @staticmethod
    def _subject(name: str) -> events.Subject:
        return events.Subject.of(NODE, "", name)

    # ------------------------------------------------------------ what people order

    async def order(self, name: str, order: HandMark) -> None:
        """Exclude or readmit a node because a person says so.

        Raises:
            NotFound: there is no such node.
            Conflict: the node has a taint of our key that somebody else has set.
            ClusterError: it can't be written.
        """
        if self._post.nodes.get(name) is None:
            raise NotFound(f"there is no node {name}")
        if order.excluded:
            await self._post.writer.mark(name, EXCLUDED_BY_HAND, order.annotation)
        else:
            await self._post.writer.unmark(name, order.annotation)
        act = "Exclude" if order.excluded else "Readmit"
        self._post.record(
            "node", node=name, act=act, actor=order.actor, why=order.reason, until=order.until, dry=False
        )
        note = f"{order.actor}: {order.reason}"
        about = self._subject(name)
        self._post.tell(events.quarantined(about, note) if order.excluded else events.readmitted(about, note))
        self.changed()

    async def _keep_order(self, node: Node, verdict: NodeVerdict | None) -> bool:
        """Whether an order of a person is in force; one that is over is taken off.

        That a node be readmitted is over as well once nothing Bad is said of it any more.
        """
        order = hand_mark(node.gpu_mark)
        if order is None:
            return False
        bad = verdict is None or verdict.verdict is Verdict.BAD
        if order.holds(self._post.wall()) and (order.excluded or bad):
            return True
        if self._post.writes():
            with suppress(ClusterError):
                await self._post.writer.unmark(node.name)
        return True


def _has_gpus(node: Node, verdicts: Mapping[str, NodeVerdict]) -> bool:
    return node.gpus > 0 or node.name in verdicts or node.gpu_mark is not None


def _without(verdicts: Mapping[str, NodeVerdict], names: Collection[str]) -> Mapping[str, NodeVerdict]:
    return {name: verdict for name, verdict in verdicts.items() if name not in names}


def _fleet(nodes: Mapping[str, Node], verdicts: Mapping[str, NodeVerdict]) -> Fleet:
    since = {name: at for name, node in nodes.items() if (at := since_of(node.gpu_mark)) is not None}
    return Fleet(verdicts=verdicts, marks={name: _marks(node) for name, node in nodes.items()}, since=since)


def _marks(node: Node) -> NodeMarks:
    condition = None
    if node.gpu_reason is not None:
        condition = (node.conditions.get(GPU_CONDITION) == "True", node.gpu_reason)
    taint: Iterable[str] = (each.value for each in node.taints if each.key == GPU_TAINT)
    return NodeMarks(
        taint=next(iter(taint), None),
        owned=owned_value(node.gpu_mark),
        gpus=gpus_of(node.gpu_mark),
        condition=condition,
    )
