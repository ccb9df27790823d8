"""The first GPU of whichever driver is loaded, into whose memory a test can write.

`python -m tests.unit.warmpool.nodehealth.preflight_card` holds it against what holds of all memory, in a process whose driver is a
test's own.
"""

import ctypes

from tests.unit.warmpool.nodehealth.preflight_memory import holds_what_was_written
from warmpool.nodehealth.preflight.cuda import CudaGpu, gpus

SOME_BYTES = 64 * 2**20


class Card(CudaGpu):
    """A GPU."""

    @classmethod
    def first(cls) -> "Card":
        """The first one; raises as `gpus` does."""
        found = gpus()[0]
        return cls(found._library, found._ordinal, found._nvml)

    def poke(self, address: int, word: int) -> None:
        """Write a word."""
        value = ctypes.c_ulonglong(word)
        self._call("cuMemcpyHtoD_v2", address, ctypes.byref(value), 8)


if __name__ == "__main__":
    holds_what_was_written(Card.first(), SOME_BYTES)
