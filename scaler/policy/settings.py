"""The format `Controller`: limits that hold over all fleets together. A set has one document of it at most."""

from typing import Annotated, Final, Literal

from pydantic import Field

from scaler.policy.base import Envelope, PolicyModel, integer, text

_DAY: Final = 86_400
_MOST_HEEDED: Final = 64

_QUALIFIED_NAME: Final = r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"

TaintKey = Annotated[
    str,
    text(
        "the key of a taint",
        pattern=rf"^{_QUALIFIED_NAME}$",
        longest=317,
        example="example.com/gpu-fault",
    ),
]
ConditionStatus = Annotated[
    str,
    text(
        "the type of a node's condition, with `=False` or `=Unknown` where it isn't `True` that speaks against the node",
        pattern=rf"^{_QUALIFIED_NAME}(=(True|False|Unknown))?$",
        longest=325,
        example="GpuFault",
    ),
]


class Breaker(PolicyModel):
    """How fast the leader may exclude GPU nodes, so that a wrong rule can't empty the cluster."""

    max_percent: Annotated[int, integer("percent", 0, 100, example=20)] = 20
    """Share of the cluster's GPU nodes that may be newly excluded within the window, in percent, rounded up. The default
    is 20. 0 excludes none."""
    at_least: Annotated[int, integer("nodes", 0, 1000, example=1)] = 1
    """Nodes that may be newly excluded within the window however small the share. The default is one, so that a cluster
    of two nodes can lose its bad one."""
    at_most: Annotated[int, integer("nodes", 1, 100_000, example=10)] | None = None
    """Nodes that may be newly excluded within the window however large the share. By default there is no such limit."""
    window_seconds: Annotated[int, integer("seconds", 60, _DAY, example=600)] = 600
    """Seconds over which exclusions are counted. The default is ten minutes. Recoveries are never limited."""


class OthersMarks(PolicyModel):
    """What others say of nodes that counts as if the node were cordoned."""

    taints: Annotated[tuple[TaintKey, ...], Field(max_length=_MOST_HEEDED)] = ()
    """Keys of taints that others set on a node for what they found of its GPUs, whatever their value and effect. By
    default none are heeded beside those that count always."""
    conditions: Annotated[tuple[ConditionStatus, ...], Field(max_length=_MOST_HEEDED)] = ()
    """Types of conditions that speak against a node while they are `True`; `TYPE=False` and `TYPE=Unknown` name another
    status. By default none are heeded."""


class ControllerSpec(PolicyModel):
    """Limits over all fleets."""

    gpu_budget: Annotated[int, integer("GPUs", 0, 1_000_000, example=96)] | None = None
    """GPUs that the seats of all fleets together may have. By default the fleets' `maxSeats` are the only limits. Where
    it is short, floors come first, then serving residents, then spares."""
    breaker: Breaker = Breaker()
    """How fast GPU nodes may be excluded."""
    heeds: OthersMarks = OthersMarks()
    """What others say of nodes that counts as if the node were cordoned: seats there take no promotion, and who serves is
    handed over to others. Cordons count always, and so do the taints by which autoscalers and clouds announce that a
    node goes."""


class Controller(Envelope):
    """Limits that hold over all fleets together."""

    kind: Literal["Controller"]
    """Which format the document has."""
    spec: ControllerSpec
    """Limits over all fleets."""
