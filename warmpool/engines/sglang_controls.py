"""SGLang's control routes as single steps, and what is known of its memory while they are taken.

Parameters go in JSON bodies here. An order that the scheduler can't carry out ends the whole server, so each has a precondition.
"""

from collections.abc import Mapping
from typing import Any, Final

from warmpool.engines.deadline import Deadline
from warmpool.engines.memory import Kv, Weights
from warmpool.engines.pages import SGLANG, parse_load
from warmpool.engines.port import EngineLoad
from warmpool.engines.transport import Answer, Transport, shown
from warmpool.errors import EngineUnfit

_KV: Final = "kv_cache"
_WEIGHTS: Final = "weights"
_NOT_READY: Final = 503


class SglangControls:
    """The control routes of one engine.

    Args:
        transport: its listener.

    Attributes:
        kv: what is known of its KV memory.
        weights: what is known of its weights.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.kv = Kv.HELD
        self.weights = Weights.HELD

    async def pause(self, deadline: Deadline) -> None:
        """Stop the scheduler where it is: what still runs stays half done inside. The answer comes before it has stopped.

        Raises:
            EngineError: as the port says.
        """
        # Without a mode the server ends every request.
        (await self._transport.post("/pause_generation", deadline, body={"mode": "in_place"})).checked()

    async def go_on(self, deadline: Deadline) -> None:
        """Start the scheduler.

        Raises:
            EngineError: as the port says.
        """
        (await self._transport.post("/continue_generation", deadline, body={})).checked()

    async def release_kv(self, deadline: Deadline) -> None:
        """Give the KV memory back. The engine has to be paused and empty, and its memory there.

        Raises:
            EngineError: as the port says.
        """
        self.kv = Kv.UNKNOWN
        answer = await self._release((_KV,), deadline)
        if answer.missing:
            self.kv = Kv.HELD
        answer.checked()
        self.kv = Kv.RELEASED

    async def take_kv(self, deadline: Deadline) -> None:
        """Take the KV memory, which has to be away. The scheduler stays as it is.

        Raises:
            EngineError: as the port says.
        """
        self.kv = Kv.UNKNOWN
        await self._take(_KV, deadline)
        self.kv = Kv.HELD

    async def park(self, deadline: Deadline) -> None:
        """Move the weights to host memory, and give the KV memory back if it is there. The engine has to be paused and empty.

        Raises:
            EngineError: as the port says.
        """
        tags = (_KV, _WEIGHTS) if self.kv is Kv.HELD else (_WEIGHTS,)
        self.weights = Weights.UNKNOWN
        answer = await self._release(tags, deadline)
        if answer.missing:
            self.weights = Weights.HELD
        answer.checked()
        self.weights, self.kv = Weights.PARKED, Kv.RELEASED

    async def unpark(self, deadline: Deadline) -> None:
        """Move the weights back, which have to be away. KV memory and scheduler stay as they are.

        Raises:
            EngineError: as the port says.
        """
        self.weights = Weights.UNKNOWN
        await self._take(_WEIGHTS, deadline)
        self.weights = Weights.HELD

    async def _release(self, tags: tuple[str, ...], deadline: Deadline) -> Answer:
        return await self._transport.post("/release_memory_occupation", deadline, body={"tags": list(tags)})

    async def _take(self, tag: str, deadline: Deadline) -> None:
        body = {"tags": [tag]}
        (await self._transport.post("/resume_memory_occupation", deadline, body=body)).checked()

    async def is_ready(self, deadline: Deadline) -> bool | None:
        """Ask whether it is healthy and not paused; None if it has no such route.

        Raises:
            EngineError: as the port says.
        """
        answer = await self._transport.get("/ready", deadline)
        if answer.missing:
            return None
        if answer.status == _NOT_READY:
            return False
        answer.checked()
        return True

    async def load(self, deadline: Deadline) -> EngineLoad:
        """Ask the scheduler what runs and what waits. It answers in turn, after whatever it was told before.

        Raises:
            EngineUnfit: neither `/v1/loads` nor the metrics tell.
            EngineError: as the port says.
        """
        answer = await self._transport.get("/v1/loads?include=core", deadline)
        if answer.missing:
            return parse_load((await self._transport.get("/metrics", deadline)).checked().text, SGLANG)
        return _load(answer.checked())

    async def server_info(self, deadline: Deadline) -> Mapping[str, Any]:
        """Ask what it was started with.

        Raises:
            EngineError: as the port says.
        """
        answer = await self._transport.get("/server_info", deadline)
        if answer.missing:
            answer = await self._transport.get("/get_server_info", deadline)
        return answer.checked().json()


def _load(answer: Answer) -> EngineLoad:
    loads = answer.json().get("loads")
    try:
        ranks = [(each["num_running_reqs"], each["num_waiting_reqs"]) for each in loads or ()]
        if not ranks:
            raise ValueError("no rank")
        return EngineLoad(
            running=sum(int(running) for running, _ in ranks),
            waiting=sum(int(waiting) for _, waiting in ranks),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineUnfit(f"{answer.what}: the answer tells no load: {shown(answer.text)}") from error
