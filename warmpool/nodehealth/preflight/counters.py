"""What NVML tells of a GPU's memory, asked of its library through ctypes: engines' images needn't have a binding.

Names and numbers are those of nvml.h. What a GPU or its driver doesn't tell is None.
"""

from __future__ import annotations

import ctypes
from typing import Final

from warmpool.nodehealth.preflight.findings import Counters

_UNCORRECTED: Final = 1  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_SINCE_LOAD: Final = 0  # NVML_VOLATILE_ECC
_SUCCESS: Final = 0


class Nvml:
    """The library, initialised. Make it with `open`.

    Args:
        library: the library.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def open(cls) -> Nvml | None:
        """Open and initialise it; None where there is none, or it can't be."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            return cls(library) if library.nvmlInit_v2() == _SUCCESS else None
        except (OSError, AttributeError):
            return None

    def counters(self, uuid: str) -> Counters:
        """Return what it tells of one GPU."""
        device = ctypes.c_void_p()
        if not self._asked("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(device)):
            return Counters()
        errors = ctypes.c_ulonglong()
        rows = [ctypes.c_uint() for _ in range(4)]  # corrected, uncorrected, pending, failed
        pages = ctypes.c_uint()
        counts = self._asked(
            "nvmlDeviceGetTotalEccErrors", device, _UNCORRECTED, _SINCE_LOAD, ctypes.byref(errors)
        )
        remaps = self._asked("nvmlDeviceGetRemappedRows", device, *map(ctypes.byref, rows))
        retires = self._asked("nvmlDeviceGetRetiredPagesPendingStatus", device, ctypes.byref(pages))
        pending = [bool(rows[2].value)] * remaps + [bool(pages.value)] * retires
        return Counters(
            uncorrected=errors.value if counts else None,
            row_pending=any(pending) if pending else None,
            row_failed=bool(rows[3].value) if remaps else None,
        )

    def _asked(self, name: str, *arguments: object) -> bool:
        """Call a function; return whether it answered."""
        function = getattr(self._library, name, None)
        return function is not None and function(*arguments) == _SUCCESS
