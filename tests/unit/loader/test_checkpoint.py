import json

import pytest

from loader.checkpoint import (
    Checkpoint,
    FileIdentity,
    Index,
    Shard,
    assemble,
    parse_config,
    parse_index,
    refuse_format,
    select_shards,
)
from loader.errors import (
    CheckpointError,
    CheckpointNotFound,
    ConfigInvalid,
    FormatUnsupported,
    IndexInvalid,
    ShardMissing,
    TensorDuplicated,
    TensorMissing,
    TensorUnlisted,
)
from loader.header import Dtype, Header, TensorSpec

IDENTITY = FileIdentity(size_bytes=1000, mtime_ns=1, device=1, inode=1)


def shard(file: str, *names: str, metadata: dict[str, str] | None = None) -> Shard:
    tensors = tuple(
        TensorSpec(name=name, dtype=Dtype.U8, shape=(4,), begin=4 * position, end=4 * position + 4)
        for position, name in enumerate(names)
    )
    return Shard(
        file=file,
        header=Header(tensors=tensors, metadata=metadata or {}, payload_begin=100),
        identity=IDENTITY,
        header_digest="0" * 32,
    )


def index(**weight_map: str) -> Index:
    return Index(weight_map=weight_map, declared_bytes=None)


def test_entries_have_offsets_from_the_start_of_their_file() -> None:
    checkpoint = assemble([shard("b", "y"), shard("a", "w", "x")], root="/m")
    assert list(checkpoint.tensors) == ["w", "x", "y"]
    assert (checkpoint.tensors["x"].file, checkpoint.tensors["x"].begin, checkpoint.tensors["x"].end) == (
        "a",
        104,
        108,
    )
    assert checkpoint.total_bytes == 12
    assert checkpoint.config == {}


@pytest.mark.parametrize(
    ("shards", "listed", "error", "what", "file"),
    [
        pytest.param(
            [shard("a", "x"), shard("b", "x")],
            None,
            TensorDuplicated,
            "tensor 'x' is in a too",
            "/m/b",
            id="in two shards",
        ),
        pytest.param(
            [shard("a", "x")],
            index(x="a", y="a"),
            TensorMissing,
            "tensor 'y' is not in this shard",
            "/m/a",
            id="absent",
        ),
        pytest.param(
            [shard("a", "x", "y")],
            index(x="a"),
            TensorUnlisted,
            "tensor 'y', which the index does not list",
            "/m/a",
            id="unlisted",
        ),
        pytest.param(
            [shard("a", "x"), shard("b", "y")],
            index(x="b", y="b"),
            TensorUnlisted,
            "tensor 'x', which the index places in b",
            "/m/a",
            id="elsewhere",
        ),
    ],
)
def test_shards_and_index_must_agree(
    shards: list[Shard], listed: Index | None, error: type[CheckpointError], what: str, file: str
) -> None:
    with pytest.raises(error) as caught:
        assemble(shards, root="/m", index=listed)
    assert what in caught.value.what
    assert caught.value.file == file


def test_metadata_is_what_the_shards_do_not_contradict() -> None:
    checkpoint = assemble(
        [shard("a", metadata={"format": "pt", "step": "1"}), shard("b", metadata={"step": "2", "note": "n"})],
        root="/m",
    )
    assert checkpoint.metadata == {"format": "pt", "note": "n"}


@pytest.fixture
def two_shards() -> Checkpoint:
    return assemble([shard("a", "w", "x"), shard("b", "y")], root="/m")


def test_only_keeps_order_and_drops_what_is_not_wanted(two_shards: Checkpoint) -> None:
    part = two_shards.only(["x", "w"])
    assert list(part.tensors) == ["w", "x"]
    assert list(part.shards) == ["a"]
    assert part.total_bytes == 8


def test_only_refuses_names_that_are_not_there(two_shards: Checkpoint) -> None:
    with pytest.raises(TensorMissing, match="no tensor 'u', 'v' among the 3"):
        two_shards.only(["x", "v", "u"])


