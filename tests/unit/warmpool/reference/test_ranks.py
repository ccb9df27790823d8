"""Ranks of a tensor-parallel group: what each has of the weights, and that together they compute what one computes alone."""

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch import distributed as _distributed

import loader
from warmpool.reference import errors
from warmpool.reference.arena import ArenaKind
from warmpool.reference.attention import forgetful
from warmpool.reference.checkpoints import SHAPES, make_checkpoint
from warmpool.reference.config import LlamaConfig, parse_config
from warmpool.reference.errors import NotEnoughMemory, RankLost, ReferenceEngineError, UnsupportedModel
from warmpool.reference.expect import record
from warmpool.reference.identity import digests_of, identify, ownership_of, weights_digest
from warmpool.reference.leading import common_rule, rule_from_json, rule_to_json
from warmpool.reference.model import LlamaModel
from warmpool.reference.numerics import RowRule
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.paged import BLOCK, PagedMemory
from warmpool.reference.rank_wire import (
    MAX_LINE_BYTES,
    Figures,
    Lines,
    error_from_json,
    error_to_json,
    options_from_json,
    options_to_json,
)
from warmpool.reference.ranks import Group, gloo
from warmpool.reference.rope import Rotary
from warmpool.reference.shares import split_dimension, take_share

CPU = torch.device("cpu")
dist: Any = _distributed
TINY = SHAPES["tiny"]
OF_THREE = replace(TINY, vocab_size=318, intermediate_size=510, heads=6, kv_heads=3)


def together(size: int, work: Callable[[Group], Any]) -> list[Any]:
    """What each rank of a group makes of it, on a thread of its own."""
    store = dist.HashStore()

    def one(rank: int) -> Any:
        return work(Group(gloo(store, rank, size), rank, size))

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


def part_of(name: str, tensor: Tensor, rank: int, size: int) -> Tensor:
    dim = split_dimension(name)
    return tensor if dim is None else tensor.chunk(size, dim)[rank]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", "tiny", seed=1)


@pytest.fixture(scope="module")
def checkpoint(path: Path) -> loader.Checkpoint:
    return loader.open_checkpoint(path)


# ---------------------------------------------------------------- computing


def filled(config: LlamaConfig) -> LlamaModel:
    model = LlamaModel(config, device=CPU, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for tensor in model.parameters().values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5)
    return model


def logits_of(model: LlamaModel, tokens: Sequence[int]) -> Tensor:
    model.finish()
    rotary = Rotary.of(model.config, len(tokens), CPU, torch.float32)
    last = torch.tensor([len(tokens) - 1])
    return model.prefill(torch.tensor(tokens), last, forgetful(rotary, len(tokens)))


@pytest.mark.parametrize(
    ("config", "size"),
    [
        pytest.param(TINY, 2, id="two"),
        pytest.param(replace(TINY, tied=True), 2, id="tied"),
        pytest.param(OF_THREE, 3, id="three"),
    ],
)
def test_ranks_compute_together_what_one_computes_alone(config: LlamaConfig, size: int) -> None:
    whole = filled(config)
    parameters = {name: tensor.clone() for name, tensor in whole.parameters().items()}
    tokens = [256, 3, 77, 200, 5]
    expected = logits_of(whole, tokens)

    def one(group: Group) -> Tensor:
        model = LlamaModel(config.share(size), device=CPU, dtype=torch.float32, ranks=group)
        for name, tensor in model.parameters().items():
            tensor.copy_(part_of(name, parameters[name], group.rank, size))
        return logits_of(model, tokens)

    found = together(size, one)
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert found[0].shape == expected.shape
    assert torch.allclose(found[0], expected, atol=1e-4)
    assert found[0].argmax() == expected.argmax()


@pytest.mark.parametrize("size", [2, 3])
def test_a_row_s_sum_over_ranks_does_not_depend_on_its_neighbours(size: int) -> None:
    rows = torch.randn(size, 64, 48, generator=torch.Generator().manual_seed(1))

    def one(group: Group) -> bool:
        batch = group.summed(rows[group.rank].clone())
        return all(
            torch.equal(group.summed(rows[group.rank, :count].clone()), batch[:count]) for count in (1, 2, 7)
        )

    assert all(together(size, one))


