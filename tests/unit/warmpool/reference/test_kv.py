import psutil
import pytest
import torch

from warmpool.reference.checkpoints import SHAPES
from warmpool.reference.errors import NotEnoughMemory, WrongEngineState
from warmpool.reference.kv import SlotMemory
from warmpool.reference.rope import Rotary

TINY = SHAPES["tiny"]


def _memory(max_length: int = 4096) -> SlotMemory:
    rotary = Rotary.of(TINY, 8, torch.device("cpu"), torch.float32)
    return SlotMemory(TINY, slots=8, max_length=max_length, dtype=torch.float32, rotary=rotary)


def _taken(max_length: int) -> SlotMemory:
    kv = _memory(max_length)
    kv.take(lambda: None)
    return kv


def test_taking_takes_memory_and_giving_back_gives_it_back() -> None:
    process, kv = psutil.Process(), _memory()
    before = process.memory_info().rss
    kv.take(lambda: None)
    taken = process.memory_info().rss - before
    kv.give_back()
    left = process.memory_info().rss - before
    assert kv.kv_bytes == 4 * 2 * 8 * 2 * 4096 * 32 * 4
    assert taken >= 0.95 * kv.kv_bytes
    assert left <= 0.05 * kv.kv_bytes


def test_taking_and_giving_back_twice_is_once() -> None:
    kv = _taken(128)
    kv.layer(0)[0, 0] = 3.0
    kv.take(lambda: None)
    assert kv.layer(0)[0, 0, 0, 0, 0] == 3.0
    kv.give_back()
    kv.give_back()
    assert kv.taken_bytes == 0


def test_memory_that_is_still_referred_to_is_not_called_given_back() -> None:
    kv = _taken(128)
    view = kv.layer(0)
    with pytest.raises(WrongEngineState, match="referred"):
        kv.give_back()
    del view


def test_using_it_while_it_is_away_names_the_way_back() -> None:
    with pytest.raises(WrongEngineState, match="wake_up"):
        _memory(128).layer(0)


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(NotEnoughMemory, match="MiB") as caught:
        _memory(1 << 40).take(lambda: None)
    assert "--max-num-seqs" in caught.value.hint


def test_rows_name_the_places_where_tokens_lie() -> None:
    kv = _taken(128)
    slots, positions = torch.tensor([0, 3]), torch.tensor([5, 127])
    keys = torch.arange(2 * 2 * 32, dtype=torch.float32).view(2, 2, 32)
    kv.write(1, kv.rows(slots, positions), keys, -keys)
    assert torch.equal(kv.layer(1)[0, 3, :, 127], keys[1])
    assert torch.equal(kv.layer(1)[1, 0, :, 5], -keys[0])
    assert kv.layer(1).count_nonzero() == 2 * (keys.numel() - 1)


def test_moving_and_opening_a_slot() -> None:
    kv = _taken(256)
    kv.layer(2)[:, 4] = 7.0
    kv.move(4, 1, 100)
    assert (kv.layer(2)[:, 1, :, :128] == 7.0).all()
    assert (kv.layer(2)[:, 1, :, 128:] == 0.0).all()
    kv.open(1, 100)
    assert kv.layer(2)[:, 1].count_nonzero() == 0
