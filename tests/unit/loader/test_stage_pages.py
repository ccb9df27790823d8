"""Which pages the stage daemon's memory comes in."""

import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader.checkpoint import FileIdentity
from loader.copiers.mapped import map_shards
from loader.stage.memory import ShardMemory, StagedShard
from loader.stage.pages import HUGE_BYTES, SMALL_BYTES, Supply, Way, choose, huge_bytes, read_supply
from loader.stage.pool import Pool

MIB = 2**20
NBYTES = 32 * MIB + 123
NONE = Supply(reserved=0, mounts=(), transparent="never", waits=False, whole=0)
NAMELESS = Path("/dev/shm")


@pytest.mark.parametrize(
    ("supply", "ways"),
    [
        pytest.param(NONE, (Way.SMALL,), id="nothing"),
        pytest.param(replace(NONE, reserved=34 * MIB), (Way.RESERVED, Way.SMALL), id="enough is reserved"),
        pytest.param(replace(NONE, reserved=32 * MIB), (Way.SMALL,), id="the last page isn't"),
        pytest.param(replace(NONE, mounts=("/x",)), (Way.TMPFS, Way.SMALL), id="a mount"),
        pytest.param(replace(NONE, transparent="always"), (Way.TRANSPARENT, Way.SMALL), id="always"),
        pytest.param(replace(NONE, transparent="advise", waits=True), (Way.SMALL,), id="fragmented"),
        pytest.param(
            replace(NONE, transparent="advise", waits=True, whole=64 * MIB),
            (Way.TRANSPARENT, Way.SMALL),
            id="enough is whole",
        ),
        pytest.param(
            Supply(reserved=2**40, mounts=("/x",), transparent="force", waits=False, whole=0),
            tuple(Way),
            id="everything",
        ),
    ],
)
def test_what_is_tried_and_a_reason_for_what_is_not(supply: Supply, ways: tuple[Way, ...]) -> None:
    choice = choose(supply, NBYTES)
    assert choice.ways == ways
    assert choice.refused.keys() == set(Way) - set(ways)
    assert all(choice.refused.values())


