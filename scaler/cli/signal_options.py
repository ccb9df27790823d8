"""Options about signals, which `emberpool local` and `emberpool controller` share."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from scaler.cli.urls import base_url
from scaler.runtime.signal_options import SignalOptions

AGENT_TOKEN: Final = "EMBERPOOL_AGENT_TOKEN"  # noqa: S105 - a variable's name
SIGNAL_TOKEN: Final = "EMBERPOOL_SIGNAL_TOKEN"  # noqa: S105 - as above

Prometheus = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The Prometheus that signals ask which name no server.", show_default=False
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The Redis whose queues signals read which name no server, and over which samples are heard.",
        show_default=False,
    ),
]
RedisPasswordFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with its password.", show_default=False)
]
SignalChannel = Annotated[
    str, typer.Option(metavar="NAME", help="Redis channel over which samples are heard; empty: none.")
]
PushTokens = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with tokens of those who push, a line `role[:name] token` each; read anew when it changes.",
        show_default=False,
    ),
]
DEFAULT_CHANNEL: Final = SignalOptions().channel


def signal_options(
    prometheus: str | None,
    redis: str | None,
    redis_password_file: Path | None,
    channel: str,
    push_tokens: Path | None,
) -> SignalOptions:
    """Put the options together with what the environment says.

    Raises:
        UserError: an address is none.
    """
    return SignalOptions(
        token=os.environ.get(SIGNAL_TOKEN, ""),
        tokens=push_tokens,
        prometheus=None if prometheus is None else base_url(prometheus, "a Prometheus"),
        redis=redis,
        redis_password_file=redis_password_file,
        channel=channel,
    )
