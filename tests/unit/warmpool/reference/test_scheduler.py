import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.reference.errors import RequestRejected, WrongEngineState
from warmpool.reference.pacing import Pacer
from warmpool.reference.scheduler import Limits, Move, PauseMode, Room, Scheduler, SchedulerState, Step
from warmpool.reference.sequence import Sampling, Sequence
from warmpool.reference.tokenizer import ByteTokenizer, TextStream

PLENTY = Room(tokens=10_000)


def sequence(key: int, *, prompt: int = 4, tokens: int = 8) -> Sequence:
    text = TextStream(ByteTokenizer().decoder())
    sampling = Sampling(max_tokens=tokens)
    return Sequence(key=key, prompt=[65] * prompt, sampling=sampling, text=text, arrived=0.0)


def scheduler(
    *, seqs: int = 2, queued: int = 10, prefill: int = 100, rate: float = 0, keys: int = 0
) -> Scheduler:
    limits = Limits(max_num_seqs=seqs, max_queued=queued, max_prefill_tokens=prefill)
    made = Scheduler(limits=limits, pacer=Pacer(rate))
    for key in range(keys):
        made.add(sequence(key))
    return made


def keys(sequences: object) -> list[int]:
    return [entry.key for entry in sequences]  # type: ignore[attr-defined]


def test_a_step_prefills_newcomers_and_decodes_the_others() -> None:
    made = scheduler(keys=1)
    assert keys(made.plan(0.0, PLENTY).prefills) == [0]
    made.add(sequence(1))
    step = made.plan(0.0, PLENTY)
    assert (keys(step.prefills), step.decodes) == ([1], (0,))
    assert made.plan(0.0, PLENTY) == Step((), (0, 1))


def test_those_over_the_limit_wait_in_order() -> None:
    made = scheduler(keys=4)
    made.plan(0.0, PLENTY)
    assert (keys(made.running), keys(made.waiting)) == ([0, 1], [2, 3])
    made.release(0)
    assert keys(made.plan(0.0, PLENTY).prefills) == [2]


def test_a_step_takes_prompts_up_to_its_budget_but_always_one() -> None:
    made = scheduler(seqs=4, prefill=10)
    for key, prompt in enumerate((50, 6, 4, 1)):
        made.add(sequence(key, prompt=prompt))
    assert [keys(made.plan(0.0, PLENTY).prefills) for _ in range(3)] == [[0], [1, 2], [3]]


def test_a_full_queue_refuses() -> None:
    made = scheduler(queued=2, keys=2)
    with pytest.raises(RequestRejected, match="--max-num-queued-reqs 2") as caught:
        made.add(sequence(9))
    assert caught.value.status == 503


def test_the_last_one_moves_into_a_freed_place() -> None:
    made = scheduler(seqs=3, keys=3)
    made.plan(0.0, PLENTY)
    assert made.release(0) == Move(source=2, target=0, length=12)
    assert keys(made.running) == [2, 1]
    assert made.release(1) is None


@given(st.lists(st.integers(0, 7), max_size=40))
def test_places_never_have_gaps_and_moves_keep_track(releases: list[int]) -> None:
    made = scheduler(seqs=4, queued=100, keys=20)
    places: dict[int, int] = {}
    for release in releases:
        for entry in made.plan(0.0, PLENTY).prefills:
            places[made.place_of(entry)] = entry.key
        if release < len(made.running):
            move = made.release(release)
            if move is not None:
                places[move.target] = places.pop(move.source)
            else:
                places.pop(release)
        assert [places[place] for place in range(len(made.running))] == keys(made.running)


@pytest.mark.parametrize("mode", PauseMode)
def test_nothing_is_planned_while_paused(mode: PauseMode) -> None:
    made = scheduler(keys=0)
    made.pause(mode)
    made.add(sequence(1))
    assert made.state is SchedulerState.PAUSED
    assert made.plan(0.0, PLENTY) == Step()
    assert made.next_at(0.0, PLENTY) is None
    made.resume()
    assert keys(made.plan(0.0, PLENTY).prefills) == [1]


