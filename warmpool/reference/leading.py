"""Rank 0 of a tensor-parallel group: the runner that the engine knows, which has all ranks do the same in step.

Orders go out first and rank 0 does its own part meanwhile; what moves memory is over when it is over on all ranks, and where it fails on
one it is undone on the others, so that they never differ. A rank that is gone ends the engine: `RankLost`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import lcm
from typing import Any, Final

from warmpool.expectations import Ownership
from warmpool.reference.crew import Asked, Crew
from warmpool.reference.errors import RankLost, ReferenceEngineError
from warmpool.reference.graphs import Graphs
from warmpool.reference.identity import ownership_of
from warmpool.reference.numerics import RowRule
from warmpool.reference.opening import OpenedModel
from warmpool.reference.options import ModelOptions
from warmpool.reference.place import Place
from warmpool.reference.rank_wire import Message
from warmpool.reference.runner import Loaded, Steps, TorchRunner, load, prepare
from warmpool.reference.scheduler import Move, Room
from warmpool.reference.sequence import Sampled
from warmpool.reference.sequence import Sequence as Request
from warmpool.reference.startup import Phase
from warmpool.reference.tokenizer import Tokenizer

IMPORT_SECONDS: Final = 120.0
"""How long a rank may import: as long as a process does on a machine that is short of everything."""
MOVE_SECONDS: Final = 600.0
"""How long weights may be on their way, at the start or when they are parked."""
STEP_SECONDS: Final = 60.0
"""How long KV memory may take to come or go."""


def build(opened: OpenedModel, options: ModelOptions, startup: Steps, crew: Crew) -> "LeadRunner":
    """Have all ranks load their parts, and warm up together.

    Args:
        opened: the checkpoint.
        options: where to load it, and how.
        startup: is told of the phases, which are over when they are over on all ranks.
        crew: the other ranks.

    Raises:
        CannotStart: as of one rank; the error says of which.
        RankLost: a rank has ended.
    """
    crew.ready(IMPORT_SECONDS)
    asked = crew.ask({"op": "prepare"})
    ground = prepare(options, startup, crew.member)
    asked.require(STEP_SECONDS)
    asked = crew.ask({"op": "load"})
    loaded = crew.in_step(lambda: load(opened, options, ground, startup))
    others = asked.require(MOVE_SECONDS)
    startup.done(Phase.WEIGHTS, **_together(loaded, others))
    own = TorchRunner(loaded.parts, opened.tokenizer, ownership_of([loaded.digest], loaded.dtype))
    crew.abort_with(own.abort)
    rule = common_rule([own.row_rule(options), *(rule_from_json(other["rule"]) for other in others)])
    warmed = crew.ask({"op": "warm", "rule": rule_to_json(rule)})
    crew.in_step(lambda: own.warm(options, rule))
    startup.done(Phase.COMPILE, kvBytes=own.kv_bytes + _sum(others, "kvBytes"))
    crew.in_step(lambda: own.capture(options))
    warmed.require(MOVE_SECONDS)
    startup.done(Phase.CAPTURE, **own.facts)
    digests = [loaded.digest, *(str(other["digest"]) for other in others)]
    # Only now, when all ranks have said that all of their KV memory is there.
    return LeadRunner(own, crew, ownership_of(digests, loaded.dtype), others)


def common_rule(rules: Sequence[RowRule]) -> RowRule:
    """Return the rule for rows under which no rank's rows depend on their neighbours."""
    first, *others = rules
    sizes = tuple(size for size in first.sizes if all(size in other.sizes for other in others))
    return RowRule(
        least=max(rule.least for rule in rules),
        multiple=lcm(*(rule.multiple for rule in rules)),
        sizes=sizes,
    )


def rule_to_json(rule: RowRule) -> Message:
    """Render a rule for rows."""
    return {"least": rule.least, "multiple": rule.multiple, "sizes": list(rule.sizes)}


def rule_from_json(told: Message) -> RowRule:
    """Read it."""
    return RowRule(least=int(told["least"]), multiple=int(told["multiple"]), sizes=tuple(told["sizes"]))


def _together(loaded: Loaded, others: Sequence[Message]) -> dict[str, Any]:
    """How the weights came to all ranks: the tier of the one that waited longest, and each by itself."""
    each = [loaded.facts, *(dict(other["facts"]) for other in others)]
    slowest = max(each, key=lambda facts: float(facts["loadSeconds"]))
    passed = {(one["tier"], one["code"]): one for facts in each for one in facts["passedOver"]}
    return slowest | {
        "bytes": sum(int(facts["bytes"]) for facts in each),
        "digestSeconds": max(float(facts["digestSeconds"]) for facts in each),
        "passedOver": list(passed.values()),
        "ranks": [{"rank": rank, **facts} for rank, facts in enumerate(each)],
    }


