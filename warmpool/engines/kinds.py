"""Which adapter speaks to which kind of engine, and what stands in front of it."""

from enum import StrEnum
from typing import TYPE_CHECKING

from warmpool.engines.port import Engine

if TYPE_CHECKING:  # whoever only names kinds, as the command line does, needs no HTTP client
    from warmpool.engines.guards import Guard


class EngineKind(StrEnum):
    """Kinds of engine, as policies name them (`engine.type`)."""

    REFERENCE = "Reference"
    VLLM = "VLLM"
    SGLANG = "SGLang"
    GENERIC = "Generic"


def connect(
    kind: EngineKind, control: str, *, model: str, front: tuple[str, int], guard: "Guard | None" = None
) -> Engine:
    """Return the adapter for an engine. Nothing is sent yet.

    Args:
        kind: the kind of engine.
        control: base URL of its control listener.
        model: the name that its completions route knows it by.
        front: address and port at which clients reach it: the guard's for engines that have none of their own.
        guard: what stands in front of such an engine; a port that listens at `front` if left out.
    """
    # As above.
    from warmpool.engines.forwarding import ForwardingGuard  # noqa: PLC0415
    from warmpool.engines.generic import GenericEngine  # noqa: PLC0415
    from warmpool.engines.reference import ReferenceEngine  # noqa: PLC0415
    from warmpool.engines.sglang import SglangEngine  # noqa: PLC0415
    from warmpool.engines.vllm import VllmEngine  # noqa: PLC0415

    stands = ForwardingGuard(*front, control) if guard is None else guard
    match kind:
        case EngineKind.REFERENCE:
            return ReferenceEngine(control, model=model)
        case EngineKind.VLLM:
            return VllmEngine(control, model=model, guard=stands)
        case EngineKind.SGLANG:
            return SglangEngine(control, model=model, guard=stands)
        case EngineKind.GENERIC:
            return GenericEngine(control, model=model, guard=stands)
