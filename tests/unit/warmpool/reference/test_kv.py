import psutil
import pytest
import torch

from warmpool.reference.checkpoints import SHAPES
from warmpool.reference.errors import NotEnoughMemory, WrongEngineState
from warmpool.reference.kv import KvMemory


def _memory(max_length: int = 4096) -> KvMemory:
    return KvMemory(
        SHAPES["tiny"], slots=8, max_length=max_length, device=torch.device("cpu"), dtype=torch.float32
    )


def test_taking_takes_memory_and_giving_back_gives_it_back() -> None:
    process, kv = psutil.Process(), _memory()
    before = process.memory_info().rss
    kv.take()
    taken = process.memory_info().rss - before
    kv.give_back()
    left = process.memory_info().rss - before
    assert kv.kv_bytes == 4 * 2 * 8 * 2 * 4096 * 32 * 4
    assert taken >= 0.95 * kv.kv_bytes
    assert left <= 0.05 * kv.kv_bytes


def test_taking_and_giving_back_twice_is_once() -> None:
    kv = _memory(128)
    kv.take()
    kv.layer(0)[0, 0] = 3.0
    kv.take()
    assert kv.layer(0)[0, 0, 0, 0, 0] == 3.0
    kv.give_back()
    kv.give_back()
    assert not kv.is_taken


def test_memory_that_is_still_referred_to_is_not_called_given_back() -> None:
    kv = _memory(128)
    kv.take()
    view = kv.layer(0)
    with pytest.raises(WrongEngineState, match="referred"):
        kv.give_back()
    del view


def test_using_it_while_it_is_away_names_the_way_back() -> None:
    with pytest.raises(WrongEngineState, match="wake_up"):
        _memory(128).layer(0)


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(NotEnoughMemory, match="MiB") as caught:
        _memory(1 << 40).take()
    assert "--max-num-seqs" in caught.value.hint


def test_rows_name_the_places_where_tokens_lie() -> None:
    kv = _memory(128)
    kv.take()
    slots, positions = torch.tensor([0, 3]), torch.tensor([5, 127])
    keys = torch.arange(2 * 2 * 32, dtype=torch.float32).view(2, 2, 32)
    kv.write(1, kv.rows(slots, positions), keys, -keys)
    assert torch.equal(kv.layer(1)[0, 3, :, 127], keys[1])
    assert torch.equal(kv.layer(1)[1, 0, :, 5], -keys[0])
    assert kv.layer(1).count_nonzero() == 2 * (keys.numel() - 1)


def test_moving_and_clearing_a_slot() -> None:
    kv = _memory(256)
    kv.take()
    kv.layer(2)[:, 4] = 7.0
    kv.move(4, 1, 100)
    assert (kv.layer(2)[:, 1, :, :128] == 7.0).all()
    assert (kv.layer(2)[:, 1, :, 128:] == 0.0).all()
    kv.clear(1, 100)
    assert kv.layer(2)[:, 1].count_nonzero() == 0
