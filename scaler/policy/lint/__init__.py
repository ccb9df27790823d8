"""What a set of policies means, told before it is live: worst-case times, costs, memory, and what can't come true.

Belongs here: functions from a policy set and stated assumptions to figures and findings, each with the numbers that it was
reached by. Does not belong here: faults that make a set unusable (`scaler.policy.between`), and anything that reads a
file, a clock or a network. May be imported by `scaler.cli` and by whatever shows the arithmetic to people.
"""

from scaler.policy.lint.assumptions import Assumptions
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import Figure, Finding, Operator, Place, Severity, Term, worst
from scaler.policy.lint.manifests import PodTemplate, pod_templates
from scaler.policy.lint.path import Stage
from scaler.policy.lint.report import FleetReport, PolicyReport, Report, lint
from scaler.policy.lint.subject import Subject

__all__ = [
    "Assumptions",
    "Code",
    "Figure",
    "Finding",
    "FleetReport",
    "Operator",
    "Place",
    "PodTemplate",
    "PolicyReport",
    "Report",
    "Severity",
    "Stage",
    "Subject",
    "Term",
    "lint",
    "pod_templates",
    "worst",
]
