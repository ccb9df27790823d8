"""`emberpool node exclude` and `readmit`: orders on nodes that the leading controller carries out, whatever is said of their GPUs."""

import os
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

import typer

from scaler.cli.failures import OK, Failed
from scaler.cli.kube_options import AtUrl, Target, cluster_or_controller
from scaler.cli.moments import moment_to_come
from scaler.cli.options import RequiredName, examples
from scaler.cli.orders import Reason, me, refused
from scaler.cli.output import emit
from scaler.cli.show import asked
from scaler.cli.signal_options import AGENT_TOKEN
from scaler.errors import UserError

Until = Annotated[
    str,
    typer.Option(
        "--until",
        metavar="TIME",
        help="When it ends by itself, as 2026-12-24T18:00:00Z (default: it doesn't).",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to those about nodes."""
    app.command(
        "exclude",
        epilog=examples("emberpool node exclude gpu-a --reason 'row 3 loses power' --context prod"),
    )(exclude)
    app.command(
        "readmit",
        epilog=examples("emberpool node readmit gpu-a --reason 'the Xid table was wrong' --context prod"),
    )(readmit)


@cluster_or_controller
def exclude(name: RequiredName, reason: Reason, until: Until = "", *, target: Target) -> int:
    """Have the controller keep new pods off a node. What serves there goes on; the breaker doesn't count it."""
    return _give(target, name, "exclude", _body(reason, until))


@cluster_or_controller
def readmit(name: RequiredName, reason: Reason, until: Until = "", *, target: Target) -> int:
    """Have the controller let new pods onto a node again, though something Bad is said of its GPUs.

    It holds until nothing Bad is said of them any more. Promotions onto a Bad GPU stay refused.
    """
    return _give(target, name, "readmit", _body(reason, until))


def _body(reason: str, until: str) -> Mapping[str, Any]:
    if not reason.strip():
        raise UserError("--reason is empty", hint="whoever finds the node so at night wants to know why")
    return {
        "actor": me() or "somebody",
        "reason": reason,
        **({"until": moment_to_come(until, time.time()).timestamp()} if until else {}),
    }


def _give(target: Target, name: str, verb: str, body: Mapping[str, Any]) -> int:
    path = f"/v1/nodes/{quote(name, safe='')}/{verb}"
    status, answer = asked(target).order(body, os.environ.get(AGENT_TOKEN, ""), path)
    told = answer if isinstance(answer, dict) else {}
    if isinstance(target, AtUrl) and status == HTTPStatus.NOT_FOUND and "error" not in told:
        raise Failed(
            f"the controller at {target.url} marks no nodes: it answers {path} with status {status}",
            hint="nodes are a cluster's; that of `emberpool local` has none",
        )
    if status != HTTPStatus.OK:
        raise refused(f"node/{name}", status, told, path)
    emit(f"node/{name}: {'excluded' if verb == 'exclude' else 'readmitted'}")
    return OK
