"""`emberpool gateway`: the process that requests go through."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from scaler.cli.options import examples
from scaler.cli.signal_options import AGENT_TOKEN, SIGNAL_TOKEN
from scaler.cli.urls import base_url
from scaler.errors import UserError
from scaler.gateway.routes import QueueLimits
from scaler.gateway.settings import MIB, GatewaySettings
from scaler.runtime.gateway_options import GatewayOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LARGEST_PORT = 65_535
_DEFAULT = GatewaySettings()
_SHORTEST = 0.001


def _option(name: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - as typer has it
    """Make an option that an environment variable sets as well."""
    variable = f"EMBERPOOL_GATEWAY_{name.upper().replace('-', '_')}"
    return typer.Option(f"--{name}", envvar=variable, help=text, **more)


def _seconds(name: str, text: str, *, least: float = _SHORTEST) -> Any:  # noqa: ANN401 - as above
    return _option(name, f"Seconds: {text}", min=least)


def _count(name: str, text: str, *, least: int = 1) -> Any:  # noqa: ANN401 - as above
    return _option(name, text, min=least)


@app.command(
    epilog=examples(
        "EMBERPOOL_SIGNAL_TOKEN=… emberpool gateway --controller http://127.0.0.1:9080",
        "emberpool gateway --controller http://controller:9080 --host 0.0.0.0 --queue-seconds 30",
        "EMBERPOOL_GATEWAY_QUEUE_SECONDS=30 emberpool gateway -s http://controller-0:9080 -s http://controller-1:9080",
        "curl -s 127.0.0.1:9082/v1/gateway   # what it holds, routes to, and goes by",
    )
)
def gateway(  # noqa: PLR0917 - typer hands every option over by name
    controller: Annotated[
        list[str],
        typer.Option(
            "--controller",
            "-s",
            metavar="URL",
            envvar="EMBERPOOL_SERVER",
            help="Base URL of a controller; repeatable: name all of them.",
            show_default=False,
        ),
    ],
    host: Annotated[str, _option("host", "Address of the OpenAI-compatible endpoint.")] = "127.0.0.1",
    port: Annotated[int, _option("port", "Its port; 0 takes a free one.", min=0, max=_LARGEST_PORT)] = 8000,
    metrics_port: Annotated[
        int,
        _option(
            "metrics-port",
            "Port of /metrics, /livez, /readyz and /v1/gateway; 0 takes a free one.",
            min=0,
            max=_LARGEST_PORT,
        ),
    ] = 9082,
    instance: Annotated[
        str,
        _option("instance", "Its id, unique among the gateways (default: host name and process id)."),
    ] = "",
    tls_certificate: Annotated[
        Path | None,
        _option(
            "tls-certificate",
            "Serve TLS with this certificate (PEM, then those that vouch for it). SIGHUP reads it again.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        _option(
            "tls-key",
            "Its private key, where it isn't in the same file.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    keys_file: Annotated[
        Path | None,
        _option(
            "keys-file",
            "Let in only who shows a bearer key of this file, one a line. SIGHUP reads it again.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    default_policy: Annotated[
        str,
        _option(
            "default-policy",
            "Policy that gets what names no model: other paths below /v1, other methods than POST. Without it: refused.",
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
    queue_requests: Annotated[
        int, _count("queue-requests", "Requests of one policy that may wait.", least=0)
    ] = _DEFAULT.queue.max_requests,
    queue_mib: Annotated[
        int, _count("queue-mib", "MiB that their bodies may have together.")
    ] = _DEFAULT.queue.max_bytes // MIB,
    queue_seconds: Annotated[
        float, _seconds("queue-seconds", "how long one may wait for its first slot.")
    ] = _DEFAULT.queue.max_age_seconds,
    cold_seconds: Annotated[
        float,
        _seconds(
            "cold-seconds",
            "how long one may wait while no resident of its policy serves, where that is longer; its deadline is later by as much.",
            least=0.0,
        ),
    ] = _DEFAULT.queue.max_cold_seconds,
    priority_header: Annotated[
        str,
        _option(
            "priority-header",
            "Request header with a whole number: higher goes first. Set it in front of the gateway.",
            metavar="NAME",
            show_default=False,
        ),
    ] = _DEFAULT.priority_header,
    tenant_header: Annotated[
        str,
        _option(
            "tenant-header",
            "Request header that says whose a request is; tenants take turns. Set it in front of the gateway.",
            metavar="NAME",
            show_default=False,
        ),
    ] = _DEFAULT.tenant_header,
    retry_after_seconds: Annotated[
        int, _count("retry-after-seconds", "Least that a 503 says as Retry-After.", least=0)
    ] = _DEFAULT.retry_after_seconds,
    max_retry_after_seconds: Annotated[
        int, _count("max-retry-after-seconds", "Most that a 503 says as Retry-After.")
    ] = _DEFAULT.max_retry_after_seconds,
    deadline_seconds: Annotated[
        float, _seconds("deadline-seconds", "from a request received whole to its first content.")
    ] = _DEFAULT.deadline_seconds,
    comment_seconds: Annotated[
        float,
        _seconds(
            "comment-seconds",
            "after how long without content, and how often then, the client of a stream gets a comment; 0: never. "
            "Its status goes out with the first one, so later errors are events.",
            least=0.0,
        ),
    ] = _DEFAULT.keep_alive_comment_seconds,
    connect_seconds: Annotated[
        float, _seconds("connect-seconds", "for a connection to a resident.")
    ] = _DEFAULT.connect_seconds,
    idle_seconds: Annotated[
        float,
        _seconds("idle-seconds", "silence of an engine in the middle of an answer that counts as a break."),
    ] = _DEFAULT.stream_idle_seconds,
    stall_seconds: Annotated[
        float, _seconds("stall-seconds", "in which a client must take what was written to it.")
    ] = _DEFAULT.client_stall_seconds,
    receive_seconds: Annotated[
        float, _seconds("receive-seconds", "in which a client must have sent a request's body.")
    ] = _DEFAULT.receive_seconds,
    header_seconds: Annotated[
        float, _seconds("header-seconds", "in which a client must have sent a request's head.")
    ] = _DEFAULT.header_seconds,
    connection_idle_seconds: Annotated[
        float,
        _seconds("connection-idle-seconds", "how long a client's connection may rest between requests."),
    ] = _DEFAULT.idle_seconds,
    attempts: Annotated[
        int, _count("attempts", "Engines that may fail a request before its client is told.")
    ] = _DEFAULT.max_failed_attempts,
    max_connections: Annotated[
        int, _count("max-connections", "Connections of clients at once.")
    ] = _DEFAULT.max_connections,
    max_body_mib: Annotated[int, _count("max-body-mib", "MiB of one request's body.")] = (
        _DEFAULT.max_body_bytes // MIB
    ),
    max_held_mib: Annotated[int, _count("max-held-mib", "MiB of all bodies that are held at once.")] = (
        _DEFAULT.max_held_bytes // MIB
    ),
    max_header_bytes: Annotated[
        int, _count("max-header-bytes", "Bytes of one request header, and of the request line.", least=256)
    ] = _DEFAULT.max_header_bytes,
    max_headers: Annotated[
        int, _count("max-headers", "Headers of one request.", least=8)
    ] = _DEFAULT.max_headers,
    drain_seconds: Annotated[
        float, _seconds("drain-seconds", "how long requests in flight may take after SIGTERM.", least=0.0)
    ] = 30.0,
    settle_seconds: Annotated[
        float,
        _seconds(
            "settle-seconds",
            "how long of that new connections are still taken, for those who learn of the end later.",
            least=0.0,
        ),
    ] = 0.0,
) -> int:
    """Queue requests and pass them to the residents in rotation.

    It follows the routes that controllers publish and pushes its load to all of them; while none answers it goes on with
    the last routes. SIGTERM finishes what it has accepted and takes no more; a second one ends it at once. The token that
    controllers want of those who push is read from the environment variable EMBERPOOL_SIGNAL_TOKEN, or where that is not
    set from EMBERPOOL_AGENT_TOKEN. Each option can be set as EMBERPOOL_GATEWAY_… too. What a policy says of its queue goes
    before the options here.
    """
    token = os.environ.get(SIGNAL_TOKEN) or os.environ.get(AGENT_TOKEN)
    if not token:
        raise UserError(
            f"{SIGNAL_TOKEN} is not set", hint="give it the token that the controllers want of those who push"
        )
    if tls_key is not None and tls_certificate is None:
        raise UserError("--tls-key without --tls-certificate", hint="name the certificate's file, too")
    settings = _settings(locals())
    options = GatewayOptions(
        controllers=tuple(base_url(each) for each in controller),
        token=token,
        instance=instance,
        host=host,
        port=port,
        metrics_port=metrics_port,
        drain_seconds=drain_seconds,
        settle_seconds=settle_seconds,
        keys_file=keys_file,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        settings=settings,
    )
    from scaler.runtime.gateway_process import run  # noqa: PLC0415 - aiohttp and all else, which help doesn't need

    return run(options)


def _settings(given: Mapping[str, Any]) -> GatewaySettings:
    """Return what the options above say, by their names there."""
    least = given["retry_after_seconds"]
    return GatewaySettings(
        queue=QueueLimits(
            max_requests=given["queue_requests"],
            max_bytes=given["queue_mib"] * MIB,
            max_age_seconds=given["queue_seconds"],
            max_cold_seconds=given["cold_seconds"],
        ),
        default_policy=given["default_policy"],
        priority_header=given["priority_header"],
        tenant_header=given["tenant_header"],
        deadline_seconds=given["deadline_seconds"],
        connect_seconds=given["connect_seconds"],
        stream_idle_seconds=given["idle_seconds"],
        client_stall_seconds=given["stall_seconds"],
        receive_seconds=given["receive_seconds"],
        header_seconds=given["header_seconds"],
        idle_seconds=given["connection_idle_seconds"],
        keep_alive_comment_seconds=given["comment_seconds"],
        max_connections=given["max_connections"],
        max_body_bytes=given["max_body_mib"] * MIB,
        max_held_bytes=given["max_held_mib"] * MIB,
        max_header_bytes=given["max_header_bytes"],
        max_headers=given["max_headers"],
        max_failed_attempts=given["attempts"],
        retry_after_seconds=least,
        max_retry_after_seconds=max(least, given["max_retry_after_seconds"]),
    )


_ELSEWHERE: Final = frozenset(
    {
        *(
            "controller",
            "host",
            "port",
            "metrics-port",
            "instance",
            "tls-certificate",
            "tls-key",
            "keys-file",
        ),
        *("drain-seconds", "settle-seconds", "help"),
    }
)
"""Options of the process, and not of the gateway inside."""


def settings_of(written: Sequence[str]) -> GatewaySettings:
    """Read settings of a gateway inside of another process, as NAME=VALUE with the names of the options here.

    What isn't written is as the environment says (EMBERPOOL_GATEWAY_…), and else as by default.

    Raises:
        UserError: one is no such pair, or there is no such setting.
        TyperException: a value can't be one.
    """
    command = typer.main.get_command(app)
    names = {
        option.removeprefix("--")
        for each in command.params
        for option in each.opts
        if option.startswith("--")
    }
    known = sorted(names - _ELSEWHERE)
    arguments = ["--controller", "http://127.0.0.1"]
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or name not in known:
            hint = f"write NAME=VALUE; the names are {', '.join(known)}"
            raise UserError(f"{each} is no setting of a gateway", hint=hint)
        arguments += [f"--{name}", value]
    return _settings(command.make_context("gateway", arguments).params)
