"""Finding out what a resident's engine can be told, and whether that is enough for its seat."""

from typing import Final

from warmpool.agent.board import Board, Record
from warmpool.engines.capabilities import Capabilities, Capability, Ground
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.errors import EngineUnfit
from warmpool.expectations import Ownership

PROBE_SECONDS: Final = 180.0
"""How long finding out what an engine can be told may take, with the undoing."""


async def probe(board: Board, record: Record, deadline: Deadline) -> None:
    """Find out what a resident's engine can be told. Only out of rotation, and while it may compute.

    Raises:
        EngineUnfit: it lacks what its seat needs.
        EngineError: it failed, or can't be brought back to computing.
    """
    record.unsure = True  # whoever cuts this short finds it paused, or not
    found = record.capabilities = await record.engine.probe(record.kv, deadline=deadline)
    record.unsure = False
    record.running = record.running.completed(Ownership(engine_version=found.version))
    board.touch()
    lacks = _lacks(found, record.kv)
    if lacks:
        raise EngineUnfit(f"{record.policy}: {'; '.join(lacks)}")


def _lacks(found: Capabilities, kv: KvWhenPaused) -> list[str]:
    """Return what an engine would need for its seat and doesn't have, with the reasons.

    An engine that can't pause at all may be kept out of rotation on a seat of its own, and wants nothing more.
    """
    needed = {Capability.TOKEN_IDS, Capability.SCHEDULER_PAUSE}
    if kv is KvWhenPaused.RELEASE:
        needed.add(Capability.KV_RELEASE)
    elif found.finding(Capability.SCHEDULER_PAUSE).ground is Ground.NOT_OF_KIND:
        needed.discard(Capability.SCHEDULER_PAUSE)
    return [
        f"{capability} is refused ({finding.ground}): {finding.reason}"
        for capability in Capability
        if capability in needed and not (finding := found.finding(capability)).granted
    ]
