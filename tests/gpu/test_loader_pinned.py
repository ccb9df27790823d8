"""Loads into a real device: every byte, no memory besides the tensors, and what is proved where it lies."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader.copiers import pinned
from loader.copiers.destinations import TORCH_DTYPES
from loader.digest import digest_tensors
from loader.manifest import describe
from loader.proof import digest_source, verify_resident
from loader.sources.files import ShardReader
from loader.sources.port import Nearness, Tier
from loader.torch import load_file
from tests.gpu.rig import filled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """About 80 MB: tensors larger than a slot, and many small ones in one."""
    path = tmp_path / "m.safetensors"
    tensors = {f"w{n}": torch.randn(4097, 2049).to(torch.bfloat16) for n in range(4)}
    tensors |= {f"bias{n}": torch.randn(17) for n in range(700)}
    safetensors.torch.save_file(tensors, path)
    return path


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8).cpu()


def test_every_byte_arrives(weights: Path) -> None:
    expected = safetensors.torch.load_file(weights)
    for _ in range(3):  # later loads reuse the slots of the first
        loaded = load_file(weights, device="cuda")
        assert loaded.keys() == expected.keys()
        assert all(tensor.is_cuda for tensor in loaded.values())
        assert all(torch.equal(bits(loaded[name]), bits(tensor)) for name, tensor in expected.items())


def test_every_dtype(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    raw = torch.arange(240, dtype=torch.uint8)
    tensors = {
        str(dtype): (raw % 2).bool() if dtype is torch.bool else raw.clone().view(dtype)
        for dtype in TORCH_DTYPES.values()
    }
    safetensors.torch.save_file(tensors, path)
    loaded = load_file(path, device=0)
    assert all(torch.equal(bits(loaded[name]), bits(tensor)) for name, tensor in tensors.items())


def test_into_parameters_takes_no_device_memory(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    into = {
        name: torch.nn.Parameter(torch.empty(entry.shape, dtype=TORCH_DTYPES[entry.dtype], device="cuda"))
        for name, entry in checkpoint.tensors.items()
    }
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = loader.load(checkpoint, into=into)
    assert torch.cuda.max_memory_allocated() == before
    assert 0 < result.staging_bytes <= pinned.DEFAULT_THREADS * pinned.SLOTS_PER_THREAD * pinned.SLOT_BYTES
    expected = safetensors.torch.load_file(weights)
    assert all(torch.equal(bits(into[name]), bits(tensor)) for name, tensor in expected.items())


def test_conversion_on_the_device(weights: Path) -> None:
    expected = safetensors.torch.load_file(weights)
    into = {name: torch.empty(tensor.shape, device="cuda") for name, tensor in expected.items()}
    loader.load(loader.open_checkpoint(weights), into=into, convert=True)
    assert all(torch.equal(into[name].cpu(), tensor.float()) for name, tensor in expected.items())


def test_error_in_mid_load_gives_the_slots_back(weights: Path) -> None:
    class Enough(Exception):
        pass

    def stop(_: loader.Progress) -> None:
        raise Enough

    expected = safetensors.torch.load_file(weights)
    for _ in range(3):
        with pytest.raises(Enough):
            loader.load(loader.open_checkpoint(weights), device="cuda", run=loader.Run(progress=stop))
    loaded = load_file(weights, device="cuda")
    assert all(torch.equal(bits(loaded[name]), bits(tensor)) for name, tensor in expected.items())


def test_absent_device_is_a_typed_error(weights: Path) -> None:
    with pytest.raises(loader.DeviceUnavailable, match="no CUDA device 99"):
        loader.load(loader.open_checkpoint(weights), device=99)


def test_every_tensor_begins_on_256_bytes(weights: Path) -> None:
    assert all(tensor.data_ptr() % 256 == 0 for tensor in load_file(weights, device="cuda").values())


def test_digests_are_the_same_on_device_and_in_the_file(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    loaded = loader.load(checkpoint, device="cuda").tensors
    assert digest_tensors(loaded) == digest_source(checkpoint)


def test_a_flipped_bit_in_device_memory_is_seen(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    manifest = describe(checkpoint, digest_source(checkpoint))
    tensors = loader.load(checkpoint, device="cuda", manifest=manifest).tensors
    assert verify_resident(checkpoint, tensors, manifest=manifest).unproven == frozenset()
    tensors["w2"].view(torch.uint8)[4000, 4000] ^= 16
    with pytest.raises(loader.DigestMismatch) as caught:
        verify_resident(checkpoint, tensors, manifest=manifest)
    assert caught.value.tensors == ("w2",)


def test_digests_of_whole_blocks_wherever_they_lie_in_a_storage() -> None:
    memory = torch.randint(0, 256, (2**20 + 8192,), dtype=torch.uint8, device="cuda")
    tensors = {
        "at the beginning": memory[: 2**19],
        "on a word": memory[8 : 8 + 2**19],
        "beside a word": memory[3 : 3 + 2**19],
        "of another dtype": memory[4096 : 4096 + 2**19].view(torch.bfloat16).view(512, 512),
    }
    on_the_host = {name: tensor.cpu() for name, tensor in tensors.items()}
    assert digest_tensors(tensors) == digest_tensors(on_the_host)


def test_digests_take_a_thousandth_of_the_memory(weights: Path) -> None:
    tensors = loader.load(loader.open_checkpoint(weights), device="cuda").tensors
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    digest_tensors(tensors)
    assert torch.cuda.max_memory_allocated() - before <= 64 * 2**20


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_from_unmodified_files(tmp_path: Path, dim: int) -> None:
    path = tmp_path / "m.safetensors"
    whole = torch.randn(1024, 4096).to(torch.bfloat16)
    safetensors.torch.save_file({"w": whole}, path)
    checkpoint = loader.open_checkpoint(path)
    for rank in range(4):
        part = loader.rank_part(checkpoint.tensors["w"], dim=dim, rank=rank, ranks=4)
        loaded = loader.load(loader.take_parts(checkpoint, {"w": part}), device="cuda").tensors["w"]
        assert torch.equal(loaded.cpu(), whole.chunk(4, dim)[rank])


class PastCache(ShardReader):
    """Files that are read past the page cache whether or not they are in it."""

    def nearness(self, ranges: Iterable[tuple[str, int, int]]) -> Nearness:
        del ranges
        return Nearness(tier=Tier.DISK, cached_share=0.0)


class PastCacheSource:
    def open(self, checkpoint: loader.Checkpoint) -> PastCache:
        return PastCache(checkpoint)


def test_past_the_page_cache(weights: Path) -> None:
    result = loader.load(
        loader.open_checkpoint(weights), device="cuda", run=loader.Run(source=PastCacheSource())
    )
    expected = safetensors.torch.load_file(weights)
    assert all(torch.equal(bits(result.tensors[name]), bits(tensor)) for name, tensor in expected.items())


def test_tensor_by_tensor_while_the_stream_is_busy(weights: Path) -> None:
    expected = safetensors.torch.load_file(weights)
    stream = torch.cuda.Stream()
    kept = {}
    with torch.cuda.stream(stream):
        for name, tensor in loader.arrivals(
            loader.open_checkpoint(weights), device="cuda", window_bytes=2**25
        ):
            kept[name] = torch.empty_like(tensor)
            torch.cuda._sleep(2_000_000)
            kept[name].copy_(tensor, non_blocking=True)
            del tensor
    stream.synchronize()
    assert all(torch.equal(bits(kept[name]), bits(tensor)) for name, tensor in expected.items())


def test_what_does_not_fit_is_refused_before_anything_is_read(weights: Path) -> None:
    with filled(2**25), pytest.raises(loader.LoadRefused) as caught:
        loader.load(loader.open_checkpoint(weights), device="cuda")
    assert caught.value.reasons == (loader.Reason.DEVICE_MEMORY,)
    assert len(load_file(weights, device="cuda")) == 704


def test_slots_are_registered_once(weights: Path) -> None:
    load_file(weights, device="cuda")
    checkpoint = loader.open_checkpoint(weights)
    assert loader.footprint(checkpoint, device="cuda").pinned == 0


def test_a_load_that_is_called_off_leaves_the_device_as_it_was(weights: Path) -> None:
    before = torch.cuda.memory_allocated()
    control = loader.Control(bytes_per_second=1)  # the second read waits until it is called off
    called_off = loader.Run(threads=1, progress=lambda _: control.cancel(), control=control)
    with pytest.raises(loader.LoadCancelled):
        loader.load(loader.open_checkpoint(weights), device="cuda", run=called_off)
    assert torch.cuda.memory_allocated() == before
