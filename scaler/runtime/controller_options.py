"""What `emberpool controller` can be told; plain values, so that the command line needs none of the runtime for them."""

from dataclasses import dataclass, field
from pathlib import Path

from scaler.keda.settings import KedaSettings
from scaler.runtime.signal_options import SignalOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMapName:
    """Which ConfigMap holds the policies.

    Attributes:
        name: its name.
        namespace: where it is; empty: where the fleets are.
    """

    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Which cluster, and what other replicas are told.

    Attributes:
        kubeconfig: path of a kubeconfig file, or several as in `KUBECONFIG`; empty: as kubectl would.
        context: which of its contexts; empty: the current one.
        namespace: where the fleets are; empty: the context's, or the pod's.
        advertise: base URL under which other replicas reach this one; empty: it is worked out.
        policies: the ConfigMap that holds the policies; None: they are in files.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    advertise: str = ""
    policies: ConfigMapName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """Options of one controller process.

    Attributes:
        policies: policy files or directories; none where a ConfigMap holds the policies.
        agents: the file that lists the agents; None on Kubernetes.
        kubernetes: the cluster; None with a list of agents.
        token: bearer token that agents want, and must show when they report.
        host: address that its API listens on.
        port: the API's port; 0 takes a free one.
        state_dir: where decisions and events are kept; None: nowhere.
        signals: where signals come from.
        keda: where KEDA is answered; None: nowhere.
    """

    policies: tuple[Path, ...]
    agents: Path | None = None
    kubernetes: KubernetesOptions | None = None
    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 9080
    state_dir: Path | None = None
    signals: SignalOptions = field(default_factory=SignalOptions)
    keda: KedaSettings | None = None
