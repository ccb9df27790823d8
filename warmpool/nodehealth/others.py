"""What others say of nodes, and which of it counts: a verdict of somebody else's is heeded as if the node were cordoned. PURE.

Whoever runs a cluster has detectors of their own, each with its taints and conditions. Which of them speak of GPUs nobody can guess, so
that they are named. Nothing of them is ever written or taken away.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Heeded:
    """What counts.

    Attributes:
        taints: keys of taints that speak against a node, whatever their value and effect.
        conditions: types of conditions, with the status in which they do.
    """

    taints: frozenset[str] = frozenset()
    conditions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def against(self, taints: Iterable[str], conditions: Mapping[str, str]) -> str:
        """Return what speaks against a node, in a word; empty if nothing does.

        Args:
            taints: keys of its taints.
            conditions: its conditions' statuses by their types.
        """
        taint = next((key for key in taints if key in self.taints), "")
        if taint:
            return taint
        return next(
            (
                f"{kind}={status}"
                for kind, status in self.conditions.items()
                if conditions.get(kind) == status
            ),
            "",
        )