def test_small_shards_are_not_worth_it() -> None:
    everything = Supply(reserved=2**40, mounts=("/x",), transparent="force", waits=False, whole=2**40)
    choice = choose(everything, 5 * MIB)
    assert choice.ways == (Way.SMALL,)
    assert choice.refused[Way.RESERVED] == "a shard of less than 32 MiB"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's /proc and /sys."""
    files = {
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "5\n",
        "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled": "always [inherit] never\n",
        "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force\n",
        "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
        "proc/buddyinfo": "Node 0, zone   DMA32      1      2      4      2      5      4      3      3      4      2    3\n"
        "Node 0, zone   Normal   9   0   0   0   0   0   0   0   0   0   1 \n",
        "proc/self/mountinfo": f"65 44 0:39 / {tmp_path} rw,relatime - tmpfs none rw,huge=always\n"
        "66 44 0:40 / /dev/shm rw - tmpfs none rw,size=4k\n"
        "67 44 0:41 / /nowhere\\040at\\040all rw - tmpfs none rw,huge=always\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_a_machine_has(root: Path) -> None:
    assert read_supply(root) == Supply(
        reserved=10 * MIB,
        mounts=(str(root),),
        transparent="advise",
        waits=True,
        whole=2 * 2 * MIB + 3 * 4 * MIB + 4 * MIB,
    )


def test_the_setting_for_this_size_comes_first(root: Path) -> None:
    about = root / "sys/kernel/mm/transparent_hugepage"
    (about / "hugepages-2048kB/shmem_enabled").write_text("[always] inherit never\n")
    supply = read_supply(root)
    assert (supply.transparent, supply.waits) == ("always", False)


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert read_supply(tmp_path) == replace(NONE, transparent="")


SMAPS = """\
7f0000000000-7f0000400000 rw-s 00000000 00:01 5 /memfd:emberpool:m (deleted)
Size:               4096 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:         0 kB
Shared_Hugetlb:        0 kB
7f0000400000-7f0000800000 rw-s 00000000 00:01 6 /memfd:emberpool:n (deleted)
ShmemPmdMapped:     4096 kB
"""


@pytest.mark.parametrize(
    ("address", "nbytes"), [(0x7F0000000000, 2 * MIB), (0x7F0000400000, 4 * MIB), (0x1000, 0)]
)
def test_what_lies_in_large_pages(address: int, nbytes: int) -> None:
    assert huge_bytes(address, SMAPS) == nbytes


def fill(supply: Supply, nbytes: int = NBYTES) -> tuple[StagedShard, bytes]:
    memory = ShardMemory("m.safetensors", nbytes, supply)
    data = os.urandom(MIB) * (nbytes // MIB + 1)
    memory.memory[:] = data[:nbytes]
    about = FileIdentity(size_bytes=nbytes, mtime_ns=0, device=0, inode=0)
    return memory.seal(about, lock=False), data[:nbytes]


@pytest.mark.parametrize(
    "supply",
    [
        pytest.param(NONE, id="small"),
        pytest.param(replace(NONE, reserved=2**40), id="reserved"),
        pytest.param(
            replace(NONE, mounts=(str(NAMELESS),)),
            id="tmpfs",
            marks=pytest.mark.skipif(not os.access(NAMELESS, os.W_OK), reason="no tmpfs"),
        ),
        pytest.param(replace(NONE, mounts=("/proc",)), id="a mount that takes no files"),
        pytest.param(replace(NONE, transparent="always"), id="transparent"),
        pytest.param(replace(NONE, transparent="advise"), id="advised"),
    ],
)
def test_whatever_is_tried_the_bytes_are_there_and_nobody_can_change_them(supply: Supply) -> None:
    shard, data = fill(supply)
    try:
        assert os.pread(shard.descriptor, len(data), 0) == data
        assert bytes(shard.data[-9:].tolist()) == data[-9:]
        attacks: list[Callable[[], object]] = [
            lambda: os.pwrite(shard.descriptor, b"x", 0),
            lambda: os.ftruncate(shard.descriptor, 10),
            lambda: os.ftruncate(shard.descriptor, 2 * NBYTES),
            lambda: mmap.mmap(shard.descriptor, 0),
        ]
        for attack in attacks:
            with pytest.raises(OSError, match=r".+"):
                attack()
        pages = shard.pages
        assert (pages.nbytes == HUGE_BYTES) == (pages.way is not Way.SMALL)
        assert pages.refused.keys() == {
            way for way in Way if list(Way).index(way) < list(Way).index(pages.way)
        }
    finally:
        os.close(shard.descriptor)


@pytest.mark.skipif(read_supply().reserved < 36 * MIB, reason="no pages of 2 MiB are reserved")
def test_reserved_pages_are_used_and_can_be_attached_to(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    safetensors.torch.save_file({"w": torch.arange(NBYTES // 8)}, tmp_path / "m" / "model.safetensors")
    pool = Pool(2**26, (str(tmp_path),))
    staged = pool.take(str(tmp_path / "m"), 1)
    try:
        (status,) = pool.statuses()
        assert (status.page_bytes, status.page_way, status.pages_refused) == (HUGE_BYTES, Way.RESERVED, {})
        descriptors = {shard.file: shard.descriptor for shard in staged.shards}
        tensors = map_shards(loader.open_checkpoint(tmp_path / "m"), descriptors)
        assert torch.equal(tensors["w"], torch.arange(NBYTES // 8))
    finally:
        staged.close()
        pool.close()


def test_the_reasons_are_told(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    safetensors.torch.save_file({"w": torch.arange(9)}, tmp_path / "m" / "model.safetensors")
    pool = Pool(2**20, (str(tmp_path),))
    pool.take(str(tmp_path / "m"), 1).close()
    (status,) = pool.statuses()
    assert (status.page_bytes, status.page_way) == (SMALL_BYTES, Way.SMALL)
    assert status.pages_refused.keys() == {Way.RESERVED, Way.TMPFS, Way.TRANSPARENT}
    pool.close()
