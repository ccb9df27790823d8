"""The controller's own numbers: what is exposed, how it is counted, and the page that shows it.

Belongs here: the catalogue of metric families, tallies of what happened, rows of the last tick, the page for scrapers,
the reference page's generator. Does not belong here: the gateway's and the agent's metrics (each declares its own), and
anything that a decision depends on: metrics are told, never asked. May be imported by `scaler.runtime` and `scaler.cli`.
"""

from scaler.runtime.metrics.controller import ControllerMetrics
from scaler.runtime.metrics.page import Page

__all__ = ["ControllerMetrics", "Page"]
