"""A connection to the stage daemon, for whoever asks it something; needs no torch.

`loader.stage.client` makes tensors of what it gives.
"""

import os
import select
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from loader.checkpoint import FileIdentity
from loader.errors import LoadError, StageUnreachable
from loader.stage import wire
from loader.stage.layout import Move
from loader.stage.wire import DEFAULT_SOCKET

MAX_MOVES = 4096
"""Ranges of one copy request; more are sent in several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What the daemon takes of a device's memory, which engines on it can't have.

    Attributes:
        device: the device's id, in hexadecimal.
        ordinal: its number as the daemon counts.
        context_bytes: what the daemon's own context takes for as long as the daemon lives; None if that couldn't be measured.
        context_basis: how that was found, as `loader.cuda.nvml.Basis`.
        held_bytes: what held copies take, with those on their way. Engines that attach to one take nothing for it themselves.
        budget_bytes: the most that held copies may take.
    """

    device: str
    ordinal: int
    context_bytes: int | None
    context_basis: str
    held_bytes: int
    budget_bytes: int

    @property
    def taken_bytes(self) -> int:
        """All that it takes now, as far as is known."""
        return (self.context_bytes or 0) + self.held_bytes


class StageClient:
    """A connection to the stage daemon, and the lease on all that was taken through it until it is closed.

    For one thread at a time. A context manager.

    Args:
        path: the daemon's socket.
        timeout_seconds: how long to wait for each step of an answer; None for as long as it takes, since staging takes long.

    Raises:
        StageUnreachable: there is no daemon at the socket, or it refuses this user.
    """

    def __init__(self, path: Path = DEFAULT_SOCKET, *, timeout_seconds: float | None = None) -> None:
        self._path = path
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(timeout_seconds)
        try:
            self._connection.connect(str(path))
        except OSError as error:
            self._connection.close()
            raise StageUnreachable(
                f"no stage daemon answers: {error.strerror or error}",
                file=str(path),
                hint="start one: `python -m loader stage run CHECKPOINT --budget GB --socket SOCKET`",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lease. Memory that is mapped stays."""
        self._connection.close()

    def take(self, path: str) -> dict[str, tuple[int, FileIdentity]]:
        """Descriptors of a checkpoint's shards in memory, by file, each with the file that it was read from.

        The checkpoint is staged first where it isn't; that takes as long as reading it. The descriptors are the caller's
        to close.

        Raises:
            LoaderError: the daemon can't stage it.
            StageUnreachable: the daemon is gone.
        """
        self.order(path)
        return self.taken()

    def order(self, path: str) -> None:
        """Ask for a checkpoint as `take` does, without waiting: `taken` has the answer, and nothing else may be asked until then.

        What is being read meanwhile is leased for this connection, so that it can't go before the answer has been heard.

        Raises:
            StageUnreachable: the daemon is gone.
        """
        wire.send(self._connection, {"op": "take", "path": path})

    def answers(self, seconds: float) -> bool:
        """Wait until what was ordered can be had, or can't; whether that came within so many seconds."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def taken(self) -> dict[str, tuple[int, FileIdentity]]:
        """The answer to `order`, as `take` returns it.

        Raises:
            LoaderError: the daemon can't stage it.
            StageUnreachable: the daemon is gone.
        """
        answer = self._answer()
        with ExitStack() as undo:
            shards: dict[str, tuple[int, FileIdentity]] = {}
            for _ in range(whole_number(answer, "files")):
                about, descriptor = wire.receive(self._connection)
                if descriptor is None:
                    raise StageUnreachable("the daemon sent no descriptor", file=str(self._path))
                undo.callback(os.close, descriptor)
                identity = FileIdentity(
                    size_bytes=whole_number(about, "size"),
                    mtime_ns=whole_number(about, "mtimeNs"),
                    device=whole_number(about, "device"),
                    inode=whole_number(about, "inode"),
                )
                shards[str(about.get("file"))] = (descriptor, identity)
            undo.pop_all()
        return shards

    def copy(
        self,
        path: str,
        moves: list[Move],
        target: int,
        on: tuple[str, int] | None = None,
        *,
        sibling: str | None = None,
    ) -> int:
        """Have ranges copied into memory of this process; the bytes copied.

        Args:
            path: the checkpoint.
            moves: which ranges, and where they go.
            target: a memory file or shared memory, large enough and writable, or a descriptor of device memory.
            on: of device memory its device's UUID and its size.
            sibling: UUID of the device whose held copy the bytes come from; the daemon's host memory if left out.

        Raises:
            NotHeld: there is no such copy.
            DeviceUnavailable: no direct link leads from there to the target's device.
            DestinationMismatch: a range doesn't fit.
            LoaderError: the daemon can't stage the checkpoint.
            StageUnreachable: the daemon is gone.
        """
        copied = 0
        where: dict[str, object] = {"device": on[0], "size": on[1]} if on else {}
        if sibling is not None:
            where["from"] = sibling
        for start in range(0, len(moves), MAX_MOVES):
            part = [list(move) for move in moves[start : start + MAX_MOVES]]
            request = {"op": "copy", "path": path, "moves": part} | where
            copied += whole_number(self._ask(request, target), "bytes")
        return copied

    def statuses(self) -> list[dict[str, object]]:
        """All checkpoints that the daemon has in host memory or is reading, with the fields of `loader.stage.pool.Status`."""
        return self._rows("list")

    def held(self) -> list[dict[str, object]]:
        """All copies that it holds in device memory or is making, with the fields of `loader.stage.holder.HeldStatus`."""
        return self._rows("held")

    def devices(self) -> list[DeviceUse]:
        """Its devices, and what it takes of their memory; none where it was started without --cuda."""
        return [_device_use(row) for row in self._rows("devices")]

    def drop(self, path: str) -> bool:
        """Have a checkpoint dropped that nobody leases; whether it was."""
        return self._ask({"op": "drop", "path": path}).get("dropped") is True

    def hold(self, path: str, device: str) -> dict[str, object]:
        """Have a checkpoint copied into device memory of the daemon's own, where it isn't yet; what is held, as in `held`.

        It stays until it is released, or the daemon ends. That takes as long as reading it, copying it and digesting it.

        Args:
            path: the checkpoint.
            device: its id, or its number at the daemon.

        Raises:
            DeviceUnavailable: the daemon has no such device.
            StageFull: a budget of the daemon has no room for it.
            LoadRefused: the device has no room for it.
            HeldInUse: its files have changed, and engines are attached to the copy of what they were.
            DigestMismatch: it didn't land as it is in host memory, or isn't what its manifest says.
            LoaderError: the daemon can't stage it.
        """
        row = self._ask({"op": "hold", "path": path, "device": device})
        del row["ok"]
        return row

    def release(self, path: str, device: str) -> int:
        """Have a copy's memory given back to the device; how much that is, in bytes.

        Raises:
            NotHeld: there is no copy.
            HeldInUse: engines are attached to it.
        """
        return whole_number(self._ask({"op": "release", "path": path, "device": device}), "bytes")

    def verify(self, path: str, device: str) -> float:
        """Have a copy digested once more where it lies; the time that it took, in seconds.

        Raises:
            NotHeld: there is no copy.
            DigestMismatch: it isn't any more what was copied.
        """
        seconds = self._ask({"op": "verify", "path": path, "device": device}).get("seconds")
        return float(seconds) if isinstance(seconds, int | float) else 0.0

    def attach(self, path: str, device: str) -> tuple[dict[str, object], int]:
        """What the daemon says of a copy, and the descriptor that stands for it, which is the caller's to close.

        The daemon keeps the copy until this connection is closed.

        Raises:
            NotHeld: there is no copy.
        """
        wire.send(self._connection, {"op": "attach", "path": path, "device": device})
        answer, descriptor = wire.receive(self._connection)
        if answer.get("ok") is True and descriptor is not None:
            return answer, descriptor
        if descriptor is not None:
            os.close(descriptor)
        raise wire.raised(answer)

    def _rows(self, what: str) -> list[dict[str, object]]:
        found = []
        answer = self._ask({"op": what})
        while answer.get("more"):
            found.append({key: value for key, value in answer.items() if key not in {"ok", "more"}})
            answer = self._answer()
        return found

    def _ask(self, request: dict[str, object], descriptor: int | None = None) -> dict[str, object]:
        wire.send(self._connection, request, descriptor)
        return self._answer()

    def _answer(self) -> dict[str, object]:
        answer, descriptor = wire.receive(self._connection)
        if descriptor is not None:
            os.close(descriptor)
        if answer.get("ok") is not True:
            raise wire.raised(answer)
        return answer


def _device_use(row: Mapping[str, object]) -> DeviceUse:
    return DeviceUse(
        device=str(row.get("device")),
        ordinal=whole_number(row, "ordinal"),
        context_bytes=None if row.get("context_bytes") is None else whole_number(row, "context_bytes"),
        context_basis=str(row.get("context_basis")),
        held_bytes=whole_number(row, "held_bytes"),
        budget_bytes=whole_number(row, "budget_bytes"),
    )


def whole_number(document: Mapping[str, object], key: str) -> int:
    """A number of an answer.

    Raises:
        LoadError: there is none; the daemon speaks another version of the protocol.
    """
    value = document.get(key)
    if type(value) is not int:
        raise LoadError(f"the stage daemon's answer has no number {key}", hint="use the same version of both")
    return value
