import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import enumerate as running_threads

import pytest

WriteRaw = Callable[..., Path]


@pytest.fixture
def write_raw(tmp_path: Path) -> WriteRaw:
    """Writes a safetensors file from a header table (or its text) and a payload, right or wrong."""

    def write(name: str, table: object, payload: bytes = b"") -> Path:
        header = table.encode() if isinstance(table, str) else json.dumps(table).encode()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(len(header).to_bytes(8, "little") + header + payload)
        return path

    return write


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Whatever a test does, no thread of the loader outlives it."""
    yield
    assert [thread.name for thread in running_threads() if thread.name.startswith("loader")] == []
