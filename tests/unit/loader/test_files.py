import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loader import MANIFEST_FILE, Fallback, open_checkpoint, read_manifest
from loader.checkpoint import Checkpoint
from loader.errors import (
    CheckpointError,
    CheckpointNotFound,
    ConfigInvalid,
    FileChanged,
    FormatUnsupported,
    IndexInvalid,
    LoaderError,
    ReadFailed,
    ShardMissing,
    ShardOutside,
    ShardTruncated,
    TensorMissing,
)
from loader.manifest import describe, render_manifest
from loader.plan import PAGE_BYTES
from loader.sources.files import ShardReader

WriteRaw = Callable[..., Path]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def table(name: str, nbytes: int = 4) -> dict[str, object]:
    return {name: {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}


@pytest.fixture
def sharded(write_raw: WriteRaw, tmp_path: Path) -> Path:
    write_raw("model-1.safetensors", table("x"), b"abcd")
    write_raw("model-2.safetensors", table("y"), b"efgh")
    weight_map = {"x": "model-1.safetensors", "y": "model-2.safetensors"}
    document = {"metadata": {"total_size": 8}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    return tmp_path


def test_sharded_directory(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    assert list(checkpoint.tensors) == ["x", "y"]
    assert checkpoint.config["hidden_size"] == 64
    assert checkpoint.declared_bytes == checkpoint.total_bytes == 8


def test_path_may_be_relative_and_text(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sharded)
    assert open_checkpoint("model-1.safetensors").root == str(sharded)


def moved_to(blobs: Path, shard: Path) -> None:
    blobs.mkdir(parents=True, exist_ok=True)
    shard.rename(blobs / "0123")
    shard.symlink_to(blobs / "0123")


def test_shards_may_be_links_to_blobs_as_in_model_caches(sharded: Path) -> None:
    snapshot = sharded / "models--x--y" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for file in sharded.glob("*.*"):
        file.rename(snapshot / file.name)
    moved_to(sharded / "models--x--y" / "blobs", snapshot / "model-1.safetensors")
    assert open_checkpoint(snapshot).tensors["x"].nbytes == 4


@pytest.mark.parametrize("file", ["model-1.safetensors", "config.json", "model.safetensors.index.json"])
def test_a_link_out_of_the_directory_is_refused_unless_it_is_wanted(sharded: Path, file: str) -> None:
    moved_to(sharded.parent / "elsewhere", sharded / file)
    with pytest.raises(ShardOutside) as caught:
        open_checkpoint(sharded)
    assert caught.value.file == str(sharded / file)
    assert open_checkpoint(sharded, follow_links=True).tensors["x"].nbytes == 4


def test_links_inside_the_directory_and_to_it_are_fine(sharded: Path) -> None:
    moved_to(sharded / "..data", sharded / "model-1.safetensors")
    (sharded.parent / "alias").symlink_to(sharded)
    assert open_checkpoint(sharded.parent / "alias").tensors["x"].nbytes == 4


def damage_truncate(root: Path) -> None:
    path = root / "model-2.safetensors"
    os.truncate(path, path.stat().st_size - 1)


def damage_lie(root: Path) -> None:
    weight_map = {"x": "model-1.safetensors", "y": "model-2.safetensors", "z": "model-2.safetensors"}
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def damage_dangle(root: Path) -> None:
    (root / "model-2.safetensors").unlink()
    (root / "model-2.safetensors").symlink_to("/nowhere/at/all")


def damage_directory(root: Path) -> None:
    (root / "model-2.safetensors").unlink()
    (root / "model-2.safetensors").mkdir()


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        pytest.param(lambda root: (root / "model-2.safetensors").unlink(), ShardMissing, id="shard missing"),
        pytest.param(damage_dangle, ShardMissing, id="dangling link"),
        pytest.param(damage_directory, ShardMissing, id="directory named like a shard"),
        pytest.param(damage_truncate, ShardTruncated, id="shard cut by a byte"),
        pytest.param(
            lambda root: (root / "model-2.safetensors").write_bytes(b""), CheckpointError, id="shard empty"
        ),
        pytest.param(damage_lie, TensorMissing, id="index lists what no shard holds"),
        pytest.param(
            lambda root: (root / "model.safetensors.index.json").write_text("{"), IndexInvalid, id="index cut"
        ),
        pytest.param(
            lambda root: (root / "config.json").write_text("[]"), ConfigInvalid, id="config no object"
        ),
    ],
)
def test_damage_is_found_without_reading_the_payload(
    sharded: Path, damage: Callable[[Path], object], error: type[CheckpointError]
) -> None:
    damage(sharded)
    with pytest.raises(error) as caught:
        open_checkpoint(sharded)
    assert str(sharded) in caught.value.file


def test_pickle_only_directory_says_so(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(FormatUnsupported, match=r"only 'pytorch_model\.bin'"):
        open_checkpoint(tmp_path)


def test_absent_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound):
        open_checkpoint(tmp_path / "nothing.safetensors")


def test_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(FormatUnsupported, match="not a regular file"):
        open_checkpoint(tmp_path / "x.safetensors")


def test_open_leaves_no_descriptor(sharded: Path) -> None:
    before = open_files()
    open_checkpoint(sharded)
    damage_truncate(sharded)
    with pytest.raises(LoaderError):
        open_checkpoint(sharded)
    assert open_files() == before


@pytest.fixture
def checkpoint(write_raw: WriteRaw) -> Checkpoint:
    return open_checkpoint(write_raw("m.safetensors", table("x", 100_000), bytes(range(250)) * 400))


def test_read_fills_all_buffers_in_order(checkpoint: Checkpoint) -> None:
    begin = checkpoint.tensors["x"].begin
    buffers = [bytearray(7), bytearray(0), bytearray(60_000), bytearray(3)]
    with ShardReader(checkpoint) as reader:
        reader.read("m.safetensors", begin + 250, [memoryview(buffer) for buffer in buffers])
    assert b"".join(buffers) == (bytes(range(250)) * 400)[250 : 250 + 60_010]


def test_file_cut_between_open_and_read(checkpoint: Checkpoint) -> None:
    entry = checkpoint.tensors["x"]
    with ShardReader(checkpoint) as reader:
        os.truncate(reader.path(entry.file), entry.end - 10)
        with pytest.raises(FileChanged, match="it had 100") as caught:
            reader.read(entry.file, entry.begin, [memoryview(bytearray(entry.nbytes))])
    assert caught.value.hint


def test_file_rewritten_in_place_is_noticed_at_the_end(checkpoint: Checkpoint) -> None:
    with ShardReader(checkpoint) as reader:
        path = Path(reader.path("m.safetensors"))
        os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
        with pytest.raises(FileChanged, match="written to or replaced"):
            reader.verify()


def test_file_replaced_before_reading(checkpoint: Checkpoint) -> None:
    path = Path(checkpoint.root) / "m.safetensors"
    copy = path.with_suffix(".new")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(1, path.stat().st_mtime_ns))
    copy.replace(path)
    before = open_files()
    with pytest.raises(FileChanged), ShardReader(checkpoint):
        pass
    assert open_files() == before


