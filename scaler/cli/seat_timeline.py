"""`emberpool seat timeline`: where the time of a seat's starts went, phase by phase."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from scaler.cli import show
from scaler.cli.answers import SeatAnswer
from scaler.cli.failures import OK, Failed
from scaler.cli.human import NOTHING, duration, listed, plural, size
from scaler.cli.kube_options import Target, whom
from scaler.cli.options import RequiredName, examples
from scaler.cli.output import emit, table
from scaler.cli.renderings import Rendering, RenderingOption, as_data
from scaler.cli.seat_kind import SEATS
from scaler.cli.show import asked
from warmpool.seats import Resident
from warmpool.timeline import Span, Timeline, start_timeline
from warmpool.wire import passed_over_to_json, warm_up_to_json

_BAR_CHARACTERS: Final = 40
_MARK: Final = "#"

OfPolicy = Annotated[
    str,
    typer.Option("--policy", "-p", metavar="POLICY", help="Only this one's resident.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the command to those about seats."""
    app.command(
        "timeline",
        epilog=examples(
            "emberpool seat timeline local-0",
            "emberpool seat timeline spares-7d4-x2 --policy chat -n serving",
            "emberpool seat timeline spares-7d4-x2 -o json",
        ),
    )(timeline)


@whom
def timeline(
    name: RequiredName,
    policy: OfPolicy = "",
    output: RenderingOption = Rendering.TEXT,
    *,
    target: Target,
) -> int:
    """Show where the time of each resident's last completed start went.

    The phases add up to the whole. A resident's first start begins with its pod's creation; Kubernetes' times are in whole
    seconds, so what they bound may be off by one. Later starts begin with themselves. A start under way isn't shown yet:
    `describe` tells the state that it is in.
    """
    row, _ = show.describe(SEATS, name, asked(target))
    residents = _chosen(row, policy)
    done = [each for each in residents if each.start is not None]
    if output is not Rendering.TEXT:
        emit(as_data(_as_json(row, residents), output))
        return OK
    if not done:
        states = ", ".join(f"{each.policy} {each.state}" for each in residents) or "it has none yet"
        raise Failed(
            f"no start of a resident on seat {row.seat.name} has been seen to be completed",
            hint=f"residents: {states}",
        )
    emit(Text("\n\n").join(_drawn(row, each) for each in done))
    return OK


def _chosen(row: SeatAnswer, policy: str) -> list[Resident]:
    """Return the residents that are asked for.

    Raises:
        Failed: nobody tells of residents, or there is none of that policy.
    """
    if not row.told.reported:
        raise Failed(
            f"what residents of seat {row.seat.name} are and were is for its controller to tell, and that isn't reached",
            hint="--controller-namespace says where it is",
        )
    found = [each for each in row.seat.residents if policy in {"", each.policy}]
    if policy and not found:
        known = ", ".join(each.policy for each in row.seat.residents)
        raise Failed(
            f"seat {row.seat.name} has no resident of {policy}", hint=f"there are: {known or 'none'}"
        )
    return found


def timeline_of(row: SeatAnswer, resident: Resident) -> Timeline | None:
    """Return the timeline of a resident's last completed start; None if there is none."""
    start = resident.start
    if start is None:
        return None
    return start_timeline(row.seat.stamps, start.at, resident.phases, resident.restarts)


# ------------------------------------------------------------------ as data


def _as_json(row: SeatAnswer, residents: list[Resident]) -> dict[str, Any]:
    seat = row.seat
    namespace = {"namespace": row.told.namespace} if row.told.namespace else {}
    return {
        "seat": seat.name,
        **namespace,
        "fleet": seat.fleet,
        "residents": [
            {"policy": each.policy, "state": str(each.state), "start": _start_as_json(row, each)}
            for each in residents
        ],
    }


