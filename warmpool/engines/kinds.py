"""Which adapter speaks to which kind of engine."""

from enum import StrEnum

from warmpool.engines.port import Engine
from warmpool.engines.vllm import VllmEngine


class EngineKind(StrEnum):
    """Kinds of engine, as policies name them (`engine.type`)."""

    REFERENCE = "Reference"
    VLLM = "VLLM"


def connect(kind: EngineKind, control: str, *, model: str) -> Engine:
    """Return the adapter for an engine whose control listener is at `control`. Nothing is sent yet."""
    match kind:
        case EngineKind.REFERENCE | EngineKind.VLLM:
            return VllmEngine(control, model=model)
