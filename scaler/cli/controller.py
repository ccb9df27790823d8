"""`emberpool controller`: the process that decides."""

import os
from pathlib import Path
from typing import Annotated

import typer

from scaler.cli.keda_options import KedaFlags, KedaHost, KedaPort, KedaStreamsSpecs, KedaTls, keda_doors
from scaler.cli.options import examples
from scaler.cli.signal_options import (
    AGENT_TOKEN,
    DEFAULT_CHANNEL,
    Prometheus,
    PushTokens,
    Redis,
    RedisPasswordFile,
    SignalChannel,
    signal_options,
)
from scaler.errors import UserError
from scaler.runtime.controller_options import ConfigMapName, ControllerOptions, KubernetesOptions
from scaler.runtime.sockets import Door, check_apart

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_LARGEST_PORT = 65_535


@app.command(
    epilog=examples(
        "EMBERPOOL_AGENT_TOKEN=… emberpool controller --policy policies/ --agents agents.yaml",
        "emberpool controller --policy policies/ --agents agents.yaml --host 0.0.0.0 --state-dir /var/lib/emberpool",
        "emberpool controller --policy policies/ --kubernetes --namespace serving --keda-port 6000",
        "emberpool controller --policy-config-map emberpool-policies --kubernetes",
        "",
        "The list of agents:",
        "apiVersion: emberpool.dev/v1alpha1",
        "kind: AgentList",
        "metadata: {name: lab}",
        "spec:",
        "  fleets:",
        "    - name: spares",
        "      seats:",
        "        - {name: seat-0, agent: 'http://10.0.0.10:9081', node: gpu-a}",
    )
)
def controller(  # noqa: PLR0917 - typer hands every option over by name
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy",
            "-f",
            metavar="PATH",
            help="Policy file or directory; repeatable. It is followed: what changes takes effect while it runs.",
            show_default=False,
        ),
    ] = None,
    policy_config_map: Annotated[
        str,
        typer.Option(
            metavar="[NAMESPACE/]NAME",
            help="With --kubernetes, instead of --policy: the ConfigMap that holds the policies. It is watched, so that what changes "
            "takes effect at once; a volume of it would be up to 90 s late.",
            show_default=False,
        ),
    ] = "",
    agents: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file that lists the agents of all seats.", show_default=False),
    ] = None,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes", help="Work on a Kubernetes cluster. Several replicas may run; one of them leads."
        ),
    ] = False,
    kubeconfig: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="How the cluster is reached (default: KUBECONFIG, the pod's service account, ~/.kube/config).",
            show_default=False,
        ),
    ] = "",
    context: Annotated[
        str, typer.Option(metavar="NAME", help="Which context of the kubeconfig.", show_default=False)
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Where the fleets are (default: the context's, or the pod's own).",
            show_default=False,
        ),
    ] = "",
    advertise: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where other replicas reach this one's API (default: --host and --port, in a pod POD_IP).",
            show_default=False,
        ),
    ] = "",
    host: Annotated[str, typer.Option(help="Address of its API.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=_LARGEST_PORT, help="Its port; 0 takes a free one.")] = 9080,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where decisions and events are kept (default: nowhere)."),
    ] = None,
    prometheus: Prometheus = None,
    redis: Redis = None,
    redis_password_file: RedisPasswordFile = None,
    signal_channel: SignalChannel = DEFAULT_CHANNEL,
    push_tokens: PushTokens = None,
    keda_port: KedaPort = None,
    keda_host: KedaHost = None,
    keda_tls: KedaTls = None,
    keda_streams_specs: KedaStreamsSpecs = False,
) -> int:
    """Decide for the seats of a list of agents, on VMs, under Slurm, in containers, or for the pods of a Kubernetes namespace.

    One controller works with a list at a time. It starts and ends no seat: what the list has is what there is. On Kubernetes it sizes
    the fleets' workloads; one replica leads, by a Lease, and the others stand by: they answer KEDA and people as the leader does, and
    one of them takes over within seconds when it is gone. Agents
    report to all of them, and gateways follow their routes. Its end leaves residents as they are; the next one finds out from the
    agents what serves. SIGHUP, and POST /-/reload with the token, have policies read at once; `emberpool policy status`
    tells which are in force. The token that agents want is read from the environment variable EMBERPOOL_AGENT_TOKEN.
    Gateways and others who push samples show that one, too, or the one in EMBERPOOL_SIGNAL_TOKEN, which is good for
    nothing else.
    """
    token = os.environ.get(AGENT_TOKEN, "")
    if not token:
        raise UserError(
            f"{AGENT_TOKEN} is not set",
            hint="give it the token that the agents were started with; they refuse others",
        )
    given = KubernetesOptions(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        advertise=advertise,
        policies=_config_map_name(policy_config_map),
    )
    cluster = _cluster(given, agents, kubernetes=kubernetes)
    _check_policies(policy, policy_config_map)
    options = ControllerOptions(
        policies=tuple(policy or ()),
        agents=agents,
        kubernetes=cluster,
        token=token,
        host=host,
        port=port,
        state_dir=state_dir,
        signals=signal_options(prometheus, redis, redis_password_file, signal_channel, push_tokens),
        keda=KedaFlags(keda_port, keda_host, keda_tls, keda_streams_specs).settings(),
    )
    check_apart([Door(host, port, "--port"), *keda_doors(options.keda)])
    from scaler.runtime.controller_process import run  # noqa: PLC0415 - aiohttp and all else, which help doesn't need

    return run(options)


def _cluster(given: KubernetesOptions, agents: Path | None, *, kubernetes: bool) -> KubernetesOptions | None:
    """Return which cluster is meant; None with a list of agents.

    Raises:
        UserError: both were named, or none, or options for a cluster without one.
    """
    if kubernetes and agents is not None:
        raise UserError(
            "--agents and --kubernetes were both given", hint="seats are either listed or a cluster's pods"
        )
    if kubernetes:
        return given
    if agents is None:
        raise UserError(
            "there is no word of where the seats are",
            hint="--agents FILE lists them, or --kubernetes finds them in a cluster",
        )
    if given != KubernetesOptions():
        raise UserError(
            "--kubeconfig, --context, --namespace, --advertise and --policy-config-map are for --kubernetes",
            hint="add --kubernetes",
        )
    return None


def _config_map_name(text: str) -> ConfigMapName | None:
    """Read which ConfigMap is meant; None for none.

    Raises:
        UserError: it is no name.
    """
    if not text:
        return None
    namespace, slash, name = text.rpartition("/")
    if not name or "/" in namespace or (slash and not namespace):
        raise UserError(
            f"{text!r} names no ConfigMap", hint="write --policy-config-map NAME, or NAMESPACE/NAME"
        )
    return ConfigMapName(name=name, namespace=namespace)


def _check_policies(files: list[Path] | None, in_config_map: str) -> None:
    """Check that policies are in files or in a ConfigMap.

    Raises:
        UserError: both were named, or none.
    """
    if files and in_config_map:
        raise UserError(
            "--policy and --policy-config-map were both given",
            hint="one set of policies is in force: choose one",
        )
    if not files and not in_config_map:
        raise UserError(
            "there is no word of where the policies are",
            hint="--policy PATH names files or directories, or --policy-config-map NAME a ConfigMap",
        )
