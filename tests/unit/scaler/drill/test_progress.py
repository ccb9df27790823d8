import io

from rich.console import Console

from scaler.drill.cpu import CpuSample
from scaler.drill.load import Tally
from scaler.drill.progress import Progress, View, panel
from scaler.drill.records import Outcome, Record
from scaler.drill.scenario import Scenario
from scaler.drill.schedule import windows
from scaler.drill.watch import Live


def drawn(view: View) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(panel(view))
    return console.export_text()


def test_the_panel_shows_phase_load_and_seats(scenario: Scenario) -> None:
    tally = Tally()
    tally.begin()
    for second, outcome in ((0.1, Outcome.OK), (0.2, Outcome.HTTP_5XX)):
        first = second + 0.25 if outcome is Outcome.OK else None
        tally.records.append(
            Record(
                policy="chat",
                stage="baseline",
                intended=second,
                sent=second,
                first=first,
                last=1.0,
                tokens=1,
                outcome=outcome,
            )
        )
    live = Live(
        policies={"chat": {"mode": "Burst", "queued": 3, "inFlight": 8, "oldestWaitSeconds": 0.4}},
        seats=[
            {"name": "spares-0", "value": "Serving", "serving": ["chat"]},
            {"name": "spares-1", "value": "Spare", "serving": []},
        ],
        cpu=CpuSample(at=1.0, seconds=1.0, machine=70.0, product=50.0, drill=2.0),
    )
    objectives = {"chat": 0.5, "code": 1.0}
    view = View(arm="warm", plan=windows(scenario.spec), objectives=objectives, tally=tally, live=live)
    text = drawn(view)
    for part in (
        "warm arm",
        "baseline (Baseline)",
        "of 60 s",
        "CPU 70 %",
        "Burst",
        "250 ms",
        "spares-0 chat",
        "spares-1 Spare",
    ):
        assert part in text


def test_the_panel_can_be_drawn_before_anything_is_known(scenario: Scenario) -> None:
    tally = Tally()
    tally.begin()
    view = View(arm="cold", plan=windows(scenario.spec), objectives={"chat": 0.5}, tally=tally, live=Live())
    assert "cold arm" in drawn(view)


def test_a_line_is_not_said_twice() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=80))
    progress.say("waiting")
    progress.say("waiting")
    assert out.getvalue() == "waiting\n"
