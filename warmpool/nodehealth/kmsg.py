"""Errors of GPUs in the kernel's log. PURE: texts in, facts out.

A record of /dev/kmsg is `priority,sequence,microseconds,flags;message`, its time counted from the boot; lines that begin with a
blank belong to it. The driver names a GPU by its PCI address, without the function, in one form since 2014 and in a shorter one
before; a MIG instance may follow.
"""

import re
from dataclasses import dataclass

_RECORD = re.compile(r"\d+,(\d+),(\d+),[^;]*;(.*)", re.DOTALL)
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.[0-7])?(?:\s[^)]*)?\):\s*(\d+)(?:,\s*(.*))?"
)
_BUS = re.compile(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.[0-7])?")
_MOST_TEXT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far the kernel's log was read.

    Attributes:
        boot: in which boot.
        sequence: number of the last record that was read.
    """

    boot: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where a GPU is on the PCI bus."""

    domain: int
    bus: int
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelXid:
    """An error that the driver has written to the kernel's log.

    Attributes:
        sequence: the record's number, which grows within a boot.
        since_boot: seconds.
        address: the GPU's.
        xid: the error's code.
        text: what follows it.
    """

    sequence: int
    since_boot: float
    address: Address
    xid: int
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """Any record of the kernel's log.

    Attributes:
        sequence: its number.
        since_boot: seconds.
        message: its text.
    """

    sequence: int
    since_boot: float
    message: str


def record_of(raw: bytes) -> Record | None:
    """Read one record; None if it is none."""
    found = _RECORD.match(raw.decode("utf-8", errors="replace"))
    if found is None:
        return None
    message = found[3].split("\n", 1)[0]
    return Record(sequence=int(found[1]), since_boot=int(found[2]) / 1e6, message=message)


def xid_of(record: Record) -> KernelXid | None:
    """Return the error that a record tells of; None if it tells of none."""
    found = _XID.search(record.message)
    if found is None:
        return None
    domain, bus, device = (int(found[place], 16) for place in (1, 2, 3))
    return KernelXid(
        sequence=record.sequence,
        since_boot=record.since_boot,
        address=Address(domain, bus, device),
        xid=int(found[4]),
        text=(found[5] or "").strip()[:_MOST_TEXT],
    )


def address_of(bus_id: str) -> Address | None:
    """Read a PCI address as NVML writes it, `00000000:3B:00.0`; None if it is none."""
    found = _BUS.fullmatch(bus_id)
    return None if found is None else Address(*(int(found[place], 16) for place in (1, 2, 3)))
