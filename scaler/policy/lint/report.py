"""All of it put together: what each fleet and each policy comes to, and the findings in the order of their weight."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scaler.policy.fleet import Fleet
from scaler.policy.lint.arguments import argument_findings
from scaler.policy.lint.clock import clock_findings
from scaler.policy.lint.costs import cost_findings, fleet_costs
from scaler.policy.lint.counting import counting_findings
from scaler.policy.lint.engines import engine_findings
from scaler.policy.lint.findings import Figure, Finding
from scaler.policy.lint.lending import lending_findings
from scaler.policy.lint.memory import SeatMemory, memory_findings, seat_memory
from scaler.policy.lint.objectives import objective_findings
from scaler.policy.lint.path import Stage, path
from scaler.policy.lint.reach import reach_findings
from scaler.policy.lint.refusals import refusal_findings
from scaler.policy.lint.resizing import replenishing, shrinking
from scaler.policy.lint.signals import signal_findings
from scaler.policy.lint.sizes import size_findings
from scaler.policy.lint.starting import starting_findings
from scaler.policy.lint.subject import Subject
from scaler.policy.lint.template import template_findings
from scaler.policy.lint.times import policy_times, wake_findings
from scaler.policy.lint.unbuilt import unbuilt_findings
from scaler.policy.scaling_policy import ScalingPolicy

_CHECKS: Final[Sequence[Callable[[Subject], Iterator[Finding]]]] = (
    unbuilt_findings,
    size_findings,
    cost_findings,
    memory_findings,
    wake_findings,
    reach_findings,
    objective_findings,
    signal_findings,
    counting_findings,
    refusal_findings,
    clock_findings,
    lending_findings,
    engine_findings,
    argument_findings,
    starting_findings,
    template_findings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """What a fleet comes to.

    Attributes:
        fleet: the fleet.
        policies: names of the policies on it, the most important first: the residents of each of its seats.
        times: how long its spares take to come back, and its surplus seats to go.
        costs: what it costs a day.
        memory: the arithmetic of a seat's GPU memory; None where there is none to do.
    """

    fleet: Fleet
    policies: tuple[str, ...]
    times: tuple[Figure, ...]
    costs: tuple[Figure, ...]
    memory: SeatMemory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """What a policy comes to.

    Attributes:
        policy: the policy.
        times: its worst-case times.
        path: after how long each part of a request's path through a gateway ends.
    """

    policy: ScalingPolicy
    times: tuple[Figure, ...]
    path: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a set comes to.

    Attributes:
        subject: what was looked at.
        fleets: its fleets, in the order of the files.
        policies: its policies, in the order of the files.
        findings: what one should know.
    """

    subject: Subject
    fleets: tuple[FleetReport, ...]
    policies: tuple[PolicyReport, ...]
    findings: tuple[Finding, ...]


def lint(subject: Subject) -> Report:
    """Do all the arithmetic over a set, and run all checks."""
    return Report(
        subject=subject,
        fleets=tuple(_fleet(subject, fleet) for fleet in subject.policies.fleets.values()),
        policies=tuple(
            PolicyReport(policy=policy, times=policy_times(subject, policy), path=path(subject, policy))
            for policy in subject.policies.policies.values()
        ),
        findings=tuple(finding for check in _CHECKS for finding in check(subject)),
    )


def _fleet(subject: Subject, fleet: Fleet) -> FleetReport:
    times = (replenishing(subject, fleet), shrinking(subject, fleet))
    return FleetReport(
        fleet=fleet,
        policies=tuple(policy.metadata.name for policy in subject.policies_on(fleet)),
        times=tuple(figure for figure in times if figure is not None),
        costs=fleet_costs(subject, fleet),
        memory=seat_memory(subject, fleet),
    )
