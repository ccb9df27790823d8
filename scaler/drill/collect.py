"""What the product says that it did: events and polls turned into promotions, seat bands and load curves. PURE but for `read_events`.

Everything is put on the clock of the load: an event at Unix time t happened at t minus the start of the load.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scaler.drill.figures import (
    FaultFigures,
    LoadPoint,
    NeighbourFigures,
    PromotionFigures,
    PromotionSummary,
    SeatBand,
    SeatSpan,
)
from scaler.drill.measure import quantiles

Event = Mapping[str, Any]

STEPS: Final = ("decision", "claimed", "resumed", "canary", "rotation", "firstToken")
"""The steps of a promotion in their order; each is reckoned from the sample."""
_SCALED_DOWN_SECONDS: Final = 10.0
"""A workload's controller removes pods within moments of its size being lowered; what ends later ends for another reason."""
_SERVABLE: Final = frozenset({"Paused", "Promoting", "Serving"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatsPoll:
    """One answer of `GET /v1/seats`.

    Attributes:
        at: seconds after the start of the load.
        seats: the items of the answer.
    """

    at: float
    seats: Sequence[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A fault that was injected, or couldn't be.

    Attributes:
        type, policy: from the scenario.
        at: seconds after the start of the load.
        seat: the seat that was hit; empty if none.
        pid: the process that was killed; None if none.
        neighbours: policy and process of the seat's other residents at that moment.
        error: why nothing was hit; empty otherwise.
    """

    type: str
    policy: str
    at: float
    seat: str = ""
    pid: int | None = None
    neighbours: tuple[tuple[str, int], ...] = ()
    error: str = ""

    def describe(self) -> str:
        """Say in words what happened."""
        if self.pid is None:
            return f"{self.type} {self.policy}: nothing was hit: {self.error}"
        return f"{self.type} {self.policy}: process {self.pid} on {self.seat}"


@dataclass(slots=True)
class Evidence:
    """All that was gathered about one arm besides the requests themselves.

    Attributes:
        events: lines of events.jsonl, in their order.
        unreadable: lines of it that weren't JSON objects (a last line that was cut, if any).
        zero: Unix time of the start of the load.
        end: seconds after it at which the last request had ended.
        seats: polls of the seats.
        load: polls of the policies, as load points per policy.
        hits: faults that were injected.
    """

    events: list[Event] = field(default_factory=list)
    unreadable: int = 0
    zero: float = 0.0
    end: float = 0.0
    seats: list[SeatsPoll] = field(default_factory=list)
    load: dict[str, list[LoadPoint]] = field(default_factory=dict)
    hits: list[Hit] = field(default_factory=list)

    def of(self, kind: str) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.events if event.get("kind") == kind]

    def clock(self, at: float) -> float:
        """Put a Unix time on the clock of the load."""
        return at - self.zero


def read_events(path: Path) -> tuple[list[Event], int]:
    """Read a file of one JSON object a line; return the objects and the count of lines that were none.

    A missing file has no events.
    """
    events: list[Event] = []
    unreadable = 0
    if not path.is_file():
        return events, unreadable
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict):
                events.append(event)
            else:
                unreadable += 1
    return events, unreadable


# ------------------------------------------------------------------ promotions


def promotions(evidence: Evidence) -> list[PromotionFigures]:
    """Every promotion, switch and recall whose sample was taken during the load.

    First token: where a request was waiting at the rotation, the first content of the first one that was sent to the
    new resident, minus the sample. Where none was waiting, waiting for a request to arrive is nobody's loss, so the two
    intervals that would have been waited are put together: sample to rotation, and dispatch to first content.
    """
    tokens = {event["claim"]: event for event in evidence.of("firstToken") if "claim" in event}
    found = [
        _promotion(event, tokens.get(event.get("claim")), evidence)
        for event in evidence.of("promotion")
        if isinstance(event.get("sample"), int | float)
        and 0 <= evidence.clock(event["sample"]) <= evidence.end
    ]
    return sorted(found, key=lambda promotion: promotion.sample)


def _promotion(event: Event, token: Event | None, evidence: Evidence) -> PromotionFigures:
    sample = float(event["sample"])
    steps = {
        step: round((float(event[step]) - sample) * 1000, 2)
        for step in STEPS[:-1]
        if event.get(step)  # 0.0 stands for a step that was not reached
    }
    first, basis = _first_token(token, sample, steps.get("rotation"))
    if first is not None:
        steps["firstToken"] = round(first, 2)
    return PromotionFigures(
        claim=str(event.get("claim", "")),
        operation=str(event.get("operation", "Promote")),
        policy=str(event.get("policy", "")),
        fleet=str(event.get("fleet", "")),
        seat=str(event.get("seat", "")),
        outcome=str(event.get("outcome", "")),
        error=str(event.get("error") or ""),
        sample=round(evidence.clock(sample), 3),
        waiting=int(event.get("waiting") or 0),
        steps=steps,
        basis=basis,
        phases={
            str(name): round(float(value) * 1000, 2) for name, value in (event.get("phases") or {}).items()
        },
    )


def _first_token(token: Event | None, sample: float, rotation: float | None) -> tuple[float | None, str]:
    """Milliseconds from the sample to the first token, and how they were reckoned."""
    if token is None or rotation is None:
        return None, "None"
    at = float(token.get("first") or token["at"])  # the event is written a little later than what it tells of
    if token.get("waited"):
        return (at - sample) * 1000, "Waited"
    return rotation + (at - float(token["dispatched"])) * 1000, "Composed"


def summarize(figures: Sequence[PromotionFigures]) -> list[PromotionSummary]:
    """Summarize promotions per operation."""
    by_operation: dict[str, list[PromotionFigures]] = defaultdict(list)
    for figure in figures:
        by_operation[figure.operation].append(figure)
    return [_summary(operation, by_operation[operation]) for operation in sorted(by_operation)]


def _summary(operation: str, figures: Sequence[PromotionFigures]) -> PromotionSummary:
    good = [figure for figure in figures if figure.outcome == "Promoted"]
    steps = {}
    for step in STEPS:
        values = quantiles(figure.steps[step] / 1000 for figure in good if step in figure.steps)
        if values is not None:
            steps[step] = values
    return PromotionSummary(
        operation=operation,
        count=len(good),
        failed=len(figures) - len(good),
        waited=sum(figure.basis == "Waited" for figure in good),
        composed=sum(figure.basis == "Composed" for figure in good),
        steps=steps,
        claim_to_rotation=quantiles(
            (figure.steps["rotation"] - figure.steps["claimed"]) / 1000
            for figure in good
            if {"rotation", "claimed"} <= figure.steps.keys()
        ),
    )


def demotions(evidence: Evidence) -> int:
    """Demotions during the load."""
    return sum(0 <= evidence.clock(float(event["at"])) <= evidence.end for event in evidence.of("demotion"))


# ------------------------------------------------------------------ seats


def scaled_down_serving(evidence: Evidence) -> list[str]:
    """Return the seats that began to end while they served, just after their fleet's size had been lowered."""
    lowered: dict[str, list[float]] = defaultdict(list)
    for event in evidence.of("resize"):
        if event["to"] < event["from"]:
            lowered[str(event["fleet"])].append(evidence.clock(float(event["at"])))
    return [
        str(event["seat"])
        for event in evidence.of("leaving")
        if event.get("serving")
        and 0 <= (at := evidence.clock(float(event["at"]))) <= evidence.end
        and any(0 <= at - before <= _SCALED_DOWN_SECONDS for before in lowered[str(event["fleet"])])
    ]


def seat_bands(evidence: Evidence) -> list[SeatBand]:
    """Every seat over the time of the load, from the events, ended by the first poll that lacks it."""
    changes: dict[str, list[tuple[float, str, str | None]]] = defaultdict(list)
    fleets: dict[str, str] = {}
    for event in evidence.of("seat"):
        name = str(event["seat"])
        fleets[name] = str(event.get("fleet") or fleets.get(name, ""))
        changes[name].append((evidence.clock(float(event["at"])), str(event["value"]), event.get("serves")))
    bands = []
    for name in sorted(changes, key=lambda seat: (fleets[seat], changes[seat][0][0], seat)):
        spans = _spans(
            sorted(changes[name], key=lambda change: change[0]), _gone(name, changes[name], evidence)
        )
        if spans:
            bands.append(SeatBand(seat=name, fleet=fleets[name], spans=spans))
    return bands


def _gone(seat: str, changes: Sequence[tuple[float, str, str | None]], evidence: Evidence) -> float:
    """When the seat ceased to exist: the first poll after its last event that lacks it, else the end of the load."""
    last = max(at for at, _, _ in changes)
    for poll in evidence.seats:
        if poll.at > last and all(item.get("name") != seat for item in poll.seats):
            return min(poll.at, evidence.end)
    return evidence.end


def _spans(changes: Sequence[tuple[float, str, str | None]], end: float) -> list[SeatSpan]:
    spans: list[SeatSpan] = []
    ends = [at for at, _, _ in changes[1:]] + [end]
    for (start, value, serves), until in zip(changes, ends, strict=True):
        begin, finish = max(0.0, start), min(until, end)
        if finish <= begin or value == "Gone":
            continue
        if (
            spans
            and (spans[-1].value, spans[-1].serves) == (value, serves)
            and spans[-1].end == round(begin, 3)
        ):
            begin = spans.pop().start
        spans.append(SeatSpan(start=round(begin, 3), end=round(finish, 3), value=value, serves=serves))
    return spans


def seat_seconds(bands: Iterable[SeatBand]) -> dict[str, float]:
    """Seat-seconds per seat value."""
    totals: dict[str, float] = defaultdict(float)
    for band in bands:
        for span in band.spans:
            totals[span.value] += span.end - span.start
    return {value: round(seconds, 1) for value, seconds in sorted(totals.items())}


def served_seconds(bands: Iterable[SeatBand]) -> dict[str, float]:
    """Seat-seconds of value Serving per policy."""
    totals: dict[str, float] = defaultdict(float)
    for band in bands:
        for span in band.spans:
            if span.value == "Serving" and span.serves:
                totals[span.serves] += span.end - span.start
    return {policy: round(seconds, 1) for policy, seconds in sorted(totals.items())}


# ------------------------------------------------------------------ load


def load_curves(evidence: Evidence, policies: Iterable[str]) -> dict[str, list[LoadPoint]]:
    """Queue and in flight over time, per policy: the controller's own events joined with our polls of it."""
    curves = {policy: list(evidence.load.get(policy, ())) for policy in policies}
    for event in evidence.of("load"):
        at = evidence.clock(float(event["at"]))
        if event.get("policy") in curves and 0 <= at <= evidence.end:
            curves[event["policy"]].append(load_point(event, at))
    return {policy: sorted(points, key=lambda point: point.at) for policy, points in curves.items()}


def load_point(data: Event, at: float) -> LoadPoint:
    """Read one point from an event or from an item of `GET /v1/policies`; unknown numbers read as 0 load."""
    capacity = data.get("capacity")
    return LoadPoint(
        at=round(at, 3),
        queued=float(data.get("queued") or 0),
        in_flight=float(data.get("inFlight") or 0),
        oldest_wait_seconds=float(data.get("oldestWaitSeconds") or 0),
        capacity=None if capacity is None else float(capacity),
        mode=str(data.get("mode") or ""),
    )


# ------------------------------------------------------------------ faults


def fault_figures(evidence: Evidence) -> list[FaultFigures]:
    """What became of each fault."""
    return [_fault(hit, evidence) for hit in evidence.hits]


def _fault(hit: Hit, evidence: Evidence) -> FaultFigures:
    mine = [
        event
        for event in evidence.of("resident")
        if event.get("seat") == hit.seat and event.get("policy") == hit.policy
    ]
    failed = [event for event in mine if event.get("state") == "Failed"]
    again = [
        event for event in mine if event.get("state") in _SERVABLE and event.get("pid") not in {None, hit.pid}
    ]
    others = [
        {"at": event["rotation"]}
        for event in evidence.of("promotion")
        if event.get("policy") == hit.policy and event.get("outcome") == "Promoted" and event.get("rotation")
    ]
    return FaultFigures(
        type=hit.type,
        policy=hit.policy,
        seat=hit.seat,
        pid=hit.pid,
        at=round(hit.at, 3),
        error=hit.error,
        noticed_seconds=_first_after(failed, hit, evidence),
        capacity_back_seconds=_first_after(others, hit, evidence),
        replaced_seconds=_first_after(again, hit, evidence),
        neighbours=[
            NeighbourFigures(policy=policy, pid=pid, survived=_survived(hit.seat, policy, pid, evidence))
            for policy, pid in hit.neighbours
        ],
    )


def _first_after(events: Iterable[Event], hit: Hit, evidence: Evidence) -> float | None:
    if hit.pid is None:
        return None
    times = [evidence.clock(float(event["at"])) for event in events]
    after = [at for at in times if at >= hit.at]
    return round(min(after) - hit.at, 3) if after else None


def _survived(seat: str, policy: str, pid: int, evidence: Evidence) -> bool:
    """Whether the last poll that knows the seat shows the same process."""
    for poll in reversed(evidence.seats):
        for item in poll.seats:
            if item.get("name") == seat:
                residents = item.get("residents") or ()
                return any(one.get("policy") == policy and one.get("pid") == pid for one in residents)
    return False
