"""Reading the kernel's log, as the second source of errors: it has the driver's words, and what came while no agent ran.

Where /dev/kmsg may not be read (it takes CAP_SYSLOG, or root and no kernel.dmesg_restrict), NVML's events are all there is.
Reading never blocks: the file is opened so, and waited for by the event loop. Records that the kernel has overwritten before they
were read are gone, and counted.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from warmpool.nodehealth.kmsg import KernelXid, record_of, xid_of

_LOG = logging.getLogger(__name__)

KMSG: Final = Path("/dev/kmsg")
_RECORD_BYTES: Final = 8192  # the kernel's longest record, CONSOLE_EXT_LOG_MAX
_AT_ONCE: Final = 100  # records read before the loop has its turn


class KernelLog:
    """The kernel's log.

    Args:
        path: where it is.
        told: is called with each error, in the loop.

    Attributes:
        reason: why it isn't read; empty if it is.
        sequence: number of the last record that was read; -1 if none was.
        overwritten: times that records were gone before they were read.
    """

    def __init__(self, path: Path, told: Callable[[KernelXid], None]) -> None:
        self._path = path
        self._told = told
        self.reason = "not opened yet"
        self.sequence = -1
        self.overwritten = 0

    async def run(self, *, after: int | None) -> None:
        """Read until cancelled, or for as long as it can be read.

        Args:
            after: number of the last record that was read before; -1: everything that is there; None: only what comes from now on.
        """
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            self._unreadable(error)
            return
        try:
            if after is None:
                after = self._last(file)
            self.sequence, self.reason = after, ""
            await self._read(file, after)
        except OSError as error:
            self._unreadable(error)
        finally:
            os.close(file)

    def _unreadable(self, error: OSError) -> None:
        self.reason = f"{self._path} can't be read: {error.strerror or error}"
        _LOG.info("%s; errors come from NVML alone", self.reason)

    def _last(self, file: int) -> int:
        """Read past everything that is there; return the number of the last record, -1 if there is none."""
        last = -1
        while True:
            try:
                raw = os.read(file, _RECORD_BYTES)
            except BlockingIOError:
                return last
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue
            if not raw:
                return last
            record = record_of(raw)
            last = last if record is None else record.sequence

    async def _read(self, file: int, after: int) -> None:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(file, readable.set)
        try:
            while True:
                readable.clear()
                if not self._read_some(file, after):
                    return
                await readable.wait()
                await asyncio.sleep(0)
        finally:
            loop.remove_reader(file)

    def _read_some(self, file: int, after: int) -> bool:
        """Read what is there, up to a bound; False at the end of a file that isn't a log."""
        for _ in range(_AT_ONCE):
            try:
                raw = os.read(file, _RECORD_BYTES)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                self.overwritten += 1
                continue
            if not raw:
                return False
            record = record_of(raw)
            if record is None or record.sequence <= after:
                continue
            self.sequence = record.sequence
            if (found := xid_of(record)) is not None:
                self._told(found)
        return True
