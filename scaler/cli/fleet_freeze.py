"""`emberpool fleet freeze`: an order that leaves a fleet's size as it is until a moment."""

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from scaler.cli.fleet_kind import FLEETS
from scaler.cli.kube_options import Target, whom
from scaler.cli.moments import moment_to_come
from scaler.cli.options import DryRun, RequiredName, examples
from scaler.cli.orders import Order, Reason, give
from scaler.cli.renderings import Rendering, RenderingOption
from scaler.cli.show import asked, describe
from scaler.errors import UserError
from scaler.runtime.order_words import LONGEST_FREEZE_SECONDS, Operation

_MOST_MINUTES = int(LONGEST_FREEZE_SECONDS // 60)


def register(app: typer.Typer) -> None:
    """Add the command to the commands about fleets."""
    app.command(
        "freeze",
        epilog=examples(
            "emberpool fleet freeze spares --minutes 120 --reason 'driver update' --dry-run",
            "emberpool fleet freeze spares --until 2026-12-24T18:00:00Z --reason 'driver update' -n serving",
            "emberpool fleet freeze spares --end",
        ),
    )(freeze)


@whom
def freeze(
    name: RequiredName,
    *,
    minutes: Annotated[
        int | None,
        typer.Option(
            "--minutes", min=1, max=_MOST_MINUTES, metavar="N", help="How long.", show_default=False
        ),
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            "--until", metavar="TIME", help="When it ends, as 2026-12-24T18:00:00Z.", show_default=False
        ),
    ] = "",
    end: Annotated[bool, typer.Option("--end", help="End a freeze that was ordered.")] = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    output: RenderingOption = Rendering.TEXT,
    target: Target,
) -> int:
    """Have the controller leave a fleet's size as it is: no seat is created or deleted. Residents go on being promoted.

    It has to say when it ends: a freeze that nobody ends is an outage to come. One that is to last is written into the
    fleet's policy (`spec.frozen`), and this command doesn't end that.
    """
    source = asked(target)
    facts = {"fleet": name}
    if end:
        if minutes is not None or until:
            raise UserError("--end takes no time", hint="leave --minutes and --until out")
        operation = Operation.THAW
    else:
        facts["until"] = _ends_at(minutes, until, time.time())
        operation = Operation.FREEZE
        if not reason:
            raise UserError(
                "--reason is missing", hint="whoever finds the fleet frozen at night wants to know why"
            )
    _, item = describe(FLEETS, name, source)
    facts["namespace"] = str(item.get("namespace", ""))
    order = Order(operation=operation, subject=f"fleet/{name}", facts=facts, reason=reason)
    return give(source, order, dry_run=dry_run, rendering=output)


def _ends_at(minutes: int | None, until: str, now: float) -> str:
    """Return when a freeze ends, as RFC 3339 writes it.

    Raises:
        UserError: neither or both were given, or the moment can't be read, or is over.
    """
    if (minutes is None) == (not until):
        raise UserError("give --minutes or --until", hint="a freeze has to say when it ends")
    if minutes is not None:
        at = datetime.fromtimestamp(now + minutes * 60, UTC)
    else:
        at = moment_to_come(until, now)
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
