"""Memory that is handed over, of a driver that is played: who has descriptors of it, and for how long."""

import os
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from warmpool.reference.driver import CudaDriver, DriverError, OutOfDeviceMemory
from warmpool.reference.handed import SharingMapper

SIZE = 1 << 21


class PlayedDriver:
    """Counts what is there; `fails` has the errors of calls."""

    device = 0
    uuid = "u"

    def __init__(self, **fails: DriverError) -> None:
        self.fails = fails
        self.called: list[str] = []
        self.handles = Counter[int]()
        self.kinds: list[int] = []
        self.descriptors: list[int] = []

    def attribute(self, _number: int) -> int:
        return 1

    def granularity(self, properties: Any) -> int:
        self._fail("granularity" if properties.handle_types else "")
        return SIZE

    def call(self, name: str, *arguments: Any) -> None:
        self._fail(name)
        self.called.append(name)
        if name == "cuMemCreate":
            arguments[0]._obj.value = len(self.called)
            self.handles[len(self.called)] += 1
            self.kinds.append(arguments[2]._obj.handle_types)
        if name == "cuMemRelease":
            self.handles[arguments[0].value] -= 1

    def export(self, _handle: int) -> int:
        self.call("cuMemExportToShareableHandle")
        self.descriptors.append(os.memfd_create("played"))
        return self.descriptors[-1]

    def _fail(self, name: str) -> None:
        if name in self.fails:
            raise self.fails[name]

    @property
    def open(self) -> int:
        return sum(Path(f"/proc/self/fd/{each}").exists() for each in self.descriptors)


def mapper_of(driver: PlayedDriver) -> SharingMapper:
    return SharingMapper(cast("CudaDriver", driver))


def test_chunks_can_be_handed_over_until_all_is_there_and_later_ones_can_t() -> None:
    driver = PlayedDriver()
    mapper = mapper_of(driver)
    for address in (SIZE, 2 * SIZE):
        mapper.map(address, SIZE)
    assert [(chunk.address, chunk.nbytes) for chunk in mapper.chunks] == [(SIZE, SIZE), (2 * SIZE, SIZE)]
    assert driver.open == 2
    mapper.stop_sharing()
    assert (mapper.chunks, driver.open, mapper.refused) == ([], 0, "")
    mapper.map(SIZE, SIZE)
    assert mapper.chunks == []
    assert driver.kinds == [1, 1, 0]
    assert not +driver.handles  # mappings alone keep the memory


@pytest.mark.parametrize("call", ["granularity", "cuMemExportToShareableHandle"])
def test_where_the_driver_gives_out_no_memory_it_is_mapped_all_the_same(call: str) -> None:
    driver = PlayedDriver(**{call: DriverError("not here")})
    mapper = mapper_of(driver)
    mapper.map(SIZE, SIZE)
    assert (mapper.chunks, mapper.refused) == ([], "not here")
    assert driver.called.count("cuMemMap") == 1
    assert not +driver.handles


@pytest.mark.parametrize(
    "call", ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemMap", "cuMemSetAccess"]
)
def test_where_memory_is_short_nothing_is_kept(call: str) -> None:
    driver = PlayedDriver(**{call: OutOfDeviceMemory("none left")})
    mapper = mapper_of(driver)
    with pytest.raises(OutOfDeviceMemory):
        mapper.map(SIZE, SIZE)
    assert (mapper.chunks, driver.open, mapper.refused) == ([], 0, "")
    assert not +driver.handles