@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param("../a.safetensors", IndexInvalid, id="parent"),
        pytest.param("..", IndexInvalid, id="dots"),
        pytest.param("/etc/a.safetensors", IndexInvalid, id="absolute"),
        pytest.param("sub/a.safetensors", IndexInvalid, id="subdirectory"),
        pytest.param("..\\a.safetensors", IndexInvalid, id="backslash"),
        pytest.param("a\0.safetensors", IndexInvalid, id="NUL"),
        pytest.param("", IndexInvalid, id="empty"),
        pytest.param(7, IndexInvalid, id="number"),
        pytest.param("pytorch_model.bin", FormatUnsupported, id="pickle"),
        pytest.param("a.txt", FormatUnsupported, id="other"),
    ],
)
def test_index_names_only_plain_safetensors_files(name: object, error: type[CheckpointError]) -> None:
    with pytest.raises(error):
        parse_index(json.dumps({"weight_map": {"x": name}}).encode(), file="i")


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"{}", id="no map"),
        pytest.param(b'{"weight_map":{}}', id="empty map"),
        pytest.param(b'{"weight_map":[]}', id="map is a list"),
        pytest.param(b'{"weight_map":{"x":"a.safetensors","x":"b.safetensors"}}', id="name twice"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b'{"a":' * 100_000, id="deep"),
    ],
)
def test_malformed_index(raw: bytes) -> None:
    with pytest.raises(IndexInvalid):
        parse_index(raw, file="i")


def test_index_keeps_the_declared_total() -> None:
    raw = b'{"metadata":{"total_size":12},"weight_map":{"x":"a.safetensors"}}'
    assert parse_index(raw, file="i") == Index(weight_map={"x": "a.safetensors"}, declared_bytes=12)


@pytest.mark.parametrize("raw", [b"[]", b"{", b'{"a":1,"a":2}'], ids=["list", "cut", "key twice"])
def test_malformed_config(raw: bytes) -> None:
    with pytest.raises(ConfigInvalid):
        parse_config(raw, file="c")


@pytest.mark.parametrize(
    ("present", "listed", "chosen"),
    [
        pytest.param(["a.safetensors"], None, ("a.safetensors",), id="the only one"),
        pytest.param(
            ["b.safetensors", "model.safetensors"], None, ("model.safetensors",), id="the usual name"
        ),
        pytest.param(
            ["m-00002-of-00002.safetensors", "m-00001-of-00002.safetensors", "x.txt"],
            None,
            ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"),
            id="numbered set",
        ),
        pytest.param(
            ["a.safetensors", "b.safetensors", "consolidated.safetensors"],
            index(x="b.safetensors", y="a.safetensors"),
            ("a.safetensors", "b.safetensors"),
            id="index decides",
        ),
    ],
)
def test_which_files_belong_to_it(present: list[str], listed: Index | None, chosen: tuple[str, ...]) -> None:
    assert select_shards(present, listed, root="/m") == chosen


@pytest.mark.parametrize(
    ("present", "listed", "error", "what"),
    [
        pytest.param([], None, CheckpointNotFound, "no safetensors file", id="nothing"),
        pytest.param(
            ["pytorch_model.bin", "x.pt"],
            None,
            FormatUnsupported,
            "only 'pytorch_model.bin', 'x.pt'",
            id="pickle only",
        ),
        pytest.param(["a.safetensors", "b.safetensors"], None, CheckpointNotFound, "several", id="ambiguous"),
        pytest.param(
            ["m-00001-of-00003.safetensors", "m-00003-of-00003.safetensors"],
            None,
            ShardMissing,
            "m-00002-of-00003.safetensors is not there; 2 of 3 are",
            id="hole in the numbers",
        ),
        pytest.param(
            ["a.safetensors"],
            index(w="a.safetensors", x="b.safetensors", y="b.safetensors", z="c.safetensors"),
            ShardMissing,
            "shard b.safetensors is not there; by the index it holds 2 of 4 tensors; 1 more",
            id="listed and missing",
        ),
    ],
)
def test_why_a_directory_is_no_checkpoint(
    present: list[str], listed: Index | None, error: type[CheckpointError], what: str
) -> None:
    with pytest.raises(error) as caught:
        select_shards(present, listed, root="/m")
    assert what in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize("path", ["/m/x.bin", "/m/X.PT", "/m/x.gguf"])
def test_other_formats_are_refused_by_name(path: str) -> None:
    with pytest.raises(FormatUnsupported, match="run code"):
        refuse_format(path)
