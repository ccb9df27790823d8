"""The process that reads policy files for a running controller: `python -m scaler.runtime.policy_reader PATH…`.

A file system may hang, and checking 500 policies takes seconds of a processor. In a thread of the controller the first
would cost a thread for good, and the second would share the interpreter's lock with the loop, which has milliseconds to
promote (`scaler.runtime.bench.reload` measures both ways). Here both are somebody else's, and what has been read once is
kept, so that a change of one file costs that file.

It answers one request of `scaler.runtime.policy_exchange` at a time, and ends when its standard input does: with its
parent, however that dies.
"""

import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from scaler.errors import PolicyError
from scaler.policy.compile import PolicySet
from scaler.policy.files import told_and_more
from scaler.policy.reading import PolicyFiles, PolicyTexts, Reading, Signature
from scaler.runtime.policy_exchange import LENGTH, MOST_FAULTS, Answer, Handed, Piece, frame, pieces_of

_NICENESS = 5
"""On a machine that is busy the controller and its engines come first."""


class Watch:
    """Looks at the files when asked to, or takes what it is given, and remembers what it has seen.

    Args:
        files: the files.
    """

    def __init__(self, files: PolicyFiles) -> None:
        self._files = files
        self._texts = PolicyTexts()
        self._seen: Signature | None = None
        self._read: Signature | None = None
        self._sets: dict[str, PolicySet] = {}

    def look(self, in_force: str) -> tuple[Answer, Sequence[Piece]]:
        """Read if something has changed since the last reading and not since the last look.

        Files that change from look to look are being written: half of a checkout or of a save can be a set that nobody
        meant, with policies missing.
        """
        before, self._seen = self._seen, self._files.signature()
        if self._seen == self._read or self._seen != before:
            return Answer(), ()
        return self.read(in_force)

    def read(self, in_force: str) -> tuple[Answer, Sequence[Piece]]:
        """Read now.

        Args:
            in_force: hash of the set in force; that one isn't handed over again.

        Returns:
            The answer, and the pieces of the set if it is another one than that in force.
        """
        self._seen = self._read = self._files.signature()
        return self._answer(in_force, self._files.read)

    def take(self, in_force: str, handed: Handed) -> tuple[Answer, Sequence[Piece]]:
        """Read what is handed over, as `read`."""
        return self._answer(in_force, lambda: self._texts.read(handed.place, handed.texts))

    def _answer(self, in_force: str, read: Callable[[], Reading]) -> tuple[Answer, Sequence[Piece]]:
        try:
            reading = read()
        except PolicyError as error:
            faults, more = told_and_more(error.faults)
            told = faults[:MOST_FAULTS]
            return Answer(read=True, faults=told, more_faults=len(faults) - len(told) + more), ()
        new, old = reading.set, self._sets.get(in_force)
        new.calendar.at(time.time(), 0.0)  # works out every schedule's next moment, so that no tick has to
        self._sets = {known.hash: known for known in (old, new) if known is not None}
        pieces = () if new.hash == in_force else pieces_of(new, old)
        answer = Answer(
            read=True,
            hash=new.hash,
            files=reading.files,
            places=reading.places,
            pieces=len(pieces),
        )
        return answer, pieces


def serve(watch: Watch, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the requests end."""
    while line := requests.readline():
        verb, _, in_force = line.decode("ascii").strip().partition(" ")
        match verb:
            case "take":
                answer, pieces = watch.take(in_force, _handed(requests))
            case "read":
                answer, pieces = watch.read(in_force)
            case _:
                answer, pieces = watch.look(in_force)
        answers.write(frame(answer))
        answers.writelines(frame(piece) for piece in pieces)
        answers.flush()


def _handed(requests: BinaryIO) -> Handed:
    """Read the frame behind a request. It comes from our own parent, so it may be unpickled."""
    (length,) = LENGTH.unpack(requests.read(LENGTH.size))
    handed: Handed = pickle.loads(requests.read(length))  # noqa: S301
    return handed


def main(arguments: Sequence[str]) -> int:
    """Answer requests on standard input until that ends."""
    os.nice(_NICENESS)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints must not break a frame
    serve(Watch(PolicyFiles(map(Path, arguments))), sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