def test_columns_of_all_ranks_stand_side_by_side() -> None:
    parts = torch.arange(12.0).view(2, 2, 3)
    found = together(2, lambda group: group.joined(parts[group.rank]))
    assert all(torch.equal(each, torch.cat([parts[0], parts[1]], dim=1)) for each in found)


def test_a_rank_that_is_gone_is_an_error_at_the_others() -> None:
    def one(group: Group) -> bool:
        if group.rank:
            return True
        with pytest.raises(RuntimeError):
            group.summed(torch.ones(1, 1))
        return True

    assert all(together(2, one))


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"heads": 7}, "num_attention_heads is 7"),
        ({"kv_heads": 3}, "num_key_value_heads is 3"),
        ({"intermediate_size": 511}, "intermediate_size is 511"),
        ({"vocab_size": 321}, "vocab_size is 321"),
    ],
)
def test_what_ranks_cannot_share_evenly_is_refused_with_its_name(change: dict[str, int], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        replace(TINY, **change).share(2)  # type: ignore[arg-type]


def test_a_checkpoint_that_ranks_cannot_share_is_refused_before_anything_heavy(path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="--tensor-parallel-size 3"):
        open_model(ModelOptions(checkpoint=path, tensor_parallel_size=3))


def test_each_rank_reads_its_own_bytes_alone_and_all_ranks_read_all(checkpoint: loader.Checkpoint) -> None:
    config = parse_config(checkpoint.config)
    whole = loader.load(checkpoint).tensors
    shares = [take_share(checkpoint, config, rank, 2) for rank in range(2)]
    norms = sum(each.nbytes for name, each in checkpoint.tensors.items() if split_dimension(name) is None)
    assert sum(share.total_bytes for share in shares) == checkpoint.total_bytes + norms
    for rank, share in enumerate(shares):
        for name, tensor in loader.load(share).tensors.items():
            assert torch.equal(tensor, part_of(name, whole[name], rank, 2)), name


def test_the_shares_are_the_shapes_that_a_rank_s_model_asks_for(checkpoint: loader.Checkpoint) -> None:
    config = parse_config(checkpoint.config)
    share = take_share(checkpoint, config, 1, 2)
    model = LlamaModel(config.share(2), device=CPU, dtype=torch.float32)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.parameters().items()}
    assert {name: tuple(entry.shape) for name, entry in share.tensors.items()} == shapes


# ---------------------------------------------------------------- identity


def digests(parameters: dict[str, Tensor], size: int) -> list[str]:
    return [
        weights_digest({name: part_of(name, tensor, rank, size) for name, tensor in parameters.items()})
        for rank in range(size)
    ]


def test_two_tensors_that_one_rank_has_swapped_change_what_the_group_is(
    checkpoint: loader.Checkpoint,
) -> None:
    parameters = dict(loader.load(checkpoint).tensors)
    dtype = parameters["model.norm.weight"].dtype
    sound = digests(parameters, 2)
    wrong = {name: part_of(name, tensor, 1, 2) for name, tensor in parameters.items()}
    one, other = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    wrong[one], wrong[other] = wrong[other], wrong[one]
    expected = ownership_of(sound, dtype)
    assert expected.tensor_parallel_size == 2
    differences = expected.differences(ownership_of([sound[0], weights_digest(wrong)], dtype))
    assert len(differences) == 1
    assert differences[0].startswith("weights digest")


def test_ranks_in_another_order_are_another_group(checkpoint: loader.Checkpoint) -> None:
    parameters = dict(loader.load(checkpoint).tensors)
    first, second = digests(parameters, 2)
    assert ownership_of([first, second], torch.bfloat16) != ownership_of([second, first], torch.bfloat16)


