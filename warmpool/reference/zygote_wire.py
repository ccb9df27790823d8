"""What a stand-in and a zygote say to each other: JSON objects with their length in front, and open files beside them.

Only the standard library, and little of it: a stand-in has to be up in a few hundredths of a second.
"""

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PROTOCOL = 1
"""Version of the messages. Both ends are of one installation, so another version means that one of them is older: no fork."""

_HEADER = struct.Struct("!I")
_MOST_BYTES = 4 * 2**20
"""Longest message. Its environment is the long part, and the kernel takes no more than that for a whole one by default."""
MOST_FILES = 253
"""Open files that one message may carry (unix(7), SCM_MAX_FD)."""

Message = Mapping[str, Any]


class BadMessage(Exception):
    """The other end says what can't be understood."""


class Closed(BadMessage):
    """The other end has closed the connection before the end of a message."""


def send(connection: socket.socket, message: Message, files: Sequence[int] = ()) -> None:
    """Send a message, and with it duplicates of open files.

    Raises:
        OSError: the other end is gone.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    data = _HEADER.pack(len(body)) + body
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    sent = connection.sendmsg([data], beside)
    if sent < len(data):  # the other end may have answered and closed by now, and sending nothing would fail
        connection.sendall(data[sent:])


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Wait for a message.

    Returns:
        The message, and the open files that came with it. They are the caller's to close.

    Raises:
        Closed: there was none, or not all of one.
        BadMessage: it is no message.
        OSError: the connection broke, or its timeout is over.
    """
    files: list[int] = []
    try:
        (size,) = _HEADER.unpack(_read(connection, _HEADER.size, files))
        if size > _MOST_BYTES:
            raise BadMessage(f"a message of {size} bytes")
        message = json.loads(_read(connection, size, files))
        if not isinstance(message, dict):
            raise BadMessage("a message that is no object")
    except BaseException as error:
        for each in files:
            os.close(each)
        if isinstance(error, ValueError):
            raise BadMessage(f"a message that is no JSON: {error}") from error
        raise
    return message, files


def _read(connection: socket.socket, size: int, files: list[int]) -> bytes:
    data = bytearray()
    room = socket.CMSG_SPACE(MOST_FILES * array.array("i").itemsize)
    while len(data) < size:
        read, beside, _, _ = connection.recvmsg(size - len(data), room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                files += found
        if not read:
            raise Closed("the other end closed the connection")
        data += read
    return bytes(data)


@contextlib.contextmanager
def directory(path: Path) -> Iterator[int]:
    """Yield a directory as an open file that nothing can be read from.

    Raises:
        OSError: there is no such directory.
    """
    opened = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """Yield a name for a socket's path that is short enough for the kernel, however long the path is (unix(7): 107 bytes).

    Raises:
        OSError: there is no such directory.
    """
    with directory(path.parent) as parent:
        yield f"/proc/self/fd/{parent}/{path.name}"
