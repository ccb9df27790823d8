"""Messages between daemon and client: JSON documents of bounded size, each with at most one descriptor.

A message is its length (4 bytes, big-endian) and a JSON object. A descriptor travels with the length. Requests have an `op`;
answers have `ok`, and on failure `type`, `message`, `file` and `hint` of the error, with the `reasons` or `tensors` of those that have them.
"""

import array
import json
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loader import errors
from loader.errors import LoaderError, StageUnreachable

DEFAULT_SOCKET = Path("/run/emberpool/stage.sock")
MAX_MESSAGE_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")
_LISTS = ("reasons", "tensors")
"""Fields of errors that tell more than text."""
_DESCRIPTOR_BYTES = array.array("i").itemsize


def send(connection: socket.socket, document: dict[str, object], descriptor: int | None = None) -> None:
    """Send a message.

    Raises:
        StageUnreachable: the other side is gone.
    """
    body = json.dumps(document).encode()
    message = _LENGTH.pack(len(body)) + body
    rights = [] if descriptor is None else [descriptor]
    try:
        # In one call, so that the other side is woken once.
        sent = socket.send_fds(connection, [message], rights)
        if sent < len(message):
            connection.sendall(message[sent:])
    except OSError as error:
        raise _gone(error) from error


def send_rows(connection: socket.socket, rows: Iterable[dict[str, object]]) -> None:
    """Send answers of which nobody knows how many there are.

    Raises:
        StageUnreachable: the other side is gone.
    """
    for row in rows:
        send(connection, {"ok": True, "more": True} | row)
    send(connection, {"ok": True, "more": False})


def receive(connection: socket.socket) -> tuple[dict[str, object], int | None]:
    """The next message, and the descriptor that came with it, which is the caller's to close.

    Raises:
        StageUnreachable: the other side is gone, or doesn't speak this protocol.
    """
    prefix, descriptor = _receive_prefix(connection)
    try:
        (length,) = _LENGTH.unpack(prefix)
        if length > MAX_MESSAGE_BYTES:
            raise StageUnreachable(f"a message of {length} bytes is over the cap of {MAX_MESSAGE_BYTES}")
        document = json.loads(_receive_exactly(connection, length))
        if type(document) is not dict:
            raise StageUnreachable("a message is no JSON object")
    except (ValueError, RecursionError) as error:
        _close(descriptor)
        raise StageUnreachable(f"a message is no JSON: {error}") from None
    except StageUnreachable:
        _close(descriptor)
        raise
    return document, descriptor


def failure(error: LoaderError) -> dict[str, object]:
    """The answer that stands for an error."""
    fields: dict[str, object] = {"message": error.what, "file": error.file, "hint": error.hint}
    lists = {name: list(getattr(error, name)) for name in _LISTS if hasattr(error, name)}
    return {"ok": False, "type": type(error).__name__, **fields, **lists}


def raised(answer: dict[str, object]) -> LoaderError:
    """The error that an answer stands for."""
    kind = getattr(errors, str(answer.get("type")), None)
    what, file, hint = (str(answer.get(key) or "") for key in ("message", "file", "hint"))
    if not what:
        return StageUnreachable(
            "what answers at the socket is no stage daemon",
            hint="see which socket is named, and who listens there",
        )
    if isinstance(kind, type) and issubclass(kind, LoaderError):
        lists: dict[str, Any] = {
            name: tuple(map(str, value)) for name in _LISTS if isinstance(value := answer.get(name), list)
        }
        try:
            return kind(what, file=file, hint=hint, **lists)
        except TypeError:
            pass  # an error that carries more than these fields comes through as what it says
    return errors.LoadError(what, file=file, hint=hint)


def _receive_prefix(connection: socket.socket) -> tuple[bytes, int | None]:
    try:
        prefix, ancillary, _, _ = connection.recvmsg(
            _LENGTH.size, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC
        )
    except OSError as error:
        raise _gone(error) from error
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    for extra in descriptors[1:]:
        os.close(extra)
    descriptor = descriptors[0] if descriptors else None
    try:
        prefix += _receive_exactly(connection, _LENGTH.size - len(prefix)) if prefix else b""
    except StageUnreachable:
        _close(descriptor)
        raise
    if not prefix:
        raise StageUnreachable("the other side has closed the connection")
    return prefix, descriptor


def _receive_exactly(connection: socket.socket, nbytes: int) -> bytes:
    parts = []
    while nbytes:
        try:
            part = connection.recv(nbytes)
        except OSError as error:
            raise _gone(error) from error
        if not part:
            raise StageUnreachable("the other side has closed the connection")
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)


def _gone(error: OSError) -> StageUnreachable:
    return StageUnreachable(
        f"the connection to the stage daemon broke: {error.strerror or error}",
        hint="see the daemon's log; one that doesn't serve this user hangs up (`--allow-user`)",
    )


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
