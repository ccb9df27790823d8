"""What is remembered of the GPUs, in a file of the node, so that a node agent that starts anew neither forgets nor begins again.

The file is written whole beside its place and moved there, so a reader finds the old one or the new one. One that can't be read is
put aside and said so, and all GPUs are unknown then until the driver, a canary or time says that they are well: what was
remembered may have been that one is Bad. Where there is no file, nothing was ever remembered.
"""

import json
import logging
import os
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from warmpool.nodehealth.kmsg import Position
from warmpool.nodehealth.records import Latch, NodeRecord

_LOG = logging.getLogger(__name__)

VERSION: Final = 1
_ASIDE: Final = ".unreadable"
_BESIDE: Final = ".new"
_MOST_BYTES: Final = 16 * 2**20
_LATEST: Final = 1e11  # no clock is set to the year 5138


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is in the file.

    Attributes:
        record: what is remembered of the node.
        position: how far the kernel's log was read.
        epoch: how often a verdict has changed.
        asks: no controller has said yet what it keeps of the node, and nothing else was remembered.
    """

    record: NodeRecord = field(default_factory=NodeRecord)
    position: Position | None = None
    epoch: int = 0
    asks: bool = False


def gist(record: NodeRecord) -> tuple[object, ...]:
    """Return what must not be lost and so is written as it changes. What counts on with each reading is left out."""
    return (
        record.boot,
        record.most,
        frozenset(record.passed),
        *(
            (
                gpu.uuid,
                gpu.verdict,
                tuple(map(_said, gpu.latches)),
                gpu.hold,
                gpu.trial,
                gpu.forgotten,
                gpu.xids,
            )
            for _, gpu in sorted(record.gpus.items())
        ),
    )


def _said(latch: Latch) -> tuple[object, ...]:
    return latch.code, latch.verdict, latch.since, latch.clears, latch.until, latch.asked


class Latches:
    """The file. Its methods block.

    Args:
        path: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Kept:
        """Read it; what can't be read is lost, and the record says so."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return Kept()
        except OSError as error:
            _LOG.warning("%s can't be read, so what was remembered of the GPUs is lost: %s", self.path, error)
            return Kept(record=NodeRecord(lost=True))
        try:
            return _kept(raw)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            aside = self.path.with_name(self.path.name + _ASIDE)
            _LOG.warning(
                "%s makes no sense, so what was remembered of the GPUs is lost; it is kept as %s: %s",
                *(self.path, aside, error),
            )
            with suppress(OSError):
                self.path.replace(aside)
            return Kept(record=NodeRecord(lost=True))

    def save(self, kept: Kept) -> None:
        """Write it.

        Raises:
            OSError: it can't be written.
        """
        text = json.dumps({"version": VERSION, "kept": to_json(kept)}, separators=(",", ":"))
        beside = self.path.with_name(self.path.name + _BESIDE)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise
        _sync(self.path.parent)


def _sync(directory: Path) -> None:
    """Have a move survive a loss of power, where the file system can."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _kept(raw: bytes) -> Kept:
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    data = json.loads(raw)
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise ValueError("it is of another version")
    found = from_json(Kept, data["kept"])
    assert isinstance(found, Kept)
    return found


# ---------------------------------------------------------------------- values as JSON


def to_json(value: object) -> Any:  # noqa: ANN401 - JSON may be anything
    """Return a value as JSON's; what is at its default is left out."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: to_json(its)
            for each in fields(value)
            if (its := getattr(value, each.name)) != _default(type(value), each.name)
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(its) for key, its in value.items()}
    if isinstance(value, tuple):
        return [to_json(its) for its in value]
    return value


_MISSING: Final = object()


@cache
def _defaults(kind: type) -> Mapping[str, Any]:
    found = {}
    for each in fields(kind):
        factory = each.default_factory
        found[each.name] = factory() if callable(factory) else each.default
    return found


def _default(kind: type, name: str) -> Any:  # noqa: ANN401 - a field may be anything
    return _defaults(kind).get(name, _MISSING)


@cache
def _types(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def from_json(kind: Any, data: Any) -> Any:  # noqa: ANN401 - types and JSON may be anything
    """Return the value that JSON's stands for.

    Raises:
        KeyError, TypeError, ValueError: it stands for none.
    """
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        if data is None:
            return None
        (kind,) = (each for each in get_args(kind) if each is not type(None))
        return from_json(kind, data)
    if origin is tuple:
        return tuple(from_json(get_args(kind)[0], each) for each in _a(list, data))
    if origin is not None and issubclass(origin, Mapping):
        inner = get_args(kind)[1]
        return MappingProxyType({str(key): from_json(inner, its) for key, its in _a(dict, data).items()})
    if is_dataclass(kind):
        known = _types(kind)  # type: ignore[arg-type] # it is a class
        values = {name: from_json(known[name], its) for name, its in _a(dict, data).items()}
        return kind(**values)  # type: ignore[operator] # it is a class
    if issubclass(kind, Enum):
        return kind(data)
    if kind is float:
        number = float(_a((int, float), data))
        if not abs(number) < _LATEST:
            raise ValueError(f"{number} is no time")
        return number
    return _a(kind, data)


def _a(kind: Any, data: Any) -> Any:  # noqa: ANN401 - types and JSON may be anything
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise TypeError(f"{data!r} is no {getattr(kind, '__name__', 'number')}")
    return data
