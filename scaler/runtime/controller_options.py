"""What `emberpool controller` can be told; plain values, so that the command line needs none of the runtime for them."""

from dataclasses import dataclass, field
from pathlib import Path

from scaler.keda.settings import KedaSettings
from scaler.runtime.signal_options import SignalOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """Options of one controller process.

    Attributes:
        policies: policy files or directories.
        agents: the file that lists the agents.
        token: bearer token that agents want, and must show when they report.
        host: address that its API listens on.
        port: the API's port; 0 takes a free one.
        state_dir: where decisions and events are kept; None: nowhere.
        signals: where signals come from.
        keda: where KEDA is answered; None: nowhere.
    """

    policies: tuple[Path, ...]
    agents: Path
    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 9080
    state_dir: Path | None = None
    signals: SignalOptions = field(default_factory=SignalOptions)
    keda: KedaSettings | None = None
