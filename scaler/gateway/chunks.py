"""The chunks of an answer (RFC 9112, section 7.1), as far as they are whole and of the usual size. PURE: bytes in, bytes out.

For streams of events, of which nearly every one is a chunk of its own. Whatever else comes (the last chunk's mark, a chunk
that is large or in many pieces, or broken framing) is handed to whoever reads answers of all kinds.
"""

import re
from typing import Final

MOST_HELD: Final = 16 * 1024
"""Bytes of a chunk that isn't whole yet, at most."""
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d)\d\d\b")
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r", re.IGNORECASE)


class Chunks:
    """What the chunks of one answer carry, from a boundary between two of them on.

    Attributes:
        given: bytes that they have carried so far.
        over: what came and is another reader's, from a boundary on; once there is any, nothing more may be fed. Empty: nothing.
    """

    __slots__ = ("_held", "given", "over")

    def __init__(self) -> None:
        self.given = 0
        self.over = b""
        self._held = b""

    @property
    def between(self) -> bool:
        """Whether all that came were whole chunks."""
        return not self._held and not self.over

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, and return what the chunks carry that are whole now."""
        if self._held:
            data = self._held + data
        elif (size := _SIZE.match(data)) is not None:
            begin = size.end()
            end = begin + int(size[1], 16)
            if begin < end == len(data) - 2 and data.endswith(b"\r\n"):  # one chunk, as nearly all that comes
                self.given += end - begin
                return data[begin:end]
        return self._fed(data)

    def _fed(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        at, there = 0, len(data)
        while size := _SIZE.match(data, at):
            begin = size.end()
            end = begin + int(size[1], 16)
            if there < end + 2:
                break
            if begin == end or data[end : end + 2] != b"\r\n":
                self.over = data[at:]
                break
            parts.append(data[begin:end])
            at = end + 2
        self._held = data[at:] if not self.over else b""
        if self._held and (len(self._held) > MOST_HELD or _hopeless(self._held)):
            self.over, self._held = self._held, b""
        carried = parts[0] if len(parts) == 1 else b"".join(parts)
        self.given += len(carried)
        return carried

    def partial(self) -> bytes:
        """Return what has come of a chunk that isn't whole, and never will be."""
        size = _SIZE.match(self._held)
        return self._held[size.end() :][: int(size[1], 16)] if size is not None else b""


def _hopeless(held: bytes) -> bool:
    """Whether what is held will never become a chunk that carries anything."""
    line = held.partition(b"\r\n")[0]
    return b"\r\n" in held and (_SIZE.match(held) is None or not line.partition(b";")[0].strip(b"0 \t"))


def begun(raw: bytes) -> Chunks | None:
    """Return the chunks of an answer of which this has come; None if it has none, or its head isn't here."""
    at, head, informs = 0, b"", True
    while informs:
        end = raw.find(b"\r\n\r\n", at)
        status = _STATUS.match(raw, at)
        if end < 0 or status is None:
            return None
        head, at, informs = raw[at : end + 2], end + 4, status[1] == b"1"
    if not _CHUNKED.search(head):
        return None
    chunks = Chunks()
    chunks.feed(raw[at:])
    return chunks
