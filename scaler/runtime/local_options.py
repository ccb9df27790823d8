"""What `emberpool local` can be told; plain values, so that the command line needs none of the runtime to parse them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scaler.gateway.settings import GatewaySettings
from scaler.keda.settings import KedaSettings
from scaler.runtime.gateway_options import DoorFiles
from scaler.runtime.signal_options import SignalOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of one `emberpool local`.

    Attributes:
        checkpoints: checkpoint directory by policy name (or by a model name that the policy lists).
        policies: policy files or directories; empty: a default set is made, one policy per checkpoint.
        seats: seats of the default fleet; None: one per GPU, or one on a machine without GPUs.
        seats_per_gpu: how many seats share one GPU.
        device: `auto`, `cpu` or `cuda`.
        gateway_host: address that the OpenAI-compatible endpoint listens on.
        gateway_port: its port; 0 takes a free one.
        gateway_files: who may come in there.
        gateway: the gateway's limits and deadlines; who it is and whom it pushes to is not said here.
        controller_port: port of the controller's API on 127.0.0.1; 0 takes a free one.
        state_dir: where records, logs and local.json go; None: a temporary directory, removed at the end.
        seat_budget: seats that all fleets together may have; None: no such limit.
        max_num_seqs: sequences per engine; None: the fleet's targetInFlight of each policy.
        max_model_len: tokens per sequence; None: the engine's default.
        zygote: fork engines from a process that has imported what they need.
        dry_run: print what would run, and start nothing.
        token: what agents and whoever wants a reload must show; empty: one that nobody else knows.
        signals: where signals come from.
        keda: where KEDA is answered; None: nowhere.
    """

    checkpoints: Mapping[str, Path]
    policies: tuple[Path, ...] = ()
    seats: int | None = None
    seats_per_gpu: int = 1
    device: str = "auto"
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8000
    gateway_files: DoorFiles = field(default_factory=DoorFiles)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    controller_port: int = 9080
    state_dir: Path | None = None
    seat_budget: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    zygote: bool = True
    dry_run: bool = False
    token: str = ""
    signals: SignalOptions = field(default_factory=SignalOptions)
    keda: KedaSettings | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
