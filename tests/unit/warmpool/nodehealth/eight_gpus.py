"""nvidia-ml-py over a driver with eight GPUs, as a module: `python -m warmpool.nodehealth.bench.agent --library` takes its name."""

from typing import Any

from tests.fakes.nvml_library import FakeGpu, FakeLibrary

_LIBRARY = FakeLibrary(
    *(
        FakeGpu(
            f"GPU-{place:08d}-0000-0000-0000-000000000000",
            minor=place,
            bus_id=f"00000000:{place + 6:02X}:00.0",
            processes={1: 20 * 2**30},
        )
        for place in range(8)
    )
)


def __getattr__(name: str) -> Any:
    return getattr(_LIBRARY, name)
