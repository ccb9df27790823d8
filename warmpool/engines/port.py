"""The port to one engine: what the agent may ask of it, whatever engine it is.

Every call has a deadline and ends by then. Every failure is an `EngineError` whose class says what the caller can do:
`EngineTimeout` (its state is unknown), `EngineRejected` (it said no), `EngineLost` (it is gone), `EngineUnfit` (it can't do
what its role needs), `EngineContradicted` (it says that it did, and its own state that it didn't). The contract suite in
tests/contract runs on scripted engines and on real ones alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, Self

from warmpool.engines.capabilities import Capabilities, Verification
from warmpool.engines.deadline import Deadline
from warmpool.expectations import Ownership
from warmpool.timeline import CacheUse, WeightLoad


class KvWhenPaused(StrEnum):
    """What becomes of the KV memory while an engine is paused."""

    KEEP = "Keep"
    """It stays: the engine has its seat for itself."""
    RELEASE = "Release"
    """It is given back: other engines live on the same seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """How far an engine has come with starting.

    Attributes:
        ready: weights are loaded and requests can be computed.
        phase: what it does at present, in the engine's words; empty once ready.
        phases: seconds that each phase took, in the engine's words; empty until ready or if it doesn't tell.
        pid: process id of the engine; None if it doesn't tell.
        kv_bytes: size of its KV memory; None if it doesn't tell.
        weights_bytes: size of its weights; None if it doesn't tell.
        parked_bytes: host memory that a copy of its weights takes, parked or not; None if it doesn't tell.
        ownership: what it runs with, which an expectation has to belong to; empty as far as it doesn't tell.
        load: how its weights came; None if it doesn't tell.
        compile_cache: what it found in its compile cache; None if it doesn't tell.
        device: where it computes, in the engine's words; empty if it doesn't tell.
        longest: tokens that one sequence may have, prompt and answer together; None if it doesn't tell.
    """

    ready: bool
    phase: str = ""
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    pid: int | None = None
    kv_bytes: int | None = None
    weights_bytes: int | None = None
    parked_bytes: int | None = None
    ownership: Ownership = field(default_factory=Ownership)
    load: WeightLoad | None = None
    compile_cache: CacheUse | None = None
    device: str = ""
    longest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardState:
    """What the guard in front of an engine says.

    Attributes:
        is_open: it lets requests through.
        in_flight: requests that it has accepted and whose response hasn't ended.
    """

    is_open: bool
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine says of its own load. A paused engine's figures say nothing about demand: it reports held requests as none.

    Attributes:
        running: requests that it computes.
        waiting: requests in its own queue.
    """

    running: int
    waiting: int


class Completion(tuple[int, ...]):  # noqa: SLOT001 (a tuple can have no slots)
    """Ids of generated tokens, in order.

    Args:
        tokens: the ids.
        logprobs: as below.

    Attributes:
        logprobs: natural logarithm of each token's probability; empty if the engine doesn't tell.
    """

    logprobs: tuple[float, ...]

    def __new__(cls, tokens: Iterable[int], logprobs: Iterable[float] = ()) -> Self:
        """Make it."""
        made = super().__new__(cls, tokens)
        made.logprobs = tuple(logprobs)
        return made


Prompt = str | Sequence[int]
"""What an engine goes on from: a text, or ids of tokens."""


class Engine(Protocol):
    """One engine of one model."""

    async def startup(self, *, deadline: Deadline) -> Startup:
        """Ask how far it has come.

        Raises:
            EngineLost: nothing answers there (yet).
            EngineError: as the port says.
        """

    async def complete(self, prompt: Prompt, *, tokens: int, deadline: Deadline) -> Completion:
        """Generate `tokens` tokens greedily, past the guard, and return their ids. Cancelling it ends the request.

        Raises:
            EngineError: as the port says; `EngineUnfit` if it doesn't tell token ids, `EngineRejected` if it is parked.
        """

    def assume(
        self, *, kv_released: bool, parked: bool = False, capabilities: Capabilities | None = None
    ) -> None:
        """Tell the adapter what is known of an engine that somebody else has driven before. A new engine has its memory.

        Args:
            kv_released: its KV memory is given back.
            parked: its weights are in host memory, and so its KV memory is given back too.
            capabilities: what a probe has found; None if nobody has asked.
        """

    async def probe(self, kv: KvWhenPaused, *, deadline: Deadline) -> Capabilities:
        """Find out what it can be told, by asking it and by doing what can be undone. It computes and pauses meanwhile.

        What its seat doesn't need (`kv`) is not done. Only while it is not in rotation and nothing is in flight. It computes again
        afterwards; if the probe is cancelled it may be left paused, and `resume` brings it back.

        Raises:
            EngineRejected: it is in rotation.
            EngineError: as the port says: it is gone, or can't be brought back to computing.
        """

    async def pause(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """Finish what runs, stop the scheduler, release the KV memory if so asked, and ask it whether it did. Idempotent.

        Raises:
            EngineRejected: it is parked.
            EngineError: as the port says; `EngineContradicted` if it claims to have paused and hasn't.
        """

    async def is_paused(self, *, deadline: Deadline) -> bool:
        """Ask whether its scheduler is off.

        Raises:
            EngineError: as the port says.
        """

    async def resume(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """Take the KV memory if it was released (`kv` as it was paused with), start the scheduler, and ask it whether it did.

        Idempotent. That it answers 200 proves little: let it compute something before requests are sent to it.

        Raises:
            EngineRejected: it is parked.
            EngineError: as the port says; `EngineContradicted` if it claims to compute and doesn't.
        """

    async def park(self, *, deadline: Deadline) -> Verification:
        """Move its weights to host memory, so that neither they nor KV memory take device memory, and ask it whether it did.

        Only while it is paused, its KV memory kept or released. Idempotent. A vLLM whose KV memory is released takes it for a
        moment, for it would answer 200 and move nothing: the device must have room for that.

        Raises:
            EngineRejected: it isn't paused, it doesn't have `WEIGHTS_PARKING`, or host memory is short; it is as it was.
            EngineUnfit: its weights may be half moved; it has to be replaced.
            EngineError: as the port says; `EngineContradicted` if it claims to have moved them and hasn't.
        """

    async def unpark(self, *, deadline: Deadline) -> Verification:
        """Move its weights back to device memory. It stays paused, with its KV memory given back. Idempotent.

        Afterwards `resume` takes the KV memory, whatever `kv` says.

        Raises:
            EngineRejected: it isn't paused, or the device has too little memory.
            EngineUnfit: its weights may be half moved; it has to be replaced.
            EngineError: as the port says; `EngineContradicted` if it claims to have moved them and hasn't.
        """

    async def capture(self, *, deadline: Deadline) -> None:
        """Have it capture the CUDA graphs that it was to capture later, while nothing else is computed. Idempotent.

        It computes meanwhile, and needs its KV memory. Cancelling it ends that after the graph that is being captured; what has been
        captured stays, and the next call goes on. Only with `LATE_CAPTURE`.

        Raises:
            EngineRejected: it has no such thing, or no memory for it; it computes as before.
            EngineError: as the port says; `EngineContradicted` if it claims to have captured them and hasn't.
        """

    async def guard(self, *, deadline: Deadline) -> GuardState:
        """Ask the guard for its state.

        Raises:
            EngineError: as the port says.
        """

    async def open_guard(self, *, deadline: Deadline) -> None:
        """Let requests through from now on, and verify it. Idempotent.

        Raises:
            EngineError: as the port says; `EngineUnfit` if the guard claims to have opened and hasn't.
        """

    async def close_guard(self, *, deadline: Deadline) -> GuardState:
        """Refuse new requests from now on, and verify it; what was accepted goes on. Idempotent. Returns what is still in flight.

        Raises:
            EngineError: as the port says; `EngineUnfit` if the guard claims to have closed and hasn't.
        """

    async def abort(self, *, deadline: Deadline) -> None:
        """End all requests in flight early; each gets a well-formed error.

        Raises:
            EngineError: as the port says.
        """

    async def load(self, *, deadline: Deadline) -> EngineLoad:
        """Read running and waiting requests from its metrics.

        Raises:
            EngineError: as the port says; `EngineUnfit` if the metrics aren't there.
        """

    async def close(self) -> None:
        """Close the connections to it. The engine itself goes on."""
