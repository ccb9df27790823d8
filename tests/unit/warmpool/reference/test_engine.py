from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import psutil
import pytest

from warmpool.reference.engine import Engine
from warmpool.reference.errors import EngineStopped, RequestRejected, WrongEngineState
from warmpool.reference.runner import TorchRunner
from warmpool.reference.scheduler import Limits, PauseMode, Room, Scheduler, SchedulerState
from warmpool.reference.sequence import FinishReason, Output

PROMPT = [256, 72, 101, 108, 108, 111]
WAIT = 20.0


def _of(log: list[Output], key: int) -> list[int]:
    return [place for place, output in enumerate(log) if output.key == key]


def test_a_new_request_joins_within_one_step(drive: Any) -> None:
    joined: list[int] = []

    def submit_at_third(output: Output) -> None:
        if output.key == 1 and not joined and drive_tokens_of_first(output) == 3:
            joined.append(drive.submit([256, 65], 5))

    seen = {"first": 0}

    def drive_tokens_of_first(output: Output) -> int:
        seen["first"] += output.token is not None
        return seen["first"]

    drive.on_output = submit_at_third
    first = drive.submit(PROMPT, 12)
    drive.until(lambda: drive.ended(first) and joined and drive.ended(*joined))
    before = [output.key for output in drive.log]
    second = joined[0]
    # Third token of the first, then the newcomer's prompt, then both step by step.
    assert before[:3] == [first] * 3
    assert before[3:9] == [second, first, first, second, first, second]


def test_both_are_decoded_in_one_step(drive: Any) -> None:
    keys = [drive.submit(PROMPT, 6), drive.submit([256, 65], 6)]
    pairs = 0
    while not drive.ended(*keys):
        pairs += [output.key for output in drive.next_report()] == keys
    assert pairs >= 4


def test_cancelling_frees_the_place_at_the_next_step(make_drive: Callable[..., Any]) -> None:
    drive = make_drive(max_num_seqs=1)
    first = drive.submit(PROMPT, 900)
    second = drive.submit([256, 65], 3)
    drive.until(lambda: len(_of(drive.log, first)) >= 3)
    assert not _of(drive.log, second)
    drive.engine.cancel(first)
    drive.until(lambda: drive.ended(first))
    assert (drive.log[-1].finish, drive.load.running) == (FinishReason.ABORT, 0)
    drive.until(lambda: drive.ended(second))
    assert len(drive.tokens_of(second)) == 3
    assert max(_of(drive.log, first)) < min(_of(drive.log, second))


def test_cancelling_one_that_waits_takes_it_out_of_the_queue(make_drive: Callable[..., Any]) -> None:
    drive = make_drive(max_num_seqs=1)
    first, second = drive.submit(PROMPT, 40), drive.submit(PROMPT, 3)
    drive.engine.cancel(second)
    drive.until(lambda: drive.ended(first, second))
    assert drive.tokens_of(second) == []
    assert len(drive.tokens_of(first)) == 40


def test_cancelling_one_among_several_leaves_the_others_tokens(drive: Any) -> None:
    prompts = [[256, 65 + number, *range(40, 60)] for number in range(4)]
    alone = [drive.tokens([prompt], [30])[0] for prompt in prompts]
    doomed, *others = (drive.submit(prompt, 30) for prompt in prompts)
    drive.until(lambda: len(drive.tokens_of(doomed)) >= 4)
    drive.engine.cancel(doomed)
    drive.until(lambda: drive.ended(doomed, *others))
    assert [drive.tokens_of(key) for key in others] == alone[1:]


def test_a_full_queue_refuses(make_drive: Callable[..., Any]) -> None:
    drive = make_drive(max_num_seqs=1, max_queued=1)
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    key = drive.submit(PROMPT, 2)
    refused: Future[None] = drive.engine.order(lambda: drive.engine._add(drive.engine._scheduler.waiting[0]))
    with pytest.raises(RequestRejected, match="--max-num-queued-reqs"):
        refused.result(WAIT)
    drive.engine.resume().result(WAIT)
    drive.until(lambda: drive.ended(key))