class LeadRunner:
    """The `Runner` of an engine with several ranks. Its figures are sums over them.

    Args:
        own: rank 0's.
        crew: the other ranks.
        ownership: what all of them compute with.
        loaded: what each of the others said when it had loaded.

    Attributes:
        ownership: what all of them compute with.
    """

    def __init__(self, own: TorchRunner, crew: Crew, ownership: Ownership, loaded: Sequence[Message]) -> None:
        self._own = own
        self._crew = crew
        self._moving: Place | None = None
        self.ownership = ownership
        self.tokenizer: Tokenizer = own.tokenizer
        self.bos_token = own.bos_token
        self.eos_tokens = own.eos_tokens
        self.weights_bytes = own.weights_bytes + _sum(loaded, "weightsBytes")
        self.kv_bytes = own.kv_bytes + _sum(loaded, "kvBytes")
        self.kv_positions = own.kv_positions
        self.kv_kind = own.kv_kind
        self.cannot_park = own.cannot_park or next((str(each["cannotPark"]) for each in loaded), "")
        own.bind_kv(lambda: min(figures.kv_taken_bytes for figures in crew.figures))

    @property
    def pids(self) -> Sequence[int]:
        """The other ranks' processes."""
        return self._crew.pids

    @property
    def kv_is_taken(self) -> bool:
        """Whether the KV memory is there."""
        return self._own.kv_is_taken

    @property
    def kv_taken_bytes(self) -> int:
        """Bytes of the KV memory that are there now. Any thread may ask."""
        return self._own.kv_taken_bytes + sum(each.kv_taken_bytes for each in self._crew.figures)

    @property
    def kv_room(self) -> Room:
        """KV memory that new sequences can have now, on every rank."""
        return self._own.kv_room

    @property
    def weights_place(self) -> Place:
        """Where the weights are. Any thread may ask."""
        return self._moving or self._own.weights_place

    @property
    def weights_taken_bytes(self) -> int:
        """Device memory that the weights take now. Any thread may ask."""
        return self._own.weights_taken_bytes + sum(each.weights_taken_bytes for each in self._crew.figures)

    @property
    def parked_bytes(self) -> int:
        """Host memory that a copy of the weights takes, parked or not. Any thread may ask."""
        return self._own.parked_bytes + sum(each.parked_bytes for each in self._crew.figures)

    def prefill(self, sequence: Request, place: int) -> Sampled:
        """Compute all tokens of a sequence and choose the next one."""
        self._crew.tell({"op": "prefill", "tokens": sequence.tokens, "most": sequence.most, "place": place})
        return self._crew.in_step(lambda: self._own.prefill(sequence, place))

    def decode(self, sequences: list[Request], due: set[int]) -> list[Sampled | None]:
        """Compute one more token for the sequences at the places in `due`."""
        tokens = [sequence.generated[-1] for sequence in sequences]
        self._crew.tell(
            {"op": "decode", "tokens": tokens, "lengths": [sequence.length for sequence in sequences]}
        )
        return self._crew.in_step(lambda: self._own.decode(sequences, due))

    def free(self, place: int) -> None:
        """Take back the KV memory of the sequence at a place, which has ended."""
        self._own.free(place)
        with suppress(RankLost):  # also sequences that end for this very reason are freed
            self._crew.tell({"op": "free", "place": place})

    def move(self, move: Move) -> None:
        """Let a sequence's KV memory follow it to another place, which is free."""
        told = {"source": move.source, "target": move.target, "length": move.length}
        self._crew.tell({"op": "move", **told})
        self._own.move(move)

    def take_kv(self, grown: Callable[[], None]) -> None:
        """Take the KV memory, or as much as first sequences need; `grown` is called on another thread when there is more."""
        self._crew.watch_growth(grown)
        asked = self._crew.ask({"op": "takeKv"})
        error = _error_of(lambda: self._own.take_kv(grown))
        self._settle(asked, error, STEP_SECONDS, undo=("giveBackKv", self._own.give_back_kv))

    def give_back_kv(self) -> None:
        """Return the KV memory to the system."""
        asked = self._crew.ask({"op": "giveBackKv"})
        self._own.give_back_kv()
        asked.require(STEP_SECONDS)

    def park(self) -> None:
        """Move the weights to host memory, on all ranks or on none."""
        self._moving = Place.PARKING
        try:
            asked = self._crew.ask({"op": "park"})
            error = _error_of(self._own.park)
            self._settle(asked, error, MOVE_SECONDS, undo=("unpark", self._own.unpark))
        finally:
            self._moving = None

    def unpark(self) -> None:
        """Bring the weights back to where they were, on all ranks or on none."""
        self._moving = Place.UNPARKING
        try:
            asked = self._crew.ask({"op": "unpark"})
            error = _error_of(self._own.unpark)
            self._settle(asked, error, MOVE_SECONDS, undo=("park", self._own.park))
        finally:
            self._moving = None

    @property
    def graphs(self) -> Graphs:
        """Whether graphs are captured. Any thread may ask."""
        return self._own.graphs

    def capture_next(self) -> bool:
        """Capture nothing: there are no graphs over several ranks."""
        return self._own.capture_next()

    def close(self) -> None:
        """End the other ranks."""
        self._crew.close()
        self._own.abort()

    def _settle(
        self,
        asked: Asked,
        error: ReferenceEngineError | None,
        patience: float,
        *,
        undo: tuple[str, Callable[[], None]],
    ) -> None:
        """Wait for the other ranks; where it has failed on one of them or here, undo it on all.

        Raises:
            ReferenceEngineError: what went wrong, once nothing is left of it.
            RankLost: a rank is gone, or it can't be undone.
        """
        failed = [each for each in asked.answers(patience) if isinstance(each, ReferenceEngineError)]
        first = error or next(iter(failed), None)
        if first is None:
            return
        order, undo_here = undo
        undone = self._crew.ask({"op": order})
        here = _error_of(undo_here)
        there = [each for each in undone.answers(patience) if isinstance(each, ReferenceEngineError)]
        if here or there:
            raise RankLost(
                f"{first}; and the ranks can't be brought back in step: {here or there[0]}"
            ) from first
        raise first


def _sum(told: Sequence[Message], key: str) -> int:
    return sum(int(each[key]) for each in told)


def _error_of(work: Callable[[], None]) -> ReferenceEngineError | None:
    """Do something; what of this engine's own errors it ended in."""
    try:
        work()
    except ReferenceEngineError as error:
        return error
    return None
