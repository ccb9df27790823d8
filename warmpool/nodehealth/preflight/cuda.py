"""GPUs as the CUDA driver of this container has them: their memory, and the kernel that sweeps it."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final

from loader.cuda.library import CallFailed, DeviceContext, FunctionMissing, call, open_library
from warmpool.nodehealth.preflight import kernel
from warmpool.nodehealth.preflight.counters import Nvml
from warmpool.nodehealth.preflight.findings import Counters
from warmpool.nodehealth.preflight.march import Area, Wrong
from warmpool.nodehealth.preflight.patterns import ALL_BITS, WORD_BYTES, Pattern
from warmpool.nodehealth.preflight.ports import DriverFailed, Untestable

_MIB: Final = 2**20
_LARGEST_AREA: Final = 1024 * _MIB
_SMALLEST_AREA: Final = 64 * _MIB
_UUID_BYTES: Final = 16
_RESULT_BYTES: Final = 24
_BY_MEMORY: Final = ("ECC_UNCORRECTABLE", "CUDA_ERROR_CONTAINED")
"""What the names of errors have in them that a memory error causes."""
_NOBODY: Final = ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_STUB_LIBRARY")

_SIZE, _INT, _POINTER, _ADDRESS = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_ulonglong
_UINT, _TO = ctypes.c_uint, ctypes.POINTER
_SIGNATURES: Final[dict[str, tuple[object, ...]]] = {
    "cuMemAlloc_v2": (_TO(_ADDRESS), _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemcpyDtoH_v2": (_POINTER, _ADDRESS, _SIZE),
    "cuMemcpyHtoD_v2": (_ADDRESS, _POINTER, _SIZE),
    "cuModuleLoadData": (_TO(_POINTER), _POINTER),
    "cuModuleGetFunction": (_TO(_POINTER), _POINTER, ctypes.c_char_p),
    "cuLaunchKernel": (_POINTER, *(_UINT,) * 7, _POINTER, _POINTER, _POINTER),
    "cuCtxSynchronize": (),
}
"""Beside those that `open_library` knows, by the CUDA Driver API manual ("Memory", "Module", "Execution Control", "Context")."""


class NoGpu(Exception):
    """There is no GPU here, or no driver; the text says which."""


def gpus() -> Sequence[CudaGpu]:
    """Return the GPUs that this process sees.

    Raises:
        NoGpu: there is none.
        DriverFailed: the driver can't be used.
    """
    library = _library()
    count = ctypes.c_int()
    try:
        call(library, "cuInit", 0)
        call(library, "cuDeviceGetCount", ctypes.byref(count))
    except CallFailed as failed:
        if any(name in str(failed) for name in _NOBODY):
            raise NoGpu(str(failed)) from None
        raise _driver_failed(failed) from None
    if not count.value:
        raise NoGpu("the driver lists no GPU")
    nvml = Nvml.open()
    return [CudaGpu(library, ordinal, nvml) for ordinal in range(count.value)]


def _library() -> ctypes.CDLL:
    try:
        library = open_library()
    except OSError as error:
        raise NoGpu(str(error)) from None
    except FunctionMissing as missing:
        raise DriverFailed(f"this driver has no {missing}") from None
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    return library


def _driver_failed(failed: CallFailed) -> DriverFailed:
    text = str(failed)
    return DriverFailed(text, by_memory=any(name in text for name in _BY_MEMORY))


class CudaGpu:
    """One GPU, or one MIG device. It is used by one thread, and its context made when it is first needed.

    Args:
        library: the driver.
        ordinal: its number among those that this process sees.
        nvml: tells its counters; None where there is no NVML.
    """

    def __init__(self, library: ctypes.CDLL, ordinal: int, nvml: Nvml | None) -> None:
        self._library = library
        self._ordinal = ordinal
        self._nvml = nvml
        self._context: DeviceContext | None = None
        self._taken: list[Area] = []
        self._result = ctypes.c_ulonglong()
        self._kernel = ctypes.c_void_p()

    @cached_property
    def uuid(self) -> str:
        """See `Gpu.uuid`."""
        device = ctypes.c_int()
        raw = ctypes.create_string_buffer(_UUID_BYTES)
        self._call("cuDeviceGet", ctypes.byref(device), self._ordinal)
        self._call("cuDeviceGetUuid", raw, device.value)
        return f"GPU-{uuid.UUID(bytes=raw.raw)}"

    def counters(self) -> Counters:
        """See `Gpu.counters`."""
        return Counters() if self._nvml is None else self._nvml.counters(self.uuid)

    def sizes(self) -> tuple[int, int]:
        """See `Gpu.sizes`."""
        self._enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    # ------------------------------------------------------------------ memory

    def take(self, most_bytes: int) -> Sequence[Area]:
        """See `Memory.take`. It is taken in pieces, down to 64 MiB: what is free needn't hang together."""
        self._enter()
        self._load()
        size, left = _LARGEST_AREA, most_bytes
        while size >= _SMALLEST_AREA:
            size = min(size, left // _SMALLEST_AREA * _SMALLEST_AREA)
            area = self._allocate(size) if size else None
            if area is None:
                size //= 2
                continue
            self._taken.append(area)
            left -= area.nbytes
        return tuple(self._taken)

    def give(self) -> None:
        """See `Memory.give`. A context that an error has ended can't give anything back, and needn't."""
        taken, self._taken = self._taken, []
        for address in (*(area.address for area in taken), self._result.value):
            if address:
                with suppress(DriverFailed):
                    self._call("cuMemFree_v2", address)
        self._result.value = 0

    def sweep(self, area: Area, expected: Pattern | None, written: Pattern | None) -> Wrong | None:
        """See `Memory.sweep`."""
        reads, writes = expected or Pattern(0), written or Pattern(0)
        parameters = (
            ctypes.c_ulonglong(area.address),
            ctypes.c_ulonglong(area.nbytes // WORD_BYTES),
            ctypes.c_ulonglong(self._result.value),
            ctypes.c_uint(expected is not None),
            ctypes.c_uint(reads.turn),
            ctypes.c_ulonglong(reads.mask),
            ctypes.c_uint(written is not None),
            ctypes.c_uint(writes.turn),
            ctypes.c_ulonglong(writes.mask),
        )
        pointers = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
        grid, block = (kernel.BLOCKS, 1, 1), (kernel.THREADS, 1, 1)
        self._call("cuLaunchKernel", self._kernel, *grid, *block, 0, None, pointers, None)
        self._call("cuCtxSynchronize")
        return self._wrong()

    def _wrong(self) -> Wrong | None:
        found = (ctypes.c_ulonglong * 3)()
        self._call("cuMemcpyDtoH_v2", found, self._result.value, _RESULT_BYTES)
        words, first, bits = found
        if not words:
            return None
        self._clear()
        return Wrong(words, first, bits)

    def _clear(self) -> None:
        """Have nothing be found yet, so that no sweep is told what an earlier one has found."""
        nothing = (ctypes.c_ulonglong * 3)(0, ALL_BITS, 0)
        self._call("cuMemcpyHtoD_v2", self._result.value, nothing, _RESULT_BYTES)

    def _allocate(self, nbytes: int) -> Area | None:
        """Take memory; None where there isn't as much in one piece."""
        address = ctypes.c_ulonglong()
        try:
            call(self._library, "cuMemAlloc_v2", ctypes.byref(address), nbytes)
        except CallFailed as failed:
            if failed.out_of_memory:
                return None
            raise _driver_failed(failed) from None
        return Area(address.value, nbytes)

    # ------------------------------------------------------------------ the context

    def _enter(self) -> None:
        try:
            if self._context is None:
                self._context = DeviceContext(self._library, self._ordinal)
            self._context.enter()
        except CallFailed as failed:
            raise _driver_failed(failed) from None

    def _load(self) -> None:
        """Have the driver compile the kernel, and make a place for what it finds."""
        module = ctypes.c_void_p()
        try:
            self._call("cuModuleLoadData", ctypes.byref(module), kernel.PTX)
            self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, kernel.NAME)
        except DriverFailed as failed:
            raise Untestable(str(failed)) from None
        self._call("cuMemAlloc_v2", ctypes.byref(self._result), _RESULT_BYTES)
        self._clear()

    def _call(self, name: str, *arguments: object) -> None:
        try:
            call(self._library, name, *arguments)
        except CallFailed as failed:
            raise _driver_failed(failed) from None
