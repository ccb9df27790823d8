"""Copies of weights in host memory: how one is made, and how it comes back.

A CUDA device copies from page-locked memory at the speed of its link (`pinned.py`). On CPU device memory and host memory are the same
memory, and a copy in the process's own would give nothing back; there it is a file without a name in the directory for temporary
files, which the page cache holds for as long as there is room. It vanishes with the process, however that ends.
"""

import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from torch import Tensor

from loader.copiers.destinations import memory_of
from warmpool.reference import host_memory
from warmpool.reference.errors import NotEnoughHostMemory, WeightsDamaged
from warmpool.reference.sums import block_sums

STEP_BYTES: Final = 64 << 20

Reach = Callable[[int], None]
"""Waits until so many bytes of the memory's beginning can be used."""


class HostCopy(Protocol):
    """The bytes of some memory, kept outside it."""

    @property
    def nbytes(self) -> int:
        """What it takes."""

    def fetch(self, whole: Tensor, reach: Reach) -> Tensor:
        """Bring the bytes back.

        Args:
            whole: where to. Only what `reach` has returned for may be touched.
            reach: waits for more of it.

        Returns:
            The sums of what is there now (`block_sums`), for all of it.

        Raises:
            WeightsDamaged: the copy can't be read.
        """


CopyMaker = Callable[[Tensor], HostCopy]
"""Copies memory. Raises `NotEnoughHostMemory`: nothing was kept."""


class FileCopy:
    """A copy in a file without a name.

    Args:
        whole: the bytes to keep.

    Raises:
        NotEnoughHostMemory: there is no room for it; nothing was kept.
    """

    def __init__(self, whole: Tensor) -> None:
        self.nbytes = whole.nbytes
        host_memory.require(self.nbytes, "a copy of the weights")
        try:
            with tempfile.TemporaryFile(prefix="emberpool-parked-") as file:
                self._descriptor = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._descriptor)
            os.posix_fallocate(self._descriptor, 0, self.nbytes)
            self._write(memory_of(whole))
        except OSError as error:
            raise NotEnoughHostMemory(
                f"a copy of the weights needs {self.nbytes / 2**20:.0f} MiB in {tempfile.gettempdir()}: {error.strerror}",
                hint="free space there, or name another directory in TMPDIR",
            ) from error

    def fetch(self, whole: Tensor, reach: Reach) -> Tensor:
        """Read the bytes back."""
        reach(self.nbytes)
        memory = memory_of(whole)
        for begin in range(0, self.nbytes, STEP_BYTES):
            self._read(memory[begin : begin + STEP_BYTES], begin)
        return block_sums(whole)

    def _write(self, memory: memoryview) -> None:
        written = 0
        while written < self.nbytes:
            written += os.pwrite(self._descriptor, memory[written : written + STEP_BYTES], written)

    def _read(self, memory: memoryview, begin: int) -> None:
        done = 0
        while done < len(memory):
            try:
                count = os.preadv(self._descriptor, [memory[done:]], begin + done)
            except OSError as error:
                raise WeightsDamaged(
                    f"the copy of the weights can't be read at byte {begin + done}: {error}"
                ) from error
            if count == 0:
                raise WeightsDamaged(f"the copy of the weights ends at byte {begin + done} of {self.nbytes}")
            done += count
