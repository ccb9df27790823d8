"""What node agents say of their nodes' GPUs, the newest of each; what was said too long ago is unknown. Nothing here waits or asks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from warmpool.errors import BadOrder
from warmpool.nodehealth.copies import MOST_BYTES
from warmpool.nodehealth.verdicts import NodeVerdict
from warmpool.nodehealth.wire import node_verdict_from_json
from warmpool.seats import Verdict

REPORT_MAX_AGE_SECONDS: Final = 20.0
"""Four missed words of a node agent: what it said before is unknown from then on, and its node keeps the marks that it has."""
MOST_NODES: Final = 10_000
"""Nodes of which is told; further ones are refused."""
_MOST_NAME: Final = 253
_MOST_COPY: Final = 2 * MOST_BYTES


@dataclass(frozen=True, slots=True)
class _Said:
    verdict: NodeVerdict
    pid: int
    sequence: int
    heard: float
    copy: str


class NodeReports:
    """The reports.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, _Said] = {}

    def take(self, body: Mapping[str, Any]) -> bool:
        """Take a node agent's report; an older one than the last is ignored.

        Returns:
            Whether it says anything else than the last one did.

        Raises:
            BadOrder: it is malformed, or there are too many nodes.
        """
        try:
            node, pid, sequence = str(body["node"]), int(body["pid"]), int(body["seq"])
            at, health, copy = float(body["at"]), body["health"], str(body.get("kept", ""))
        except (KeyError, TypeError, ValueError) as error:
            raise BadOrder(f"not a node agent's report: {error!r}") from error
        if not 0 < len(node) <= _MOST_NAME or not isinstance(health, Mapping):
            raise BadOrder("not a node agent's report: node is a node's name, and health an object")
        if len(copy) > _MOST_COPY:
            raise BadOrder(f"kept: a text of {_MOST_COPY} letters at most")
        before = self._said.get(node)
        if before is None and len(self._said) >= MOST_NODES:
            self._forget()
        verdict, now = node_verdict_from_json(health, at), self._clock()
        if (
            before is not None
            and before.heard >= now - REPORT_MAX_AGE_SECONDS  # else nothing can be on its way still
            and before.pid == pid
            and before.sequence > sequence
            and at <= before.verdict.at  # else an agent of the same pid, in a container that was restarted
        ):
            return False
        self._said[node] = _Said(verdict, pid, sequence, now, copy)
        if before is None or before.heard < now - REPORT_MAX_AGE_SECONDS:
            return True
        return copy != before.copy or _gist(before.verdict) != _gist(verdict)

    def _forget(self) -> None:
        """Make room for a node by those that say nothing any more.

        Raises:
            BadOrder: there are none.
        """
        fresh = self.verdicts
        self._said = {name: said for name, said in self._said.items() if name in fresh}
        if len(self._said) >= MOST_NODES:
            raise BadOrder(f"{MOST_NODES} nodes tell of their GPUs already, and no more are heard")

    @property
    def verdicts(self) -> Mapping[str, NodeVerdict]:
        """What is said of nodes at present; a node of which nothing is known is missing."""
        oldest = self._clock() - REPORT_MAX_AGE_SECONDS
        return {
            name: said.verdict
            for name, said in self._said.items()
            if said.heard >= oldest and not said.verdict.reason
        }

    @property
    def copies(self) -> Mapping[str, str]:
        """What is to be kept for node agents of which something is known at present, by node; empty: nothing."""
        return {name: self._said[name].copy for name in self.verdicts}

    @property
    def gpus(self) -> Mapping[str, Verdict]:
        """What is said of GPUs at present, by UUID; those that are Ok, or unknown, are missing."""
        return MappingProxyType(
            {
                gpu.uuid: gpu.verdict
                for node in self.verdicts.values()
                for gpu in node.gpus
                if gpu.verdict is not Verdict.OK
            }
        )


def _gist(node: NodeVerdict) -> tuple[object, ...]:
    """Return what anything follows from."""
    reasons = [(gpu.uuid, gpu.word, [reason.code for reason in gpu.reasons]) for gpu in node.gpus]
    return node.verdict, node.reason, node.listed, node.expected, reasons
