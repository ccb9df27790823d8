"""Sources and copiers that only a device shows: siblings on the device and its neighbours, GPUDirect Storage or why not, far files."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader import Fallback, Resident, Run, SiblingSource, Tier
from loader.copiers import pinned, resident
from loader.manifest import describe
from loader.proof import digest_source
from loader.siblings import Link
from loader.sources.files import ShardReader
from loader.sources.port import Nearness
from loader.sources.sibling import link

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 230 MB: one tensor of several pieces, some of several slots, many small ones."""
    path = tmp_path_factory.mktemp("sources") / "m.safetensors"
    tensors = {f"w{n}": torch.randn(2049, 2050).to(torch.bfloat16) for n in range(4)}
    tensors |= {f"bias{n}": torch.randn(17) for n in range(300)}
    safetensors.torch.save_file({**tensors, "large": torch.randn(9000, 5001).to(torch.bfloat16)}, path)
    return path


@pytest.fixture(scope="module")
def expected(weights: Path) -> dict[str, torch.Tensor]:
    return dict(safetensors.torch.load_file(weights))


def show(figure: str) -> None:
    """Shown with pytest -s."""
    print(figure)  # noqa: T201


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name].cpu(), tensor) for name, tensor in expected.items()
    )


def test_from_a_copy_on_the_same_device(weights: Path, expected: dict[str, torch.Tensor]) -> None:
    checkpoint = loader.open_checkpoint(weights)
    held = loader.load(checkpoint, device="cuda:0").tensors
    into = {name: torch.empty_like(tensor) for name, tensor in held.items()}
    source = SiblingSource([Resident(checkpoint, held)], device="cuda:0")
    manifest = describe(checkpoint, digest_source(checkpoint))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = loader.load(checkpoint, into=into, run=Run(source=source))
    assert torch.cuda.max_memory_allocated() == before, "copies on one device take no other memory"
    assert (result.tier, result.fallbacks, result.staging_bytes) == (Tier.SIBLING, frozenset(), 0)
    assert same(dict(result.tensors), expected)
    again = loader.load(checkpoint, device="cuda:0", manifest=manifest, run=Run(source=source))
    assert again.unproven == frozenset()
    show(f"sibling, same device: {result.nbytes / result.seconds / 1e9:.0f} GB/s of {result.nbytes} bytes")


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_from_a_copy_on_the_same_device(
    weights: Path, expected: dict[str, torch.Tensor], dim: int
) -> None:
    checkpoint = loader.open_checkpoint(weights)
    source = SiblingSource([Resident(checkpoint, loader.load(checkpoint, device=0).tensors)], device="cuda:0")
    part = loader.rank_part(
        checkpoint.tensors["large" if dim == 0 else "w1"], dim=dim, rank=1, ranks=3 if dim == 0 else 2
    )
    name = "large" if dim == 0 else "w1"
    wanted = loader.take_parts(checkpoint, {name: part}).only([name])
    result = loader.load(wanted, device=0, run=Run(source=source))
    assert result.tier is Tier.SIBLING
    assert torch.equal(result.tensors[name].cpu(), expected[name].chunk(3 if dim == 0 else 2, dim)[1])


def test_the_copy_waits_for_work_on_both_sides(weights: Path, expected: dict[str, torch.Tensor]) -> None:
    checkpoint = loader.open_checkpoint(weights)
    loaded = loader.load(checkpoint, device=0).tensors
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        held = {name: torch.zeros_like(tensor) for name, tensor in loaded.items()}
        torch.cuda._sleep(200_000_000)  # a tenth of a second, and then the bytes come
        for name, tensor in loaded.items():
            held[name].copy_(tensor)
        source = SiblingSource([Resident(checkpoint, held)], device="cuda:0")
        found = loader.load(checkpoint, device=0, run=Run(source=source)).tensors
    assert same(dict(found), expected)


