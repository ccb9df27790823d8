"""What a person sees while a drill runs: phase, time, queues, TTFT so far, seats by what they serve.

On a terminal a panel that is redrawn in place; elsewhere one line per event, so that a log stays readable.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scaler.drill.load import Tally
from scaler.drill.measure import ttft
from scaler.drill.records import Outcome
from scaler.drill.schedule import StageWindow
from scaler.drill.watch import Live

_REFRESH_SECONDS = 0.5
SEAT_STYLES: Mapping[str, str] = {
    "Spare": "white",
    "Starting": "yellow",
    "Promoting": "magenta",
    "Draining": "yellow",
    "Held": "red",
    "Doomed": "bright_black",
    "Lent": "bright_black",
}
MODEL_STYLES: Sequence[str] = ("blue", "dark_orange", "cyan", "green", "purple")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the display reads while the load of an arm runs.

    Attributes:
        arm: name of the arm.
        plan: the stages.
        objectives: per policy, the TTFT objective in seconds.
        tally: the load so far.
        live: the controller's latest answers.
    """

    arm: str
    plan: Sequence[StageWindow]
    objectives: Mapping[str, float]
    tally: Tally
    live: Live


class Progress:
    """Tells a person how the drill goes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def say(self, text: str) -> None:
        """Print one line, unless it is the same as the line before."""
        if text != self._last:
            self._last = text
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @asynccontextmanager
    async def waiting(
        self, arm: str, what: str = "starting emberpool local"
    ) -> AsyncIterator[Callable[[str], None]]:
        """Show what is waited for until the context is left; at first that is `what`."""
        if self._console.is_terminal:
            with self._console.status(f"{arm} arm: {what}") as status:
                yield lambda text: status.update(f"{arm} arm: waiting for {text}")
        else:
            self.say(f"{arm} arm: {what}")
            yield lambda _: None

    async def show(self, view: View) -> None:
        """Show the load until cancelled."""
        if self._console.is_terminal:
            await self._show_panel(view)
        else:
            await self._show_lines(view)

    async def _show_panel(self, view: View) -> None:
        # redrawn in a thread: drawing takes milliseconds that would make the load late
        with RichLive(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                await asyncio.to_thread(lambda: live.update(panel(view), refresh=True))
                await asyncio.sleep(_REFRESH_SECONDS)

    async def _show_lines(self, view: View) -> None:
        for window in view.plan:
            await asyncio.sleep(max(0.0, window.start - view.tally.now()))
            self.say(f"{view.arm} arm: {window.start:5.0f} s  {window.describe()}")
        await asyncio.Event().wait()


def panel(view: View) -> RenderableType:
    """Draw the state of the load."""
    now = view.tally.now()
    total = view.plan[-1].end
    window = next((window for window in view.plan if now < window.end), view.plan[-1])
    draining = now >= total
    title = "waiting for the last answers" if draining else f"{window.stage.name} ({window.stage.kind})"
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(f"{view.arm} arm", style="bold"),
        Text(title, style="bold"),
        Text(f"{min(now, total):.0f} of {total:.0f} s, {max(0.0, total - now):.0f} s left"),
        _cpu(view.live),
    )
    bar = Table.grid(expand=True)  # a bar alone ends no line
    bar.add_row(ProgressBar(total=total, completed=min(now, total)))
    return Panel(
        Group(head, bar, _models(view, window), _seats(view)), title="burst drill", border_style="dim"
    )


def _cpu(live: Live) -> Text:
    if live.cpu is None:
        return Text("")
    return Text(f"CPU {live.cpu.machine:.0f} %", style="red" if live.cpu.machine > 85 else "")  # noqa: PLR2004 - the default threshold


def _models(view: View, window: StageWindow) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in (
        "model",
        "mode",
        "queued",
        "in flight",
        "oldest",
        "answered",
        "failed",
        "TTFT p50",
        "p99",
        "this stage",
    ):
        table.add_column(name, justify="left" if name in {"model", "mode"} else "right")
    records = list(view.tally.records)
    for number, policy in enumerate(view.objectives):
        item = view.live.policies.get(policy, {})
        mine = [record for record in records if record.policy == policy]
        failed = sum(record.outcome is not Outcome.OK for record in mine)
        so_far = ttft(mine)
        stage = ttft(record for record in mine if record.stage == window.stage.name)
        table.add_row(
            Text(policy, style=MODEL_STYLES[number % len(MODEL_STYLES)]),
            str(item.get("mode") or ""),
            f"{item.get('queued') or 0:.0f}",
            f"{item.get('inFlight') or 0:.0f}",
            f"{item.get('oldestWaitSeconds') or 0:.1f} s",
            str(len(mine)),
            Text(str(failed), style="bold red" if failed else "dim"),
            "" if so_far is None else f"{so_far.p50:.0f} ms",
            "" if so_far is None else f"{so_far.p99:.0f} ms",
            "" if stage is None else f"p99 {stage.p99:.0f} ms",
        )
    return table


def _seats(view: View) -> Text:
    styles = {
        policy: MODEL_STYLES[number % len(MODEL_STYLES)] for number, policy in enumerate(view.objectives)
    }
    text = Text("seats  ", style="dim")
    for seat in view.live.seats:
        value = str(seat.get("value"))
        serving = ", ".join(str(policy) for policy in seat.get("serving") or ())
        style = styles.get(serving, SEAT_STYLES.get(value, ""))
        text.append("■ ", style=style)
        text.append(f"{seat.get('name')} {serving or value}   ", style=style)
    return text
