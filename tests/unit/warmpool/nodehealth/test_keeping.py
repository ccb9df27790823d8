"""GPUs whose device files are held open; here the files are ordinary ones."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from warmpool.nodehealth.keeping import DeviceKeeper, kept_open
from warmpool.nodehealth.lanes import Lane
from warmpool.nodehealth.nvml import Device


def open_files(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
    found = [link.resolve() for link in links]
    return sorted(each.name for each in found if each.parent == folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


Keep = Callable[[list[Device]], DeviceKeeper]


@pytest.fixture
def keep(folder: Path) -> Keep:
    def make(listed: list[Device]) -> DeviceKeeper:
        return DeviceKeeper(
            lambda: listed, lambda name: Lane(name, lambda: None), lambda lane: lane.close(), folder
        )

    return make


def gpu(minor: int | None, *, parent: str = "") -> Device:
    return Device(uuid=f"GPU-{minor}", index=minor or 0, minor=minor, parent=parent)


async def test_every_listed_gpu_s_file_is_held_once(keep: Keep, folder: Path) -> None:
    keeper = keep([gpu(0), gpu(1), gpu(1, parent="GPU-1"), gpu(None)])
    await keeper.look()
    await keeper.look()
    assert list(keeper.held) == [0, 1]
    assert open_files(folder) == ["nvidia0", "nvidia1"]


async def test_a_gpu_that_has_gone_is_let_go_of_and_held_again_when_it_comes_back(
    keep: Keep, folder: Path
) -> None:
    listed = [gpu(0), gpu(1)]
    keeper = keep(listed)
    await keeper.look()
    lost = listed.pop()
    await keeper.look()
    assert open_files(folder) == ["nvidia0"]
    listed.append(lost)
    await keeper.look()
    assert open_files(folder) == ["nvidia0", "nvidia1"]


async def test_a_file_that_cannot_be_opened_is_told_once_and_hinders_no_other(
    keep: Keep, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "nvidia0").unlink()
    keeper = keep([gpu(0), gpu(1)])
    await keeper.look()
    await keeper.look()
    assert list(keeper.held) == [1]
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "set persistence mode instead" in caplog.text


async def test_everything_is_let_go_of_when_it_ends(keep: Keep, folder: Path) -> None:
    keeper = keep([gpu(0), gpu(1)])
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(keeper.run())
        while len(keeper.held) < 2:
            await asyncio.sleep(0)
        running.cancel()
    assert open_files(folder) == []


def test_gpus_files_alone_are_held_until_the_end_of_the_block(folder: Path) -> None:
    with kept_open(folder) as paths:
        assert [path.name for path in paths] == open_files(folder) == ["nvidia0", "nvidia1"]
    assert open_files(folder) == []