def test_a_record_for_several_ranks_has_one_rank_s_answers_and_the_group_s_ownership(path: Path) -> None:
    options = ModelOptions(checkpoint=path, device="cpu")
    alone = record(options, ["hello"])
    shared = record(replace(options, tensor_parallel_size=2), ["hello"])
    assert shared.answers == alone.answers
    parameters = {
        name: tensor.float() for name, tensor in loader.load(loader.open_checkpoint(path)).tensors.items()
    }
    assert shared.ownership == ownership_of(digests(parameters, 2), torch.float32)
    assert alone.ownership == identify(parameters)


def test_bytes_that_lie_apart_have_the_digest_of_the_same_bytes_together() -> None:
    whole = torch.randn(64, 96)
    part = whole[:, 32:64]
    assert not part.is_contiguous()
    assert digests_of({"a": part, "b": whole}) == digests_of({"a": part.contiguous(), "b": whole})


# ---------------------------------------------------------------- rules, memory


def test_the_common_rule_is_one_that_every_rank_keeps() -> None:
    rules = [RowRule(least=1, multiple=1, sizes=(8, 16, 32)), RowRule(least=2, multiple=1, sizes=(16, 32))]
    assert common_rule(rules) == RowRule(least=2, multiple=1, sizes=(16, 32))
    assert common_rule([RowRule(least=2, multiple=1), RowRule(least=8, multiple=8)]) == RowRule(8, 8)
    assert all(rule_from_json(rule_to_json(rule)) == rule for rule in rules)


def test_no_more_kv_memory_is_handed_out_than_the_rank_with_the_least_has() -> None:
    kv = PagedMemory(
        TINY, slots=2, max_length=2 * BLOCK, device=CPU, dtype=torch.float32, kind=ArenaKind.ALLOCATED
    )
    elsewhere = [0]
    kv.bind(lambda: elsewhere[0])
    kv.take(lambda: None)
    assert kv.room.tokens == 0
    elsewhere[0] = kv.kv_bytes // 4
    assert kv.room.tokens == BLOCK
    kv.open(0, BLOCK)
    assert kv.room.tokens == 0
    elsewhere[0] = kv.kv_bytes
    assert kv.room.tokens == 3 * BLOCK


# ---------------------------------------------------------------- the wire


def test_options_and_figures_come_through_as_they_are(tmp_path: Path) -> None:
    for stage in (None, tmp_path / "s.sock"):
        options = ModelOptions(checkpoint=tmp_path, max_num_seqs=3, stage=stage, tensor_parallel_size=2)
        assert options_from_json(options_to_json(options)) == options
    figures = Figures(kv_taken_bytes=1, weights_taken_bytes=2, parked_bytes=3)
    assert Figures.of(figures.as_json()) == figures


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotEnoughMemory("no room", hint="make some"), NotEnoughMemory),
        (errors.NotEnoughHostMemory("no room", hint="make some"), errors.NotEnoughHostMemory),
        (errors.WeightsDamaged("not these"), errors.WeightsDamaged),
        (errors.WrongEngineState("not now"), errors.WrongEngineState),
        (RuntimeError("a library's"), RankLost),
        (KeyError("Exception"), RankLost),
    ],
)
def test_an_error_of_a_rank_is_rank_0_s_of_the_same_kind(
    error: Exception, kind: type[ReferenceEngineError]
) -> None:
    found = error_from_json(error_to_json(error), 3)
    assert type(found) is kind
    assert str(found).startswith("rank 3: ")
    assert getattr(found, "hint", "") == getattr(error, "hint", "")


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text()), min_size=1, max_size=5))
def test_messages_come_in_order_however_the_bytes_are_cut(messages: list[dict[str, object]]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending, receiving = Lines(ours), Lines(theirs)
        for message in messages:
            sending.send(message)
        sending.close()
        received: list[Any] = []
        while some := receiving.receive():
            received += some
        assert received == messages
        assert receiving.receive() == []


@pytest.mark.parametrize(
    ("sent", "said"),
    [(b"nonsense\n", "isn't one"), (b"[1]\n", "isn't one"), (b"x" * (MAX_LINE_BYTES + 1), "more than")],
)
def test_what_is_no_message_is_an_error(sent: bytes, said: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        thread.submit(ours.sendall, sent)
        with pytest.raises(OSError, match=said):
            Lines(theirs).receive()
        theirs.close()
