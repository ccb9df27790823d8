"""The adapter for the reference engine: vLLM's control routes, a guard of its own, and phases of its start.

It differs from vLLM where it tells more: `/is_sleeping` is true only while something is away, and `/emberpool/memory` tells at any
moment where weights and KV memory are, in what the engine itself has measured. So an order that was not answered leaves nothing open.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from warmpool.engines.capabilities import Capabilities, Capability, Change, Finding, Ground
from warmpool.engines.deadline import Deadline
from warmpool.engines.evidence import Evidence
from warmpool.engines.memory import Kv, Weights
from warmpool.engines.port import KvWhenPaused
from warmpool.engines.trials import refused, refused_by
from warmpool.engines.vllm import VllmEngine
from warmpool.errors import EngineError, EngineLost, EngineRejected, EngineUnfit

_MEMORY = "/emberpool/memory"
_STARTUP = "/emberpool/startup"
_PENDING = "Pending"
_PLACES = {"Held": Weights.HELD, "Parked": Weights.PARKED}


class ReferenceEngine(VllmEngine):
    """One reference engine over HTTP. Belongs to the event loop in which it was made."""

    kind: ClassVar[str] = "Reference"
    tells_kv: ClassVar[bool] = True
    parks_from_release: ClassVar[bool] = True

    async def probe(self, kv: KvWhenPaused, *, deadline: Deadline) -> Capabilities:
        """Find out what it can be told, by asking and by doing what can be undone."""
        found = await super().probe(kv, deadline=deadline)
        findings = {
            **found.findings,
            Capability.WEIGHTS_PARKING: await self._find_parking(deadline),
            Capability.LATE_CAPTURE: await self._find_capture(deadline),
        }
        return replace(found, findings=MappingProxyType(findings))

    async def _find_parking(self, deadline: Deadline) -> Finding:
        """Ask whether it can be parked. Nothing is moved: its copy in host memory stays once it is made."""
        try:
            refusal = (await self._memory(deadline)).get("cannotPark")
        except EngineLost:
            raise
        except EngineError as error:
            return refused_by(error)
        if refusal:
            return refused(Ground.SWITCHED_OFF, f"GET {_MEMORY}: {refusal}")
        return Finding(
            ground=Ground.DECLARED, reason=f"GET {_MEMORY}: its weights lie where they can be moved from"
        )

    async def _find_capture(self, deadline: Deadline) -> Finding:
        """Ask whether graphs are still to be captured."""
        try:
            graphs = (await self._transport.get(_STARTUP, deadline)).checked().json().get("graphs")
        except EngineLost:
            raise
        except EngineError as error:
            return refused_by(error)
        if graphs != _PENDING:
            return refused(
                Ground.SWITCHED_OFF, f"GET {_STARTUP}: graphs {graphs}, and none is to be captured"
            )
        return Finding(ground=Ground.DECLARED, reason=f"GET {_STARTUP}: graphs {graphs}")

    async def capture(self, *, deadline: Deadline) -> None:
        """Have it capture its graphs. Idempotent."""
        answer = (await self._transport.post("/emberpool/capture", deadline)).checked().json()
        if answer.get("graphs") == _PENDING:
            evidence = Evidence(Change.RESUME)
            raise evidence.contradict("POST /emberpool/capture: answered, and graphs are still pending")

    async def _know_weights(self, deadline: Deadline) -> None:
        """Ask where its memory is, if an order that failed left that open."""
        controls = self._controls
        if controls.weights is not Weights.UNKNOWN:
            return
        told = await self._memory(deadline)
        where = told.get("weights")
        if where not in _PLACES:
            raise EngineRejected(f"GET {_MEMORY}: its weights are on their way ({where}); try again later")
        controls.weights = _PLACES[where]
        controls.kv = Kv.HELD if _whole(told, "kvTakenBytes") else Kv.RELEASED

    async def _verify_parked(self, evidence: Evidence, deadline: Deadline) -> None:
        told = await self._memory(deadline)
        left = _whole(told, "weightsTakenBytes") + _whole(told, "kvTakenBytes")
        if told.get("weights") != "Parked" or left:
            raise evidence.contradict(f"GET {_MEMORY}: {told.get('weights')}, with {left} bytes still taken")
        evidence.told(f"GET {_MEMORY}: Parked, in {_whole(told, 'parkedBytes')} bytes of host memory")

    async def _verify_unparked(self, evidence: Evidence, deadline: Deadline) -> None:
        told = await self._memory(deadline)
        taken = _whole(told, "weightsTakenBytes")
        if told.get("weights") != "Held" or not taken:
            raise evidence.contradict(f"GET {_MEMORY}: {told.get('weights')}, with {taken} bytes taken")
        evidence.told(f"GET {_MEMORY}: Held, the bytes' sums are those from before")

    async def _memory(self, deadline: Deadline) -> Mapping[str, Any]:
        return (await self._transport.get(_MEMORY, deadline)).checked().json()


def _whole(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EngineUnfit(f"GET {_MEMORY}: {name} is no count of bytes: {value!r}")
    return value
