"""Rank 0 and the others in step: what fails on one is undone on all, and a rank that is gone is never computed with."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from warmpool.reference.crew import Crew
from warmpool.reference.errors import NotEnoughHostMemory, NotEnoughMemory, RankLost, ReferenceEngineError
from warmpool.reference.leading import LeadRunner
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.place import Place
from warmpool.reference.rank_wire import Figures, Message
from warmpool.reference.runner import TorchRunner, build
from warmpool.reference.scheduler import Move
from warmpool.reference.sequence import Sampling
from warmpool.reference.sequence import Sequence as Request
from warmpool.reference.startup import Startup
from warmpool.reference.tokenizer import TextStream

LOADED = [{"weightsBytes": 10, "kvBytes": 20, "cannotPark": ""}]


class ScriptedCrew:
    """One other rank that does what it is told to do."""

    size = 2

    def __init__(self) -> None:
        self.orders: list[Message] = []
        self.failing: dict[str, ReferenceEngineError] = {}
        self.lost: RankLost | None = None
        self.figures = [Figures(kv_taken_bytes=2**40, weights_taken_bytes=10, parked_bytes=5)]
        self.closed = False

    @property
    def asked(self) -> list[str]:
        return [str(order["op"]) for order in self.orders]

    def require(self) -> None:
        if self.lost is not None:
            raise self.lost

    def in_step(self, compute: Callable[[], Any]) -> Any:
        return Crew.in_step(cast("Crew", self), compute)

    def tell(self, order: Message) -> None:
        self.require()
        self.orders.append(order)

    def ask(self, order: Message) -> "ScriptedAsked":
        self.tell(order)
        return ScriptedAsked([self.failing.get(str(order["op"]), {})])

    def watch_growth(self, grown: Callable[[], None]) -> None:
        self.grown = grown

    def close(self) -> None:
        self.closed = True


class ScriptedAsked:
    def __init__(self, answers: Sequence[Message | ReferenceEngineError]) -> None:
        self._answers = answers

    def answers(self, patience: float) -> Sequence[Message | ReferenceEngineError]:
        assert patience > 0
        return self._answers

    def require(self, patience: float) -> None:
        for answer in self.answers(patience):
            if isinstance(answer, ReferenceEngineError):
                raise answer


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    from warmpool.reference.checkpoints import make_checkpoint  # noqa: PLC0415 (as late as torch)

    tiny = make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", "tiny", seed=1)
    options = ModelOptions(checkpoint=tiny, device="cpu", max_num_seqs=2, max_model_len=64)
    return build(open_model(options), options, Startup())


@pytest.fixture
def crew() -> ScriptedCrew:
    return ScriptedCrew()


@pytest.fixture
def lead(own: TorchRunner, crew: ScriptedCrew) -> LeadRunner:
    own.unpark()
    own.take_kv(lambda: None)
    return LeadRunner(own, cast("Crew", crew), own.ownership, LOADED)


def request(prompt: list[int]) -> Request:
    sampling = Sampling(max_tokens=4, temperature=0)
    return Request(key=1, prompt=prompt, sampling=sampling, text=cast("TextStream", None), arrived=0.0)


def test_figures_are_sums_over_the_ranks(lead: LeadRunner, own: TorchRunner) -> None:
    assert lead.weights_bytes == own.weights_bytes + 10
    assert lead.kv_bytes == own.kv_bytes + 20
    assert lead.kv_taken_bytes == own.kv_taken_bytes + 2**40
    assert lead.weights_taken_bytes == own.weights_taken_bytes + 10
    assert lead.parked_bytes == own.parked_bytes + 5


def test_weights_that_one_rank_cannot_park_are_parked_by_none(
    lead: LeadRunner, own: TorchRunner, crew: ScriptedCrew
) -> None:
    crew.failing["park"] = NotEnoughHostMemory("rank 1: no room", hint="make some")
    with pytest.raises(NotEnoughHostMemory, match="rank 1: no room"):
        lead.park()
    assert crew.asked == ["park", "unpark"]
    assert lead.weights_place is own.weights_place is Place.HELD


def test_weights_that_one_rank_cannot_bring_back_stay_parked_on_all(
    lead: LeadRunner, own: TorchRunner, crew: ScriptedCrew
) -> None:
    lead.park()
    crew.failing["unpark"] = NotEnoughMemory("rank 1: no room", hint="make some")
    with pytest.raises(NotEnoughMemory):
        lead.unpark()
    assert crew.asked == ["park", "unpark", "park"]
    assert lead.weights_place is own.weights_place is Place.PARKED


def test_kv_memory_that_one_rank_cannot_take_is_taken_by_none(
    lead: LeadRunner, own: TorchRunner, crew: ScriptedCrew
) -> None:
    lead.give_back_kv()
    crew.failing["takeKv"] = NotEnoughMemory("rank 1: no room", hint="make some")
    with pytest.raises(NotEnoughMemory):
        lead.take_kv(lambda: None)
    assert crew.asked == ["giveBackKv", "takeKv", "giveBackKv"]
    assert not lead.kv_is_taken
    assert not own.kv_is_taken


def test_ranks_that_cannot_be_brought_back_in_step_end_the_engine(
    lead: LeadRunner, crew: ScriptedCrew
) -> None:
    crew.failing["park"] = NotEnoughHostMemory("rank 1: no room", hint="make some")
    crew.failing["unpark"] = NotEnoughMemory("rank 1: nor here", hint="make some")
    with pytest.raises(RankLost, match="can't be brought back in step: rank 1: nor here"):
        lead.park()


def test_every_rank_computes_the_same_steps(lead: LeadRunner, crew: ScriptedCrew) -> None:
    sequence = request([5, 6, 7])
    sequence.generated.append(lead.prefill(sequence, 0).token)
    lead.decode([sequence], {0})
    lead.move(Move(source=0, target=1, length=sequence.most))
    lead.free(1)
    assert crew.orders == [
        {"op": "prefill", "tokens": [5, 6, 7], "most": 7, "place": 0},
        {"op": "decode", "tokens": sequence.generated, "lengths": [4]},
        {"op": "move", "source": 0, "target": 1, "length": 7},
        {"op": "free", "place": 1},
    ]


def test_no_token_comes_from_a_step_in_which_a_rank_was_lost(lead: LeadRunner, crew: ScriptedCrew) -> None:
    def lose(order: Message) -> None:
        del order
        crew.lost = RankLost("rank 1 was ended by signal 9")

    crew.tell = lose  # type: ignore[method-assign]
    with pytest.raises(RankLost, match="signal 9"):
        lead.prefill(request([5, 6, 7]), 0)


def test_sequences_are_freed_also_when_a_rank_has_been_lost(lead: LeadRunner, crew: ScriptedCrew) -> None:
    lead.prefill(request([5, 6, 7]), 0)
    crew.lost = RankLost("rank 1 was ended by signal 9")
    lead.free(0)


def test_the_other_ranks_end_with_it(lead: LeadRunner, crew: ScriptedCrew) -> None:
    lead.close()
    assert crew.closed
