"""`emberpool gateway`: the process that requests go through."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from scaler.cli.options import SERVER_VARIABLES, examples
from scaler.cli.signal_options import AGENT_TOKEN, SIGNAL_TOKEN
from scaler.cli.urls import base_url
from scaler.errors import UserError
from scaler.gateway.routes import QueueLimits
from scaler.gateway.settings import MIB, GatewaySettings
from scaler.runtime.gateway_options import DoorFiles, GatewayOptions, PodOptions
from scaler.runtime.sockets import Door, check_apart

app = typer.Typer(rich_markup_mode=None, add_completion=False)

COMMAND: Final = "emberpool gateway"
"""What people call this, as messages say it."""
_LARGEST_PORT = 65_535
_PORT = 8000
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


def _file(name: str, text: str) -> Any:  # noqa: ANN401 - as above
    return _option(name, text, metavar="FILE", show_default=False)


def _named(name: str, text: str) -> Any:  # noqa: ANN401 - as above
    return _option(name, text, metavar="NAME", show_default=False)


def port_number(text: str | int) -> int:
    """Read the port to listen on.

    For a Service called `emberpool-gateway` Kubernetes puts `tcp://…` into the variable of this option; that means nothing here.

    Raises:
        BadParameter: it is none.
    """
    if isinstance(text, str) and text.startswith("tcp://"):
        return _PORT
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= _LARGEST_PORT:
        raise typer.BadParameter(f"{text!r} is no port from 0 to {_LARGEST_PORT}")
    return number


@app.command(
    epilog=examples(
        "EMBERPOOL_SIGNAL_TOKEN=… emberpool gateway --controller http://127.0.0.1:9080",
        "emberpool gateway --controller http://controller:9080 --host 0.0.0.0 --queue-seconds 30",
        "EMBERPOOL_GATEWAY_QUEUE_SECONDS=30 emberpool gateway -s http://controller-0:9080 -s http://controller-1:9080",
        "emberpool gateway --kubernetes -n serving --policy policies/ --controller http://controller:9080",
        "curl -s 127.0.0.1:9082/v1/gateway   # what it holds, routes to, and goes by",
    )
)
def gateway(  # noqa: PLR0917 - typer hands every option over by name
    controller: Annotated[
        list[str] | None,
        typer.Option(
            "--controller",
            "-s",
            metavar="URL",
            envvar=list(SERVER_VARIABLES),
            help="Base URL of a controller; repeatable: name all of them. With --kubernetes there may be none.",
            show_default=False,
        ),
    ] = None,
    kubernetes: Annotated[
        bool,
        _option("kubernetes", "Watch pods, and route by their labels whether a controller is there or not."),
    ] = False,
    kubeconfig: Annotated[
        str,
        _option(
            "kubeconfig",
            "A kubeconfig, or several as in KUBECONFIG (default: as kubectl finds it, or the pod's service account).",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    context: Annotated[str, _named("context", "Which of its contexts (default: the current one).")] = "",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            envvar="EMBERPOOL_GATEWAY_NAMESPACE",
            help="Where the pods are (default: the context's, or the service account's).",
            show_default=False,
        ),
    ] = "",
    peers: Annotated[
        str,
        _option(
            "peers",
            "With --kubernetes: labels of the gateways' own pods, in the namespace of this one. While no controller is heard, so"
            " many share what a resident may hold; each is known by its pod's name.",
            metavar="LABELS",
            show_default=False,
        ),
    ] = "",
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy",
            "-f",
            metavar="PATH",
            envvar="EMBERPOOL_GATEWAY_POLICY",
            help="With --kubernetes: policy file or directory; repeatable. It is followed, and SIGHUP has it read at once.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, _option("host", "Address of the OpenAI-compatible endpoint.")] = "127.0.0.1",
    port: Annotated[
        int, _option("port", "Its port; 0 takes a free one.", parser=port_number, metavar="PORT")
    ] = _PORT,
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
        _file(
            "tls-certificate",
            "Serve TLS with this certificate (PEM, then those that vouch for it). SIGHUP reads it again.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, _file("tls-key", "Its private key, where it isn't in the same file.")
    ] = None,
    keys_file: Annotated[
        Path | None,
        _file(
            "keys-file", "Let in only who shows a bearer key of this file, one a line. SIGHUP reads it again."
        ),
    ] = None,
    default_policy: Annotated[
        str,
        _named(
            "default-policy",
            "Policy that gets what names no model: other paths below /v1, other methods than POST. Without it: refused.",
        ),
    ] = "",
    queue_requests: Annotated[
        int,
        _count(
            "queue-requests",
            "Requests of one policy that may wait. With 0 none does: what finds no slot is refused, which wakes a policy that "
            "nobody serves and makes no other one grow.",
            least=0,
        ),
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
        _named(
            "priority-header",
            "Request header with a whole number: higher goes first. Set it in front of the gateway.",
        ),
    ] = _DEFAULT.priority_header,
    tenant_header: Annotated[
        str,
        _named(
            "tenant-header",
            "Request header that says whose a request is; tenants take turns. Set it in front of the gateway.",
        ),
    ] = _DEFAULT.tenant_header,
    retry_after_seconds: Annotated[
        int, _count("retry-after-seconds", "Least that a 503 says as Retry-After.", least=0)
    ] = _DEFAULT.retry_after_seconds,
    max_retry_after_seconds: Annotated[
        int, _count("max-retry-after-seconds", "Most that a 503 says as Retry-After.")
    ] = _DEFAULT.max_retry_after_seconds,
    deadline_seconds: Annotated[
        float,
        _seconds("deadline-seconds", "from a request for a stream received whole to its first content."),
    ] = _DEFAULT.deadline_seconds,
    answer_seconds: Annotated[
        float,
        _seconds("answer-seconds", "from any other request received whole to the end of its answer."),
    ] = _DEFAULT.answer_seconds,
    silence_seconds: Annotated[
        float,
        _seconds(
            "silence-seconds",
            "an engine that brings nobody a byte for so long, though it has a stream to begin, is left alone while another one "
            "serves, and what waits there is tried elsewhere, once; 0: never.",
            least=0.0,
        ),
    ] = _DEFAULT.silence_seconds,
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
    the last routes. With --kubernetes it also watches the pods of all fleets (its account may get, list and watch pods), and
    routes by their labels. SIGTERM finishes what it has accepted and takes no more; a second one ends it at once. The token that
    controllers want of those who push is read from the environment variable EMBERPOOL_SIGNAL_TOKEN, or where that is not
    set from EMBERPOOL_AGENT_TOKEN. Each option can be set as EMBERPOOL_GATEWAY_… too. What a policy says of its queue goes
    before the options here.
    """
    settings = _settings(locals())
    controllers = tuple(base_url(each) for each in controller or ())
    options = GatewayOptions(
        controllers=controllers,
        token=_token() if controllers else "",
        instance=instance,
        host=host,
        port=port,
        metrics_port=metrics_port,
        drain_seconds=drain_seconds,
        settle_seconds=settle_seconds,
        files=door_files(keys_file, tls_certificate, tls_key),
        pods=_pods(
            kubernetes,
            tuple(policy or ()),
            {"kubeconfig": kubeconfig, "context": context, "namespace": namespace, "peers": peers},
        ),
        settings=settings,
    )
    if not controllers and options.pods is None:
        raise UserError(
            "nobody was named whose routes to follow",
            hint="name the controllers with --controller, or watch pods with --kubernetes",
        )
    check_apart([Door(host, port, "--port"), Door(host, metrics_port, "--metrics-port")])
    from scaler.runtime.gateway_process import run  # noqa: PLC0415 - aiohttp and all else, which help doesn't need

    return run(options)


