"""vLLM's control routes as single steps, and what is known of its memory while they are taken.

What a 200 is worth was learned on real servers of version 0.32: `/pause` ends requests unless `mode=wait` is sent as a query
parameter, and ignores a JSON body; `/wake_up` with tags that aren't asleep answers 200 and names what still is; a release that
failed leaves the memory marked as away all the same, until `/wake_up?tags=kv_cache`; `/resume` never takes memory back. From its
source: `/sleep` while anything is away answers 200, has its metrics say that the weights are away, and moves nothing.
"""

from typing import Final

from warmpool.engines.deadline import Deadline
from warmpool.engines.memory import Kv, Weights
from warmpool.engines.transport import Answer, Transport
from warmpool.errors import EngineUnfit

SLEEPING: Final = "sleeping"
"""What `/wake_up` answers as its status while something is still asleep."""
METRICS: Final = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:engine_sleep_state",
    "vllm:engine_sleep_component_state",
)
"""What is read of the metrics page; servers that can't choose send all of it."""


class VllmControls:
    """The control routes of one engine.

    Args:
        transport: its control listener.

    Attributes:
        kv: what is known of its KV memory.
        weights: what is known of its weights.
        half_awake: its weights came back alone. Until the KV memory follows, its metrics may go on calling them away.
        releases_by_sleep: its KV memory is released by `/sleep?tags=kv_cache`, which is known to do just that.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.kv = Kv.HELD
        self.weights = Weights.HELD
        self.half_awake = False
        self.releases_by_sleep = False

    async def pause(self, deadline: Deadline, *, mode: str = "wait", clear_cache: bool = False) -> None:
        """Stop the scheduler. The server's own default mode ends what runs, so a mode is always sent.

        Raises:
            EngineError: as the port says.
        """
        params = {"mode": mode, "clear_cache": "true" if clear_cache else "false"}
        (await self._transport.post("/pause", deadline, params=params)).checked()

    async def resume(self, deadline: Deadline) -> None:
        """Start the scheduler. KV memory that was released stays away, and the engine would compute without.

        Raises:
            EngineError: as the port says.
        """
        (await self._transport.post("/resume", deadline)).checked()

    async def release_kv(self, deadline: Deadline) -> Answer:
        """Give the KV memory back. The engine has to be paused, with nothing inside.

        Raises:
            EngineError: as the port says.
        """
        self.kv = Kv.UNKNOWN
        if self.releases_by_sleep:
            params = {"tags": "kv_cache", "mode": "wait"}
            answer = await self._transport.post("/sleep", deadline, params=params)
        else:
            answer = await self._transport.post("/release_kv_cache_memory", deadline)
        if answer.missing:
            self.kv = Kv.HELD
        answer.checked()
        self.kv = Kv.RELEASED
        return answer

    async def take_kv(self, deadline: Deadline) -> None:
        """Take the KV memory, which starts the scheduler as well. Where nothing is away it does the latter alone.

        Raises:
            EngineUnfit: it answered that something is still asleep.
            EngineError: as the port says.
        """
        await self._wake_whole(deadline, {"tags": "kv_cache"})

    async def wake_all(self, deadline: Deadline) -> None:
        """Take everything that is away, weights too, and start the scheduler.

        Raises:
            EngineUnfit: it answered that something is still asleep.
            EngineError: as the port says.
        """
        await self._wake_whole(deadline, None)

    async def park(self, deadline: Deadline) -> None:
        """Move the weights to host memory and drop the KV memory. The engine has to be paused, with nothing inside.

        Raises:
            EngineError: as the port says.
        """
        self.weights = Weights.UNKNOWN
        answer = await self._transport.post("/sleep", deadline, params={"level": "1", "mode": "wait"})
        if answer.missing:
            self.weights = Weights.HELD
        answer.checked()
        self.weights, self.kv, self.half_awake = Weights.PARKED, Kv.RELEASED, False

    async def unpark(self, deadline: Deadline) -> None:
        """Move the weights back, and nothing else: the KV memory stays away and the scheduler off.

        Raises:
            EngineError: as the port says.
        """
        self.weights = Weights.UNKNOWN
        await self._wake(deadline, {"tags": "weights"})
        self.weights, self.half_awake = Weights.HELD, True

    async def compute(self, deadline: Deadline) -> None:
        """Bring it back to computing from wherever it is.

        Raises:
            EngineError: as the port says.
        """
        if self.kv is Kv.HELD:
            await self.resume(deadline)
        else:
            await self.take_kv(deadline)

    async def is_paused(self, deadline: Deadline) -> bool:
        """Ask whether the scheduler is off. It says so as soon as it was told to, before what runs has ended.

        Raises:
            EngineError: as the port says.
        """
        return (await self._transport.get("/is_paused", deadline)).checked().flag("is_paused")

    async def is_sleeping(self, deadline: Deadline) -> bool | None:
        """Ask whether it sleeps; None if it has no such route. On vLLM that is true while it is merely paused, too.

        Raises:
            EngineError: as the port says.
        """
        answer = await self._transport.get("/is_sleeping", deadline)
        return None if answer.missing else answer.checked().flag("is_sleeping")

    async def page(self, deadline: Deadline) -> str:
        """Read its metrics page, or what is wanted of it.

        Raises:
            EngineError: as the port says.
        """
        path = "/metrics?" + "&".join(f"name[]={name}" for name in METRICS)
        return (await self._transport.get(path, deadline)).checked().text

    async def _wake(self, deadline: Deadline, params: dict[str, str] | None) -> Answer:
        return (await self._transport.post("/wake_up", deadline, params=params)).checked()

    async def _wake_whole(self, deadline: Deadline, params: dict[str, str] | None) -> None:
        self.kv = Kv.UNKNOWN
        answer = await self._wake(deadline, params)
        try:
            status = answer.json().get("status")
        except EngineUnfit:
            status = None  # older servers answer with an empty body
        if status == SLEEPING:
            raise EngineUnfit(f"{answer.what} was answered with 200, and says that something is still asleep")
        self.kv, self.half_awake = Kv.HELD, False
