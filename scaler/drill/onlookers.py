"""Everybody who is told how a drill goes: the person at the terminal, Prometheus, Grafana. None of them can hold it up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html import escape

from scaler.drill.annotations import Annotations
from scaler.drill.collect import Hit
from scaler.drill.figures import ArmFigures, Report, Status
from scaler.drill.metrics import DrillMetrics
from scaler.drill.progress import Progress, View
from scaler.drill.summary import verdict
from scaler.drill.tables import milliseconds
from scaler.drill.targets import Component, ScrapeTarget, Targets


class Onlookers:
    """Tells all of them.

    Args:
        progress: the terminal.
        metrics: what Prometheus scrapes.
        annotations: what Grafana gets.
        targets: what Prometheus is told to scrape.
    """

    def __init__(
        self, progress: Progress, metrics: DrillMetrics, annotations: Annotations, targets: Targets
    ) -> None:
        self.progress = progress
        self._metrics = metrics
        self._annotations = annotations
        self._targets = targets

    def child_listens(self, arm: str, controller: str) -> None:
        """Tell where an arm's child answers, from the moment at which it does."""
        self._targets.add(ScrapeTarget(url=controller, component=Component.CONTROLLER, arm=arm))

    def child_ended(self, arm: str) -> None:
        """Tell that an arm's child answers no longer, if it ever did."""
        self._targets.remove_arm(arm)

    @asynccontextmanager
    async def watching(self, view: View) -> AsyncIterator[None]:
        """Follow an arm's load, whose clock has begun, while the context is open."""
        self._metrics.begin(view.arm, view.tally)
        try:
            yield
        finally:
            self._metrics.end()

    async def show(self, view: View) -> None:
        """Show the load on the terminal until cancelled."""
        await self.progress.show(view)

    async def follow_stages(self, view: View) -> None:
        """Make each stage a region in Grafana, until the last one has ended or this is cancelled."""
        tally = view.tally
        for window in view.plan:
            await asyncio.sleep(max(0.0, window.start - tally.now()))
            text = escape(window.describe(), quote=False)
            region = self._annotations.begin(text, view.arm, tally.started + window.start)
            try:
                await asyncio.sleep(max(0.0, window.end - tally.now()))
            finally:
                self._annotations.end(region, tally.started + min(window.end, tally.now()))

    def hit(self, view: View, hit: Hit) -> None:
        """Tell of a fault that was injected, or couldn't be."""
        self.progress.say(f"{view.arm} arm: {hit.at:5.0f} s  {hit.describe()}")
        self._annotations.mark(escape(hit.describe(), quote=False), (view.arm,), view.tally.started + hit.at)

    def arm_ended(self, arm: ArmFigures) -> None:
        """Tell what an arm came to."""
        requests = sum(row.requests for row in arm.stages)
        failed = sum(sum(row.failures.values()) for row in arm.stages)
        text = f"{arm.arm} arm: ended: {requests} requests, {failed} failed"
        if arm.burst_ttft is not None:
            text += f", TTFT p99 in bursts {milliseconds(arm.burst_ttft.p99)}"
        self.progress.say(text)

    def judged(self, report: Report, at: float) -> None:
        """Tell the verdict, at a Unix time."""
        self._metrics.judge(report.checks)
        failed = [
            f"{check.name} ({check.arm}): asked for {check.threshold}, measured {check.measured}"
            for check in report.checks
            if check.status is Status.FAIL
        ]
        text = escape("\n".join([verdict(report).plain, *failed]), quote=False)
        self._annotations.mark(text, [arm.arm for arm in report.arms], at)

    def broken_off(self, scenario: str, arms: Sequence[str], at: float) -> None:
        """Tell Grafana that there will be no verdict."""
        self._annotations.mark(f"drill {scenario}: broken off, no verdict", arms, at)
