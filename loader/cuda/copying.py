"""Copies to a device by address: what a copier with thousands of small tensors can afford for each of them.

A copy through torch holds the interpreter for some ninety microseconds, in which no other thread begins its next read; one call of the
driver takes a few. It returns before anything is copied, so it isn't worth letting go of the interpreter's lock for it: getting
that back, among threads that all want it, would take longer than the call.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from loader.cuda import library
from loader.errors import DeviceUnavailable, LoadError

_NAME = "cuMemcpyHtoDAsync_v2"
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: doesn't wait for the default stream
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING


@contextmanager
def driver_errors(*others: type[Exception]) -> Iterator[None]:
    """Failures of the driver inside the block are a device that can't be used.

    Args:
        others: what else is taken for one: `OSError` where nothing but the driver's library is opened.

    Raises:
        DeviceUnavailable: the driver fails.
    """
    failures: tuple[type[Exception], ...] = (library.FunctionMissing, library.CallFailed, *others)
    try:
        yield
    except failures as error:
        raise DeviceUnavailable(
            f"the CUDA driver can't be used: {error}", hint="check `nvidia-smi`"
        ) from error


class AddressCopies:
    """Queues copies from page-locked memory. Any thread may use it that has entered the device's context.

    Args:
        ordinal: the device's number in this process.

    Raises:
        DeviceUnavailable: there is no driver, or it is too old.
    """

    def __init__(self, ordinal: int) -> None:
        with driver_errors(OSError):
            self._context = library.DeviceContext(library.open_library(), ordinal)
            # Called with the interpreter's lock held.
            self._copy = ctypes.PyDLL(library.FILE)[_NAME]
        self._copy.argtypes = (ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_void_p)

    def enter(self) -> None:
        """Make the device's context the calling thread's."""
        self._context.enter()

    def queue(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue one copy.

        Args:
            target: the device's address.
            source: the host's, page-locked until the copy is done.
            nbytes: how many.
            stream: the number of a stream of the device's context.

        Raises:
            LoadError: the driver refuses.
        """
        code = self._copy(target, source, nbytes, stream)
        if code:
            raise LoadError(
                f"{_NAME} to {nbytes} bytes of device memory failed: CUDA error {code}",
                hint="check the kernel's log for an Xid; the device may have to be reset",
            )


class CopyStream:
    """A stream of the driver's own, with events on it; torch's first stream makes thirty-two, which takes four milliseconds.

    A context manager, to be entered and left with the context current.

    Args:
        context: the device's, current on the calling thread.

    Raises:
        library.CallFailed: the driver refuses.
    """

    def __init__(self, context: library.DeviceContext) -> None:
        self._context = context
        self._events: list[int] = []
        stream = ctypes.c_void_p()
        context.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        self.number = stream.value or 0
        """What the driver calls it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for event in self._events:
            self._context.call("cuEventDestroy_v2", event)
        self._context.call("cuStreamDestroy_v2", self.number)

    def event(self) -> int:
        """The number of a new event, which nothing was recorded on yet; it goes with the stream."""
        event = ctypes.c_void_p()
        self._context.call("cuEventCreate", ctypes.byref(event), _DISABLE_TIMING)
        self._events.append(event.value or 0)
        return self._events[-1]

    def wait_for(self, event: int) -> None:
        """Have what is queued from now on wait for an event."""
        self._context.call("cuStreamWaitEvent", self.number, event, 0)

    def synchronize(self) -> None:
        """Wait until everything is done."""
        self._context.call("cuStreamSynchronize", self.number)