def _start_as_json(row: SeatAnswer, resident: Resident) -> Mapping[str, Any] | None:
    line, start = timeline_of(row, resident), resident.start
    if line is None or start is None:
        return None
    weights, cache = start.weights, start.compile_cache
    return {
        "at": line.at,
        "from": "Seat" if line.of_seat else "Resident",
        "seconds": round(line.total, 3),
        "uncertainSeconds": line.uncertain,
        "told": start.told,
        "phases": [
            {
                "phase": span.phase,
                "beginSeconds": round(span.begin, 3),
                "seconds": round(span.seconds, 3),
                "uncertainSeconds": span.uncertain,
            }
            for span in line.spans
        ],
        "weights": None
        if weights is None
        else {
            "tier": weights.tier,
            "bytes": weights.nbytes,
            "seconds": weights.seconds,
            "bytesPerSecond": None if weights.rate is None else round(weights.rate),
            "passedOver": [passed_over_to_json(each) for each in weights.passed_over],
        },
        "compileCache": None if cache is None else {"hits": cache.hits, "misses": cache.misses},
        "firstRequestSeconds": start.first_request_seconds,
        "warmUp": None if start.warm_up is None else warm_up_to_json(start.warm_up),
    }


# ------------------------------------------------------------------ as a drawing


def _drawn(row: SeatAnswer, resident: Resident) -> Text:
    line = timeline_of(row, resident)
    assert line is not None
    began = "its seat's creation" if line.of_seat else "its own beginning"
    at = datetime.fromtimestamp(line.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    title = f"{resident.policy} on {row.seat.name}: {_exact(line.total, line.uncertain)} from {began} at {at}"
    rows = [
        [
            span.phase,
            duration(span.begin),
            _exact(span.seconds, span.uncertain),
            f"{100 * span.seconds / line.total:.0f}%" if line.total else NOTHING,
            _bar(span, line.total),
        ]
        for span in line.spans
    ]
    drawing = table(("PHASE", "BEGIN", "TOOK", "SHARE", ""), rows)
    return Text("\n").join([Text(title), drawing, *map(Text, _facts(resident))])


def _exact(seconds: float, uncertain: float) -> str:
    """Write a time with how far off it may be: then its parts of a second mean nothing."""
    return f"{round(seconds)}s±{uncertain:.0f}s" if uncertain else duration(seconds)


def _bar(span: Span, total: float) -> str:
    """Draw a phase where it lies in the whole; one that took any time is seen."""
    if total <= 0.0 or span.seconds <= 0.0:
        return ""
    first = min(_BAR_CHARACTERS - 1, math.floor(span.begin / total * _BAR_CHARACTERS))
    last = math.ceil((span.begin + span.seconds) / total * _BAR_CHARACTERS)
    return " " * first + _MARK * max(1, min(_BAR_CHARACTERS, last) - first)


def _rate(bytes_per_second: float) -> str:
    """Write how fast bytes came, in the units in which links are sold."""
    if bytes_per_second >= 1e9:  # noqa: PLR2004 - a gigabyte
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.0f} MB/s"


def warm_up_in_words(resident: Resident) -> str:
    """Say what warmed an engine up; empty where only prompts that were given as text did, or that isn't known."""
    done = None if resident.start is None else resident.start.warm_up
    if done is None or not (done.prompt_tokens or done.left_out):
        return ""
    batches = [str(each) for each in done.batch_sizes if each > 1]
    lengths = [str(each) for each in done.prompt_tokens]
    parts = [
        f"prompts of {listed(lengths)} tokens",
        *([f"batches of {listed(batches)}"] if batches else []),
        f"{plural(done.max_tokens, 'token')} answered each",
        *([f"{done.left_out} refused by the engine"] if done.left_out else []),
    ]
    return "; ".join(parts)


def _facts(resident: Resident) -> Iterator[str]:
    """Say what else is known of a start."""
    start = resident.start
    if start is None:
        return
    if start.weights is not None:
        load = start.weights
        parts = [
            *([size(load.nbytes)] if load.nbytes else []),
            f"in {duration(load.seconds)}",
            *([f"({_rate(load.rate)})"] if load.rate is not None else []),
            *([f"from {load.tier}"] if load.tier else []),
        ]
        yield f"Weights: {' '.join(parts)}"
        for each in load.passed_over:
            yield f"Passed over: {each.tier} ({each.code}){f': {each.reason}' if each.reason else ''}"
    if start.compile_cache is not None:
        yield f"Compile cache: {start.compile_cache.hits} found, {start.compile_cache.misses} compiled"
    if start.first_request_seconds is not None:
        yield f"First request: {duration(start.first_request_seconds)}"
    if warm_up := warm_up_in_words(resident):
        yield f"Warm-up: {warm_up}"
    if not start.told:
        yield "The engine tells nothing of its start; what its log says is shown, and the rest is other."
