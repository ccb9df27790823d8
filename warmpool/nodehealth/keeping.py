"""Keeps GPUs initialised: holds their device files open, which makes no context and takes no device memory.

The driver initialises a GPU when the first process opens its device file, and lets go of that state when the last one closes it, unless
persistence mode is set. Then the next context waits for it: seconds on machines with many GPUs. Where persistence mode may not be set, a
process that has the files open does the same. NVML has them open too, but closes them whenever it is initialised anew.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from warmpool.nodehealth.lanes import Lane, LaneBusy
from warmpool.nodehealth.nvml import Device

_LOG = logging.getLogger(__name__)

FOLDER: Final = Path("/dev")
_LOOK_SECONDS: Final = 10.0
"""How soon a GPU that has come is kept, and one that has gone is let go of, so that it can be reset or taken out."""
_OPEN_SECONDS: Final = 60.0
"""A GPU that nobody held open is initialised meanwhile."""


class DeviceKeeper:
    """Holds the files of all GPUs that are listed.

    Args:
        listed: which they are now.
        lane: makes a lane of this name, in which a file may be opened for as long as it takes.
        drop: ends such a lane.
        folder: where device files are.
    """

    def __init__(
        self,
        listed: Callable[[], Sequence[Device]],
        lane: Callable[[str], Lane],
        drop: Callable[[Lane], None],
        folder: Path = FOLDER,
    ) -> None:
        self._listed = listed
        self._lane = lane
        self._drop = drop
        self._folder = folder
        self._held: dict[int, int] = {}
        self._refused: set[int] = set()

    @property
    def held(self) -> Sequence[int]:
        """Minor numbers of the GPUs whose files are held, in ascending order."""
        return sorted(self._held)

    async def run(self) -> None:
        """Hold them until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self.let_go()

    async def look(self) -> None:
        """Open the files of GPUs that have come, and close those of GPUs that have gone."""
        wanted = {each.minor for each in self._listed() if each.minor is not None and not each.parent}
        self._let_go(self._held.keys() - wanted)
        self._refused &= wanted
        for minor in sorted(wanted - self._held.keys() - self._refused):
            await self._open(minor)

    def let_go(self) -> None:
        """Close all files."""
        self._let_go(set(self._held))

    async def _open(self, minor: int) -> None:
        path = self._folder / f"nvidia{minor}"
        lane = self._lane(f"device file {path}")
        try:
            await lane.call(lambda: self._hold(minor, path), seconds=_OPEN_SECONDS)
        except LaneBusy as busy:
            self._refused.add(minor)
            _LOG.warning("%s; it isn't kept initialised until that has returned", busy)
        except OSError as error:
            self._refused.add(minor)
            _LOG.warning("%s can't be held open: %s; set persistence mode instead", path, error.strerror)
        else:
            _LOG.info("%s is held open, so its GPU stays initialised", path)
        finally:
            self._drop(lane)

    def _hold(self, minor: int, path: Path) -> None:
        self._held[minor] = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def _let_go(self, minors: set[int]) -> None:
        for minor in minors:
            with suppress(OSError):
                os.close(self._held.pop(minor))


@contextmanager
def kept_open(folder: Path = FOLDER) -> Iterator[Sequence[Path]]:
    """Hold all GPUs' device files that may be opened, until the end of the block; which they are.

    Args:
        folder: where device files are.
    """
    files: list[int] = []
    paths: list[Path] = []
    try:
        for path in sorted(folder.glob("nvidia[0-9]*")):
            with suppress(OSError):
                files.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
                paths.append(path)
        yield paths
    finally:
        for file in files:
            os.close(file)
