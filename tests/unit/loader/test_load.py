import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader import (
    DestinationMismatch,
    DeviceUnavailable,
    DtypeUnsupported,
    FileChanged,
    LoadError,
    Progress,
    Step,
    Tier,
)
from loader.copiers.mapped import map_tensors
from loader.torch import load_file

WriteRaw = Callable[..., Path]
LoadAll = Callable[[Path], dict[str, torch.Tensor]]

DTYPES = [
    torch.bool,
    torch.float4_e2m1fn_x2,
    torch.uint8,
    torch.int8,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.int16,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.uint32,
    torch.float32,
    torch.complex64,
    torch.float64,
    torch.int64,
    torch.uint64,
]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.uint8).to(torch.bool)
    *outer, last = shape
    return torch.randint(0, 256, (*outer, last * dtype.itemsize), dtype=torch.uint8).view(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes themselves, so that NaN equals NaN and dtypes without arithmetic compare."""
    return tensor.reshape(-1).view(torch.uint8)


def assert_same(loaded: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(bits(loaded[name]), bits(tensor))


def copied(path: Path) -> dict[str, torch.Tensor]:
    return dict(loader.load(loader.open_checkpoint(path)).tensors)


both_ways = pytest.mark.parametrize("load_all", [copied, load_file], ids=["load", "load_file"])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """11 MB: some tensors span chunks, some share one."""
    path = tmp_path / "m.safetensors"
    tensors = {f"w{n}": random_tensor(torch.bfloat16, 300, 3001) for n in range(6)}
    tensors |= {f"bias{n}": random_tensor(torch.float32, 17) for n in range(40)}
    safetensors.torch.save_file(tensors, path)
    return path


@both_ways
def test_every_dtype_is_bit_equal_to_the_reference(tmp_path: Path, load_all: LoadAll) -> None:
    path = tmp_path / "all.safetensors"
    tensors = {str(dtype): random_tensor(dtype, 5, 6) for dtype in DTYPES}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    assert len(load_all(path)) == len(loader.Dtype) - 2  # torch knows no 6-bit types
    assert_same(load_all(path), safetensors.torch.load_file(path))


@both_ways
def test_large_and_small_tensors(weights: Path, load_all: LoadAll) -> None:
    assert_same(load_all(weights), safetensors.torch.load_file(weights))


@both_ways
def test_scalars_and_empty_tensors(tmp_path: Path, load_all: LoadAll) -> None:
    path = tmp_path / "edge.safetensors"
    tensors = {
        "scalar": torch.tensor(3.5),
        "none": torch.empty(0),
        "flat": torch.empty(4, 0, 2),
        "one": torch.ones(1),
    }
    safetensors.torch.save_file(tensors, path)
    assert_same(load_all(path), tensors)


@both_ways
def test_file_without_tensors(write_raw: WriteRaw, load_all: LoadAll) -> None:
    assert load_all(write_raw("none.safetensors", {})) == {}


@both_ways
def test_unaligned_tensor_lands_aligned(write_raw: WriteRaw, load_all: LoadAll) -> None:
    values = torch.arange(5000, dtype=torch.float64)
    table = {
        "pad": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "F64", "shape": [5000], "data_offsets": [1, 40_001]},
    }
    loaded = load_all(write_raw("odd.safetensors", table, b"\0" + bytes(bits(values).tolist())))["x"]
    assert torch.equal(loaded, values)
    assert loaded.data_ptr() % 8 == 0


@both_ways
def test_sharded_directory(tmp_path: Path, load_all: LoadAll) -> None:
    parts = [{"a": random_tensor(torch.float32, 9)}, {"b": random_tensor(torch.int8, 3, 3)}]
    for number, part in enumerate(parts, start=1):
        safetensors.torch.save_file(part, tmp_path / f"model-{number:05d}-of-00002.safetensors")
    assert_same(load_all(tmp_path), parts[0] | parts[1])


@both_ways
def test_type_that_torch_lacks_is_a_typed_error(write_raw: WriteRaw, load_all: LoadAll) -> None:
    table = {"a": {"dtype": "F6_E3M2", "shape": [4], "data_offsets": [0, 3]}}
    with pytest.raises(DtypeUnsupported, match="F6_E3M2"):
        load_all(write_raw("six.safetensors", table, b"abc"))


def test_load_file_writes_stay_private(weights: Path) -> None:
    before = weights.read_bytes()
    loaded = load_file(weights)
    loaded["w0"].zero_()
    assert weights.read_bytes() == before
    assert not torch.equal(load_file(weights)["w0"], loaded["w0"])


def test_load_file_outlives_its_name(weights: Path) -> None:
    expected = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(weights).items()}
    loaded = load_file(weights)
    weights.unlink()
    assert_same(loaded, expected)


def test_file_cut_after_its_header_was_read(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    os.truncate(weights, weights.stat().st_size // 2)
    with pytest.raises(FileChanged):
        loader.load(checkpoint)
    with pytest.raises(FileChanged):
        map_tensors(checkpoint, threads=2)


def test_into_fills_the_very_parameters(weights: Path) -> None:
    expected = safetensors.torch.load_file(weights)
    into = {
        name: torch.nn.Parameter(torch.empty_like(tensor), requires_grad=True)
        for name, tensor in expected.items()
    }
    addresses = {name: tensor.data_ptr() for name, tensor in into.items()}
    result = loader.load(loader.open_checkpoint(weights), into=into)
    assert result.tensors is into
    assert {name: tensor.data_ptr() for name, tensor in into.items()} == addresses
    assert_same({name: tensor.detach() for name, tensor in into.items()}, expected)
    assert all(tensor.requires_grad and tensor.grad is None for tensor in into.values())
    assert result.staging_bytes == 0


def test_into_may_be_rows_of_a_fused_parameter(weights: Path) -> None:
    expected = safetensors.torch.load_file(weights)
    fused = torch.zeros(600, 3001, dtype=torch.bfloat16)
    into = {"w0": fused[:300], "w1": fused[300:]}
    loader.load(loader.open_checkpoint(weights).only(into), into=into)
    assert torch.equal(bits(fused), torch.cat([bits(expected["w0"]), bits(expected["w1"])]))


def test_only_reads_no_other_byte(weights: Path) -> None:
    result = loader.load(loader.open_checkpoint(weights).only(["w3", "bias7"]))
    assert result.tensors.keys() == {"w3", "bias7"}
    assert result.nbytes == 300 * 3001 * 2 + 17 * 4


MISMATCHES = [
    pytest.param(lambda into: into.pop("a"), "'a' has no place in `into`", id="not in into"),
    pytest.param(lambda into: into.update(z=torch.empty(1)), "no tensor 'z'", id="not in the checkpoint"),
    pytest.param(lambda into: into.update(a=torch.empty(4, 3)), "holds shape [3, 4]", id="shape"),
    pytest.param(lambda into: into.update(a=torch.empty(4, 3).T), "not contiguous", id="transposed"),
    pytest.param(lambda into: into.update(a=torch.empty(3, 4, device="meta")), "no memory", id="meta"),
    pytest.param(
        lambda into: into.update(a=torch.empty(3, 4, dtype=torch.bfloat16)),
        "destination is torch.bfloat16",
        id="dtype",
    ),
    pytest.param(
        lambda into: into.update(a=torch.empty(3, 4, dtype=torch.int32)), "no safe conversion", id="integers"
    ),
]


@pytest.mark.parametrize(("change", "what"), MISMATCHES)
def test_destination_that_does_not_fit(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], what: str
) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"a": torch.ones(3, 4), "b": torch.ones(2)}, path)
    into = {"a": torch.zeros(3, 4), "b": torch.zeros(2)}
    change(into)
    with pytest.raises(DestinationMismatch) as caught:
        loader.load(loader.open_checkpoint(path), into=into)
    assert what in caught.value.what
    assert caught.value.hint
    assert torch.count_nonzero(into["b"]) == 0, "nothing is written before everything fits"


def test_conversion_is_bounded_and_exact(weights: Path) -> None:
    expected = safetensors.torch.load_file(weights)
    into = {name: torch.empty(tensor.shape, dtype=torch.float32) for name, tensor in expected.items()}
    result = loader.load(loader.open_checkpoint(weights), into=into, convert=True, run=loader.Run(threads=2))
    for name, tensor in expected.items():
        assert torch.equal(bits(into[name]), bits(tensor.to(torch.float32)))
    assert 0 < result.staging_bytes <= 2 * (4 * 2**20 + 16 * 512)


def test_unaligned_tensor_is_converted(write_raw: WriteRaw) -> None:
    values = torch.arange(2**20, dtype=torch.float64)
    table = {
        "pad": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "x": {"dtype": "F64", "shape": [2**20], "data_offsets": [3, 3 + 2**23]},
    }
    path = write_raw("odd.safetensors", table, b"\0\0\0" + values.numpy().tobytes())
    into = {"x": torch.empty(2**20, dtype=torch.float32)}
    loader.load(loader.open_checkpoint(path).only(["x"]), into=into, convert=True)
    assert torch.equal(into["x"], values.to(torch.float32))


def test_result_accounts_for_the_load(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    result = loader.load(checkpoint)
    assert result.nbytes == checkpoint.total_bytes
    assert result.tier in {Tier.TMPFS, Tier.PAGE_CACHE, Tier.DISK, Tier.FILE}
    assert list(result.seconds_by_step) == list(Step)
    assert 0 < sum(result.seconds_by_step.values()) <= result.seconds


def test_progress_reaches_the_total_on_the_callers_thread(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    seen: list[Progress] = []
    loader.load(checkpoint, run=loader.Run(progress=seen.append, threads=3))
    done = [step.done_bytes for step in seen]
    assert done == sorted(done)
    assert done[-1] == checkpoint.total_bytes == seen[0].total_bytes
    assert len(done) > 2


def test_file_cut_in_mid_load(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)

    def cut(_: Progress) -> None:
        os.truncate(weights, 5000)

    before = open_files()
    with pytest.raises(FileChanged, match="had 10"):
        loader.load(checkpoint, run=loader.Run(progress=cut, threads=2))
    assert open_files() == before


def test_exception_of_the_progress_callback_ends_the_load(weights: Path) -> None:
    class Enough(Exception):
        pass

    calls: list[Progress] = []

    def stop(progress: Progress) -> None:
        calls.append(progress)
        raise Enough

    with pytest.raises(Enough):
        loader.load(loader.open_checkpoint(weights), run=loader.Run(progress=stop))
    assert len(calls) == 1


@pytest.mark.parametrize("threads", [1, 7])
def test_any_number_of_threads_gives_the_same(weights: Path, threads: int) -> None:
    result = loader.load(loader.open_checkpoint(weights), run=loader.Run(threads=threads))
    assert_same(dict(result.tensors), safetensors.torch.load_file(weights))


def test_threads_must_be_positive(weights: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        loader.load(loader.open_checkpoint(weights), run=loader.Run(threads=0))


@both_ways
def test_loading_leaves_the_files_as_they_were(weights: Path, load_all: LoadAll) -> None:
    before = (weights.read_bytes(), weights.stat().st_mtime_ns, sorted(weights.parent.iterdir()))
    load_all(weights)["w0"].zero_()
    assert (weights.read_bytes(), weights.stat().st_mtime_ns, sorted(weights.parent.iterdir())) == before


def test_unknown_device_is_refused(weights: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="meta is not supported"):
        loader.load(loader.open_checkpoint(weights), device="meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", 0])
def test_cuda_without_cuda_is_a_typed_error(weights: Path, device: str | int) -> None:
    with pytest.raises(LoadError, match="CUDA is not available"):
        loader.load(loader.open_checkpoint(weights), device=device)


def test_checkpoints_open_where_torch_is_not_installed(weights: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None; import loader, loader.__main__\n"
        f"print(loader.open_checkpoint({str(weights)!r}).total_bytes)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(run.stdout) == 6 * 300 * 3001 * 2 + 40 * 17 * 4