def test_waiting_for_running_ones_admits_nobody() -> None:
    made = scheduler(seqs=2, keys=1)
    made.plan(0.0, PLENTY)
    made.pause(PauseMode.WAIT)
    made.add(sequence(5))
    assert made.plan(0.0, PLENTY) == Step((), (0,))
    assert not made.settle()
    made.release(0)
    assert made.settle()
    assert keys(made.waiting) == [5]


def test_keeping_freezes_in_place() -> None:
    made = scheduler(keys=2)
    made.plan(0.0, PLENTY)
    made.pause(PauseMode.KEEP)
    assert (made.state, keys(made.running)) == (SchedulerState.PAUSED, [0, 1])
    made.resume()
    assert made.plan(0.0, PLENTY).decodes == (0, 1)


def test_frozen_ones_come_first_when_their_memory_is_given_back() -> None:
    made = scheduler(keys=3)
    made.plan(0.0, PLENTY)
    made.pause(PauseMode.KEEP)
    made.unplace_all()
    assert (keys(made.running), keys(made.waiting)) == ([], [0, 1, 2])


@pytest.mark.parametrize("state", [SchedulerState.RUNNING, SchedulerState.PAUSING])
def test_memory_is_not_given_back_without_a_complete_pause(state: SchedulerState) -> None:
    made = scheduler(keys=1)
    made.plan(0.0, PLENTY)
    made.state = state
    with pytest.raises(WrongEngineState, match="paused"):
        made.unplace_all()


def test_with_a_cap_only_what_is_due_is_decoded() -> None:
    made = scheduler(seqs=3, keys=2, rate=10)
    made.plan(0.0, PLENTY)
    made.running[0].due, made.running[1].due = 3, 4
    assert made.plan(0.25, PLENTY) == Step()
    assert made.next_at(0.25, PLENTY) == pytest.approx(0.3)
    assert made.plan(0.3, PLENTY).decodes == (0,)
    assert made.plan(0.4, PLENTY).decodes == (0, 1)


def test_a_newcomer_does_not_wait_for_a_tick() -> None:
    made = scheduler(keys=1, rate=10)
    made.plan(0.0, PLENTY)
    made.running[0].due = 100
    made.add(sequence(7))
    assert made.next_at(0.5, PLENTY) == 0.5
    assert keys(made.plan(0.5, PLENTY).prefills) == [7]


def test_sequences_are_found_where_they_are() -> None:
    made = scheduler(seqs=1, keys=2)
    made.plan(0.0, PLENTY)
    assert made.find(0) == (made.running[0], 0)
    assert made.find(1) == (made.waiting[0], None)
    assert made.find(2) is None


@pytest.mark.parametrize(
    ("room", "admitted"),
    [
        pytest.param(Room(tokens=24), [0, 1], id="exactly-two"),
        pytest.param(Room(tokens=23), [0], id="one-short-of-two"),
        pytest.param(Room(tokens=32, block=16), [0, 1], id="whole-blocks"),
        pytest.param(Room(tokens=31, block=16), [0], id="half-a-block-is-none"),
        pytest.param(Room(tokens=11), [], id="none"),
    ],
)
def test_newcomers_come_in_as_far_as_there_is_memory(room: Room, admitted: list[int]) -> None:
    made = scheduler(seqs=3, keys=3)  # each may come to have 12 tokens
    assert keys(made.plan(0.0, room).prefills) == admitted


def test_those_without_memory_wait_without_asking_for_a_step() -> None:
    made = scheduler(keys=1)
    assert made.next_at(5.0, Room(tokens=11)) is None
    assert made.next_at(5.0, Room(tokens=12)) == 5.0


def test_nobody_overtakes_the_one_that_waits_for_memory() -> None:
    made = scheduler(seqs=3)
    made.add(sequence(0, prompt=50))
    made.add(sequence(1))
    assert made.plan(0.0, Room(tokens=20)) == Step()
