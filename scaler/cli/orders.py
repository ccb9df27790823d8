"""Orders of people: what is asked of the controller, and what it says to that.

A person never writes to a seat. The controller takes an order as it takes its own wishes: under its term, with its claims, and
against everything else that it is doing at that moment. So whoever is refused is told why, and nothing has happened.

    POST /v1/orders
    {"id": …, "operation": "Promote", "seat": …, "uid": …, "policy": …, "leaving": …, "reason": …, "by": …,
     "dryRun": false}
    → 200 {"accepted": true, "dryRun": false, "sentence": "…"}
    → 4xx {"error": {"code": …, "message": …, "hint": …}}
"""

import getpass
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

import typer

from scaler.cli.client import ORDERS, Source
from scaler.cli.failures import OK, Failed
from scaler.cli.output import emit, note
from scaler.cli.renderings import Rendering, as_data
from scaler.cli.signal_options import AGENT_TOKEN
from scaler.runtime.order_words import Operation

_LONGEST_NAME: Final = 64
"""Characters of a name that a controller takes."""
Reason = Annotated[
    str,
    typer.Option("--reason", metavar="TEXT", help="Why, for whoever reads the events.", show_default=False),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order.

    Attributes:
        operation: what to do.
        subject: what it is done to, as `kind/name`.
        facts: what the operation needs beside that.
        reason: why, for whoever reads the events.
    """

    operation: Operation
    subject: str
    facts: Mapping[str, Any]
    reason: str = ""


def give(source: Source, order: Order, *, dry_run: bool, rendering: Rendering) -> int:
    """Give an order and print what the controller says to it.

    Raises:
        Failed: it refuses, it takes no orders, or nobody answers.
    """
    body = {
        "id": uuid.uuid4().hex,  # one that is sent twice, since an answer was lost, is carried out once
        "operation": str(order.operation),
        **order.facts,
        "reason": order.reason,
        "by": me(),
        "dryRun": dry_run,
    }
    status, answer = source.order(body, os.environ.get(AGENT_TOKEN, ""))
    told = answer if isinstance(answer, dict) else {}
    if status != HTTPStatus.OK or told.get("accepted") is not True:
        raise refused(order.subject, status, told)
    if rendering is not Rendering.TEXT:
        emit(as_data(told, rendering))
    else:
        sentence = str(told.get("sentence") or f"{order.operation} ordered")
        emit(f"{order.subject}: {sentence}" + (" (dry run)" if dry_run else ""))
    if why := told.get("notKept"):
        note(f"it stands, and would be lost with this controller until it is kept: {why}")
    return OK


def me() -> str:
    """Return who orders, as this machine calls them; empty where it doesn't know."""
    try:
        return getpass.getuser()[:_LONGEST_NAME]
    except (OSError, KeyError, ImportError):
        return ""


def refused(subject: str, status: int, told: Mapping[str, Any], path: str = ORDERS) -> Failed:
    """Say why an order isn't carried out.

    Args:
        subject: what it was about, as `kind/name`.
        status: the answer's.
        told: the answer.
        path: where it was given.
    """
    error = told.get("error")
    if isinstance(error, dict):
        hint = str(error.get("hint") or "")
        if status == HTTPStatus.UNAUTHORIZED:
            hint = f"{AGENT_TOKEN} in the environment is the token that is shown; it is the controller's"
        return Failed(f"{subject}: {error.get('message') or error.get('code')}", hint=hint)
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
        return Failed(
            f"this controller takes no orders: it answers {path} with status {status}",
            hint="update it; until then policies say what shall serve, and `kubectl drain` empties a node",
        )
    return Failed(f"the controller answers {path} with status {status}, and doesn't accept the order")
