"""From paths to the text of policy files: what a directory is searched for, and what a file must be to be read at all.

A directory may be a mounted ConfigMap, whose keys are links into `..data`, itself a link that is swapped as a whole when
the ConfigMap changes. So links are followed, and what begins with a dot is passed over: those folders, and the files
that editors leave beside the one that they write.
"""

import os
import select
import stat
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaler.errors import PolicyError, PolicyFault

MAX_BYTES: Final = 1 << 20
"""Largest file: 1 MiB, which is also the most that a ConfigMap holds."""
MAX_FAULTS: Final = 100
"""Faults of one file or document that are told; whoever has more has one fault of another kind."""
SUFFIXES: Final = frozenset({".yaml", ".yml"})
"""What a directory is searched for."""

_PATIENCE_MILLISECONDS: Final = 1000
"""More than a shell takes from starting one program to starting the next."""

_FOREIGN_MARKS: Final = (
    (BOM_UTF32_LE, "UTF-32"),  # before UTF-16, whose mark it begins with
    (BOM_UTF32_BE, "UTF-32"),
    (BOM_UTF16_LE, "UTF-16"),
    (BOM_UTF16_BE, "UTF-16"),
)
_AS_UTF_8: Final = "save the file with the encoding UTF-8"


def file_fault(
    file: Path | str, message: str, hint: str = "", *, line: int = 1, column: int = 1
) -> PolicyFault:
    """Make a fault of a whole file, or of a place in one that has no values yet."""
    return PolicyFault(file=str(file), line=line, column=column, path="", message=message, hint=hint)


def in_file_order(faults: Iterable[PolicyFault], files: Iterable[str]) -> tuple[PolicyFault, ...]:
    """Sort faults by file, line and column.

    Args:
        faults: the faults.
        files: the files, in their order; what is in none of them comes last.
    """
    places: dict[str, int] = {}
    for file in files:
        places.setdefault(file, len(places))
    return tuple(
        sorted(faults, key=lambda fault: (places.get(fault.file, len(places)), fault.line, fault.column))
    )


class MoreFaults(PolicyFault):
    """Stands behind the faults of a document that are told, for those that aren't.

    Attributes:
        count: how many there are.
    """

    __slots__ = ("count",)

    def __init__(self, last: PolicyFault, count: int, *, counted: bool) -> None:
        number = f"{count}" if counted else f"at least {count}"
        message = f"and {number} more, which are told once these are mended"
        super().__init__(file=last.file, line=last.line, column=last.column, path="", message=message)
        self.count = count


def cut_off(faults: tuple[PolicyFault, ...], *, counted: bool) -> tuple[PolicyFault, ...]:
    """Keep the first `MAX_FAULTS` faults of a document, and say how many more there are.

    Args:
        faults: the faults, in their order.
        counted: these are all; if not, there may be others.
    """
    told, rest = faults[:MAX_FAULTS], faults[MAX_FAULTS:]
    return (*told, MoreFaults(told[-1], len(rest), counted=counted)) if rest else told