def test_a_copy_that_is_called_off_leaves_the_device_as_it_was(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    source = SiblingSource([Resident(checkpoint, loader.load(checkpoint, device=0).tensors)], device="cuda:0")
    before = torch.cuda.memory_allocated()
    control = loader.Control(bytes_per_second=1)
    run = Run(source=source, progress=lambda _: control.cancel(), control=control)
    with pytest.raises(loader.LoadCancelled):
        loader.load(checkpoint, device=0, run=run)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_from_a_copy_on_another_device(weights: Path, expected: dict[str, torch.Tensor]) -> None:
    if link("cuda:1", "cuda:0") is not Link.PEER:
        pytest.skip("the devices have no direct link")
    checkpoint = loader.open_checkpoint(weights)
    source = SiblingSource([Resident(checkpoint, loader.load(checkpoint, device=0).tensors)], device="cuda:1")
    loader.load(checkpoint, device=1, run=Run(source=source))  # opens the link
    result = loader.load(checkpoint, device=1, run=Run(source=source))
    assert result.tier is Tier.SIBLING
    assert same(dict(result.tensors), expected)
    part = loader.rank_part(checkpoint.tensors["w1"], dim=1, rank=1, ranks=2)
    wanted = loader.take_parts(checkpoint, {"w1": part}).only(["w1"])
    found = loader.load(wanted, device=1, run=Run(source=source)).tensors["w1"]
    assert torch.equal(found.cpu(), expected["w1"].chunk(2, 1)[1])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_link_carries_what_it_can(tmp_path: Path) -> None:
    if link("cuda:1", "cuda:0") is not Link.PEER:
        pytest.skip("the devices have no direct link")
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({f"w{n}": torch.zeros(2**29, dtype=torch.uint8) for n in range(4)}, path)
    checkpoint = loader.open_checkpoint(path)
    held = loader.load(checkpoint, device=0).tensors
    source = SiblingSource([Resident(checkpoint, held)], device="cuda:1")
    into = {name: torch.empty_like(tensor, device="cuda:1") for name, tensor in held.items()}

    def plain() -> float:
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        for name, tensor in held.items():
            into[name].copy_(tensor, non_blocking=True)
        ended.record()
        torch.cuda.synchronize()
        return begun.elapsed_time(ended) / 1000

    plain()
    results = [loader.load(checkpoint, into=into, run=Run(source=source)) for _ in range(3)]
    ours = min(result.seconds_by_step[loader.Step.COPY] for result in results)
    alone = min(plain() for _ in range(3))
    show(f"sibling, another device: {2 / ours * 1.0737:.0f} GB/s, plain copies {2 / alone * 1.0737:.0f} GB/s")
    assert ours < 2 * alone + 0.01


def test_gpudirect_storage_reads_or_says_why_not(weights: Path, expected: dict[str, torch.Tensor]) -> None:
    result = loader.load(loader.open_checkpoint(weights), device=0, run=Run(gds=True))
    assert same(dict(result.tensors), expected)
    has_driver = Path("/dev/nvidia-fs0").exists()
    show(f"GPUDirect Storage: driver {has_driver}, fallbacks {sorted(result.fallbacks)}")
    if not has_driver:
        assert Fallback.GDS_NO_DRIVER in result.fallbacks
    else:
        assert Fallback.GDS_NO_DRIVER not in result.fallbacks


class Far(ShardReader):
    """Files of a store whose reads may want to be many."""

    def nearness(self, ranges: Iterable[tuple[str, int, int]]) -> Nearness:
        del ranges
        return Nearness(tier=Tier.NETWORK, cached_share=None)


class FarSource:
    def open(self, checkpoint: loader.Checkpoint) -> Far:
        return Far(checkpoint)


def test_more_readers_for_a_far_store(weights: Path, expected: dict[str, torch.Tensor]) -> None:
    result = loader.load(loader.open_checkpoint(weights), device=0, run=Run(source=FarSource()))
    assert same(dict(result.tensors), expected)
    assert result.tier is Tier.NETWORK
    assert result.staging_bytes <= 4 * pinned.DEFAULT_THREADS * pinned.SLOT_BYTES


@pytest.mark.parametrize("read_bytes", [8192, 2**20, 16 * 2**20, 32 * 2**20])
def test_whatever_is_read_at_once(weights: Path, expected: dict[str, torch.Tensor], read_bytes: int) -> None:
    run = Run(threads=4, read_bytes=read_bytes)
    result = loader.load(loader.open_checkpoint(weights), device=0, run=run)
    assert same(dict(result.tensors), expected)
    of_teams = 2 * pinned.TEAM_SLOTS * pinned.TEAM_READERS * min(read_bytes, pinned.WINDOW_BYTES)
    assert result.staging_bytes <= of_teams + 4 * pinned.SLOTS_PER_THREAD * (read_bytes + 8192)


def test_much_memory_is_taken_in_one_piece_and_given_back_tensor_by_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {f"w{n}": torch.full((100_000_007,), n, dtype=torch.uint8) for n in range(22)}
    safetensors.torch.save_file(tensors, path)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    segments = torch.cuda.memory_stats()["segment.all.allocated"]
    loaded = dict(loader.load(loader.open_checkpoint(path), device=0).tensors)
    assert torch.cuda.memory_stats()["segment.all.allocated"] == segments + 1
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() - before == 22 * (-(-100_000_007 // 512) * 512)
    assert all(torch.equal(loaded[name].cpu(), tensor) for name, tensor in tensors.items())
    del loaded["w3"]
    assert torch.cuda.memory_allocated() - before == 21 * (-(-100_000_007 // 512) * 512)
    loaded.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before


def test_slots_are_locked_as_they_are_used(weights: Path) -> None:
    pool = pinned.PinnedPool()
    with pool.lend(2, 2**20, None) as slots:
        assert [slot.locked for slot in slots] == [False, False]
        slots[0].lock_pages()
        slots[0].lock_pages()  # again does nothing
        lent = list(slots)
    with pool.lend(2, 2**20, None) as slots:
        assert sum(slot.locked for slot in slots) == 1
    # Registered memory must not be unmapped before that is undone.
    cudart = torch.cuda.cudart()
    assert int(cudart.cudaHostUnregister(lent[0].data.data_ptr())) == 0


def test_pieces_of_a_resident_tensor_are_bounded(weights: Path) -> None:
    entry = loader.open_checkpoint(weights).tensors["large"]
    assert len(resident.plan([entry])) == -(-entry.nbytes // resident.PIECE_BYTES)
