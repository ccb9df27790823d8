"""What became of everybody when something was killed: one row per victim and state, and whether it is as it should be. PURE."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from scaler.drill.records import Outcome
from warmpool.states import ResidentState

MEMORY_TOLERANCE_MEBIBYTES = 256
"""What the device's taken memory may differ by: workspaces and graphs aren't the same in each life of an engine. Weights that a
dead engine left behind, or KV memory that a living one didn't give back, are gigabytes."""


class Victim(StrEnum):
    """What gets the SIGKILL."""

    ENGINE = "engine"
    AGENT = "agent"
    LAUNCHER = "launcher"


STATES = (
    ResidentState.LOADING,
    ResidentState.PAUSED,
    ResidentState.PROMOTING,
    ResidentState.SERVING,
    ResidentState.DRAINING,
)
"""States of the resident at its engine's, its agent's or its launcher's death."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What one client saw.

    Attributes:
        who: what it asked for, in words.
        outcome: how its request ended.
        understood: whether that end told it what became of the request.
        right: whether all its tokens were the expected ones.
        tokens: how many it got.
        seconds: from sending to the end.
        longest_gap: longest time between two tokens, in seconds.
        detail: what was seen, for anything but a whole answer.
    """

    who: str
    outcome: Outcome
    understood: bool
    right: bool
    tokens: int
    seconds: float
    longest_gap: float
    detail: str = ""

    @property
    def whole(self) -> bool:
        """Whether it got all that it asked for."""
        return self.outcome is Outcome.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is taken while everything is calm.

    Attributes:
        mebibytes: the device's memory that is taken; None where engines run on the CPU.
        engines: engine processes.
        orphans: processes that killed ones had started and that belong to nobody.
    """

    mebibytes: int | None
    engines: int
    orphans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one kill came to.

    Attributes:
        victim: what was killed.
        state: the resident's state, as its agent told it last before.
        back_seconds: from the kill until its agent told that the resident can serve; None if it never did.
        given_up: why the agent gave it up; empty if it didn't.
        clients: those who had asked the resident, or asked it afterwards.
        sharer: who was asking the other resident of the seat; None if nobody was.
        neighbours: streams of the neighbour on another seat, from the one that ran at the kill to the end of the row.
        before, after: memory before the row and at its end.
        trouble: why the row couldn't be carried out; empty if it could.
    """

    victim: Victim
    state: ResidentState
    back_seconds: float | None = None
    given_up: str = ""
    clients: Sequence[Client] = ()
    sharer: Client | None = None
    neighbours: Sequence[Client] = ()
    before: Memory | None = None
    after: Memory | None = None
    trouble: str = ""
    failures: list[str] = field(default_factory=list)

    def judged(self) -> "Row":
        """Return the row with what is not as it should be, in words."""
        found = [self.trouble] if self.trouble else [*self._resident(), *self._requests(), *self._memory()]
        return replace(self, failures=found)

    def _resident(self) -> list[str]:
        if self.given_up:
            return [f"given up: {self.given_up}"]
        return ["the resident didn't come back"] if self.back_seconds is None else []

    def _requests(self) -> list[str]:
        found = []
        if not self.neighbours:
            found.append("no neighbour's stream ran at the kill")
        found += [
            f"{client.who}: {client.outcome}: {client.detail}"
            for client in [*self.neighbours, *self._unharmed]
            if not client.whole
        ]
        everybody = [*self.neighbours, *self.clients, *([] if self.sharer is None else [self.sharer])]
        for client in everybody:
            if not client.understood:
                found.append(f"{client.who} was lost: {client.outcome}: {client.detail}")
            if not client.right:
                found.append(f"{client.who}: a wrong token")
        return found

    @property
    def _unharmed(self) -> list[Client]:
        """Those whom this death must not touch: engines and their streams outlive the agent, and an engine its neighbour."""
        sharer = [] if self.sharer is None or self.victim is Victim.LAUNCHER else [self.sharer]
        streams = (
            self.clients if self.victim is Victim.AGENT and self.state is not ResidentState.DRAINING else ()
        )
        return [*sharer, *streams]

    def _memory(self) -> list[str]:
        if self.before is None or self.after is None:
            return ["memory was not looked at"]
        return memory_failures(self.before, self.after)


def memory_failures(before: Memory, after: Memory) -> list[str]:
    """Return what of the memory is not as it was, in words."""
    found = []
    if after.engines != before.engines:
        found.append(f"{after.engines} engine processes instead of {before.engines}")
    if after.orphans:
        found.append(f"{after.orphans} processes of the dead live on")
    if before.mebibytes is not None and after.mebibytes is not None:
        grown = after.mebibytes - before.mebibytes
        if abs(grown) > MEMORY_TOLERANCE_MEBIBYTES:
            found.append(f"device memory went from {before.mebibytes} to {after.mebibytes} MiB")
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """Render rows as lines, and under each what is not as it should be."""
    head = (
        f"{'killed':9s} {'state':10s} {'back, s':>8s} {'whole':>6s} {'told':>5s} {'lost':>5s} {'sharer':>8s}"
    )
    lines = [f"{head} {'neighbour':>10s} {'gap, ms':>8s} {'MiB before':>11s} {'after':>8s}  result"]
    for row in rows:
        whole = sum(client.whole for client in row.clients)
        lost = sum(not client.understood for client in row.clients)
        back = "-" if row.back_seconds is None else f"{row.back_seconds:.1f}"
        gap = max((client.longest_gap for client in row.neighbours), default=0.0)
        unbroken = bool(row.neighbours) and all(client.whole and client.right for client in row.neighbours)
        lines.append(
            f"{row.victim:9s} {row.state:10s} {back:>8s} {whole:>6d} {len(row.clients) - whole - lost:>5d} {lost:>5d}"
            f" {_short(row.sharer):>8s} {'unbroken' if unbroken else 'BROKEN':>10s} {gap * 1e3:>8.0f}"
            f" {_mebibytes(row.before):>11s} {_mebibytes(row.after):>8s}  {'FAIL' if row.failures else 'pass'}"
        )
        lines += [f"    {failure}" for failure in row.failures]
    return lines


def _short(client: Client | None) -> str:
    if client is None:
        return "-"
    return "unbroken" if client.whole and client.right else "told" if client.understood else "LOST"


def _mebibytes(memory: Memory | None) -> str:
    return "-" if memory is None or memory.mebibytes is None else str(memory.mebibytes)