def told_and_more(faults: Iterable[PolicyFault]) -> tuple[list[PolicyFault], int]:
    """Return the faults that are told, and how many there are that aren't (`MoreFaults`)."""
    told, more = list[PolicyFault](), 0
    for fault in faults:
        if isinstance(fault, MoreFaults):
            more += fault.count
        else:
            told.append(fault)
    return told, more


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is to be read.

    Attributes:
        path: as it was named or found.
        status: what stands there, links followed; None if nothing does, or it can't be looked at.
    """

    path: Path
    status: os.stat_result | None

    @property
    def regular(self) -> bool:
        """Whether it is a file that can be read again and again."""
        return self.status is not None and stat.S_ISREG(self.status.st_mode)


def find_files(paths: Iterable[Path]) -> list[Found | PolicyFault]:
    """List the files that are named, and the `*.yaml` and `*.yml` of directories (not of their sub-directories).

    Returns:
        The files in order, each once however often it is named; in the place of a directory that holds none or can't be
        listed, the fault that says so. Files that aren't there are listed: whoever reads them will say so.
    """
    found: dict[object, Found | PolicyFault] = {}
    for each in (each for path in paths for each in _files_at(_look(path))):
        found.setdefault(_identity(each), each)
    return list(found.values())


def _identity(found: Found | PolicyFault) -> object:
    if isinstance(found, PolicyFault):
        return found.file
    return str(found.path) if found.status is None else (found.status.st_dev, found.status.st_ino)


def _look(path: Path) -> Found:
    try:
        return Found(path, path.stat())
    except OSError:
        return Found(path, None)


def counts(name: str) -> bool:
    """Whether what has this name in a directory is read."""
    return not name.startswith(".") and Path(name).suffix in SUFFIXES


def _files_at(named: Found) -> Sequence[Found | PolicyFault]:
    if named.status is None or not stat.S_ISDIR(named.status.st_mode):
        return [named]
    try:
        entries = sorted(named.path.iterdir())
    except OSError as error:
        return [file_fault(named.path, f"can't be listed: {error.strerror or error}")]
    inside = [_look(file) for file in entries if counts(file.name)]
    files = [file for file in inside if file.regular or file.status is None]
    message, hint = (
        "the directory holds no *.yaml or *.yml file",
        "sub-directories and hidden files are not searched",
    )
    return files or [file_fault(named.path, message, hint)]


def read_bytes(path: Path) -> bytes:
    """Read a file as it is, or a pipe to its end.

    Raises:
        PolicyError: it isn't there, can't be read, or is larger than `MAX_BYTES`; it is a pipe into which nobody writes.
    """
    try:
        with open(path, "rb", opener=_opened) as stream:
            begin = _begin(stream.fileno())
            if begin is None:
                hint = "start what writes into it first, or name a file"
                raise PolicyError((file_fault(path, "is a pipe into which nobody writes", hint),))
            raw = begin + stream.read(MAX_BYTES + 1 - len(begin))
    except FileNotFoundError as error:
        message = "is a link to a file that isn't there" if path.is_symlink() else "no such file"
        raise PolicyError((file_fault(path, message),)) from error
    except OSError as error:
        raise PolicyError((file_fault(path, f"can't be read: {error.strerror or error}"),)) from error
    if len(raw) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 1024} KiB"
        raise PolicyError((file_fault(path, message, "a policy file is a few KiB: is this the right file?"),))
    return raw


def _opened(name: str, flags: int) -> int:
    """Open without waiting: a pipe would do so until somebody opens its other end."""
    return os.open(name, flags | os.O_NONBLOCK)


def _begin(descriptor: int) -> bytes | None:
    """Read the first byte of a pipe where one has come; None if nobody has its other end open. From here on reads wait.

    A writer has `_PATIENCE_MILLISECONDS` to open it. Once it has, it may take all the time that it needs.
    """
    begin: bytes | None = b""
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        pipe = select.poll()
        pipe.register(descriptor, select.POLLIN)
        if not pipe.poll(_PATIENCE_MILLISECONDS):
            try:
                begin = os.read(descriptor, 1) or None
            except BlockingIOError:  # there is a writer, and it has written nothing so far
                begin = b""
    os.set_blocking(descriptor, True)
    return begin


def decode(raw: bytes, file: Path | str) -> str:
    """Take a file's bytes for UTF-8, with a byte order mark or without.

    Raises:
        PolicyError: they are something else.
    """
    for mark, encoding in _FOREIGN_MARKS:
        if raw.startswith(mark):
            raise PolicyError((file_fault(file, f"is {encoding}, not UTF-8", _AS_UTF_8),))
    text = raw.removeprefix(BOM_UTF8)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        before = text[: error.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8")) + 1
        message = f"is not UTF-8: byte 0x{text[error.start]:02x} can't be decoded"
        raise PolicyError((file_fault(file, message, _AS_UTF_8, line=line, column=column),)) from error