def _token() -> str:
    """Return what controllers want of those who push.

    Raises:
        UserError: nobody has said it.
    """
    token = os.environ.get(SIGNAL_TOKEN) or os.environ.get(AGENT_TOKEN)
    if not token:
        raise UserError(
            f"{SIGNAL_TOKEN} is not set", hint="give it the token that the controllers want of those who push"
        )
    return token


def _pods(kubernetes: bool, policies: tuple[Path, ...], where: Mapping[str, str]) -> PodOptions | None:
    """Return whose pods to watch, by the options of that name.

    Raises:
        UserError: options don't go together.
    """
    if not kubernetes:
        named = [name for name, value in (*where.items(), ("policy", policies)) if value]
        if named:
            raise UserError(f"--{named[0]} has no meaning without --kubernetes", hint="give both, or neither")
        return None
    if not policies:
        raise UserError(
            "--kubernetes without --policy",
            hint="name the policy files: pods don't say which models they serve, and how much they may hold",
        )
    return PodOptions(policies=policies, **where)


def door_files(
    keys: Path | None, tls_certificate: Path | None, tls_key: Path | None, prefix: str = ""
) -> DoorFiles:
    """Return the files that say who may come in.

    Args:
        keys: the option `--keys-file`.
        tls_certificate: the option of this name.
        tls_key: the option of this name.
        prefix: what the options begin with.

    Raises:
        UserError: there is a key without a certificate.
    """
    if tls_key is not None and tls_certificate is None:
        raise UserError(
            f"--{prefix}tls-key without --{prefix}tls-certificate", hint="name the certificate's file, too"
        )
    return DoorFiles(keys=keys, tls_certificate=tls_certificate, tls_key=tls_key, prefix=prefix)


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
        answer_seconds=given["answer_seconds"],
        silence_seconds=given["silence_seconds"],
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
        *("kubernetes", "kubeconfig", "context", "namespace", "peers", "policy"),
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
    return _settings(command.make_context(COMMAND, arguments).params)
