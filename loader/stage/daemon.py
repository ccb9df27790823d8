"""The stage daemon's server: one thread per connection, which is its client's lease.

A few threads wait for the next connections, so that an engine that attaches doesn't wait for one to be started.

Who may connect is decided by the kernel's word on the peer (SO_PEERCRED), whatever the socket's file mode. Requests:

- ``{"op": "take", "path": …}``: lease a checkpoint, staging it first. Answer ``{"ok": true, "files": n, "proven": …}``, then per
  shard ``{"file": …, "size": …, "mtimeNs": …, "device": …, "inode": …}`` with the descriptor of its sealed memory.
- ``{"op": "copy", "path": …, "moves": [[file, begin, bytes, offset], …]}`` with a descriptor of the client's memory: copy there. With
  ``"device"`` (its UUID) and ``"size"`` the descriptor is one of device memory; with ``"from"`` as well, a device's UUID, the bytes come out of
  the copy that is held there, and not from host memory.
- ``{"op": "drop", "path": …}``: let go of what is in host memory.
- ``{"op": "hold", "path": …, "device": …}``: copy a checkpoint into device memory of the daemon's own; the answer is its row of `held`.
  ``release`` gives that memory back, ``verify`` digests it once more.
- ``{"op": "attach", "path": …, "device": …}``: answer ``{"ok": true, "device": …, "size": …, "layout": …, "shards": [[file, size, mtimeNs, device,
  inode, base], …]}`` with the descriptor of such a copy. The client maps it; closing the connection says that it has unmapped it.
- ``{"op": "list"}``, ``held`` and ``devices``: a row per message, each with ``"more": true``, and one with ``"more": false`` behind them.
"""

import fcntl
import itertools
import logging
import os
import socket
import stat
import struct
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Condition, Event, Thread, current_thread

from loader.copiers.destinations import memory_of
from loader.errors import DestinationMismatch, DeviceUnavailable, LoaderError, LoadError, StageUnreachable
from loader.stage import wire
from loader.stage.device import DeviceTarget, check_moves
from loader.stage.holder import Held, Holder, Peer
from loader.stage.layout import LAYOUT, Move
from loader.stage.pool import Pool, Staged

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
_IDLE_THREADS = 4
"""Threads that wait for connections, where there are fewer than MAX_CONNECTIONS."""
_PAUSE_SECONDS = 0.1
"""Before connections are accepted again after that has failed."""
_COPY_THREADS = 4
_COPY_BYTES = 16 * 2**20
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BACKLOG = 64


