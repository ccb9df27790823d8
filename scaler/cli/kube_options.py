"""Whom a command asks: a controller by its address, or a cluster as kubectl reaches it.

The rule, of which the first that fits counts:

1. `--controller URL`: the controller at that address, and nobody else.
2. A flag of kubectl's (`--kubeconfig`, `--context`, `--namespace`, `--all-namespaces`): that cluster.
3. The environment names a controller (`EMBERPOOL_CONTROLLER`): as 1.
4. The program is called `kubectl-emberpool`, or `KUBECONFIG` is set: the cluster that kubectl would take.
5. The controller on this machine, at its usual port.

Of a cluster, pods and nodes are read from the API server; the controller is asked through the server's proxy for what only it
knows. Inside a pod, a flag of kubectl's without any kubeconfig means the pod's own service account.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Final, get_type_hints

import typer

from scaler.cli.options import DEFAULT_SERVER, SERVER_VARIABLES
from scaler.errors import UserError

PLUGIN: Final = "kubectl emberpool"
"""How the program calls itself when kubectl runs it."""


def _controller_option(meaning: str) -> Any:  # noqa: ANN401 - as typer has it
    return typer.Option("--controller", "--server", "-s", metavar="URL", help=meaning, show_default=False)


ControllerUrl = Annotated[
    str | None,
    _controller_option(
        f"Ask the controller at this address (default: EMBERPOOL_CONTROLLER, else {DEFAULT_SERVER})."
    ),
]
ClustersController = Annotated[
    str | None,
    _controller_option(
        "Ask the cluster's controller at this address (default: through the cluster's API server)."
    ),
]
Kubeconfig = Annotated[
    str,
    typer.Option(
        "--kubeconfig",
        metavar="PATH",
        help="Ask the cluster that this file names (default: KUBECONFIG).",
        show_default=False,
    ),
]
ContextName = Annotated[
    str, typer.Option("--context", metavar="NAME", help="Which of its contexts.", show_default=False)
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", metavar="NAME", help="Look in this namespace of the cluster.", show_default=False
    ),
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Look in all namespaces of the cluster.")
]
ControllerNamespace = Annotated[
    str,
    typer.Option(
        "--controller-namespace",
        metavar="NAME",
        envvar="EMBERPOOL_CONTROLLER_NAMESPACE",
        help="Where the cluster has its controller (default: where the seats are, else emberpool).",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the flags said; empty means not said."""

    controller: str | None = None
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    all_namespaces: bool = False
    controller_namespace: str = ""

    @property
    def names_cluster(self) -> bool:
        """Whether one of kubectl's flags was given."""
        return bool(self.kubeconfig or self.context or self.namespace or self.all_namespaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class InCluster:
    """A cluster, as kubectl reaches it.

    Attributes:
        kubeconfig: path of the file; empty for kubectl's own rule.
        context: which context; empty for the current one.
        namespace: where to look; empty for the context's own.
        all_namespaces: look everywhere.
        controller_namespace: where the controller is; empty: where the seats are, else the usual one.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    all_namespaces: bool = False
    controller_namespace: str = ""


@dataclass(frozen=True, slots=True)
class AtUrl:
    """A controller by its address."""

    url: str


Target = AtUrl | InCluster


def target_of(said: Said, environ: Mapping[str, str], *, plugin: bool) -> Target:
    """Apply the rule above.

    Args:
        said: the flags.
        environ: the environment.
        plugin: whether kubectl runs the program.

    Raises:
        UserError: flags contradict each other.
    """
    if said.controller is not None:
        if said.names_cluster:
            raise UserError(
                "--controller names one controller, and kubectl's flags a cluster",
                hint="give one or the other: a cluster's controller is reached through its API server",
            )
        return AtUrl(said.controller)
    named = next((environ[name] for name in SERVER_VARIABLES if environ.get(name)), "")
    if not said.names_cluster and named:
        return AtUrl(named)
    if said.names_cluster or plugin or environ.get("KUBECONFIG"):
        return cluster_of(said)
    return AtUrl(DEFAULT_SERVER)


def cluster_of(said: Said) -> InCluster:
    """Return the cluster that flags name.

    Raises:
        UserError: flags contradict each other.
    """
    if said.namespace and said.all_namespaces:
        raise UserError("--namespace and --all-namespaces exclude each other", hint="give one of them")
    return InCluster(
        kubeconfig=said.kubeconfig,
        context=said.context,
        namespace=said.namespace,
        all_namespaces=said.all_namespaces,
        controller_namespace=said.controller_namespace,
    )


def is_plugin(context: typer.Context) -> bool:
    """Whether kubectl runs the program."""
    return context.find_root().info_name == PLUGIN


# ------------------------------------------------------------------ giving commands the flags

_FLAGS: Final[Mapping[str, tuple[Any, Any]]] = {
    "controller": (ControllerUrl, None),
    "kubeconfig": (Kubeconfig, ""),
    "context": (ContextName, ""),
    "namespace": (Namespace, ""),
    "all_namespaces": (AllNamespaces, False),
    "controller_namespace": (ControllerNamespace, ""),
}
"""Parameter → its type and default."""
_CALLED: Final = "called"
"""The parameter by which typer tells of the call itself."""


def whom(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the flags that say whom it asks; its parameter `target` gets what they come to."""
    return _flagged(
        command, lambda said, called: target_of(said, os.environ, plugin=is_plugin(called)), _FLAGS
    )


def cluster(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the flags that name a cluster, for what only a cluster knows."""
    flags = {name: flag for name, flag in _FLAGS.items() if name != "controller"}
    return _flagged(command, lambda said, _: cluster_of(said), flags)


def cluster_or_controller(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the flags that name a cluster, and `--controller` for where its API server passes nothing on.

    What only a cluster has is asked of no controller that nobody named: neither the environment nor this machine's own counts,
    and without them the rule ends where kubectl runs the program.
    """
    flags = {**_FLAGS, "controller": (ClustersController, None)}
    return _flagged(command, lambda said, _: target_of(said, {}, plugin=True), flags)


def _flagged(
    command: Callable[..., int],
    made: Callable[[Said, typer.Context], Target],
    flags: Mapping[str, tuple[Any, Any]],
) -> Callable[..., int]:
    """Return a command with flags in place of its parameter `target`, in the signature that typer reads."""
    hints = get_type_hints(command, include_extras=True)
    own = [each for each in inspect.signature(command).parameters.values() if each.name != "target"]
    keyword = inspect.Parameter.KEYWORD_ONLY

    @wraps(command)
    def called(**given: Any) -> int:  # noqa: ANN401 - whatever the command takes
        context: typer.Context = given.pop(_CALLED)
        said = Said(**{name: given.pop(name) for name in flags})
        return command(**given, target=made(said, context))

    parameters = [each.replace(kind=keyword, annotation=hints[each.name]) for each in own]
    parameters += [
        inspect.Parameter(name, keyword, default=default, annotation=kind)
        for name, (kind, default) in flags.items()
    ]
    parameters.append(inspect.Parameter(_CALLED, keyword, annotation=typer.Context))
    called.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called
