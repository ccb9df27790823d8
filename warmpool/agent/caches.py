"""Where engines keep what they compile: in one directory of the node or of all nodes, filled once and found again by the next start.

What is compiled fits one model of GPU and one driver, so both name the directory: after a change of either nothing wrong is found, and
the old is still there for who goes back. They are read from the driver's files in /proc, which makes no context on any device.
"""

import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from warmpool.agent.config import AgentConfig

PROC: Final = Path("/proc/driver/nvidia")
VARIABLES: Final[Mapping[str, str]] = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "SGLANG_CACHE_DIR": "sglang",
    "DG_JIT_CACHE_DIR": "deepgemm",
    "CUDA_CACHE_PATH": "cuda",
}
"""Variables by which engines and their libraries are told where to keep it, with the part of the directory that each gets."""
_USER: Final = "USER"
"""Inductor names directories for the user, and fails in a container whose user has no name."""

_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_UUID = re.compile(r"^GPU UUID:\s*(\S+)\s*$", re.MULTILINE)
_DRIVER = re.compile(r"\s(\d{3,}\.\d+(?:\.\d+)*)\s")


class Machine(NamedTuple):
    """What compiled code depends on.

    Attributes:
        models: models of the seat's GPUs, each once; none without any.
        driver: version of the driver; empty without one.
    """

    models: tuple[str, ...] = ()
    driver: str = ""

    @property
    def key(self) -> str:
        """Name of a directory for what was compiled here."""
        if not self.models:
            return f"cpu-{_slug(platform.machine())}"
        return "-".join([*(_slug(model) for model in self.models), *([self.driver] if self.driver else [])])


def machine_of(version: str, cards: Iterable[str], gpus: Iterable[str]) -> Machine:
    """Return what compiled code depends on. PURE.

    Args:
        version: the driver's file of that name.
        cards: its `information` of each GPU.
        gpus: UUIDs of the seat's; where none of them is found there, all count.
    """
    wanted, found = set(gpus), []
    for card in cards:
        model, uuid = _MODEL.search(card), _UUID.search(card)
        if model is not None:
            found.append(("" if uuid is None else uuid[1], model[1]))
    own = [model for uuid, model in found if uuid in wanted] or [model for _, model in found]
    driver = _DRIVER.search(version)
    return Machine(models=tuple(sorted(set(own))), driver="" if driver is None else driver[1])


def read_machine(gpus: Iterable[str], proc: Path = PROC) -> Machine:
    """Read the driver's files; what isn't there counts as nothing."""
    try:
        version = (proc / "version").read_text("utf-8", errors="replace")
        cards = [
            path.read_text("utf-8", errors="replace") for path in sorted(proc.glob("gpus/*/information"))
        ]
    except OSError:
        return Machine()
    return machine_of(version, cards, gpus)


def with_caches(config: AgentConfig, machine: Machine) -> AgentConfig:
    """Return a config whose engines keep what they compile where it says. What a resident's own environment says stays. PURE.

    Args:
        config: the seat.
        machine: what it runs on.
    """
    if config.compile_cache is None:
        return config
    directory = config.compile_cache / machine.key
    told = {name: str(directory / part) for name, part in VARIABLES.items()} | {_USER: "emberpool"}
    residents = tuple(
        each.model_copy(update={"environment": {**told, **each.environment}}) for each in config.residents
    )
    return config.model_copy(update={"residents": residents})


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