def test_error_of_the_system_is_typed_and_placed(checkpoint: Checkpoint) -> None:
    with ShardReader(checkpoint) as reader, pytest.raises(ReadFailed) as caught:
        reader.read("m.safetensors", -4096, [memoryview(bytearray(1))])
    assert caught.value.file.endswith("m.safetensors")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.fixture
def slot() -> memoryview:
    return memoryview(mmap.mmap(-1, 200_000 + 2 * PAGE_BYTES))


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 100_000), (1, 1), (4096, 4096), (5000, 60_000), (99_999, 1), (3, 99_997)]
)
def test_reading_past_the_cache_gives_the_same_bytes(
    checkpoint: Checkpoint, slot: memoryview, offset: int, nbytes: int
) -> None:
    entry = checkpoint.tensors["x"]
    with ShardReader(checkpoint) as reader:
        begin = reader.read_past_cache(entry.file, entry.begin + offset, nbytes, slot)
    assert bytes(slot[begin : begin + nbytes]) == (bytes(range(250)) * 400)[offset : offset + nbytes]


def test_where_reading_past_the_cache_is_refused_it_says_so(checkpoint: Checkpoint) -> None:
    unaligned = memoryview(bytearray(200_000 + 2 * PAGE_BYTES + 1))[1:]
    entry = checkpoint.tensors["x"]
    with ShardReader(checkpoint) as reader:
        begin = reader.read_past_cache(entry.file, entry.begin, entry.nbytes, unaligned)
        assert bytes(unaligned[begin : begin + entry.nbytes]) == bytes(range(250)) * 400
        # Some file systems take any address; those that don't are told of.
        assert reader.fallbacks in (frozenset(), {Fallback.DIRECT_REFUSED})


def test_reading_past_the_cache_leaves_no_descriptor(checkpoint: Checkpoint, slot: memoryview) -> None:
    before = open_files()
    with ShardReader(checkpoint) as reader:
        reader.read_past_cache("m.safetensors", checkpoint.tensors["x"].begin, 5000, slot)
    assert open_files() == before


def test_a_file_cut_before_it_is_read_past_the_cache(checkpoint: Checkpoint, slot: memoryview) -> None:
    entry = checkpoint.tensors["x"]
    with ShardReader(checkpoint) as reader:
        os.truncate(reader.path(entry.file), entry.end - 10)
        with pytest.raises(FileChanged):
            reader.read_past_cache(entry.file, entry.begin, entry.nbytes, slot)


def test_a_manifest_beside_the_shards_or_elsewhere(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert read_manifest(checkpoint) is None
    with pytest.raises(CheckpointNotFound):
        read_manifest(checkpoint, tmp_path / "none.json")
    manifest = describe(checkpoint, {"x": "0" * 32})
    for place in (MANIFEST_FILE, "other.json"):
        (tmp_path / place).write_text(render_manifest(manifest))
    assert read_manifest(checkpoint) == read_manifest(checkpoint, tmp_path / "other.json") == manifest
