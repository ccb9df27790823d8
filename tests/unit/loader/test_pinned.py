"""The CUDA path; runs where a device is."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader.copiers import pinned
from loader.copiers.destinations import TORCH_DTYPES
from loader.torch import load_file

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
    assert 0 < result.staging_bytes <= pinned.DEFAULT_THREADS * pinned.SLOTS_PER_THREAD * pinned.CHUNK_BYTES
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
            loader.load(loader.open_checkpoint(weights), device="cuda", progress=stop)
    loaded = load_file(weights, device="cuda")
    assert all(torch.equal(bits(loaded[name]), bits(tensor)) for name, tensor in expected.items())


def test_absent_device_is_a_typed_error(weights: Path) -> None:
    with pytest.raises(loader.DeviceUnavailable, match="no CUDA device 99"):
        loader.load(loader.open_checkpoint(weights), device=99)