class Daemon:
    """Serves a pool.

    Args:
        pool: what is served.
        path: the Unix socket.
        users: ids of users who may connect, besides the daemon's own and root.
        holder: holds copies on devices, and has the devices; None where the daemon shall make no context on any.
    """

    def __init__(
        self,
        pool: Pool,
        path: Path,
        users: frozenset[int] = frozenset(),
        holder: Holder | None = None,
    ) -> None:
        self._pool = pool
        self._holder = holder
        self._users = users | {0, os.geteuid()}
        self._path = path
        self._numbers = itertools.count(1)
        self._connections: dict[int, socket.socket] = {}
        self._changed = Condition()
        self._threads: set[Thread] = set()
        self._idle = 0
        self._closed = Event()
        self._guard = _only_one(path)
        try:
            self._listener = _listen(path, others=bool(users))
        except StageUnreachable:
            os.close(self._guard)
            raise

    def serve(self) -> None:
        """Answer until `close` is called."""
        with self._changed:
            while not self._closed.is_set():
                while self._idle < _IDLE_THREADS and len(self._threads) < MAX_CONNECTIONS:
                    thread = Thread(target=self._work, name="loader-stage")
                    thread.start()
                    self._threads.add(thread)
                    self._idle += 1
                self._changed.wait()

    def close(self) -> None:
        """Stop answering, let go of all memory, and remove the socket. Any thread may call it."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._changed:
            self._changed.notify_all()
            for connection in self._connections.values():
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        self._pool.close()
        for thread in threads:
            thread.join()
        if self._holder is not None:
            self._holder.close()
        self._listener.close()
        if self._path.is_socket():  # whatever else somebody has put there is his
            self._path.unlink()
        os.close(self._guard)

    def _work(self) -> None:
        """Answer one connection after the other, for as long as threads are wanted."""
        try:
            while self._accept_one():
                pass
        finally:
            with self._changed:
                self._threads.discard(current_thread())
                self._changed.notify()

    def _accept_one(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it was closed; or there are no descriptors left for now
            return not self._closed.wait(_PAUSE_SECONDS)
        with self._changed:
            self._idle -= 1
            if not self._idle:
                self._changed.notify()
        self._answer(connection, next(self._numbers))
        with self._changed:
            if self._idle >= _IDLE_THREADS:
                return False
            self._idle += 1
        return True

    def _answer(self, connection: socket.socket, number: int) -> None:
        try:
            with connection, self._known(connection, number):
                peer = _peer_of(connection, number)
                if self._closed.is_set() or not self._may(connection, peer):
                    return
                with suppress(StageUnreachable):
                    while True:
                        self._answer_one(connection, peer)
        finally:
            self._pool.release(number)
            if self._holder is not None:
                self._holder.detach(number)

    @contextmanager
    def _known(self, connection: socket.socket, number: int) -> Iterator[None]:
        with self._changed:
            self._connections[number] = connection
        try:
            yield
        finally:
            with self._changed:
                del self._connections[number]

    def _may(self, connection: socket.socket, peer: Peer) -> bool:
        if peer.user in self._users:
            return True
        refusal = StageUnreachable(
            f"user {peer.user} may not use this stage daemon",
            hint="start it with --allow-user for that user",
        )
        with suppress(StageUnreachable):
            wire.send(connection, wire.failure(refusal))
        return False

    def _answer_one(self, connection: socket.socket, peer: Peer) -> None:
        request, descriptor = wire.receive(connection)
        try:
            self._carry_out(connection, request, descriptor, peer)
        except StageUnreachable:
            raise
        except LoaderError as error:
            wire.send(connection, wire.failure(error))
        except Exception as error:  # noqa: BLE001 - told to the client, and to the log
            # Such as torch's own errors of a device that has failed; others are still answered. Logged as text, since a record
            # that keeps the error would keep the memory that it concerns.
            _log.error("a request failed:\n%s", traceback.format_exc())
            what = f"the stage daemon failed: {error}"
            wire.send(connection, wire.failure(LoadError(what, hint="see its log; start it again")))
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _carry_out(
        self, connection: socket.socket, request: dict[str, object], descriptor: int | None, peer: Peer
    ) -> None:
        match request:
            case {"op": "take", "path": str(path)}:
                with closing(self._pool.take(path, peer.connection)) as staged:
                    _give(connection, staged)
            case {"op": "copy", "path": str(path), "from": str(sibling)} if descriptor is not None:
                copied = self._copy_held((path, sibling), descriptor, request)
                wire.send(connection, {"ok": True, "bytes": copied})
            case {"op": "copy", "path": str(path)} if descriptor is not None:
                moves = _moves(request.get("moves"))
                with closing(self._pool.take(path, peer.connection)) as staged:
                    copied = self._copy(staged, moves, descriptor, request)
                wire.send(connection, {"ok": True, "bytes": copied})
            case {"op": "drop", "path": str(path)}:
                wire.send(connection, {"ok": True, "dropped": self._pool.drop(path)})
            case {"op": "list"}:
                wire.send_rows(connection, [asdict(status) for status in self._pool.statuses()])
            case {"op": "held" | "devices" as what}:
                wire.send_rows(connection, self._rows(what))
            case {
                "op": "hold" | "release" | "verify" | "attach" as what,
                "path": str(path),
                "device": str(device),
            }:
                self._carry_out_held(connection, what, (path, device), peer)
            case _:
                raise LoadError(
                    f"there is no request {request.get('op')!r} of this form", hint="use loader.stage.client"
                )

    def _carry_out_held(
        self, connection: socket.socket, what: str, where: tuple[str, str], peer: Peer
    ) -> None:
        holder = self._require_holder()
        match what:
            case "hold":
                wire.send(connection, {"ok": True} | asdict(holder.hold(*where)))
            case "release":
                wire.send(connection, {"ok": True, "bytes": holder.release(*where)})
            case "verify":
                wire.send(connection, {"ok": True, "seconds": holder.verify(*where)})
            case _:
                _hand_over(connection, holder.attach(*where, peer))

    def _copy_held(self, where: tuple[str, str], target: int, request: dict[str, object]) -> int:
        holder = self._require_holder()
        match request.get("device"), request.get("size"):
            case str(uuid), int(size):
                into = DeviceTarget(descriptor=target, nbytes=size, uuid=uuid)
                return holder.copy(*where, _moves(request.get("moves")), into)
            case _:
                raise DestinationMismatch("what is held is copied to a device, whose memory has a size")

    def _require_holder(self) -> Holder:
        if self._holder is None:
            raise DeviceUnavailable(
                "this stage daemon holds nothing on any device", hint="start it with --cuda"
            )
        return self._holder

    def _rows(self, what: str) -> list[dict[str, object]]:
        if self._holder is None:
            return []
        if what == "held":
            return [asdict(status) for status in self._holder.statuses()]
        rows: list[dict[str, object]] = []
        for each in self._holder.devices.opened:
            held, budget = self._holder.held_bytes(each.device.uuid)
            rows.append(
                {
                    "device": each.device.uuid,
                    "ordinal": each.ordinal,
                    "context_bytes": each.context.nbytes,
                    "context_basis": each.context.basis,
                    "held_bytes": held,
                    "budget_bytes": budget,
                }
            )
        return rows

    def _copy(self, staged: Staged, moves: list[Move], target: int, request: dict[str, object]) -> int:
        match request.get("device"), request.get("size"):
            case None, None:
                return _copy_to_host(staged, moves, target)
            case str(uuid), int(size) if self._holder is not None:
                _check_moves(staged, moves, size)
                return self._holder.devices.copy(
                    staged, moves, DeviceTarget(descriptor=target, nbytes=size, uuid=uuid)
                )
            case _ if self._holder is None:
                raise DeviceUnavailable(
                    "this stage daemon copies to no device",
                    hint="start it with --cuda, or load from its memory",
                )
            case _:
                raise DestinationMismatch("a device and the size of its memory belong together")


def _peer_of(connection: socket.socket, number: int) -> Peer:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(raw)
    return Peer(connection=number, process=process, user=user)


def _hand_over(connection: socket.socket, held: Held) -> None:
    about: dict[str, object] = {
        "ok": True,
        "device": held.device.uuid,
        "size": held.memory.nbytes,
        "layout": LAYOUT,
        "shards": [
            [file, each.size_bytes, each.mtime_ns, each.device, each.inode, held.bases[file]]
            for file, each in held.checkpoint.identities.items()
        ],
    }
    wire.send(connection, about, held.descriptor)


def _give(connection: socket.socket, staged: Staged) -> None:
    wire.send(connection, {"ok": True, "files": len(staged.shards), "proven": staged.proven})
    for shard in staged.shards:
        about = shard.identity
        wire.send(
            connection,
            {
                "file": shard.file,
                "size": about.size_bytes,
                "mtimeNs": about.mtime_ns,
                "device": about.device,
                "inode": about.inode,
            },
            shard.descriptor,
        )


def _moves(value: object) -> list[Move]:
    if not isinstance(value, list):
        raise DestinationMismatch("moves are no list")
    moves: list[Move] = []
    for item in value:
        match item:
            case [str(file), int(begin), int(nbytes), int(offset)] if min(begin, nbytes, offset) >= 0:
                moves.append((file, begin, nbytes, offset))
            case _:
                raise DestinationMismatch("a move is no file, begin, length and offset")
    return moves


def _check_moves(staged: Staged, moves: list[Move], size: int) -> None:
    """See that every range is inside its shard and inside a target of this size."""
    check_moves({shard.file: shard.identity.size_bytes for shard in staged.shards}, moves, size)


def _copy_to_host(staged: Staged, moves: list[Move], target: int) -> int:
    """Copy ranges of shards into a client's memory, which is as large as it is."""
    about = os.fstat(target)
    if not stat.S_ISREG(about.st_mode) or fcntl.fcntl(target, fcntl.F_GETFL) & os.O_APPEND:
        raise DestinationMismatch("what was handed over is no memory")
    _check_moves(staged, moves, about.st_size)
    memory = {shard.file: memory_of(shard.data) for shard in staged.shards}
    pieces = [
        (memory[file][begin + start : begin + min(start + _COPY_BYTES, nbytes)], offset + start)
        for file, begin, nbytes, offset in moves
        for start in range(0, nbytes, _COPY_BYTES)
    ]
    with ThreadPoolExecutor(_COPY_THREADS, thread_name_prefix="loader-stage-copy") as threads:
        try:
            return sum(threads.map(lambda piece: _write(target, *piece), pieces))
        except OSError as error:
            raise LoadError(f"the memory handed over can't be written to: {error.strerror}") from error


def _write(target: int, data: memoryview, offset: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(target, data[done:], offset + done)
    return done


def _only_one(path: Path) -> int:
    """Hold a lock beside the socket, which goes with the process, so that a second daemon finds out at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _no_socket(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StageUnreachable(
            "a stage daemon serves this socket already", file=str(path), hint="use another --socket"
        ) from None
    return descriptor


def _listen(path: Path, *, others: bool) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            path.unlink()  # of a daemon that was killed: the lock says that there is none
        listener.bind(str(path))
        path.chmod(0o666 if others else 0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _no_socket(path, error) from error
    return listener


def _no_socket(path: Path, error: OSError) -> StageUnreachable:
    return StageUnreachable(
        f"the socket can't be made: {error.strerror or error}", file=str(path), hint="use another --socket"
    )
