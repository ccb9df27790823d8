"""Which holder is copied from, and that its bytes, whole and in parts, arrive as those of the files do."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader import Fallback, Resident, Run, SiblingSource, Tier
from loader.checkpoint import Checkpoint
from loader.copiers import resident
from loader.manifest import describe
from loader.proof import digest_source
from loader.siblings import Holding, Link, choose, version_of
from loader.sources.sibling import link


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    tensors = {f"w{n}": torch.randn(64, 96) for n in range(5)}
    safetensors.torch.save_file({**tensors, "bias": torch.randn(7).half(), "empty": torch.empty(0)}, path)
    return path


@pytest.fixture
def checkpoint(weights: Path) -> Checkpoint:
    return loader.open_checkpoint(weights)


def source(checkpoint: Checkpoint, tensors: dict[str, torch.Tensor] | None = None) -> SiblingSource:
    held = dict(loader.load(checkpoint).tensors) if tensors is None else tensors
    return SiblingSource([Resident(checkpoint, held)], device="cpu")


def holding(checkpoint: Checkpoint, device: str, copies: int = 0, names: str = "") -> Holding:
    held = frozenset(names.split()) if names else frozenset(checkpoint.tensors)
    return Holding(device=device, version=version_of(checkpoint), names=held, copies=copies)


LINKS = {"cuda:0": Link.SAME, "cuda:1": Link.PEER, "cuda:2": Link.PEER, "cuda:3": Link.NONE}


@pytest.mark.parametrize(
    ("holders", "chosen"),
    [
        ([], None),
        ([("cuda:1", 0, "")], 0),
        ([("cuda:1", 0, ""), ("cuda:0", 9, "")], 1),  # its own memory, however busy
        ([("cuda:1", 2, ""), ("cuda:2", 1, "")], 1),  # the less busy
        ([("cuda:1", 1, ""), ("cuda:2", 1, "")], 0),  # the first
        ([("cuda:0", 0, "w1"), ("cuda:2", 5, "")], 1),  # has everything
        ([("cuda:3", 0, "")], None),  # through host memory
        ([("cuda:9", 0, "")], None),  # not of this process
        ([("cuda:1", 0, "other")], None),
    ],
)
def test_choice(checkpoint: Checkpoint, holders: list[tuple[str, int, str]], chosen: int | None) -> None:
    holdings = [holding(checkpoint, *holder) for holder in holders]
    found = choose(checkpoint, holdings, LINKS)
    assert found is (None if chosen is None else holdings[chosen])


def test_another_version_is_not_copied_from(checkpoint: Checkpoint) -> None:
    held = holding(checkpoint, "cuda:1")
    file, (digest, identity) = next(iter(held.version.items()))
    for other in ((digest, replace(identity, mtime_ns=1)), ("00", identity)):
        assert choose(checkpoint, [replace(held, version={file: other})], LINKS) is None


def test_every_byte_arrives_and_none_is_read(checkpoint: Checkpoint, weights: Path) -> None:
    done: list[int] = []
    run = Run(source=source(checkpoint), progress=lambda progress: done.append(progress.done_bytes))
    result = loader.load(checkpoint, run=run)
    expected = safetensors.torch.load_file(weights)
    assert result.tier is Tier.SIBLING
    assert result.fallbacks == frozenset()
    assert result.tensors.keys() == expected.keys()
    assert all(torch.equal(result.tensors[name], tensor) for name, tensor in expected.items())
    assert done[-1] == checkpoint.total_bytes
    assert result.staging_bytes == 0


def test_it_is_copied_and_not_shared(checkpoint: Checkpoint) -> None:
    held = dict(loader.load(checkpoint).tensors)
    result = loader.load(checkpoint, run=Run(source=source(checkpoint, held)))
    assert all(
        result.tensors[name].data_ptr() != tensor.data_ptr()
        for name, tensor in held.items()
        if tensor.numel()
    )


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("rank", [0, 3])
def test_parts_are_cut_out_of_whole_tensors(checkpoint: Checkpoint, dim: int, rank: int) -> None:
    part = loader.rank_part(checkpoint.tensors["w2"], dim=dim, rank=rank, ranks=4)
    wanted = loader.take_parts(checkpoint, {"w2": part})
    result = loader.load(wanted, run=Run(source=source(checkpoint)))
    assert result.tier is Tier.SIBLING
    whole = loader.load(checkpoint).tensors["w2"]
    assert torch.equal(result.tensors["w2"], whole.chunk(4, dim)[rank])


def test_large_tensors_go_in_pieces(checkpoint: Checkpoint) -> None:
    entry = checkpoint.tensors["w1"]._replace(begin=0, end=2 * resident.PIECE_BYTES + 5)
    assert [(chunk.pieces[0].offset, chunk.nbytes) for chunk in resident.plan([entry])] == [
        (0, resident.PIECE_BYTES),
        (resident.PIECE_BYTES, resident.PIECE_BYTES),
        (2 * resident.PIECE_BYTES, 5),
    ]


def test_conversion_on_the_way(checkpoint: Checkpoint, weights: Path) -> None:
    expected = safetensors.torch.load_file(weights)
    into = {name: torch.empty(tensor.shape, dtype=torch.float64) for name, tensor in expected.items()}
    loader.load(checkpoint, into=into, convert=True, run=Run(source=source(checkpoint)))
    assert all(torch.equal(into[name], tensor.double()) for name, tensor in expected.items())


def test_what_a_sibling_lacks_comes_from_the_files_and_is_told(checkpoint: Checkpoint, weights: Path) -> None:
    held = dict(loader.load(checkpoint).tensors)
    del held["w1"]
    held["w2"] = held["w2"].half()  # not as in the file
    held["w3"] = held["w3"].t()  # not contiguous
    result = loader.load(checkpoint, run=Run(source=source(checkpoint, held)))
    assert result.fallbacks == {Fallback.SIBLING_MISSING}
    assert result.tier is not Tier.SIBLING
    expected = safetensors.torch.load_file(weights)
    assert all(torch.equal(result.tensors[name], tensor) for name, tensor in expected.items())


def test_without_a_sibling_the_files_are_read_and_that_is_told(checkpoint: Checkpoint) -> None:
    result = loader.load(checkpoint, run=Run(source=SiblingSource([], device="cpu")))
    assert result.fallbacks == {Fallback.SIBLING_MISSING}


def test_files_that_changed_since_are_noticed(checkpoint: Checkpoint, weights: Path) -> None:
    from_sibling = source(checkpoint)
    weights.write_bytes(weights.read_bytes())
    with pytest.raises(loader.FileChanged):
        loader.load(checkpoint, run=Run(source=from_sibling))


def test_a_sibling_whose_memory_is_wrong_is_found_out(checkpoint: Checkpoint) -> None:
    manifest = describe(checkpoint, digest_source(checkpoint))
    held = dict(loader.load(checkpoint).tensors)
    held["w4"][3, 3] += 1
    with pytest.raises(loader.DigestMismatch) as caught:
        loader.load(checkpoint, manifest=manifest, run=Run(source=source(checkpoint, held)))
    assert caught.value.tensors == ("w4",)


def test_a_copy_that_is_called_off_frees_its_holder(checkpoint: Checkpoint) -> None:
    from_sibling = source(checkpoint)
    control = loader.Control(bytes_per_second=1)
    run = Run(source=from_sibling, progress=lambda _: control.cancel(), control=control)
    with pytest.raises(loader.LoadCancelled):
        loader.load(checkpoint, run=run)
    assert loader.load(checkpoint, run=Run(source=from_sibling)).tier is Tier.SIBLING


def test_residents_of_several_devices_are_refused(checkpoint: Checkpoint) -> None:
    held = {"w1": torch.empty(1), "w2": torch.empty(1, device="meta")}
    with pytest.raises(ValueError, match="several devices: cpu, meta"):
        Resident(checkpoint, held)


def test_links_that_need_no_device() -> None:
    assert link("cpu", "cpu") is Link.SAME
    assert link("cuda:1", "cuda:1") is Link.SAME
    assert link("cpu", "cuda:0") is Link.NONE
    assert link("cuda:0", "") is Link.NONE
