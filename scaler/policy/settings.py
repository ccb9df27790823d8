"""The format `Controller`: limits that hold over all fleets together. A set has one document of it at most."""

from typing import Annotated, Final, Literal

from scaler.policy.base import Envelope, PolicyModel, integer

_DAY: Final = 86_400


class Breaker(PolicyModel):
    """How fast the leader may exclude GPU nodes, so that a wrong rule can't empty the cluster."""

    max_percent: Annotated[int, integer("percent", 0, 100, example=20)] = 20
    """Share of the cluster's GPU nodes that may be newly excluded within the window, in percent, rounded up. The default
    is 20. 0 excludes none."""
    at_least: Annotated[int, integer("nodes", 0, 1000, example=1)] = 1
    """Nodes that may be newly excluded within the window however small the share. The default is one, so that a cluster
    of two nodes can lose its bad one."""
    window_seconds: Annotated[int, integer("seconds", 60, _DAY, example=600)] = 600
    """Seconds over which exclusions are counted. The default is ten minutes. Recoveries are never limited."""


class ControllerSpec(PolicyModel):
    """Limits over all fleets."""

    gpu_budget: Annotated[int, integer("GPUs", 0, 1_000_000, example=96)] | None = None
    """GPUs that the seats of all fleets together may have. By default the fleets' `maxSeats` are the only limits. Where
    it is short, floors come first, then serving residents, then spares."""
    breaker: Breaker = Breaker()
    """How fast GPU nodes may be excluded."""


class Controller(Envelope):
    """Limits that hold over all fleets together."""

    kind: Literal["Controller"]
    """Which format the document has."""
    spec: ControllerSpec
    """Limits over all fleets."""
