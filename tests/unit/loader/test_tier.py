import os
from pathlib import Path

import pytest

from loader import Tier, open_checkpoint
from loader.sources.files import ShardReader
from loader.sources.port import Nearness
from loader.sources.tier import file_system, probe, read_mount_table

TABLE = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /dev/shm rw - tmpfs tmpfs rw
24 22 0:45 / /models rw shared:7 master:2 - nfs4 server:/x rw
25 24 0:46 / /models/local\040disk rw - xfs /dev/nvme0n1 rw
26 22 0:47 / /models2 rw - ext3 /dev/sdb rw
27 26 0:48 / /models2 rw - fuse.bucket bucket rw
not a mount line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/dev/shm/a", "tmpfs"),
        ("/models", "nfs4"),
        ("/models/a/b", "nfs4"),
        ("/models/local disk/a", "xfs"),
        ("/modelsmore/a", "ext4"),
        ("/models2/a", "fuse.bucket"),
    ],
)
def test_longest_and_last_mount_wins(path: str, kind: str) -> None:
    assert file_system(TABLE, path) == kind


def test_no_table_is_no_answer() -> None:
    assert file_system("", "/home/x") == ""


def mounted_as(kind: str) -> str:
    return f"22 1 8:1 / / rw - {kind} source rw\n"


def probe_file(path: Path, mount_table: str) -> Nearness:
    checkpoint = open_checkpoint(path)
    entry = checkpoint.tensors["x"]
    with ShardReader(checkpoint) as reader:
        return probe(reader, [(entry.file, entry.begin, entry.end)], mount_table)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    header = b'{"x":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}}'
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2**20))
    return path


def test_memory_file_system_needs_no_probe(weights: Path) -> None:
    assert probe_file(weights, mounted_as("tmpfs")) == Nearness(tier=Tier.TMPFS, cached_share=1.0)


@pytest.mark.parametrize("kind", ["ext4", "nfs4", "something.new"])
def test_what_was_just_written_is_in_the_page_cache(weights: Path, kind: str) -> None:
    found = probe_file(weights, mounted_as(kind))
    if found.cached_share is None:
        pytest.skip("this file system doesn't tell what is cached")
    assert found == Nearness(tier=Tier.PAGE_CACHE, cached_share=1.0)


@pytest.mark.parametrize(
    ("kind", "tier"), [("xfs", Tier.DISK), ("nfs4", Tier.NETWORK), ("something.new", Tier.FILE)]
)
def test_what_was_dropped_from_the_cache_comes_from_behind_it(weights: Path, kind: str, tier: Tier) -> None:
    if file_system(read_mount_table(), str(weights.resolve())) not in {"ext4", "xfs", "btrfs"}:
        pytest.skip("this file system may keep pages that it is told to drop")
    found = None
    for _ in range(
        20
    ):  # the kernel is only asked to drop them, and keeps those that are on their way to the disk
        with weights.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found = probe_file(weights, mounted_as(kind))
        if found.cached_share is not None and found.cached_share < 0.5:
            break
    assert found is not None
    assert found.cached_share is not None
    assert found.cached_share < 0.5
    assert found.tier is tier