def test_pausing_by_wait_lets_running_ones_finish_and_holds_the_rest(make_drive: Callable[..., Any]) -> None:
    drive = make_drive(max_num_seqs=1)
    running, waiting = drive.submit(PROMPT, 30), drive.submit(PROMPT, 2)
    drive.until(lambda: len(drive.tokens_of(running)) >= 2)
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    drive.until(lambda: drive.ended(running))
    late = drive.submit(PROMPT, 2)
    assert drive.engine.state().result(WAIT) == (SchedulerState.PAUSED, True)
    drive.next_report()
    assert (drive.load.running, drive.load.waiting) == (0, 0)
    assert len(drive.tokens_of(running)) == 30
    assert drive.tokens_of(waiting) == []
    drive.engine.resume().result(WAIT)
    drive.until(lambda: drive.ended(waiting, late))
    assert len(drive.tokens_of(late)) == 2


def test_pausing_by_abort_ends_all(make_drive: Callable[..., Any]) -> None:
    drive = make_drive(max_num_seqs=1)
    keys = [drive.submit(PROMPT, 900), drive.submit(PROMPT, 900)]
    drive.until(lambda: len(drive.tokens_of(keys[0])) >= 2)
    drive.engine.pause(PauseMode.ABORT).result(WAIT)
    drive.until(lambda: drive.ended(*keys))
    assert {output.finish for output in drive.log if output.finish} == {FinishReason.ABORT}


@pytest.mark.parametrize("release", [pytest.param(False, id="kept"), pytest.param(True, id="given-back")])
def test_pausing_by_keep_freezes_and_goes_on(drive: Any, release: bool) -> None:  # noqa: FBT001 (a parameter of the table)
    expected = drive.tokens([PROMPT], [60])[0]
    key = drive.submit(PROMPT, 60)
    drive.until(lambda: len(drive.tokens_of(key)) >= 5)
    drive.engine.pause(PauseMode.KEEP).result(WAIT)
    assert not drive.ended(key)
    if release:
        drive.engine.give_back_kv().result(WAIT)
        drive.engine.wake_up().result(WAIT)
    else:
        drive.engine.resume().result(WAIT)
    drive.until(lambda: drive.ended(key))
    tokens = drive.tokens_of(key)
    # What was computed anew as a prompt may differ in its last bits, so a tie may fall otherwise; here none does.
    assert tokens == expected


def test_resuming_breaks_a_pause_that_waits(drive: Any) -> None:
    key = drive.submit(PROMPT, 200)
    drive.until(lambda: drive.tokens_of(key))
    pause = drive.engine.pause(PauseMode.WAIT)
    drive.engine.resume().result(WAIT)
    with pytest.raises(WrongEngineState, match="resumed"):
        pause.result(WAIT)
    drive.engine.cancel(key)


def test_memory_given_back_and_taken_again_gives_the_same_tokens(drive: Any, runner: TorchRunner) -> None:
    prompts = [PROMPT, [256, 65], [256, *range(33, 120)]]
    before = drive.tokens(prompts, [20] * 3)
    with pytest.raises(WrongEngineState):
        drive.engine.give_back_kv().result(WAIT)
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    process = psutil.Process()
    with_memory = process.memory_info().rss
    drive.engine.give_back_kv().result(WAIT)
    assert with_memory - process.memory_info().rss >= 0.9 * runner.kv_bytes
    with pytest.raises(WrongEngineState, match="already"):
        drive.engine.give_back_kv().result(WAIT)
    with pytest.raises(WrongEngineState, match="wake_up"):
        drive.engine.resume().result(WAIT)
    held = drive.submit(PROMPT, 20)
    drive.engine.wake_up().result(WAIT)
    drive.until(lambda: drive.ended(held))
    assert drive.tokens_of(held) == before[0]
    assert drive.tokens(prompts, [20] * 3) == before


def test_a_stop_string_ends_a_sequence_and_is_not_shown(drive: Any) -> None:
    tokens = drive.tokens([PROMPT], [200])[0]
    letter = next(chr(token) for token in tokens if 48 <= token < 123)
    key = drive.submit(PROMPT, 200, stop=(letter,))
    drive.until(lambda: drive.ended(key))
    last = drive.log[-1]
    assert (last.finish, last.stop_reason) == (FinishReason.STOP, letter)
    assert letter not in "".join(output.text for output in drive.log if output.key == key)
    assert drive.tokens_of(key) == tokens[: tokens.index(ord(letter)) + 1]


def test_seeded_draws_are_the_same_alone_and_in_a_batch(drive: Any) -> None:
    def drawn(company: int) -> list[int]:
        key = drive.submit(PROMPT, 16, temperature=1.0, seed=9)
        others = [
            drive.submit([256, 65 + other], 16, temperature=1.0, seed=other) for other in range(company)
        ]
        drive.until(lambda: drive.ended(key, *others))
        return list(drive.tokens_of(key))

    assert drawn(0) == drawn(3)


