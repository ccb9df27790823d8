"""What an engine is told at its start. No torch here: the command line reads it before anything heavy is imported."""

from dataclasses import dataclass, field
from pathlib import Path

from warmpool.reference.pacing import Pacer
from warmpool.reference.scheduler import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What to load and how to compute it.

    Attributes:
        checkpoint: a directory in Hugging Face's layout.
        device: `cpu`, `cuda` or `cuda:N`; `auto` takes CUDA where there is a device.
        dtype: `float32` or `bfloat16`; `auto` takes float32 on CPU and bfloat16 on CUDA.
        threads: threads that one operation may use on the CPU.
        max_num_seqs: sequences that run at once.
        max_model_len: tokens that one of them may have.
        kv_memory: where a CUDA device's KV memory comes from, and with it that of the weights: `mapped`, `allocated`, or `auto` for
            mapped where the device can. Only from mapped memory can weights be parked.
        kernels: what computes attention on CUDA: `fused` (our own, which need Triton), `gathered` (torch's), or `auto` for ours
            where they can be compiled.
        enforce_eager: capture no CUDA graphs.
        defer_capture: be ready without CUDA graphs, and capture them once that is asked for.
        stage: the socket of the node's stage daemon, which may have the weights already; None where none is asked.
        load_bytes_per_second: cap on what reading weights takes, of all ranks together, so that a neighbour that serves isn't slowed
            down; None for none.
        tensor_parallel_size: ranks that share each layer, one process and on CUDA one device each.
    """

    checkpoint: Path
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    max_num_seqs: int = 8
    max_model_len: int = 512
    kv_memory: str = "auto"
    kernels: str = "auto"
    enforce_eager: bool = False
    defer_capture: bool = False
    stage: Path | None = None
    load_bytes_per_second: float | None = None
    tensor_parallel_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where and how to serve.

    Attributes:
        models: the names that clients use; the first one names the engine in its metrics.
        host: address of the public listener.
        port: its port; 0 lets the system choose.
        control_host: address of the control listener; keep it on the loopback interface.
        control_port: its port; 0 lets the system choose.
        guard_open: whether the public listener lets requests through from the start.
        ready_fd: a file descriptor that gets one line of JSON when the engine is ready, and is then closed.
        shutdown_seconds: how long requests may go on after SIGTERM.
        limits: bounds of the batch.
        pacer: the cap on each sequence's token rate.
    """

    models: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    control_host: str = "127.0.0.1"
    control_port: int = 8001
    guard_open: bool = True
    ready_fd: int | None = None
    shutdown_seconds: float = 60.0
    limits: Limits = field(default_factory=lambda: Limits(max_num_seqs=8))
    pacer: Pacer = field(default_factory=Pacer)
