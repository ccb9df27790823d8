"""Which adapter speaks to which kind of engine, and what stands in front of it."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

# Whoever only names kinds, as the command line does, needs no HTTP client and no event loop.
if TYPE_CHECKING:
    from warmpool.engines.guards import Guard
    from warmpool.engines.port import Engine


class EngineKind(StrEnum):
    """Kinds of engine, as policies name them (`engine.type`)."""

    REFERENCE = "Reference"
    VLLM = "VLLM"
    SGLANG = "SGLang"
    GENERIC = "Generic"


def connect(kind: EngineKind, control: str, *, model: str, guard: "Guard | None") -> "Engine":
    """Return the adapter for an engine. Nothing is sent yet.

    Args:
        kind: the kind of engine.
        control: base URL of its control listener.
        model: the name that its completions route knows it by.
        guard: what stands in front of it; None for a guard of the engine's own, whose routes are on the control listener. The
            reference engine always has its own.
    """
    # As above.
    from warmpool.engines.generic import GenericEngine  # noqa: PLC0415
    from warmpool.engines.reference import ReferenceEngine  # noqa: PLC0415
    from warmpool.engines.sglang import SglangEngine  # noqa: PLC0415
    from warmpool.engines.vllm import VllmEngine  # noqa: PLC0415

    made: dict[EngineKind, Callable[..., Engine]] = {
        EngineKind.REFERENCE: ReferenceEngine,
        EngineKind.VLLM: VllmEngine,
        EngineKind.SGLANG: SglangEngine,
        EngineKind.GENERIC: GenericEngine,
    }
    return made[kind](control, model=model, guard=guard)