@pytest.mark.wall_clock
def test_a_cap_keeps_the_rate_and_batches_those_that_are_due(make_drive: Callable[..., Any]) -> None:
    import time  # noqa: PLC0415 (this test alone measures)

    drive = make_drive(tokens_per_second=50)
    times: dict[int, list[float]] = {1: [], 2: []}
    drive.on_output = lambda output: times[output.key].append(time.monotonic())
    first = drive.submit(PROMPT, 12)
    drive.until(lambda: len(drive.tokens_of(first)) >= 2)
    submitted = time.monotonic()
    second = drive.submit([256, 65], 8)
    together = 0
    while not drive.ended(first, second):
        together += {output.key for output in drive.next_report()} == {first, second}
    # 11 tokens after the first, one per 20 ms at most; the newcomer's first is not held back.
    assert times[first][-1] - times[first][0] >= 11 * 0.020 - 0.005
    assert times[second][1] - times[second][0] >= 0.020 - 0.002
    assert times[second][0] - submitted < 0.020 + times[second][1] - times[second][0]
    assert together >= 5


def test_between_ticks_the_compute_thread_is_idle(make_drive: Callable[..., Any]) -> None:
    drive = make_drive(tokens_per_second=20)
    key = drive.submit(PROMPT, 12)
    drive.until(lambda: len(drive.tokens_of(key)) >= 1)
    process = psutil.Process()
    thread = drive.engine._thread.native_id

    def busy_seconds() -> float:
        return next(t.user_time + t.system_time for t in process.threads() if t.id == thread)

    before = busy_seconds()
    drive.until(lambda: drive.ended(key))
    # Eleven steps of a few milliseconds in over half a second.
    assert busy_seconds() - before < 0.25


def test_a_failure_of_the_model_ends_requests_with_an_error(runner: TorchRunner) -> None:
    class Broken:
        """The real runner, with a prompt that it can't compute."""

        def __getattr__(self, name: str) -> Any:
            return getattr(runner, name)

        def prefill(self, *_: Any) -> Any:
            raise RuntimeError("device-side assert")

    runner.take_kv(lambda: None)
    log: list[Output] = []
    engine = Engine(
        Broken,  # type: ignore[arg-type]
        Scheduler(limits=Limits(max_num_seqs=2)),
        lambda outputs, _: log.extend(outputs),
    )
    engine.start()
    engine.ready.result(WAIT)
    from warmpool.reference.sequence import Sampling, Sequence  # noqa: PLC0415
    from warmpool.reference.tokenizer import TextStream  # noqa: PLC0415

    text = TextStream(runner.tokenizer.decoder())
    sequence = Sequence(key=1, prompt=[1], sampling=Sampling(max_tokens=2), text=text, arrived=0)
    engine.submit(sequence).result(WAIT)
    with pytest.raises(RuntimeError, match="device-side"):
        engine.ended.result(WAIT)
    assert (log[-1].finish, "device-side" in (log[-1].error or "")) == (FinishReason.ERROR, True)
    with pytest.raises(EngineStopped):
        engine.submit(sequence)
    assert engine.join(WAIT)


class Growing:
    """The real runner, except that not all of its memory is there at once."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner = runner
        self.kv_room = Room(tokens=40)
        self.grown: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def take_kv(self, grown: Callable[[], None]) -> None:
        self._runner.take_kv(grown)
        self.grown = grown


def test_a_request_waits_for_memory_that_is_still_coming(
    make_drive: Callable[..., Any], runner: TorchRunner
) -> None:
    growing = Growing(runner)
    drive = make_drive(over=growing)
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    drive.engine.give_back_kv().result(WAIT)
    drive.engine.wake_up().result(WAIT)
    large, small = drive.submit(PROMPT, 60), drive.submit(PROMPT, 4)
    assert drive.engine.order(lambda: len(drive.engine._scheduler.waiting)).result(WAIT) == 2
    growing.kv_room = Room(tokens=400)
    growing.grown()
    drive.until(lambda: drive.ended(large, small))
    assert len(drive.tokens_of(large)) == 60


def test_stopping_aborts_what_has_not_ended(make_drive: Callable[..., Any]) -> None:
    drive = make_drive()
    key = drive.submit(PROMPT, 900)
    drive.until(lambda: drive.tokens_of(key))
    drive.engine.stop()
    drive.until(lambda: drive.ended(key))
    assert drive.log[-1].finish is FinishReason.ABORT
    drive.engine.ended.result(WAIT)
