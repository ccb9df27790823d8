"""`emberpool seat promote`, `demote`, `switch` and `drain`: orders that the controller carries out."""

from typing import Annotated

import typer

from scaler.cli import show
from scaler.cli.answers import SeatAnswer
from scaler.cli.client import Source
from scaler.cli.failures import Failed
from scaler.cli.kube_options import Target, whom
from scaler.cli.options import DryRun, RequiredName, examples
from scaler.cli.orders import Order, Reason, give
from scaler.cli.renderings import Rendering, RenderingOption
from scaler.cli.seat_kind import SEATS
from scaler.cli.show import asked
from scaler.runtime.order_words import Operation

Policy = Annotated[
    str, typer.Option("--policy", "-p", metavar="POLICY", help="Whose resident.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands to those about seats."""
    app.command(
        "promote",
        epilog=examples(
            "emberpool seat promote shared-0 --policy chat --dry-run",
            "emberpool seat promote spares-7d4-x2 --policy chat -n serving --reason 'before the launch'",
        ),
    )(promote)
    app.command(
        "demote",
        epilog=examples(
            "emberpool seat demote shared-0 --dry-run", "emberpool seat demote spares-7d4-x2 -n serving"
        ),
    )(demote)
    app.command(
        "switch",
        epilog=examples(
            "emberpool seat switch shared-0 --policy code --dry-run",
            "emberpool seat switch spares-7d4-x2 --policy code -n serving",
        ),
    )(switch)
    app.command(
        "drain",
        epilog=examples(
            "emberpool seat drain shared-0 --dry-run",
            "emberpool seat drain spares-7d4-x2 -n serving --reason 'row 3 loses power at noon'",
        ),
    )(drain)


@whom
def promote(
    name: RequiredName,
    policy: Policy,
    dry_run: DryRun = False,
    reason: Reason = "",
    output: RenderingOption = Rendering.TEXT,
    *,
    target: Target,
) -> int:
    """Have the controller bring a resident into rotation on a seat that serves nobody.

    It is kept there for the policy's stable window (`burst.stableWindowSeconds`) at least; then the load decides again.
    """
    source = asked(target)
    row = _found(source, name)
    _check_resident(row, policy)
    order = _order(Operation.PROMOTE, row, reason, policy=policy)
    return give(source, order, dry_run=dry_run, rendering=output)


@whom
def demote(
    name: RequiredName,
    policy: Policy = "",
    dry_run: DryRun = False,
    reason: Reason = "",
    output: RenderingOption = Rendering.TEXT,
    *,
    target: Target,
) -> int:
    """Have the controller take the resident that serves out of rotation, drain it and pause it.

    It is refused below the policy's floor, and while its load needs the resident.
    """
    source = asked(target)
    row = _found(source, name)
    order = _order(Operation.DEMOTE, row, reason, policy=_serving(row, policy))
    return give(source, order, dry_run=dry_run, rendering=output)


@whom
def switch(
    name: RequiredName,
    policy: Policy,
    dry_run: DryRun = False,
    reason: Reason = "",
    output: RenderingOption = Rendering.TEXT,
    *,
    target: Target,
) -> int:
    """Have the controller demote the resident that serves, and promote another on the same seat."""
    source = asked(target)
    row = _found(source, name)
    _check_resident(row, policy)
    order = _order(Operation.SWITCH, row, reason, policy=policy, leaving=_serving(row, ""))
    return give(source, order, dry_run=dry_run, rendering=output)


@whom
def drain(
    name: RequiredName,
    dry_run: DryRun = False,
    reason: Reason = "",
    output: RenderingOption = Rendering.TEXT,
    *,
    target: Target,
) -> int:
    """Have the controller hand over whatever serves on a seat, promotion first, and give it no promotion from then on.

    It ends when a resident is promoted there by order, or when the pod is gone. A drained seat counts as one that can serve
    nobody, so its fleet makes another in its place.
    """
    source = asked(target)
    return give(
        source, _order(Operation.DRAIN, _found(source, name), reason), dry_run=dry_run, rendering=output
    )


def _found(source: Source, name: str) -> SeatAnswer:
    row, _ = show.describe(SEATS, name, source)
    return row


def _order(operation: Operation, row: SeatAnswer, reason: str, **facts: str) -> Order:
    """Make an order about this seat and no other that comes to have its name."""
    seat = row.seat
    of = {"seat": seat.name, "uid": seat.uid, "namespace": row.told.namespace, **facts}
    return Order(operation=operation, subject=f"seat/{seat.name}", facts=of, reason=reason)


def _check_resident(row: SeatAnswer, policy: str) -> None:
    """Check that a policy lives on a seat.

    Raises:
        Failed: it doesn't.
    """
    known = list(dict.fromkeys([*(each.policy for each in row.seat.residents), *row.told.declared]))
    if policy not in known:
        raise Failed(
            f"seat {row.seat.name} has no resident of {policy}",
            hint=f"there are: {', '.join(known) or 'none'}",
        )


def _serving(row: SeatAnswer, policy: str) -> str:
    """Return whose resident serves on a seat.

    Raises:
        Failed: nobody's, or that of several policies and none was named, or not the one that was.
    """
    serving = sorted(row.seat.serving)
    if not serving:
        raise Failed(f"seat {row.seat.name} serves nobody")
    if policy and policy not in serving:
        raise Failed(f"seat {row.seat.name} doesn't serve {policy}", hint=f"it serves {', '.join(serving)}")
    if not policy and len(serving) > 1:
        raise Failed(f"seat {row.seat.name} serves {', '.join(serving)}", hint="say which with --policy")
    return policy or serving[0]
