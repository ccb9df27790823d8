"""Records of the kernel's log, in the forms in which drivers have written errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.nodehealth.kmsg import Address, KernelXid, Record, address_of, record_of, xid_of


def line(message: str) -> bytes:
    return f"4,1234,171167620236,-;{message}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n".encode()


def found(message: str) -> KernelXid | None:
    record = record_of(line(message))
    assert record is not None
    return xid_of(record)


def test_a_record_has_a_number_a_time_and_a_message() -> None:
    assert record_of(line("hello; world, 1")) == Record(1234, 171167.620236, "hello; world, 1")
    assert record_of(b"6,1,2,-,caller=T1;text\n") == Record(1, 2e-6, "text")


@pytest.mark.parametrize("raw", [b"", b"no record", b"6,1;text", b"x,1,2,-;text", b"\xff\xfe"])
def test_what_is_no_record_is_none(raw: bytes) -> None:
    assert record_of(raw) is None


@pytest.mark.parametrize(
    ("message", "address", "xid", "text"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            Address(0, 0x3B, 0),
            79,
            "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ),
        ("NVRM: Xid (0000:01:00): 13, 0005 00000000", Address(0, 1, 0), 13, "0005 00000000"),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal ",
            Address(0x18, 1, 0),
            149,
            "NETIR_LINK_EVT  Fatal",
        ),
        ("NVRM: Xid (PCI:0000:3B:00.0): 48", Address(0, 0x3B, 0), 48, ""),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 63, pid=1896", Address(0, 0x3B, 0), 63, "pid=1896"),
    ],
)
def test_an_error_is_told_with_its_gpu(message: str, address: Address, xid: int, text: str) -> None:
    assert found(message) == KernelXid(
        sequence=1234, since_boot=171167.620236, address=address, xid=xid, text=text
    )


@pytest.mark.parametrize(
    "message",
    [
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: GPU at PCI:0000:48:00: GPU-5fc0bcec-c2e1-38dc-8994-2a9f9f3b709e",
        "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 24 LTSSM Fault Up",
        "usb 1-1: new device",
    ],
)
def test_what_is_no_error_of_a_gpu_is_none(message: str) -> None:
    assert found(message) is None


@given(st.binary(max_size=300))
def test_nothing_in_the_log_can_break_it(raw: bytes) -> None:
    record = record_of(b"6,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, " + raw)
    assert record is not None
    assert xid_of(record) is None or xid_of(record) is not None


def test_a_message_is_kept_in_part() -> None:
    told = found("NVRM: Xid (PCI:0000:3b:00): 13, " + "x" * 5000)
    assert told is not None
    assert len(told.text) == 512


@pytest.mark.parametrize(
    ("bus_id", "expected"),
    [
        ("00000000:3B:00.0", Address(0, 0x3B, 0)),
        ("00000018:01:00.0", Address(0x18, 1, 0)),
        ("0000:3b:00", Address(0, 0x3B, 0)),
        ("", None),
        ("GPU-a", None),
    ],
)
def test_nvmls_addresses_are_the_kernels(bus_id: str, expected: Address | None) -> None:
    assert address_of(bus_id) == expected
