"""`emberpool signals`: what the load of policies is read from, what it says, and how far that can be believed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from pydantic import Field

from scaler.cli import show
from scaler.cli.answers import Answer
from scaler.cli.human import NOTHING, duration, number
from scaler.cli.kube_options import Target, whom
from scaler.cli.options import Format, Output, Watch, examples, group
from scaler.cli.show import Column, Kind, View
from scaler.cli.told import asked_alone

app = group("Signals: what the load of policies is read from.")


class Part(Answer):
    """One number of a signal; nothing but its quality while it is Missing."""

    part: str
    value: float | None = None
    age_seconds: float | None = None
    quality: str = ""
    reason: str | None = None


class LastError(Answer):
    """Why there has been no reading since the last one."""

    message: str
    in_a_row: int = 0

    @property
    def text(self) -> str:
        """The message, and how often in a row."""
        return f"{self.message} ({self.in_a_row} in a row)"


class Signal(Answer):
    """One signal of one policy."""

    policy: str
    name: str
    type: str = ""
    parts: Sequence[Part] = Field(default_factory=tuple)
    last_error: LastError | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a part of a signal."""

    signal: Signal
    part: Part


def _signal(item: Mapping[str, Any]) -> Signal:
    return Signal.model_validate(item)


def _rows(signal: Signal) -> list[Row]:
    """Return a line for each part; a signal that never said anything has one all the same."""
    return [Row(signal, part) for part in signal.parts or [_NO_PART]]


_NO_PART = Part(part=NOTHING, quality="Missing", reason="nobody has said anything of late")


def _trouble(row: Row) -> str:
    """Say why there was no reading, or why this part is Missing though there was one."""
    error = row.signal.last_error
    return error.text if error is not None else row.part.reason or NOTHING


def _value(part: Part) -> str:
    if part.value is None:
        return NOTHING
    if part.part.endswith("Seconds"):
        return duration(part.value)
    return f"{part.value:.1%}" if part.part == "LateShare" else number(part.value)


SIGNALS: Kind[Signal] = Kind(
    noun="signal",
    plural="signals",
    read=_signal,
    owner="policy",
    rows=_rows,
    columns=(
        Column("POLICY", lambda row, _: row.signal.policy),
        Column("SIGNAL", lambda row, _: row.signal.name),
        Column("TYPE", lambda row, _: row.signal.type),
        Column("PART", lambda row, _: row.part.part),
        Column("VALUE", lambda row, _: _value(row.part)),
        Column(
            "AGE", lambda row, _: NOTHING if row.part.age_seconds is None else duration(row.part.age_seconds)
        ),
        Column("QUALITY", lambda row, _: row.part.quality),
        Column(
            "LAST-ERROR",
            lambda row, _: _trouble(row),
            wide=True,
        ),
    ),
)


@app.command(
    "get",
    epilog=examples(
        "emberpool signals get",
        "emberpool signals get chat -o wide",
        "emberpool signals get chat --watch",
        "emberpool signals get -n serving --context prod",
        "emberpool signals get -o json | jq '.items[] | select(.lastError)'",
    ),
)
@whom
def get(
    policy: Annotated[
        str | None, typer.Argument(metavar="[POLICY]", help="Only those of this policy.", show_default=False)
    ] = None,
    output: Format = Output.TABLE,
    watch: Watch = False,
    *,
    target: Target,
) -> int:
    """List what policies' signals say, a line for each number.

    QUALITY is Fresh while a number can be believed, Stale when it is late (it may hold a policy's size or raise it, and
    never lowers it), and Missing when there is none. A number that is Missing is unknown, and not 0.
    """
    return show.get(SIGNALS, policy, View(source=asked_alone(target), output=output, watch=watch))
