import os
import socket
import struct

import pytest

from warmpool.reference import zygote_wire as wire


def test_a_message_arrives_with_its_files_however_long_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reading, writing = os.pipe()
        wire.send(ours, {"text": "ä\udcff" * 10_000}, [writing, reading])
        os.close(writing)
        os.close(reading)
        message, (also_writing, also_reading) = wire.receive(theirs)
    assert message == {"text": "ä\udcff" * 10_000}
    os.write(also_writing, b"through")
    os.close(also_writing)
    assert os.read(also_reading, 10) == b"through"
    os.close(also_reading)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", wire.Closed),
        (b"\0\0", wire.Closed),
        (struct.pack("!I", 10) + b"{}", wire.Closed),
        (struct.pack("!I", 2) + b"[]", wire.BadMessage),
        (struct.pack("!I", 2) + b"{x", wire.BadMessage),
        (struct.pack("!I", 2**31), wire.BadMessage),
    ],
)
def test_what_is_no_message_is_refused(sent: bytes, error: type[Exception]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(error):
            wire.receive(theirs)


def test_files_of_a_broken_message_are_closed() -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with ours, theirs:
        socket.send_fds(ours, [struct.pack("!I", 2) + b"[]"], [writing])
        os.close(writing)
        with pytest.raises(wire.BadMessage):
            wire.receive(theirs)
    assert os.read(reading, 1) == b""  # nobody has the other end any more
    os.close(reading)


def test_a_zygote_that_has_answered_may_close_while_it_is_being_told() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            wire.send(ours, {"asked": True})
            wire.receive(theirs)
            wire.send(theirs, {"refused": "why"})
        assert wire.receive(ours)[0] == {"refused": "why"}
