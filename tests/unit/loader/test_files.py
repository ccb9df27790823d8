import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loader import open_checkpoint
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
    ShardTruncated,
    TensorMissing,
)
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


def test_shards_may_be_links_out_of_the_directory_as_in_model_caches(sharded: Path) -> None:
    blob = sharded.parent / "blob"
    (sharded / "model-1.safetensors").rename(blob)
    (sharded / "model-1.safetensors").symlink_to(blob)
    assert open_checkpoint(sharded).tensors["x"].nbytes == 4


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
