"""Files that outlive a process: one JSON document each, written whole and put in place by a rename.

So a crash leaves the old one or the new one. One that can't be understood is set aside and told, and whoever reads it goes on
without.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from warmpool.errors import BadOrder

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

_LARGEST_BYTES: Final = 16 * 1024 * 1024


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Put a document in place of the one before.

    Raises:
        OSError: the file can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(data, separators=(",", ":"), allow_nan=False), encoding="utf-8")
    part.replace(path)


def read(path: Path, parse: Callable[[Any], _T], lost: str) -> _T | None:
    """Return what a document says; None where there is no such file, or it can't be understood.

    Args:
        path: the file.
        parse: makes something of the document, and raises what parsing raises where it is another.
        lost: what is told where it can't be understood: what was lost, and what becomes of it.

    Raises:
        OSError: the file is there and can't be read.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"more than {_LARGEST_BYTES} bytes")
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadOrder) as error:
        aside = path.with_suffix(".unreadable")
        path.replace(aside)
        log.warning(lost, file=str(aside), error=str(error))
        return None
