"""The adapter for the reference engine: vLLM's control routes, a guard of its own, and phases of its start.

It differs from vLLM where it tells more: `/is_sleeping` is true only while the KV memory is given back, and weights never leave.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

from warmpool.engines.capabilities import Capabilities, Capability, Ground
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.engines.trials import refused
from warmpool.engines.vllm import VllmEngine


class ReferenceEngine(VllmEngine):
    """One reference engine over HTTP. Belongs to the event loop in which it was made."""

    kind: ClassVar[str] = "Reference"
    tells_kv: ClassVar[bool] = True

    async def probe(self, kv: KvWhenPaused, *, deadline: Deadline) -> Capabilities:
        """Find out what it can be told, by asking and by doing what can be undone."""
        found = await super().probe(kv, deadline=deadline)
        parking = refused(Ground.NOT_OF_KIND, "the reference engine's weights never leave the device")
        findings = {**found.findings, Capability.WEIGHTS_PARKING: parking}
        return replace(found, findings=MappingProxyType(findings))
